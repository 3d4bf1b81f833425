"""A viewer's queue: messages in order, the newest frame, two in flight."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from transport.encoder import ChunkHeader, Frame
from transport.fanout import Fanout, Finish, Viewer
from transport.fields import ProtocolError
from transport.replies import ChunkMetadata, CloseCode, SessionPong, SessionState
from transport.viewer import MAX_MESSAGES
from transport.wire import SessionAck

CHUNK = ChunkHeader(0, 0, 4, 0.0, 16, 0, 42, (), (), ())


def frame(index: int, chunk: ChunkHeader = CHUNK, **payloads: bytes) -> Frame:
    """Return a frame whose JPEG is its number."""
    return Frame(index, chunk, 0.0, payloads or {"jpeg": str(index).encode()})


def viewer(format: str = "jpeg", *, acks: bool = False) -> Viewer:
    """Return a viewer."""
    one = Viewer()
    one.format, one.acks = format, acks
    return one


async def take_all(one: Viewer) -> list[object]:
    """Return what can be sent now."""
    taken: list[object] = []
    while True:
        task = asyncio.ensure_future(one.next())
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            return taken
        taken.append(task.result())


async def take_frames(one: Viewer) -> list[object]:
    """Return the frames among what can be sent now."""
    return [item for item in await take_all(one) if isinstance(item, bytes)]


async def test_only_the_newest_frame_waits() -> None:
    """Older ones are dropped and counted; metadata comes first."""
    one = viewer()
    for index in range(3):
        one.offer(frame(index), 0.0)
    metadata, newest = await take_all(one)
    assert isinstance(metadata, ChunkMetadata)
    assert metadata.num_frames == 4
    assert newest == b"2"
    assert one.num_dropped == 2


async def test_metadata_comes_once_a_chunk_and_counts_what_was_made() -> None:
    """Even of a chunk of which no frame is sent."""
    one = viewer()
    for index in range(3):
        one.offer(frame(index, dataclasses.replace(CHUNK, index=index)), 0.0)
    *chunks, newest = await take_all(one)
    numbers = [
        (chunk.generation_chunk_index, chunk.transport_chunk_index)
        for chunk in chunks
        if isinstance(chunk, ChunkMetadata)
    ]
    assert numbers == [(0, 0), (1, 1), (2, 2)]
    assert newest == b"2"


async def test_two_frames_are_in_flight_at_most() -> None:
    """The third waits, is overtaken, and goes when an acknowledgement comes."""
    one = viewer(acks=True)
    sent: list[object] = []
    for index in range(6):
        one.offer(frame(index), 0.0)
        sent += await take_frames(one)
    assert sent == [b"0", b"1"]
    one.ack(SessionAck(0))
    assert await take_frames(one) == [b"5"]


async def test_an_acknowledgement_answers_for_all_before_it() -> None:
    """One that is lost, or comes out of order, does not block for ever."""
    one = viewer(acks=True)
    for index in range(2):
        one.offer(frame(index), 0.0)
        await take_all(one)
    one.ack(SessionAck(1))
    one.ack(SessionAck(0))
    for index in (2, 3):
        one.offer(frame(index), 0.0)
        assert await take_frames(one) == [str(index).encode()]


async def test_acknowledgements_that_cannot_be() -> None:
    """A frame that was not sent, and acks that were not asked for."""
    with pytest.raises(ProtocolError, match="not sent"):
        viewer(acks=True).ack(SessionAck(0))
    with pytest.raises(ProtocolError, match="acks"):
        viewer().ack(SessionAck(0))


async def test_a_frame_without_the_viewers_format_is_skipped() -> None:
    """It was encoded before the viewer came; the next chunk has it."""
    one = viewer("raw")
    one.offer(frame(0), 0.0)
    assert await take_frames(one) == []
    one.offer(frame(1, jpeg=b"j", raw=b"r"), 0.0)
    assert await take_frames(one) == [b"r"]


async def test_the_end_comes_after_the_messages_and_before_the_frame() -> None:
    """The first reason counts, and nothing is taken after it."""
    one = viewer()
    one.offer(frame(0), 0.0)
    one.put(SessionPong())
    one.finish(CloseCode.DONE, "done")
    one.finish(CloseCode.INTERNAL, "too late")
    one.put(SessionPong())
    one.offer(frame(1), 0.0)
    assert isinstance(await one.next(), ChunkMetadata)
    assert isinstance(await one.next(), SessionPong)
    assert await one.next() == Finish(CloseCode.DONE, "done")


async def test_a_viewer_that_takes_no_messages_is_cut_off() -> None:
    """The queue is bounded; the close code says that it was too slow."""
    one = viewer()
    for _ in range(MAX_MESSAGES + 5):
        one.put(SessionPong())
    assert await one.next() == Finish(CloseCode.TOO_SLOW, "too slow")


async def test_a_waiting_sender_is_woken() -> None:
    """By a message, a frame and the end."""
    one = viewer(acks=True)
    wakers: list[Callable[[], None]] = [
        lambda: one.put(SessionState("running")),
        lambda: one.offer(frame(0), 0.0),
        lambda: one.finish(CloseCode.DONE),
    ]
    for wake in wakers:
        await take_all(one)
        task = asyncio.ensure_future(one.next())
        await asyncio.sleep(0)
        wake()
        await asyncio.wait_for(task, 10)


async def test_a_slow_viewer_does_not_touch_the_others() -> None:
    """One takes every frame, the other none; both have the newest."""
    fanout, fast, slow = Fanout(), viewer(), viewer()
    fanout.add(fast)
    fanout.add(slow)
    taken: list[object] = []
    for index in range(10):
        fanout.publish(frame(index), 0.0)
        taken += await take_frames(fast)
    assert taken == [str(index).encode() for index in range(10)]
    assert slow.num_dropped == 9
    assert await take_frames(slow) == [b"9"]


async def test_viewers_come_and_go() -> None:
    """Their formats are what is worth encoding."""
    fanout, one = Fanout(), viewer("raw")
    assert not fanout
    fanout.add(one)
    assert fanout.encodings() == {"raw"}
    fanout.broadcast(SessionPong())
    assert isinstance(await one.next(), SessionPong)
    fanout.finish(CloseCode.DONE)
    assert await one.next() == Finish(CloseCode.DONE, "")
    fanout.discard(one)
    fanout.discard(one)
    assert list(fanout) == []
