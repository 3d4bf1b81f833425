"""The weights in the repository obey their prompts; `pocket.evaluate` has the full table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from streamgen import Engine
from streamgen.pocket.detectors import read

KEYS = ("place", "time", "weather", "colour")
PROMPTS = {
    "a red ball rests on the meadow on a clear day": ("meadow", "day", "clear", "red"),
    "at night, in the desert, a yellow star bounces in the rain": (
        "desert", "night", "rain", "yellow",
    ),
    "Purple box drifting over the ocean at sunset, it snows!": ("sea", "sunset", "snow", "purple"),
    "a green heart waits in the snowy field, clear midnight sky": (
        "snowfield", "night", "clear", "green",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("pocket", deterministic=True, threads=1) as engine:
        yield engine


def test_scene_and_colour_are_right(engine: Engine) -> None:
    """Place, time, weather and colour of at least 15 of 16 readings, one object in each."""
    right = 0
    for seed, (prompt, expected) in enumerate(PROMPTS.items()):
        with engine.open(prompt, seed=seed, num_frames=33) as session:
            frames = np.concatenate([chunk.frames for chunk in session])
        seen = read(frames[9:])
        assert seen.count == 1, prompt
        right += sum(seen.values[n] == v for n, v in zip(KEYS, expected, strict=True))
    assert right >= 15


def test_a_switch_shows_within_two_chunks(engine: Engine) -> None:
    with engine.open("a red ball rests on the meadow on a clear day", seed=3) as session:
        for chunk in session:
            if chunk.index == 2:
                session.set_prompt("a blue ball rests on the meadow on a clear day")
            if chunk.index == 4:
                break
        assert read(chunk.frames).values["colour"] == "blue"
