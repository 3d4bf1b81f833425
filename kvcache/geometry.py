"""How many bytes a cached frame takes, known from configuration before any forward."""

from dataclasses import dataclass
from typing import Final

import torch

from kvcache.errors import GeometryError

SCALE_BYTES: Final = 4  # float32


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Describe the K/V of one model at one resolution.

    `tokens_per_frame` counts the tokens of a latent frame; `page_tokens` must divide it. `dtype` is
    what the model computes in; pages are kept in it, or in 8 bits where `is_quantized`, with a
    scale for each head of a page. Raises GeometryError when a size does not fit or is not positive.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    tokens_per_frame: int
    page_tokens: int
    dtype: torch.dtype
    is_quantized: bool = False

    def __post_init__(self) -> None:
        sizes = {
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "tokens_per_frame": self.tokens_per_frame,
            "page_tokens": self.page_tokens,
        }
        for name, size in sizes.items():
            if size < 1:
                raise GeometryError(f"{name} must be positive, not {size}")
        if self.tokens_per_frame % self.page_tokens:
            raise GeometryError(
                f"page_tokens {self.page_tokens} does not divide "
                f"tokens_per_frame {self.tokens_per_frame}"
            )

    @property
    def pages_per_frame(self) -> int:
        return self.tokens_per_frame // self.page_tokens

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in all layers: 2 * d * L * itemsize, with d = heads * head_dim."""
        return 2 * self.num_heads * self.head_dim * self.num_layers * self.page_dtype.itemsize

    @property
    def page_dtype(self) -> torch.dtype:
        """Return what pages are kept in."""
        return torch.float8_e4m3fn if self.is_quantized else self.dtype

    @property
    def page_bytes(self) -> int:
        scales = 2 * self.num_heads * self.num_layers * SCALE_BYTES if self.is_quantized else 0
        return self.page_tokens * self.bytes_per_token + scales

    @property
    def frame_bytes(self) -> int:
        return self.pages_per_frame * self.page_bytes

    def bytes_for(self, frames: int) -> int:
        """Return the bytes of `frames` latent frames."""
        return frames * self.frame_bytes
