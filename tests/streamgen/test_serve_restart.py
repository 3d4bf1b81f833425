"""`streamgen serve` when its engine is killed under a viewer."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from websockets.asyncio.client import connect

from tests.streamgen.server_process import PATIENCE_S, is_alive, serving
from tests.transport.realtime_client import RealtimeClient

pytestmark = pytest.mark.slow


async def test_a_viewer_sees_a_freeze_when_the_engine_is_killed_and_then_goes_on() -> None:
    with serving() as server:
        async with connect(server.socket_url, max_size=None, close_timeout=1) as connection:
            client = RealtimeClient(connection, patience_s=PATIENCE_S)
            await client.start(seed=1)
            await client.until_frame(30)
            os.kill(server.children()[-1], signal.SIGKILL)
            await client.until("session.worker_restarted")
            await client.until_frame(120)
            assert [frame.index for frame in client.frames] == list(range(121))
            chunks = [m for m in client.messages if m["type"] == "video.chunk_metadata"]
            indices = [chunk["generation_chunk_index"] for chunk in chunks]
            assert indices == list(range(len(indices)))
            health = (await asyncio.to_thread(server.get, "health")).json()
            assert (health["status"], health["restarts"]) == ("ok", 1)
            await client.send("session.stop")
            await client.until_closed()


def test_an_engine_that_dies_too_often_is_said_and_the_server_still_ends_in_order() -> None:
    with serving() as server:
        deadline = time.monotonic() + PATIENCE_S
        for deaths in range(1, 4):
            server.wait_ready()
            children = server.children()
            os.kill(children[-1], signal.SIGKILL)
            while server.get("health").json()["restarts"] < deaths:
                assert time.monotonic() < deadline, server.err
                time.sleep(0.1)
        while "the engine has ended" not in "".join(server.err):
            assert time.monotonic() < deadline, server.err
            time.sleep(0.1)
        assert server.get("healthz").status_code == 200
        assert server.get("health").status_code == server.get("readyz").status_code == 503
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        while any(map(is_alive, children)):  # the last to go sees that its parent has gone
            assert time.monotonic() < deadline, children
            time.sleep(0.1)
