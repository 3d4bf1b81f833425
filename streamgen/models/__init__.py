"""Model code: the causal DiT, the two VAEs, the loader and the preset table."""
