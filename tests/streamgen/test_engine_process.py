"""The life and death of the engine's own process, and the memory it shares."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from streamgen.engine_client import EngineClient
from streamgen.engine_link import STOP_TIMEOUT_S, ProcessLink
from streamgen.errors import EngineStopped, ModelNotReady, StreamgenError
from streamgen.frame_ring import FrameRing
from streamgen.messages import Failed, Queued, Restarted, SetPrompt, StateChanged, Update
from tests.streamgen.studio import Studio
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.viewers import (
    PATIENCE_S,
    REQUEST,
    alive,
    play,
    process_client,
    process_id,
    quiet,
    ready,
    restarted,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("own_process", [False, True])
async def test_weights_that_are_missing_are_said(own_process: bool, tmp_path: Path) -> None:
    preset = dataclasses.replace(TINY, weights=tmp_path)
    client = EngineClient(tiny_config(), preset=preset, own_process=own_process)
    await client.start()
    with pytest.raises(StreamgenError, match=r"dit\.safetensors cannot be read"):
        await client.wait_ready()
    assert not client.stats().alive
    await client.close()


async def test_a_killed_engine_is_replaced_under_a_playing_stream() -> None:
    client, pid = await process_client(deterministic=True)
    stream = await client.open(REQUEST)
    await play(stream, until=2)
    await stream.control(SetPrompt("a star", event_id="before"))
    before = await play(stream, until=4)
    playing = asyncio.create_task(play(stream, until=8))
    await stream.control(Update(paused=True, event_id="pause"))
    await stream.control(SetPrompt("a box", event_id="pending"))
    os.kill(pid, signal.SIGKILL)
    await restarted(client, 1)
    assert client.stats().alive
    assert not client.stats().ready
    assert client.stats().stage == "restart"
    with pytest.raises(ModelNotReady) as caught:
        await client.open(REQUEST)
    assert caught.value.retryable
    await ready(client)
    assert process_id(client) != pid
    await stream.control(Update(paused=False))
    chunks = before + await playing
    assert [c.index for c in chunks] == list(range(3, 9))
    for one, following in itertools.pairwise(chunks):
        assert following.first_frame_index == one.first_frame_index + len(one.frames)
        assert following.pts_s == pytest.approx(one.pts_s + len(one.frames) / one.fps)
        assert following.prompt_revision >= one.prompt_revision
    assert str(chunks[-1].record.text) == "a box"
    assert [c.index for c in chunks if "pending" in c.started_event_ids] == [
        next(c.index for c in chunks if str(c.record.text) == "a box")
    ]
    await stream.close()
    events = [event async for event in stream.events()]
    assert events.count(Restarted()) == 1
    assert not any(isinstance(event, Failed) for event in events)
    assert client.stats().restarts == 1
    await quiet(client, sessions_free=8)
    await client.close()


async def test_all_streams_go_on_and_those_that_were_suspended_stay_so() -> None:
    client, pid = await process_client(max_sessions=2)
    running, suspended = [await client.open(REQUEST) for _ in range(2)]
    await asyncio.gather(*(play(stream, until=1) for stream in (running, suspended)))
    await suspended.suspend()
    leaving = await client.open(REQUEST)
    os.kill(pid, signal.SIGKILL)
    await restarted(client, 1)
    await leaving.close()  # done at once, without an engine
    assert leaving.state == "closed"
    resuming = asyncio.create_task(suspended.resume())
    await ready(client)
    await resuming
    chunks = await asyncio.gather(play(running, until=4), play(suspended, until=4))
    assert [c.index for c in chunks[0]][-1] == [c.index for c in chunks[1]][-1] == 4
    for stream in (running, suspended):
        await stream.close()
        assert [event async for event in stream.events()].count(Restarted()) == 1
    await quiet(client, sessions_free=2)
    await client.close()


async def test_who_waits_for_a_place_still_does_when_the_engine_is_replaced() -> None:
    """There is memory for all and time for one: they wait in the same order as before."""
    client, pid = await process_client(max_sessions=4, max_queue=4, max_utilisation=0.02)
    request = dataclasses.replace(REQUEST, fps=60, steps=4)
    leaving, inside, first, second = [await client.open(request) for _ in range(4)]
    await leaving.suspend()
    await play(inside, until=1)
    await leaving.resume()  # it is the oldest, and the last in line
    assert [s.state for s in (inside, first, second, leaving)] == ["running", *["queued"] * 3]
    os.kill(pid, signal.SIGKILL)
    await restarted(client, 1)
    await ready(client)
    await play(inside, until=3)
    assert [s.state for s in (inside, first, second, leaving)] == ["running", *["queued"] * 3]
    assert client.stats().queue_length == 3
    await inside.close()
    assert [c.index for c in await play(first, until=1)] == [0, 1]
    assert [s.state for s in (second, leaving)] == ["queued"] * 2
    for stream, position in ((leaving, 1), (second, 0)):
        await stream.close()
        told = [event async for event in stream.events()]
        assert told.count(Restarted()) == 1
        assert [e.position for e in told if isinstance(e, Queued)][-1] == position
    await first.close()
    await quiet(client, sessions_free=1)  # for lack of time
    await client.close()


async def test_calls_under_way_fail_with_an_error_that_says_to_ask_again() -> None:
    client, pid = await process_client()
    stream = await client.open(REQUEST)
    await play(stream, until=1)
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(stream.control(SetPrompt("a star")))
    opening = asyncio.create_task(client.open(REQUEST))
    suspending = asyncio.create_task(stream.suspend())
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    for call in (asked, opening):
        with pytest.raises(EngineStopped, match="ask again") as caught:
            await call
        assert (caught.value.code, caught.value.retryable) == ("worker_restarted", True)
    await suspending
    assert stream.state == "suspended"
    await ready(client)
    assert client.list() == (stream,)
    assert client.stats().sessions_free == 8
    await client.close()


async def test_q14_a_stalled_engine_is_busy_and_nobody_waits_for_it() -> None:
    client, pid = await process_client(faults="worker.stall:4@6")
    stream = await client.open(REQUEST)
    playing = asyncio.create_task(play(stream, until=4))
    num_busy = 0
    while not playing.done():
        await asyncio.sleep(0.01)
        stats = client.stats()
        num_busy += stats.busy_s > 0
        assert stats.alive
        assert stats.ready
    assert num_busy > 3
    assert client.stats().restarts == 0
    assert process_id(client) == pid
    await client.close()


async def test_q14_an_engine_that_is_stuck_for_good_is_replaced() -> None:
    client, pid = await process_client(stall_timeout=2)
    stream = await client.open(REQUEST)
    await play(stream, until=1)
    os.kill(pid, signal.SIGSTOP)
    await restarted(client, 1, within_s=30)  # it is 60 s unless told
    await ready(client)
    assert not alive(pid)
    assert (await play(stream, until=5))[-1].index == 5
    await client.close()


async def test_q48_a_lost_device_takes_the_process_and_not_the_sessions() -> None:
    client, pid = await process_client(faults="pass.denoise:fatal@8")
    streams = [await client.open(REQUEST) for _ in range(2)]
    chunks = await asyncio.gather(*(play(stream, until=5) for stream in streams))
    assert [[c.index for c in made] for made in chunks] == [list(range(6))] * 2
    assert client.stats().restarts == 1
    assert process_id(client) != pid
    await client.close()


async def test_an_engine_that_dies_again_and_again_is_given_up() -> None:
    client, _ = await process_client()
    stream = await client.open(REQUEST)
    for _ in range(3):
        os.kill(process_id(client), signal.SIGKILL)
        deaths = client.stats().restarts
        await restarted(client, deaths + 1)
        if client.stats().alive:
            await ready(client)
    for chunk in [chunk async for chunk in stream.chunks()]:
        chunk.release()
    events = [event async for event in stream.events()]
    assert isinstance(events[-2], Failed)
    assert (events[-2].code, events[-2].retryable) == ("worker_restarted", True)
    assert "exit code -9" in events[-2].message
    assert events[-1] == StateChanged("failed")
    assert not client.stats().alive
    with pytest.raises(EngineStopped):
        await client.open(REQUEST)
    await client.close()


async def test_a_stuck_engine_is_ended() -> None:
    assert STOP_TIMEOUT_S < 5  # it is killed then
    client, pid = await process_client()
    stream = await client.open(REQUEST)
    os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(client.close(), PATIENCE_S)
    assert not alive(pid)
    assert [event async for event in stream.events()][-1] == StateChanged("closed")


async def test_an_engine_that_is_loading_is_ended_before_it_has_loaded() -> None:
    client = EngineClient(tiny_config(), preset=TINY)
    await client.start()
    pid = process_id(client)
    os.kill(pid, signal.SIGSTOP)  # it would never have loaded
    await asyncio.wait_for(client.close(), PATIENCE_S)
    assert not alive(pid)
    with pytest.raises(EngineStopped):
        await client.wait_ready()


async def test_the_engine_ends_when_its_client_dies() -> None:
    script = (
        "import asyncio, os, signal\n"
        "from tests.streamgen.viewers import process_client\n"
        "async def main():\n"
        "    client, pid = await process_client()\n"
        "    print(pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    client = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert client.returncode == -signal.SIGKILL
    pid = int(client.stdout)
    deadline = time.monotonic() + PATIENCE_S
    while alive(pid):
        assert time.monotonic() < deadline, pid
        await asyncio.sleep(0.05)


async def test_i420_crosses_in_half_the_bytes() -> None:
    client, _ = await process_client(deterministic=True, pixel_format="i420")
    stream = await client.open(REQUEST)
    with Studio(deterministic=True, pixel_format="i420") as studio:
        expected = studio.make(studio.open(), 3)
    for chunk, reference in zip(await play(stream, until=2), expected, strict=True):
        assert chunk.frames.shape[1:] == (48, 48)
        np.testing.assert_array_equal(chunk.frames, reference.frames)
    link = client.supervisor.link
    assert isinstance(link, ProcessLink)
    assert link._ring.slot_bytes == 12 * 48 * 32 * 3 // 2
    await client.close()


async def test_a_ring_gives_its_slots_in_turn() -> None:
    ring = FrameRing.create(num_slots=2, slot_bytes=24)
    frames = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    assert [ring.put(frames), ring.put(frames[:1]), ring.put(frames)] == [0, 1, None]
    np.testing.assert_array_equal(ring.view(0, (2, 2, 2, 3)), frames)
    np.testing.assert_array_equal(ring.view(1, (1, 2, 2, 3)), frames[:1])
    ring.release(1)
    assert ring.put(frames + 1) == 1
    view = ring.view(1, (2, 2, 2, 3))
    ring.seal()
    ring.seal()
    del ring
    np.testing.assert_array_equal(view, frames + 1)  # a view outlives the ring


async def test_the_memory_of_a_ring_has_no_name() -> None:
    ring = FrameRing.create(num_slots=2, slot_bytes=24)
    assert ring._descriptor is not None
    assert os.fstat(ring._descriptor).st_nlink == 0
    ring.seal()
