"""Compare a candidate's clip with the baseline's, frame by frame and chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean
from typing import Final

from streamgen.distances import (
    WINDOW_PIXELS,
    Pixels,
    Plane,
    flicker,
    luma,
    mean_square,
    psnr_db,
    ssim,
    trend,
)
from streamgen.errors import ConfigError
from streamgen.step import ChunkPlan

INVISIBLE_DB: Final = 35.0
REJECT_DB: Final = 30.0
KEPT: Final = 8  # pairs of pictures of a clip, evenly spaced, that a sheet shows

Perceptual = Callable[[Pixels, Pixels], float]


@dataclass(frozen=True, slots=True)
class Clip:
    """A video that is to be compared: what it is, and its pictures `[h, w, 3]`, read once."""

    name: str
    size: tuple[int, int]  # width, height
    fps: float
    frames: Iterator[Pixels]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where chunks and windows of a model begin. `window_frames` None: nothing is ever evicted."""

    chunks: ChunkPlan
    window_frames: int | None

    def chunk_starts(self, num_frames: int) -> list[int]:
        """Return the first pixel frame of each chunk."""
        num_chunks = self.chunks.chunks_for_pixels(num_frames)
        return [self.chunks.first_pixel_frame(index) for index in range(num_chunks)]

    def window_starts(self, num_frames: int) -> list[int]:
        """Return the first pixel frame of the first chunk after each full window."""
        starts = self.chunk_starts(num_frames)
        if self.window_frames is None:
            return []
        period, found = self.window_frames, []
        latents = period
        while (end := self.chunks.pixel_frames(latents)) <= starts[-1]:
            found.append(next(start for start in starts if start >= end))
            latents += period
        return sorted(set(found))


@dataclass(frozen=True, slots=True)
class FrameScore:
    """One frame's distance from the baseline's."""

    psnr_db: float
    ssim: float
    lpips: float | None


@dataclass(frozen=True, slots=True)
class ChunkScore:
    """A chunk's distance: PSNR of the mean squared error of all its samples, means of the rest."""

    index: int
    first_frame: int
    num_frames: int
    psnr_db: float
    ssim: float
    lpips: float | None


