"""What the VAE is trained on: crops that hold the thing, and where its outline counts more."""

from __future__ import annotations

import numpy as np
import torch

from streamgen.pocket.train.vae import (
    CROP,
    EDGE,
    EDGE_WEIGHT,
    FALLING_WEIGHT,
    HELD_SHARE,
    MOTIONS,
    batch,
    crop_of,
    edge_of,
    moving_scene,
    random_clip,
)

DRAWS = 400


def test_half_of_the_crops_hold_the_thing() -> None:
    rng = np.random.default_rng(0)
    clip = np.zeros((9, 128, 128, 5), np.uint8)
    clip[:, 8:24, 8:24, 4] = 255  # in a corner, which few crops have by chance
    corners = np.array([crop_of(clip, rng) for _ in range(DRAWS)])
    assert (corners % 8 == 0).all()
    assert ((corners >= 0) & (corners <= 128 - CROP)).all()
    held = (corners <= 8).all(axis=1).mean()
    by_chance = 4 / 81
    assert abs(held - (HELD_SHARE + (1 - HELD_SHARE) * by_chance)) < 0.1


def test_a_clip_without_a_thing_is_cropped_anywhere() -> None:
    rng = np.random.default_rng(0)
    corners = {crop_of(np.zeros((9, 128, 128, 5), np.uint8), rng) for _ in range(DRAWS)}
    assert len(corners) > 60  # of 81


def test_an_edge_is_what_is_near_it_on_either_side() -> None:
    thing = torch.zeros(1, 1, 1, 32, 32)
    thing[..., 16:] = 1
    edge = edge_of(thing)[0, 0, 0]
    columns = edge[8].nonzero().flatten().tolist()
    assert columns == list(range(16 - EDGE // 2, 16 + EDGE // 2))
    assert not edge_of(torch.ones(1, 2, 1, 16, 16)).any()


def test_pixels_weigh_by_what_they_show() -> None:
    clip = np.zeros((9, 128, 128, 5), np.uint8)
    clip[:, :64, :, 3] = 255
    _, weight = batch([clip], np.random.default_rng(1), 64, "cpu")
    assert set(weight.unique().tolist()) == {1.0, FALLING_WEIGHT}
    clip[..., 3] = 0
    clip[:, :, :64, 4] = 255
    _, weight = batch([clip], np.random.default_rng(1), 64, "cpu")
    assert set(weight.unique().tolist()) == {1.0, EDGE_WEIGHT}


def test_most_clips_move() -> None:
    rng = np.random.default_rng(0)
    drawn = [moving_scene(rng).motion for _ in range(DRAWS)]
    for motion, share in MOTIONS.items():
        assert abs(drawn.count(motion) / DRAWS - share) < 0.08
    clip = random_clip(rng, 9)
    assert clip.shape == (9, 128, 128, 5)
    assert set(np.unique(clip[..., 3:])) <= {0, 255}
    assert clip[..., 4].any()
