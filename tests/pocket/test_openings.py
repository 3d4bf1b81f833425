"""Marks in the noise of first chunks, and the ways to begin that they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.pocket.config import CHUNK_FRAMES
from streamgen.pocket.openings import STRENGTH, marks, opening_noise
from streamgen.pocket.train.data import clip_of
from streamgen.pocket.train.dit import noise_of, openings_only
from streamgen.pocket.world import ATTRIBUTES, NUM_STARTS, Scene, render, start_of

SHAPE = (3, 12, 16, 16)


def read_mark(noise: Tensor) -> int:
    """Return which mark noise `[frames, C, h, w]` is raised in."""
    return int((marks(noise.shape) * noise).flatten(1).sum(dim=1).argmax())


def test_seeds_begin_in_all_ways() -> None:
    starts = [start_of(seed) for seed in range(100)]
    assert sorted(set(starts)) == list(range(NUM_STARTS))
    assert len(set(starts[:8])) >= 4


@pytest.mark.parametrize("motion", ATTRIBUTES["motion"])
def test_what_a_seed_leaves_open_is_where_it_begins(motion: str) -> None:
    """Nothing else: a model has little to guess."""
    scene = Scene("meadow", "day", "clear", "ball", "red", motion)
    seen: dict[int, bytes] = {}
    for seed in range(60):
        drawn = render(replace(scene, seed=seed), 9).tobytes()
        assert seen.setdefault(start_of(seed), drawn) == drawn
    assert len(set(seen.values())) == {"bounces": 9, "drifts": 8, "rests": 3}[motion]


def test_marks_are_far_above_the_noise_and_leave_it_as_it_is_else() -> None:
    for seed in range(20):
        noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
        marked = opening_noise(noise, seed)
        assert read_mark(marked) == start_of(seed)
        raised = marked - noise
        assert float(raised.norm()) == pytest.approx(STRENGTH, rel=1e-4)
        along = marks(noise.shape)[start_of(seed)].expand(SHAPE)
        torch.testing.assert_close(raised, STRENGTH * along)


def test_marks_lie_apart_at_every_size() -> None:
    for height, width in ((16, 16), (18, 32), (8, 8)):
        flat = marks(torch.Size((3, 12, height, width))).expand(-1, 3, 12, -1, -1).flatten(1)
        torch.testing.assert_close(flat.norm(dim=1), torch.ones(NUM_STARTS))
        likeness = flat @ flat.T - torch.eye(NUM_STARTS)
        assert float(likeness.max()) < 0.3


def test_training_marks_first_chunks_that_begin_as_streams_do() -> None:
    start = torch.tensor([4, -1, 0])
    noise = noise_of(torch.zeros(3, 2, *SHAPE), start)
    assert read_mark(noise[0, 0]) == 4
    assert read_mark(noise[2, 0]) == 0
    highest = (marks(torch.Size(SHAPE)) * noise[:, :, None]).flatten(3).sum(-1).amax(-1)
    assert bool((highest[[0, 2], 0] > 8).all())
    assert float(torch.cat([highest[:, 1], highest[1:2, 0]]).max()) < 5


def test_first_chunks_that_no_stream_begins_with_teach_nothing() -> None:
    error = openings_only(torch.ones(2, 3, 3, 1, 1, 1), torch.tensor([-1, 4]))
    assert error[:, :, 0, 0, 0, 0].tolist() == [[0, 1, 1], [1, 1, 1]]


def test_clips_of_one_chunk_begin_where_streams_do() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        clip = clip_of(rng, CHUNK_FRAMES)
        assert clip["pixels"].shape == (9, 3, 128, 128)
        assert clip["labels"].shape == (1, 6)
        assert 0 <= int(clip["start"]) < NUM_STARTS