@dataclass(frozen=True, slots=True)
class Flicker:
    """Energy of frame differences where chunks, or windows, begin against other frames.

    At the chunk's period a chunk's first frame is set against all frames inside chunks; at the
    window's, the first frame after a full window against the first frames of other chunks. Both
    for the baseline and for the candidate; None where the video is too short to tell.
    """

    chunk_baseline: float | None
    chunk_candidate: float | None
    window_baseline: float | None
    window_candidate: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A frame of both clips."""

    index: int
    baseline: Pixels
    candidate: Pixels


@dataclass(frozen=True, slots=True)
class ClipScore:
    """How far a clip is from its baseline. `drift_db` is what PSNR gains over the whole run."""

    name: str
    psnr_db: float
    ssim: float
    lpips: float | None
    drift_db: float | None
    flicker: Flicker
    frames: tuple[FrameScore, ...]
    chunks: tuple[ChunkScore, ...]
    shown: tuple[Pair, ...] = field(repr=False, compare=False)
    worst: Pair = field(repr=False, compare=False)

    @property
    def worst_chunk(self) -> ChunkScore:
        """Return the chunk that is farthest by PSNR: a mean over all would hide it."""
        return min(self.chunks, key=lambda chunk: chunk.psnr_db)


def verdict(psnr: float) -> str:
    """Return invisible, visible or reject for a PSNR in dB against the unoptimised output."""
    if psnr >= INVISIBLE_DB:
        return "invisible"
    return "visible" if psnr >= REJECT_DB else "reject"


def compare(
    baseline: Clip, candidate: Clip, layout: Layout, perceptual: Perceptual | None = None
) -> ClipScore:
    """Return how far a clip is from its baseline; both are read to their ends.

    Raises ConfigError when sizes, rates or numbers of frames differ.
    """
    check_alike(baseline, candidate)
    taken = _Taken()
    for a, b in zip_longest(baseline.frames, candidate.frames):
        taken.take(a, b, perceptual)
    if taken.num_baseline != taken.num_candidate or not taken.num_baseline:
        raise ConfigError(
            f"{baseline.name} has {taken.num_baseline} frames and {candidate.name} has "
            f"{taken.num_candidate}: only videos of one length can be compared",
            param="candidate",
        )
    return taken.score(candidate.name, layout)


def check_alike(baseline: Clip, candidate: Clip) -> None:
    """Raise ConfigError when sizes or rates differ, or pictures are too small for SSIM."""
    for what, a, b in (
        ("pixels", "{}x{}".format(*baseline.size), "{}x{}".format(*candidate.size)),
        ("frames a second", f"{baseline.fps:g}", f"{candidate.fps:g}"),
    ):
        if a != b:
            raise ConfigError(
                f"{baseline.name} has {a} {what} and {candidate.name} has {b}: only videos of one "
                "size and rate can be compared",
                param="candidate",
            )
    if min(baseline.size) < WINDOW_PIXELS:
        raise ConfigError(
            f"{baseline.name} has {'{}x{}'.format(*baseline.size)} pixels: SSIM looks through a "
            f"window of {WINDOW_PIXELS}x{WINDOW_PIXELS}",
            param="baseline",
        )


@dataclass(slots=True)
class _Taken:
    """What was seen of two clips so far."""

    num_baseline: int = 0
    num_candidate: int = 0
    errors: list[float] = field(default_factory=list)  # mean squares, by frame
    frames: list[FrameScore] = field(default_factory=list)
    steps: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    before: tuple[Plane, Plane] | None = None
    shown: list[Pair] = field(default_factory=list)
    stride: int = 1  # of the frames that are shown
    worst: Pair | None = None

    def take(self, a: Pixels | None, b: Pixels | None, perceptual: Perceptual | None) -> None:
        """Take a frame of each clip; one that has ended gives None."""
        self.num_baseline += a is not None
        self.num_candidate += b is not None
        if a is None or b is None:
            return
        error, planes = mean_square(a, b), (luma(a), luma(b))
        pair = Pair(len(self.errors), a, b)
        if self.worst is None or error > max(self.errors):
            self.worst = pair
        self.errors.append(error)
        lpips = None if perceptual is None else perceptual(a, b)
        self.frames.append(FrameScore(psnr_db(error), ssim(*planes), lpips))
        for steps, now, before in zip(self.steps, planes, self.before or planes, strict=True):
            steps.append(float(((now - before) ** 2).mean()))
        self.before = planes
        self._show(pair)

    def _show(self, pair: Pair) -> None:
        """Keep evenly spaced pairs, however long the clip turns out to be."""
        if pair.index % self.stride:
            return
        self.shown.append(pair)
        if len(self.shown) >= 2 * KEPT:
            self.shown, self.stride = self.shown[::2], 2 * self.stride

    def score(self, name: str, layout: Layout) -> ClipScore:
        """Return the figures of the whole."""
        starts = layout.chunk_starts(len(self.frames))
        ends = [*starts[1:], len(self.frames)]
        chunks = tuple(
            self._chunk(index, first, end)
            for index, (first, end) in enumerate(zip(starts, ends, strict=True))
        )
        assert self.worst is not None
        return ClipScore(
            name=name,
            psnr_db=psnr_db(fmean(self.errors)),
            ssim=fmean(frame.ssim for frame in self.frames),
            lpips=_mean([frame.lpips for frame in self.frames]),
            drift_db=trend([chunk.psnr_db for chunk in chunks]),
            flicker=self._flicker(starts, layout.window_starts(len(self.frames))),
            frames=tuple(self.frames),
            chunks=chunks,
            shown=tuple(self.shown),
            worst=self.worst,
        )

    def _chunk(self, index: int, first: int, end: int) -> ChunkScore:
        frames = self.frames[first:end]
        return ChunkScore(
            index,
            first,
            end - first,
            psnr_db(fmean(self.errors[first:end])),
            fmean(frame.ssim for frame in frames),
            _mean([frame.lpips for frame in frames]),
        )

    def _flicker(self, chunk_starts: Sequence[int], window_starts: Sequence[int]) -> Flicker:
        boundaries = chunk_starts[1:]  # nothing comes before the first frame
        inner = sorted(set(range(1, len(self.frames))) - set(boundaries))
        others = sorted(set(boundaries) - set(window_starts))
        a, b = self.steps
        return Flicker(
            flicker(a, boundaries, inner),
            flicker(b, boundaries, inner),
            flicker(a, window_starts, others),
            flicker(b, window_starts, others),
        )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
