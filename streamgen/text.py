"""What a chunk is conditioned on: weighted texts, or a point on the way between two such mixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CURVES: Final = ("lerp", "slerp")
_PARALLEL: Final = 1e-3  # radians below which the arc between two embeddings is a line
SMALLEST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class TextMix:
    """Texts and their weights, all above 0, the sum 1."""

    parts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, text: str) -> TextMix:
        """Return a single text."""
        return cls(((text, 1.0),))

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return self.parts[0][0]
        return " + ".join(f"{weight:g} x {text}" for text, weight in self.parts)


@dataclass(frozen=True, slots=True)
class TextBlend:
    """The point `at` (0 to 1) on the way from one mix to another, straight or along the sphere."""

    start: TextMix
    end: TextMix
    at: float
    curve: str

    def __str__(self) -> str:
        return f"{self.start} → {self.end} ({self.at:.0%})"


Text = TextMix | TextBlend


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


def as_mix(text: Text) -> TextMix:
    """Return the mix that is nearest to a text: a blend's two mixes by their shares.

    Shares below a hundredth are dropped, so that blends on blends stay short.
    """
    if isinstance(text, TextMix):
        return text
    weights: dict[str, float] = {}
    for mix, share in ((text.start, 1 - text.at), (text.end, text.at)):
        for part, weight in mix.parts:
            weights[part] = weights.get(part, 0.0) + share * weight
    kept = {part: weight for part, weight in weights.items() if weight >= SMALLEST_SHARE}
    total = sum(kept.values())
    return TextMix(tuple((part, weight / total) for part, weight in kept.items()))
