"""What the gate makes of two clips: chunks, drift, flicker, verdicts, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from streamgen.errors import ConfigError
from streamgen.quality_compare import KEPT, Clip, ClipScore, Layout, compare, verdict
from streamgen.step import ChunkPlan

LAYOUT = Layout(ChunkPlan(3), 9)  # chunks begin with frames 0, 9, 21, 33, ...
Paint = Callable[[int], np.ndarray]


def moving(index: int) -> np.ndarray:
    """A wave that moves by a column a frame: every step is as large as any other."""
    wave = 120 + 60 * np.sin(2 * np.pi * (np.arange(48) + index) / 48)
    return np.broadcast_to(wave.round()[None, :, None], (32, 48, 3)).astype(np.uint8)


def clip(paint: Paint, num_frames: int = 45, **fields: object) -> Clip:
    frames: Iterator[np.ndarray] = (paint(i) for i in range(num_frames))
    return Clip(**{"name": "a", "size": (48, 32), "fps": 16.0, "frames": frames, **fields})


def off_by(amount: Callable[[int], int]) -> Paint:
    """A grey picture that is off by so much: its PSNR is known."""
    return lambda index: np.full((32, 48, 3), 100 + amount(index), np.uint8)


def scored(amount: Callable[[int], int], num_frames: int = 45) -> ClipScore:
    return compare(clip(off_by(lambda _: 0), num_frames), clip(off_by(amount), num_frames), LAYOUT)


def test_equal_clips_are_equal_in_every_figure() -> None:
    score = compare(clip(moving), clip(moving), LAYOUT)
    assert score.psnr_db == 100
    assert score.ssim == pytest.approx(1)
    assert score.drift_db == pytest.approx(0)
    assert score.flicker.chunk_baseline == score.flicker.chunk_candidate
    assert score.lpips is None


def test_chunks_are_those_of_the_model() -> None:
    score = scored(lambda _: 1)
    assert [(c.first_frame, c.num_frames) for c in score.chunks] == [
        (0, 9), (9, 12), (21, 12), (33, 12),
    ]  # fmt: skip
    assert len(score.frames) == 45


def test_the_worst_chunk_is_not_hidden_by_the_mean() -> None:
    """One chunk of four is off by 8 (30.1 dB), the others are equal."""
    score = scored(lambda i: 8 if 21 <= i < 33 else 0)
    assert score.worst_chunk.index == 2
    assert score.worst_chunk.psnr_db == pytest.approx(48.1308 - 20 * math.log10(8), abs=1e-3)
    assert score.psnr_db == pytest.approx(score.worst_chunk.psnr_db + 10 * math.log10(45 / 12))
    assert 21 <= score.worst.index < 33
    assert score.frames[20].psnr_db == 100
    assert score.frames[21].psnr_db == pytest.approx(30.069, abs=1e-3)


def test_a_chunks_psnr_is_of_its_error_and_no_mean_of_decibels() -> None:
    """Half of a chunk is off by 2, half is equal: 3 dB better than all off by 2, not 26."""
    score = scored(lambda i: 2 if i % 2 else 0, num_frames=9)
    expected = 48.1308 - 20 * math.log10(2) + 10 * math.log10(9 / 4)
    assert score.chunks[0].psnr_db == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("psnr", "word"),
    [
        (100, "invisible"), (35, "invisible"), (34.99, "visible"), (30, "visible"),
        (29.99, "reject"), (0, "reject"),
    ],
)  # fmt: skip
def test_verdicts(psnr: float, word: str) -> None:
    assert verdict(psnr) == word


def test_drift_is_what_is_lost_over_the_run() -> None:
    """Off by 1, 2, 4, 8 from chunk to chunk: 6 dB less each, 18 over all."""
    score = scored(lambda i: [1, 2, 4, 8][0 if i < 9 else 1 + (i - 9) // 12])
    assert score.drift_db == pytest.approx(-3 * 20 * math.log10(2), abs=1e-3)


def test_flicker_at_chunks_is_told_from_motion() -> None:
    """The baseline moves; the candidate is brighter by 10 in every other chunk as well."""

    def pulsing(index: int) -> np.ndarray:
        chunk = 0 if index < 9 else 1 + (index - 9) // 12
        return np.clip(moving(index).astype(int) + 10 * (chunk % 2), 0, 255).astype(np.uint8)

    flicker = compare(clip(moving), clip(pulsing), LAYOUT).flicker
    assert flicker.chunk_baseline == pytest.approx(1, abs=0.02)
    assert flicker.chunk_candidate is not None
    assert flicker.chunk_candidate > 3


def test_flicker_at_windows_is_told_from_that_at_chunks() -> None:
    """Windows of nine latents are full after frame 33, then after every third chunk."""
    assert LAYOUT.window_starts(200) == [33, 69, 105, 141, 177]
    jumps = LAYOUT.window_starts(120)

    def jumping(index: int) -> np.ndarray:
        return off_by(lambda i: 20 * (sum(i >= j for j in jumps) % 2))(index)

    flicker = compare(clip(off_by(lambda _: 0), 120), clip(jumping, 120), LAYOUT).flicker
    assert flicker.window_baseline == 1
    assert flicker.window_candidate is not None
    assert flicker.window_candidate > 1000
    short = compare(clip(moving, 30), clip(moving, 30), LAYOUT).flicker
    assert short.window_baseline is None


def test_windows_that_no_chunk_ends_with_count_from_the_next_chunk() -> None:
    assert Layout(ChunkPlan(3), 10).window_starts(100) == [45, 81]
    assert Layout(ChunkPlan(3), None).window_starts(100) == []


def test_lpips_is_asked_of_every_frame() -> None:
    asked = []

    def perceptual(a: np.ndarray, b: np.ndarray) -> float:
        asked.append(a.shape)
        return 0.25 if len(asked) > 9 else 0.05

    score = compare(clip(moving, 21), clip(moving, 21), LAYOUT, perceptual)
    assert asked == [(32, 48, 3)] * 21
    assert [chunk.lpips for chunk in score.chunks] == [pytest.approx(0.05), pytest.approx(0.25)]


@pytest.mark.parametrize("num_frames", [1, 5, 16, 100, 333])
def test_pictures_are_kept_evenly_and_few(num_frames: int) -> None:
    shown = compare(clip(moving, num_frames), clip(moving, num_frames), LAYOUT).shown
    places = [pair.index for pair in shown]
    assert min(num_frames, KEPT) <= len(places) < 2 * KEPT
    assert places[0] == 0
    assert len({b - a for a, b in pairwise(places)}) <= 1
    np.testing.assert_array_equal(shown[-1].baseline, moving(places[-1]))


@pytest.mark.parametrize(
    ("fields", "num_frames", "message"),
    [
        ({"size": (64, 32)}, 45, "a has 48x32 pixels and b has 64x32"),
        ({"fps": 24.0}, 45, "a has 16 frames a second and b has 24"),
        ({}, 44, "a has 45 frames and b has 44"),
        ({}, 50, "a has 45 frames and b has 50"),
    ],
)
def test_what_is_not_alike_is_not_compared(
    fields: dict[str, object], num_frames: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(clip(moving), clip(moving, num_frames, name="b", **fields), LAYOUT)


def test_pictures_too_small_for_ssim_are_refused() -> None:
    small = {"size": (48, 8)}
    with pytest.raises(ConfigError, match="11x11"):
        compare(clip(moving, **small), clip(moving, **small), LAYOUT)


def test_videos_without_a_frame_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 frames"):
        compare(clip(moving, 0), clip(moving, 0), LAYOUT)
