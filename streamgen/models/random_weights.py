"""Random weights for a large transformer, in the time that it takes to write them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from streamgen.models.causal_dit import CausalDiT, DiTConfig

NOISE_LENGTH: Final = 1_000_003  # a prime: no two rows of a matrix get the same stretch of it


def unfilled_dit(config: DiTConfig) -> CausalDiT:
    """Return a transformer whose weights have no place yet: random ones take half a minute."""
    with torch.device("meta"):
        dit = CausalDiT(config)
    assert not list(dit.buffers()), "a buffer that no file has would be left unfilled"
    return dit


@torch.no_grad()
def random_dit(config: DiTConfig) -> CausalDiT:
    """Return a transformer of weights that keep the size of what they multiply; always the same.

    Drawing 1.4 billion numbers takes a core many times as long as repeating a million.
    """
    dit = unfilled_dit(config).to_empty(device="cpu")
    noise = torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(0))
    for name, parameter in dit.named_parameters():
        if parameter.dim() > 1:
            _repeat(noise * parameter[0].numel() ** -0.5, parameter)
        else:
            nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)
    return dit


def _repeat(noise: Tensor, target: Tensor) -> None:
    flat = target.view(-1)
    for piece in flat.split(len(noise)):
        piece.copy_(noise[: len(piece)])
