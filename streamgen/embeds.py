"""Mixing and blending prompt embeddings."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_PARALLEL: Final = 1e-3  # radians below which the arc between two embeddings is a line


def mixed(embeds: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Return the weighted sum of embeddings `[n, tokens, dim]`."""
    return torch.einsum("n,ntd->td", torch.tensor(weights, dtype=embeds.dtype), embeds)


def blended(start: Tensor, end: Tensor, at: float, curve: str) -> Tensor:
    """Interpolate embeddings `[tokens, dim]`, each token by itself.

    `slerp` turns from one direction to the other at an even pace and interpolates the length
    (Shoemake 1985); where a token is zero or the two are parallel it is the straight line.
    """
    line = torch.lerp(start, end, at)
    if curve == "lerp":
        return line
    lengths = start.norm(dim=-1, keepdim=True), end.norm(dim=-1, keepdim=True)
    cosine = (start * end).sum(-1, keepdim=True) / (lengths[0] * lengths[1]).clamp(min=1e-12)
    angle = cosine.clamp(-1, 1).arccos()
    units = (x / length.clamp(min=1e-12) for x, length in zip((start, end), lengths, strict=True))
    first, second = units
    arc = ((1 - at) * angle).sin() * first + (at * angle).sin() * second
    arc = arc / angle.sin().clamp(min=1e-12) * torch.lerp(*lengths, at)
    straight = (angle < _PARALLEL) | (angle > torch.pi - _PARALLEL) | (lengths[0] * lengths[1] == 0)
    return torch.where(straight, line, arc)
