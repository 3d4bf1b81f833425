"""Noise paired with how a clip begins: it tells the start, and stays normal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.pocket.train.dit import openings_only
from streamgen.pocket.train.pairing import FIRST_IDS, Pairing, start_id
from streamgen.pocket.world import STARTS, Scene, random_scene, render, start_of

NUM_STARTS = sum(STARTS.values())


@pytest.fixture
def pairing() -> Pairing:
    return Pairing(torch.randn(NUM_STARTS, 3, 2, 4, 4, generator=torch.Generator().manual_seed(3)))


def likeness(pairing: Pairing, noise: Tensor) -> Tensor:
    return noise[:, 0].flatten(1) @ pairing.looks.T


def test_every_start_of_every_motion_has_its_own_id() -> None:
    scenes = [random_scene(np.random.default_rng(i)) for i in range(600)]
    found = {start_id(scene): (scene.motion, start_of(scene)) for scene in scenes}
    assert sorted(found) == list(range(NUM_STARTS))
    assert len(set(found.values())) == NUM_STARTS
    assert all(number == FIRST_IDS[motion] + start for number, (motion, start) in found.items())


@pytest.mark.parametrize("motion", list(STARTS))
def test_starts_look_different_and_one_start_the_same_under_every_seed(motion: str) -> None:
    scene = Scene("meadow", "day", "clear", "ball", "red", motion)
    seen: dict[int, bytes] = {}
    for seed in range(80):
        seeded = replace(scene, seed=seed)
        drawn = render(seeded, 9).tobytes()
        assert seen.setdefault(start_of(seeded), drawn) == drawn
    assert len(set(seen.values())) == STARTS[motion]


def test_noise_resembles_the_clips_start_most(pairing: Pairing) -> None:
    start = torch.arange(NUM_STARTS).repeat(4)
    noise = pairing.noise(torch.zeros(len(start), 2, 3, 2, 4, 4), start)
    scores = likeness(pairing, noise)
    for number, row in zip(start.tolist(), scores, strict=True):
        rivals = [i for i in range(NUM_STARTS) if pairing.motion[i] == pairing.motion[number]]
        assert max(rivals, key=lambda i: float(row[i])) == number


def test_noise_of_a_clip_that_begins_elsewhere_is_as_ever(pairing: Pairing) -> None:
    clips = torch.zeros(5, 2, 3, 2, 4, 4)
    torch.manual_seed(4)
    drawn = pairing.noise(clips, torch.full((5,), -1))
    torch.manual_seed(4)
    assert torch.equal(drawn, torch.randn_like(clips))


def test_over_all_starts_the_noise_is_normal(pairing: Pairing) -> None:
    """Starts in the shares in which noise resembles them: then no direction may stand out."""
    torch.manual_seed(5)
    rests = range(FIRST_IDS["rests"], NUM_STARTS)
    free = likeness(pairing, torch.randn(6000, 1, 3, 2, 4, 4))[:, rests.start :]
    start = free.argmax(1) + rests.start
    paired = pairing.noise(torch.zeros(6000, 1, 3, 2, 4, 4), start)[:, 0].flatten(1)
    along = paired @ pairing.basis.T
    assert float(along.mean(0).abs().max()) < 0.06  # 4.6 standard errors
    assert float((along.var(0) - 1).abs().max()) < 0.09
    assert float(paired.mean().abs()) < 0.006


def test_first_chunks_that_no_stream_begins_with_teach_nothing() -> None:
    error = openings_only(torch.ones(2, 3, 3, 1, 1, 1), torch.tensor([-1, 4]))
    assert error[:, :, 0, 0, 0, 0].tolist() == [[0, 1, 1], [1, 1, 1]]
