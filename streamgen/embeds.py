"""Prompt embeddings: which are kept, and how they are mixed and blended."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import torch
from torch import Tensor

KEPT_EMBEDS: Final = 64  # texts whose embeddings are remembered
_PARALLEL: Final = 1e-3  # radians below which the arc between two embeddings is a line


class EmbedCache:
    """The embeddings of the newest texts, and of all that are `needed`, by text."""

    def __init__(self) -> None:
        self.needed: Collection[str] = ()
        self._embeds: dict[str, Tensor] = {}  # the newest is last

    def __contains__(self, text: str) -> bool:
        return text in self._embeds

    def get(self, text: str) -> Tensor | None:
        """Return a text's embeddings `[tokens, dim]`, now the newest, or None."""
        embeds = self._embeds.pop(text, None)
        if embeds is not None:
            self._embeds[text] = embeds
        return embeds

    def put(self, text: str, embeds: Tensor) -> None:
        """Keep a text's embeddings, and let go of the oldest that nobody needs."""
        self._embeds[text] = embeds
        spare = [kept for kept in self._embeds if kept != text and kept not in self.needed]
        for kept in spare[: max(0, len(self._embeds) - KEPT_EMBEDS)]:
            del self._embeds[kept]


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
