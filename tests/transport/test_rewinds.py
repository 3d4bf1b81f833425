"""Which chunks a rewind abandons, whatever comes first: its receipt or its first chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from tests.transport.test_player import EagerStream
from transport.encoder import Encoder, Frame, Renditions
from transport.metrics import Metrics
from transport.player import Player
from transport.rewinds import MAX_REWINDS, Rewinds
from transport.session_meter import Pace, SessionMeter
from transport.stream import Chunk


def abandoned(rewinds: Rewinds) -> list[int]:
    """Return which of the first twelve chunks are not played."""
    return [index for index in range(12) if rewinds.abandon(index)]


def test_nothing_is_abandoned_before_the_receipt() -> None:
    """The engine may refuse."""
    rewinds = Rewinds()
    rewind = rewinds.asked("r", 3)
    assert abandoned(rewinds) == []
    rewinds.refused(rewind)
    rewind.accepted = True
    assert abandoned(rewinds) == []


def test_from_the_receipt_on_all_later_chunks_are_abandoned_until_the_new_one() -> None:
    """The chunk in work, which nobody could stop, too."""
    rewinds = Rewinds()
    rewinds.asked("r", 3).accepted = True
    assert abandoned(rewinds) == [4, 5, 6, 7, 8, 9, 10, 11]
    rewinds.arrived(7, ("other", "r"))
    assert abandoned(rewinds) == [4, 5, 6]


def test_the_first_chunk_may_be_there_before_the_receipt() -> None:
    """Both cross the same wire and are taken by two tasks."""
    rewinds = Rewinds()
    rewind = rewinds.asked("r", 3)
    rewinds.arrived(7, ("r",))
    assert abandoned(rewinds) == []
    rewind.accepted = True
    assert abandoned(rewinds) == [4, 5, 6]


def test_a_rewind_that_was_superseded_abandons_nothing_more() -> None:
    """The newer one does."""
    rewinds = Rewinds()
    for event_id, to_chunk in (("a", 2), ("b", 5)):
        rewinds.asked(event_id, to_chunk).accepted = True
    assert abandoned(rewinds)[0] == 3
    rewinds.dropped("a")
    assert abandoned(rewinds)[0] == 6


def test_an_id_may_be_used_again_when_its_first_rewind_has_begun() -> None:
    """The first one's chunk may come after the second one's receipt."""
    rewinds = Rewinds()
    rewinds.asked("r", 2).accepted = True
    rewinds.refused(rewinds.asked("r", 8))  # it waits: the id is taken
    assert abandoned(rewinds)[0] == 3
    rewinds.asked("r", 1).accepted = True  # the engine has begun the first
    rewinds.arrived(5, ("r",))
    assert abandoned(rewinds) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    rewinds.arrived(6, ("r",))
    assert abandoned(rewinds) == [2, 3, 4, 5]


def test_of_two_with_one_id_the_one_that_has_begun_stays() -> None:
    rewinds = Rewinds()
    rewinds.asked("r", 2).accepted = True
    rewinds.asked("r", 1).accepted = True
    rewinds.dropped("r")  # something newer took the second one's place
    assert abandoned(rewinds)[0] == 3
    rewinds.arrived(5, ("r",))
    assert abandoned(rewinds) == [3, 4]


def test_what_is_remembered_is_bounded() -> None:
    """The oldest gives way."""
    rewinds = Rewinds()
    asked = [rewinds.asked(str(number), 0) for number in range(MAX_REWINDS + 1)]
    asked[0].accepted = True
    assert abandoned(rewinds) == []


class RewoundStream(EagerStream):
    """Makes three chunks, then waits; `go_on` makes two more that begin with a rewind."""

    def __init__(self) -> None:
        super().__init__(5)
        self.go_on = asyncio.Event()

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the chunks."""
        for index in range(5):
            if index == 3:
                await self.go_on.wait()
            frames = np.zeros((4, 16, 16, 3), np.uint8)
            ids = ("r",) if index == 3 else ()
            yield Chunk(
                index,
                index * 4,
                0.0,
                1000,
                0,
                0,
                frames,
                0.001,
                self._release,
                started_event_ids=ids,
            )


@pytest.fixture
def renditions() -> Iterator[Renditions]:
    """Return the encoders of a session."""
    encoder = Encoder()
    yield Renditions(encoder)
    encoder.close()


async def test_what_is_queued_is_thrown_away_at_once_and_counts_as_played(
    renditions: Renditions,
) -> None:
    """Also while the clock stands; the new chunk is shown without an underrun."""
    stream, shown, thrown = RewoundStream(), list[int](), list[int]()
    metrics, underruns = Metrics("m"), dict[int, int]()  # when a frame was shown

    def show(frame: Frame, due_s: float) -> None:
        shown.append(frame.index)
        underruns[frame.index] = player.pacer.num_underruns

    player = Player(
        stream,
        renditions,
        lambda: frozenset({"jpeg"}),
        show,
        lambda frame: thrown.append(frame.index),
        SessionMeter(metrics, Pace(), "s", asked_at=0.0),
    )
    work = asyncio.gather(player.receive(), player.play())
    while player.pacer.num_queued < 12:
        await asyncio.sleep(0.01)
    player.rewound(player.rewinds.asked("r", 0))
    await asyncio.sleep(0.05)
    assert shown == thrown == []  # chunk 0, which was gone back to, is still to be shown
    player.resume()
    while len(thrown) < 8:
        await asyncio.sleep(0.01)
    assert shown == [0, 1, 2, 3]
    await asyncio.sleep(0.1)
    stream.go_on.set()
    await work
    assert thrown == list(range(4, 12))
    assert shown == [0, 1, 2, 3, *range(12, 20)]
    assert stream.played_frames == list(range(20))
    assert underruns[12] == 0
    assert stream.num_released == 5
    labels = {"model_name": "m", "reason": "rewind"}
    assert metrics.registry.get_sample_value("streamgen:frames_dropped_total", labels) == 8
