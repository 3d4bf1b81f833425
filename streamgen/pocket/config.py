"""The shapes of the bundled model: configurations of the general DiT and tiny VAE, nothing more."""

from __future__ import annotations

from typing import Final

from streamgen.models.causal_dit import DiTConfig
from streamgen.models.taehv import TAEHVConfig

LATENT_CHANNELS: Final = 12
LATENT_SIZE: Final = 16  # 128 pixels / 8
CHUNK_FRAMES: Final = 3  # latent frames
WINDOW_FRAMES: Final = 9

TEXT_LEN: Final = 6  # one token an attribute of the world
TEXT_DIM: Final = 64

VAE: Final = TAEHVConfig(
    latent_channels=LATENT_CHANNELS, encoder_width=32, decoder_widths=(128, 64, 32, 32)
)
DIT: Final = DiTConfig(
    dim=192,
    ffn_dim=768,
    num_layers=6,
    num_heads=3,
    in_dim=LATENT_CHANNELS,
    out_dim=LATENT_CHANNELS,
    text_dim=TEXT_DIM,
    text_len=TEXT_LEN,
    gelu="none",  # the approximation takes a CPU longer than what it stands for
)
