"""Field cases of clients that do not read, and of an engine that does not answer."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from tests.transport.conftest import Serve, eventually, raw_socket
from tests.transport.fake_host import FakeHost
from tests.transport.painting import Shot
from transport.stream import SessionConfig

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
    """Memory stays, and a good client loses no frame while nothing more can be sent to it."""
    host = FakeHost(fps=16, chunk_frames=4, width=256, height=256, paint=paint_noise)
    server = await serve(host, send_timeout_s=600.0)
    good = await server.start()
    await good.more_frames(8)
    before = resident_bytes()
    sock = await raw_socket(server, receive_bytes=4096)
    await asyncio.get_running_loop().sock_sendall(sock, start_message())
    await eventually(lambda: "s2" in host.streams and bool(server.viewers("s2")))
    (stuck,) = server.viewers("s2")
    sent = 0
    while not sent or stuck.num_sent != sent:
        sent = stuck.num_sent
        await good.more_frames(10)
    assert stuck in server.viewers("s2")
    assert resident_bytes() - before < 50 * MIB
    indices = [frame.index for frame in good.frames]
    assert indices == list(range(len(indices)))


async def test_q10_a_client_that_never_reads_is_dropped(serve: Serve) -> None:
    """After the send time-out, and its pages are freed."""
    host = FakeHost(fps=16, chunk_frames=4, width=256, height=256, paint=paint_noise)
    server = await serve(host, send_timeout_s=0.5)
    sock = await raw_socket(server, receive_bytes=4096)
    await asyncio.get_running_loop().sock_sendall(sock, start_message())
    await eventually(lambda: "s1" in host.streams and host.streams["s1"].state == "suspended")
    assert host.pages_free == 30


async def test_q10_a_watcher_that_never_reads_slows_nobody(serve: Serve) -> None:
    """On one session too: the watcher skips frames, the other viewer gets all."""
    host = FakeHost(fps=16, chunk_frames=4, width=256, height=256, paint=paint_noise)
    server = await serve(host)
    good = await server.start()
    first = good.messages[0]
    path = f"/v1/realtime/sessions/{first['session_id']}/view"
    (first_viewer,) = server.viewers()
    watcher = await server.connect(path)
    await watcher.send("session.view", viewer_token=first["viewer_token"])
    await watcher.until_frame(0)
    (skipping,) = (one for one in server.viewers() if one is not first_viewer)
    while skipping.num_dropped < 10:
        await good.more_frames(1)
    indices = [frame.index for frame in good.frames]
    assert indices == list(range(len(indices)))
    async with server.http() as http:
        described = (await http.get(f"/v1/realtime/sessions/{first['session_id']}")).json()
    dropped = sorted(viewer["dropped"] for viewer in described["viewers"])
    assert dropped[0] == 0
    assert dropped[1] > 0


async def test_q14_a_stalled_engine_does_not_stop_keepalive(serve: Serve) -> None:
    """While a control waits: pings are answered, health is good, frames come, order holds."""
    server = await serve()
    client = await server.start()
    await client.more_frames(4)
    obeys = server.host.streams["s1"].obeys
    obeys.clear()
    await client.prompt("first", "e1")
    await client.prompt("second", "e2")
    await (await client.socket.ping())
    await client.send("session.ping")
    await client.until("session.pong")
    async with server.http() as http:
        for path in ("/healthz", "/health", "/readyz"):
            assert (await http.get(path)).status_code == 200
    await client.more_frames(8)
    assert client.of_type("session.interaction.queued") == []
    obeys.set()
    await client.until("session.interaction.queued", event_id="e2")
    queued = [message["event_id"] for message in client.of_type("session.interaction.queued")]
    assert queued == ["e1", "e2"]
    indices = [frame.index for frame in client.frames]
    assert all(later > earlier for earlier, later in pairwise(indices))


async def test_controls_that_wait_are_bounded(serve: Serve) -> None:
    """Of more than 64 behind a stalled engine the oldest give way, each told by its name."""
    server = await serve()
    client = await server.start()
    obeys = server.host.streams["s1"].obeys
    obeys.clear()
    for number in range(70):
        await client.prompt("again", f"e{number}")
    gone = await client.until("session.interaction.superseded")
    assert gone["event_id"] in ("e0", "e1", "e2")
    obeys.set()
    await client.until("session.interaction.queued", event_id="e69")
    assert client.of_type("error") == []


async def test_a_client_that_leaves_while_the_engine_opens_leaves_nothing(serve: Serve) -> None:
    """The opening is cancelled."""
    server = await serve()
    opening, cancelled = asyncio.Event(), asyncio.Event()

    async def open_never(config: SessionConfig) -> NoReturn:
        opening.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    server.host.open = open_never  # type: ignore[method-assign]
    client = await server.connect()
    await client.send("session.start", prompt="a")
    await eventually(opening.is_set)
    await client.socket.close()
    await eventually(cancelled.is_set)
    assert server.host.num_opened == 0
    del server.host.open
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
