"""Training of the bundled model: text encoder, VAE, DiT; each a resumable command."""
