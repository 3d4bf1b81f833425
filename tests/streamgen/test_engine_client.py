"""The engine behind an event loop, in a thread and in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from streamgen.engine_client import EngineClient
from streamgen.errors import (
    Capacity,
    Conflict,
    InvalidPrompt,
    InvalidRequest,
    NotFound,
)
from streamgen.messages import (
    Applied,
    Rewind,
    SetPrompt,
    StateChanged,
    Superseded,
    Update,
)
from tests.streamgen.studio import Studio
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.viewers import REQUEST, play, quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["thread", "process"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    client = EngineClient(
        tiny_config(max_sessions=2, deterministic=True),
        preset=TINY,
        own_process=request.param == "process",
    )
    await client.start()
    await client.wait_ready()
    yield client
    await client.close()
    assert not client.stats().alive


async def test_chunks_are_those_of_the_engine_bit_for_bit(client: EngineClient) -> None:
    with Studio(deterministic=True) as studio:
        expected = studio.make(studio.open(), 4)
    stream = await client.open(REQUEST)
    chunks = await play(stream, until=3)
    for chunk, reference in zip(chunks, expected, strict=True):
        assert chunk.first_frame_index == reference.first_frame_index
        np.testing.assert_array_equal(chunk.frames, reference.frames)
        np.testing.assert_array_equal(chunk.latents, reference.latents)
    await stream.close()


async def test_frames_are_read_only_and_release_may_come_twice(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    async for chunk in stream.chunks():
        with pytest.raises(ValueError, match="read-only"):
            chunk.frames[0] = 0
        chunk.release()
        chunk.release()
        break
    await stream.close()


async def test_a_control_has_two_receipts(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    await play(stream, until=1)
    first = await stream.control(SetPrompt("a star", event_id="first"))
    second = await stream.control(SetPrompt("a box", event_id="second"))
    assert (first.prompt_revision, second.prompt_revision) == (1, 2)
    chunks = await play(stream, until=4)
    revisions = [chunk.prompt_revision for chunk in chunks]
    assert revisions == sorted(revisions)
    assert revisions[-1] == 2
    await stream.close()
    events = [event async for event in stream.events()]
    (applied,) = [e for e in events if isinstance(e, Applied) and e.event_id == "second"]
    assert applied.chunk_index == next(c.index for c in chunks if c.prompt_revision == 2)
    others = [e for e in events if getattr(e, "event_id", None) == "first"]
    assert len(others) == 1
    assert isinstance(others[0], Superseded | Applied)


async def test_errors_cross_with_code_and_field(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    with pytest.raises(InvalidPrompt) as caught:
        await stream.control(SetPrompt(""))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "prompt")
    with pytest.raises(InvalidRequest, match=r"0\.\.4294967295"):
        await client.open(dataclasses.replace(REQUEST, seed=-1))
    other = await client.open(REQUEST)
    with pytest.raises(Capacity) as full:
        await client.open(REQUEST)
    assert full.value.retryable
    assert full.value.retry_after_s
    await play(stream, until=1)
    await stream.close()
    await other.close()


async def test_without_a_report_of_playing_two_chunks_are_made(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    chunks = stream.chunks()
    assert [(await anext(chunks)).index for _ in range(2)] == [0, 1]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(chunks), 0.3)
    await stream.close()


async def test_pause_is_told_at_once(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    await play(stream, until=0)
    await stream.control(Update(paused=True))
    assert stream.state == "paused"
    await stream.control(Update(paused=False))
    await play(stream, until=3)
    await stream.close()


async def test_a_suspended_stream_frees_its_place_and_goes_on(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    await play(stream, until=2)
    assert client.stats().sessions_free == 1
    await stream.suspend()
    await stream.suspend()
    await quiet(client, sessions_free=2)
    assert stream.state == "suspended"
    await stream.resume()
    chunks = await play(stream, until=5)
    assert [c.index for c in chunks] == [3, 4, 5]
    assert {len(c.frames) for c in chunks} == {12}
    await stream.close()
    await quiet(client, sessions_free=2)


async def test_an_opening_that_is_cancelled_leaves_nothing(client: EngineClient) -> None:
    opening = asyncio.create_task(client.open(REQUEST))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    stream = await client.open(REQUEST)  # answered after the other one was closed or opened
    await stream.close()
    await quiet(client, sessions_free=2)
    assert client.list() == ()


async def test_the_last_chunk_ends_the_stream(client: EngineClient) -> None:
    stream = await client.open(dataclasses.replace(REQUEST, num_frames=30))
    assert client.get(stream.id) is stream
    assert sum(len(chunk.frames) for chunk in await play(stream, until=99)) == 30
    events = [event async for event in stream.events()]
    assert events[-1] == StateChanged("closed", "done")
    assert client.get(stream.id) is None
    for end in (stream.suspend, stream.resume, stream.close, stream.close):
        await end()
    with pytest.raises(Conflict, match="all frames of this video are made"):
        await stream.control(SetPrompt("too late"))


async def test_closing_ends_readers_and_lets_go_of_what_nobody_took(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    reading = asyncio.create_task(play(stream, until=99))
    await asyncio.sleep(0.1)
    await stream.close()
    await stream.close()
    await asyncio.wait_for(reading, 60)
    await quiet(client, sessions_free=2)


async def test_chunks_that_are_not_let_go_do_not_stop_the_engine(client: EngineClient) -> None:
    """More than the ring has slots: the rest come by value."""
    stream = await client.open(REQUEST)
    held = []
    async for chunk in stream.chunks():
        held.append((chunk, chunk.frames.copy()))
        stream.played(chunk.first_frame_index + len(chunk.frames) - 1)
        if len(held) == 10:
            break
    for chunk, frames in held:
        np.testing.assert_array_equal(chunk.frames, frames)
        chunk.release()
    await stream.close()


async def test_a_fork_plays_beside_its_parent(client: EngineClient) -> None:
    parent = await client.open(REQUEST)
    chunks = await play(parent, until=3)
    child = await parent.fork()
    assert child.id != parent.id
    assert child.config == parent.config
    await child.control(SetPrompt("a star"))
    theirs, mine = await asyncio.gather(play(child, until=6), play(parent, until=6))
    assert theirs[0].index > chunks[-1].index
    assert theirs[0].first_frame_index >= chunks[-1].first_frame_index + 12
    assert (str(theirs[-1].record.text), str(mine[-1].record.text)) == ("a star", "a red ball")
    earlier = child.record().chunks[1].index
    with pytest.raises(Capacity):
        await parent.fork(earlier)
    await parent.close()
    again = await child.fork(earlier)
    assert [c.index for c in again.record().chunks] == [0, earlier]
    for stream in (child, again):
        await stream.close()
    await quiet(client, sessions_free=2)


async def test_a_fork_of_a_chunk_that_is_not_kept_is_refused(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    await play(stream, until=1)
    with pytest.raises(NotFound, match="chunk 99 is not kept"):
        await stream.fork(99)
    await stream.close()


async def test_a_rewind_goes_back_and_numbers_go_on(client: EngineClient) -> None:
    stream = await client.open(REQUEST)
    await play(stream, until=2)
    await stream.control(SetPrompt("a star"))
    await play(stream, until=5)
    receipt = await stream.control(Rewind(1, "back"))
    chunks = await play(stream, until=9)
    first = next(c for c in chunks if receipt.event_id in c.started_event_ids)
    assert str(first.record.text) == "a red ball"
    assert first.record.draw == 2
    assert [c.index for c in chunks] == list(range(6, 10))
    kept = [c.index for c in stream.record().chunks]
    assert kept[:3] == [0, 1, first.index]
    await stream.close()


async def test_a_record_goes_on_as_another_session(client: EngineClient) -> None:
    stream = await client.open(dataclasses.replace(REQUEST, priority="batch"))
    await play(stream, until=3)
    await stream.control(SetPrompt("a star", event_id="pending"))
    record = stream.record()
    await stream.close()
    other = await client.restore(record)
    assert other.id != stream.id
    assert other.config.priority == "batch"
    chunks = await play(other, until=record.num_chunks)
    assert [c.index for c in chunks] == [record.num_chunks]
    assert chunks[0].started_event_ids == ("pending",)
    assert str(chunks[0].record.text) == "a star"
    await other.close()
