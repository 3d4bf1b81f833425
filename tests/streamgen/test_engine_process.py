"""The life and death of the engine's own process, and the memory it shares."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from streamgen.engine_client import EngineClient
from streamgen.errors import (
    EngineStopped,
    StreamgenError,
)
from streamgen.frame_ring import FrameRing
from streamgen.messages import (
    Failed,
    StateChanged,
)
from tests.streamgen.tiny import TINY, tiny_config
from tests.streamgen.viewers import REQUEST, alive, play, process_client

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


async def test_a_dead_engine_is_told_to_every_viewer() -> None:
    client, pid = await process_client()
    stream = await client.open(REQUEST)
    await play(stream, until=1)
    os.kill(pid, signal.SIGKILL)
    chunks = [chunk async for chunk in stream.chunks()]
    for chunk in chunks:
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


async def test_a_stuck_engine_is_ended_within_five_seconds() -> None:
    client, pid = await process_client()
    stream = await client.open(REQUEST)
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    await client.close()
    assert time.monotonic() - start < 5
    assert not alive(pid)
    assert [event async for event in stream.events()][-1] == StateChanged("closed")


async def test_an_engine_that_is_loading_is_ended_at_once() -> None:
    client = EngineClient(tiny_config(), preset=TINY)
    await client.start()
    start = time.monotonic()
    await client.close()
    assert time.monotonic() - start < 5
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
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, pid
        await asyncio.sleep(0.05)


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
