"""What weighted texts and points between two of them mean to the model."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from streamgen.embeds import blended, mixed
from streamgen.text import SMALLEST_SHARE, TextBlend, TextMix, as_mix

RED, BLUE = TextMix.of("red"), TextMix.of("blue")


def embeds(seed: int) -> Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))


def test_a_mix_is_the_weighted_sum() -> None:
    both = torch.stack([embeds(0), embeds(1)])
    torch.testing.assert_close(mixed(both, (0.25, 0.75)), 0.25 * both[0] + 0.75 * both[1])


@pytest.mark.parametrize("curve", ["lerp", "slerp"])
def test_a_blend_begins_and_ends_with_its_texts(curve: str) -> None:
    start, end = embeds(0), 3 * embeds(1)
    torch.testing.assert_close(blended(start, end, 0.0, curve), start)
    torch.testing.assert_close(blended(start, end, 1.0, curve), end)


def test_lerp_is_the_straight_line() -> None:
    start, end = embeds(0), embeds(1)
    torch.testing.assert_close(blended(start, end, 0.3, "lerp"), 0.7 * start + 0.3 * end)


def test_slerp_turns_at_an_even_pace_and_grows_evenly() -> None:
    """Each token by itself: angles and lengths between two points in a row are all the same."""
    start, end = embeds(0), 2 * embeds(1)
    points = [blended(start, end, n / 4, "slerp") for n in range(5)]
    angles = [torch.cosine_similarity(a, b, -1).arccos() for a, b in pairwise(points)]
    whole = torch.cosine_similarity(start, end, -1).arccos()
    for angle in angles:
        torch.testing.assert_close(angle, whole / 4, atol=1e-3, rtol=1e-3)
    lengths = torch.stack([point.norm(dim=-1) for point in points])
    torch.testing.assert_close(lengths.diff(dim=0), (lengths[-1] - lengths[0]).expand(4, -1) / 4)


@pytest.mark.parametrize(
    "end", [torch.zeros(5, 8), embeds(0), -embeds(0), 2 * embeds(0), -0.5 * embeds(0)]
)
def test_slerp_is_a_line_where_there_is_no_arc(end: Tensor) -> None:
    """A token of zeros has no direction; parallel and opposite ones have no plane to turn in."""
    start = embeds(0)
    for at in (0.0, 0.3, 0.5, 1.0):
        torch.testing.assert_close(blended(start, end, at, "slerp"), torch.lerp(start, end, at))


def test_a_single_text_and_a_mix_read_well_in_a_log() -> None:
    assert str(RED) == "red"
    assert str(TextMix((("red", 0.25), ("blue", 0.75)))) == "0.25 x red + 0.75 x blue"
    assert str(TextBlend(RED, BLUE, 0.5, "lerp")) == "red → blue (50%)"


def test_a_blend_is_near_the_mix_of_its_shares() -> None:
    assert as_mix(RED) is RED
    assert as_mix(TextBlend(RED, BLUE, 0.25, "slerp")) == TextMix((("red", 0.75), ("blue", 0.25)))
    mix = TextMix((("red", 0.5), ("green", 0.5)))
    parts = dict(as_mix(TextBlend(mix, BLUE, 0.5, "lerp")).parts)
    assert parts == {"red": 0.25, "green": 0.25, "blue": 0.5}


def test_a_text_in_both_ends_counts_for_both() -> None:
    mix = TextMix((("red", 0.5), ("blue", 0.5)))
    assert dict(as_mix(TextBlend(mix, RED, 0.5, "lerp")).parts) == {"red": 0.75, "blue": 0.25}


def test_blends_on_blends_stay_short() -> None:
    """A hundred prompts, each while the last one was still taking over."""
    shown = RED
    for n in range(100):
        shown = as_mix(TextBlend(shown, TextMix.of(f"scene {n}"), 0.25, "lerp"))
        weights = [weight for _, weight in shown.parts]
        assert math.isclose(sum(weights), 1.0)
        assert min(weights) >= SMALLEST_SHARE
    assert len(shown.parts) <= 16
