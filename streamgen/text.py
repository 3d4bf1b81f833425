"""What a chunk is conditioned on: weighted texts, or a point on the way between two such mixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CURVES: Final = ("lerp", "slerp")
SMALLEST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class TextMix:
    """Texts and their weights, all above 0, the sum 1."""

    parts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, text: str) -> TextMix:
        """Return a single text."""
        return cls(((text, 1.0),))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts that it is made of."""
        return tuple(text for text, _ in self.parts)

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

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts that it is made of."""
        return self.start.texts + self.end.texts

    def __str__(self) -> str:
        return f"{self.start} → {self.end} ({self.at:.0%})"


Text = TextMix | TextBlend


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
