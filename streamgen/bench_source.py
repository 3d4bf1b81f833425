"""A moving picture without a model, as the host of sessions that `bench transport` measures.

It costs next to nothing while it plays, so that what is measured is the server alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from transport.host import HostStats, ModelInfo
from transport.stream import (
    Chunk,
    Event,
    Receipt,
    SessionConfig,
    State,
    StreamConfig,
    StreamError,
)
from transport.wire import Control

CHUNKS_IN_REEL: Final = 4  # it runs to and fro, so that its end meets its beginning
HALF_PIXELS: Final = 13  # it moves so far between two frames, as in a quick walk
OCTAVES: Final = ((64, 110.0), (16, 60.0), (6, 50.0))  # size of a spot in pixels, and its contrast
NOISE: Final = 3  # of a sensor, at most, of 255
GENERATION_SHARE: Final = 0.6  # of a chunk's playing time
CELL, NUMBER_BITS = 16, 6  # pixels of a painted bit each way; bits of a picture's painted number
DARK, BRIGHT = 20, 235


@dataclass(frozen=True, slots=True)
class Picture:
    """The size and pace of the moving picture."""

    width: int = 832
    height: int = 480
    fps: int = 30
    chunk_frames: int = 12


def paint_reel(picture: Picture) -> NDArray[np.uint8]:
    """Return whole chunks of the moving picture, uint8 RGB [n, H, W, 3].

    Each has its number painted into the upper left corner.
    """
    width, height = picture.width, picture.height
    half = CHUNKS_IN_REEL * picture.chunk_frames // 2
    rng = np.random.default_rng(0)
    # Twice as wide as it is shown, so that it can move by half a pixel.
    wide = 2 * width + HALF_PIXELS * half
    scene = sum(_spots(rng, height, wide, size, contrast) for size, contrast in OCTAVES)
    scene = np.clip(scene, NOISE, 255 - NOISE).astype(np.int16)
    noise = rng.integers(-NOISE, NOISE + 1, (height, 2 * width, 3), np.int16)
    frames = np.empty((2 * half, height, width, 3), np.uint8)
    for number, step in enumerate((*range(half), *range(half, 0, -1))):
        left, grain = HALF_PIXELS * step, int(rng.integers(width))
        frames[number] = scene[:, left : left + 2 * width : 2] + noise[:, grain : grain + width]
        frames[number, :CELL, : CELL * NUMBER_BITS] = _painted(number)[:, :width]
    return frames


def _painted(number: int) -> NDArray[np.uint8]:
    """Return a number as squares in a row, highest bit first, [CELL, CELL * NUMBER_BITS, 1]."""
    bits = [number >> bit & 1 for bit in reversed(range(NUMBER_BITS))]
    row = np.repeat(np.where(bits, BRIGHT, DARK).astype(np.uint8), CELL)
    return np.tile(row, (CELL, 1))[:, :, None]


def _spots(
    rng: np.random.Generator, height: int, wide: int, size: int, contrast: float
) -> NDArray[np.float64]:
    """Return soft spots of random colours, [height, wide, 3]; all octaves together are grey."""
    cells = (height // size + 2, wide // (2 * size) + 2, 3)
    grid = 127 / len(OCTAVES) + contrast * (rng.random(cells) - 0.5)
    y, x = np.arange(height) / size, np.arange(wide) / (2 * size)
    top, left = y.astype(int), x.astype(int)
    down, right = (y - top)[:, None, None], (x - left)[None, :, None]
    rows = grid[top] * (1 - down) + grid[top + 1] * down
    spots: NDArray[np.float64] = rows[:, left] * (1 - right) + rows[:, left + 1] * right
    return spots


class ReelHost:
    """Fits `transport.host.StreamHost`: every session shows the same reel."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.reel = paint_reel(picture)
        self._num_opened = 0

    async def open(self, config: SessionConfig) -> ReelStream:
        """Open a session; of what is asked for, only the prompt is taken."""
        self._num_opened += 1
        picture = self.picture
        effective = StreamConfig(
            prompt=config.prompt,
            model="reel",
            width=picture.width,
            height=picture.height,
            fps=picture.fps,
            seed=0,
            num_inference_steps=1,
            chunk_frames=picture.chunk_frames,
        )
        return ReelStream(f"reel{self._num_opened}", effective, self.reel)

    async def restore(self, blob: bytes) -> NoReturn:
        """Refuse."""
        _refuse()

    def stats(self) -> HostStats:
        """Return that all is well."""
        one = self.picture
        model = ModelInfo("reel", one.width, one.height, one.fps, one.chunk_frames)
        return HostStats(
            alive=True,
            ready=True,
            stage="ready",
            progress=1.0,
            sessions_free=1,
            pages_free=1,
            models=(model,),
        )


class ReelStream:
    """Fits `transport.stream.Stream`: chunks come as an engine's would, with its back-pressure."""

    def __init__(self, stream_id: str, config: StreamConfig, reel: NDArray[np.uint8]) -> None:
        self.id = stream_id
        self.config = config
        self.state: State = "running"
        self._reel = reel
        self._num_made = 0
        self._num_played = 0
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the reel again and again, until the session ends."""
        count, fps = self.config.chunk_frames, self.config.fps
        generation_s = GENERATION_SHARE * count / fps
        for index in range(2**31):
            while self.state == "suspended" or self._lead() > count + 2:
                self._changed.clear()
                await self._changed.wait()
            if self._closed.is_set():
                return
            await asyncio.sleep(generation_s)
            first, place = index * count, index * count % len(self._reel)
            self._num_made += count
            yield Chunk(
                index=index,
                first_frame_index=first,
                pts_s=first / fps,
                fps=fps,
                prompt_revision=0,
                seed=0,
                frames=self._reel[place : place + count],
                generation_s=generation_s,
                release=lambda: None,
            )

    async def events(self) -> AsyncIterator[Event]:
        """Yield nothing until the session ends."""
        await self._closed.wait()
        nothing: tuple[Event, ...] = ()
        for event in nothing:
            yield event

    async def control(self, message: Control) -> Receipt:
        """Refuse."""
        _refuse()

    def played(self, frame_index: int) -> None:
        """Learn that this frame was played."""
        self._num_played = frame_index + 1
        self._changed.set()

    async def fork(self, at_chunk: int | None) -> NoReturn:
        """Refuse."""
        _refuse()

    async def snapshot(self) -> bytes:
        """Refuse."""
        _refuse()

    async def replay(self) -> bytes:
        """Refuse."""
        _refuse()

    async def suspend(self) -> None:
        """Make no chunks."""
        self.state = "suspended"

    async def resume(self) -> None:
        """Make chunks again."""
        self.state = "running"
        self._changed.set()

    async def close(self) -> None:
        """End."""
        self.state = "closed"
        self._closed.set()
        self._changed.set()

    def _lead(self) -> int:
        """Return the frames made and not played; an ended session has none."""
        return 0 if self._closed.is_set() else self._num_made - self._num_played


def _refuse() -> NoReturn:
    raise StreamError("unsupported", "the benchmark's source cannot do this")
