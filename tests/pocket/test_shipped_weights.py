"""The weights in the repository obey their prompts; `pocket.evaluate` has the full table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from streamgen import Engine
from streamgen.pocket.detectors import read
from streamgen.pocket.world import NUM_STARTS, Scene, render, start_of

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


def test_a_stream_begins_as_its_seed_says(engine: Engine) -> None:
    """Place and phase are those of the world: at least eight of nine beginnings go the same way."""
    scene = Scene("meadow", "day", "clear", "ball", "red", "bounces")
    prompt = "a red ball bounces on the meadow on a clear day"
    seeds = {start_of(seed): seed for seed in range(100)}
    assert len(seeds) == NUM_STARTS
    distances = []
    for seed in seeds.values():
        with engine.open(prompt, seed=seed, num_frames=21) as session:
            shown = np.concatenate([chunk.frames for chunk in session])[9:]
        drawn = render(replace(scene, seed=seed), 12, 9)
        off = read(shown).centres - read(drawn).centres
        distances.append(float(np.nanmedian(np.hypot(*off.T))))
    assert sum(distance < 5 for distance in distances) >= 8, distances
