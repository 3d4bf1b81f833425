"""Chunks in, frames out, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import numpy as np
import pytest

from tests.transport.conftest import eventually
from transport.encoder import Encoder, Frame, Picture, Renditions
from transport.metrics import Metrics
from transport.player import Player
from transport.session_meter import Pace, SessionMeter
from transport.stream import Chunk, Event, Receipt, State, StreamConfig
from transport.wire import Control


class EagerStream:
    """Fits Stream; knows no back-pressure."""

    id = "s"
    config = StreamConfig("a", "m", 16, 16, 1000, 0, 4, 4)
    state: State = "running"

    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.num_taken = 0
        self.num_released = 0
        self.played_frames: list[int] = []

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield whatever is asked for, at once."""
        for index in range(self.num_chunks):
            self.num_taken += 1
            frames = np.zeros((4, 16, 16, 3), np.uint8)
            pts_s = index * 4 / 1000
            yield Chunk(index, index * 4, pts_s, 1000, 0, 0, frames, 0.001, self._release)

    async def events(self) -> AsyncIterator[Event]:
        """Yield nothing."""
        nothing: tuple[Event, ...] = ()
        for event in nothing:
            yield event

    def played(self, frame_index: int) -> None:
        """Note it."""
        self.played_frames.append(frame_index)

    async def control(self, message: Control) -> Receipt:
        """Refuse."""
        raise NotImplementedError

    async def fork(self, at_chunk: int | None) -> EagerStream:
        """Refuse."""
        raise NotImplementedError

    async def snapshot(self) -> bytes:
        """Refuse."""
        raise NotImplementedError

    async def replay(self) -> bytes:
        """Refuse."""
        raise NotImplementedError

    async def suspend(self) -> None:
        """Do nothing."""

    async def resume(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def _release(self) -> None:
        self.num_released += 1


def new_meter() -> SessionMeter:
    """Return the meter of a session."""
    return SessionMeter(Metrics("m"), Pace(), "s", asked_at=0.0)


def never(picture: Picture) -> None:
    """Throw nothing away."""
    raise AssertionError(picture.index)


@pytest.fixture
def renditions() -> Iterator[Renditions]:
    """Return the encoders of a session."""
    encoder = Encoder()
    yield Renditions(encoder)
    encoder.close()


async def test_every_frame_is_shown_once_in_order(renditions: Renditions) -> None:
    """And reported as played, and every chunk handed back."""
    stream, shown, due = EagerStream(6), list[Frame](), list[float]()

    def show(frame: Frame, due_s: float) -> None:
        shown.append(frame)
        due.append(due_s)

    player = Player(stream, renditions, lambda: frozenset({"jpeg"}), show, never, new_meter())
    player.resume()
    await asyncio.gather(player.receive(), player.play())
    assert [frame.index for frame in shown] == list(range(24))
    assert stream.played_frames == list(range(24))
    assert all(early < late for early, late in pairwise(due))
    assert stream.num_released == 6
    assert player.tally.num_frames == 24


async def test_what_waits_is_bounded_without_back_pressure(renditions: Renditions) -> None:
    """Paused, it takes three chunks of an engine that would give a thousand."""
    stream = EagerStream(1000)
    player = Player(stream, renditions, frozenset, lambda frame, due_s: None, never, new_meter())
    receiving = asyncio.create_task(player.receive())
    playing = asyncio.create_task(player.play())
    await eventually(lambda: stream.num_taken == 3)
    await asyncio.sleep(0.2)
    assert stream.num_taken == 3
    assert stream.played_frames == []
    player.resume()
    await eventually(lambda: stream.num_taken > 3)
    for task in (receiving, playing):
        task.cancel()
    await asyncio.gather(receiving, playing, return_exceptions=True)
