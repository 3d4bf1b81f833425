"""Field cases of clients that do not read, and of an engine that does not answer."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from tests.transport.conftest import Serve, eventually, raw_socket
from tests.transport.fake_host import FakeHost
from tests.transport.painting import Shot

MIB = 1024 * 1024


def paint_noise(shot: Shot) -> NDArray[np.uint8]:
    """Paint what JPEG cannot make small."""
    noise = np.random.default_rng(shot.first_frame)
    shape = (shot.num_frames, shot.height, shot.width, 3)
    return noise.integers(0, 256, shape, np.uint8)


def resident_bytes() -> int:
    """Return this process's memory; the server and its clients are in it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def start_message(**fields: object) -> bytes:
    """Return a masked frame that starts a session."""
    text = json.dumps({"type": "session.start", "prompt": "a", **fields})
    return WebSocketFrame(Opcode.TEXT, text.encode()).serialize(mask=True)


async def test_q10_a_client_that_never_reads(serve: Serve) -> None:
    """It is dropped and its pages are freed; memory stays, and a good client loses no frame."""
    host = FakeHost(fps=16, chunk_frames=4, width=256, height=256, paint=paint_noise)
    server = await serve(host, send_timeout_s=2.0)
    good = await server.start()
    await good.more_frames(8)
    before = resident_bytes()
    sock = await raw_socket(server, receive_bytes=4096)
    await asyncio.get_running_loop().sock_sendall(sock, start_message())
    await good.receive_for(5.0)
    assert host.streams["s2"].state == "suspended"
    assert host.pages_free == 20
    assert resident_bytes() - before < 50 * MIB
    indices = [frame.index for frame in good.frames]
    assert indices == list(range(len(indices)))
    assert len(indices) > 5 * 16 / 2


async def test_q10_a_watcher_that_never_reads_slows_nobody(serve: Serve) -> None:
    """On one session too: the watcher skips frames, the other viewer gets all."""
    host = FakeHost(fps=16, chunk_frames=4, width=256, height=256, paint=paint_noise)
    server = await serve(host)
    good = await server.start()
    first = good.messages[0]
    path = f"/v1/realtime/sessions/{first['session_id']}/view"
    watcher = await server.connect(path)
    await watcher.send("session.view", viewer_token=first["viewer_token"])
    await watcher.until_frame(0)
    await good.receive_for(3.0)
    indices = [frame.index for frame in good.frames]
    assert indices == list(range(len(indices)))
    async with server.http() as http:
        described = (await http.get(f"/v1/realtime/sessions/{first['session_id']}")).json()
    dropped = sorted(viewer["dropped"] for viewer in described["viewers"])
    assert dropped[0] == 0
    assert dropped[1] > 0


async def test_q14_a_stalled_engine_does_not_stop_keepalive(serve: Serve) -> None:
    """While a control takes 2 s: pings are answered, health is good, frames come, order holds."""
    server = await serve()
    client = await server.start()
    await client.more_frames(4)
    server.host.control_s = 1.0
    await client.prompt("first", "e1")
    await client.prompt("second", "e2")
    await (await client.socket.ping())
    await client.send("session.ping")
    await client.until("session.pong")
    async with server.http() as http:
        for path in ("/healthz", "/health", "/readyz"):
            assert (await http.get(path)).status_code == 200
    assert client.of_type("session.interaction.queued") == []
    shown = len(client.frames)
    await client.until("session.interaction.queued", event_id="e2")
    queued = [message["event_id"] for message in client.of_type("session.interaction.queued")]
    assert queued == ["e1", "e2"]
    assert len(client.frames) > shown + 8
    indices = [frame.index for frame in client.frames]
    assert all(later > earlier for earlier, later in pairwise(indices))


async def test_controls_that_wait_are_bounded(serve: Serve) -> None:
    """Of more than 64 behind a stalled engine the oldest give way, each told by its name."""
    server = await serve()
    client = await server.start()
    server.host.control_s = 0.5
    for number in range(70):
        await client.prompt("again", f"e{number}")
    gone = await client.until("session.interaction.superseded")
    assert gone["event_id"] in ("e0", "e1", "e2")
    server.host.control_s = 0.0
    await client.until("session.interaction.queued", event_id="e69")
    assert client.of_type("error") == []


async def test_a_client_that_leaves_while_the_engine_opens_leaves_nothing(serve: Serve) -> None:
    """The opening is cancelled."""
    server = await serve(FakeHost(open_s=0.5))
    client = await server.connect()
    await client.send("session.start", prompt="a")
    await asyncio.sleep(0.1)
    await client.socket.close()
    await asyncio.sleep(0.6)
    assert server.host.num_opened == 0
    server.host.open_s = 0.0
    await server.start()


async def test_an_engine_that_is_not_ready(serve: Serve) -> None:
    """An error with the time to wait, then close 1013."""
    server = await serve(FakeHost(ready=False))
    client = await server.connect()
    await client.send("session.start", prompt="a")
    error = await client.until("error")
    assert (error["code"], error["retry_after_s"]) == ("model_not_ready", 1)
    assert await client.until_closed() == 1013
    server.host.ready = True
    await server.start()


async def test_a_host_that_breaks_is_an_internal_error(serve: Serve) -> None:
    """The client learns that the server failed and nothing from the inside; others go on."""
    server = await serve()
    other = await server.start()
    client = await server.start()

    def broken(*_: object) -> None:
        raise AssertionError("secret of the house")

    server.host.check_prompt = broken  # type: ignore[method-assign,assignment]
    await client.prompt("a", "e")
    error = await client.until("error")
    assert (error["code"], error["message"]) == ("internal", "the server failed")
    assert await client.until_closed() == 1011
    await eventually(lambda: server.host.pages_free == 20)
    await other.more_frames(8)
