"""How cleanly things are drawn, measured on drawings that are spoilt on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from streamgen.pocket.measures import degrade
from streamgen.pocket.outlines import GHOST, fit
from streamgen.pocket.world import Scene, drawn_at, render

SCENES = [
    Scene("meadow", "day", "clear", "star", "red", "bounces", 1),
    Scene("desert", "sunset", "rain", "heart", "blue", "drifts", 2),
    Scene("snowfield", "night", "snow", "box", "green", "rests", 3),
    Scene("sea", "night", "clear", "ball", "yellow", "bounces", 4),
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.shape)
@pytest.mark.parametrize("number", [3, 17])
def test_a_drawing_fits_itself(scene: Scene, number: int) -> None:
    """But for the places between the search's steps."""
    found = fit(render(scene, 1, number)[0], scene, number)
    assert found.error < 5
    assert found.ghost < GHOST


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.shape)
def test_what_is_blurred_fits_worse(scene: Scene) -> None:
    clip = render(scene, 1, 17)
    blurred = degrade(degrade(clip, np.random.default_rng(0)), np.random.default_rng(1))
    assert fit(blurred[0], scene, 17).error > 1.5 * fit(clip[0], scene, 17).error


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.shape)
def test_a_faint_second_thing_is_a_ghost(scene: Scene) -> None:
    """A third of its colour, at another of the world's places."""
    centres = np.array([[40.0, 52.0], [90.0, 52.0]], np.float32)
    here, there = drawn_at(scene, 5, centres)[0].astype(np.float32)
    both = np.clip(here + 0.33 * (there - here) * (np.arange(128) > 66)[None, :, None], 0, 255)
    found = fit(both.astype(np.uint8), scene, 5)
    assert found.ghost > 3 * GHOST
    assert np.hypot(found.centre[0] - 40, found.centre[1] - 52) < 4
