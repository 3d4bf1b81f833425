"""How viewers over WebRTC end: politely, killed, standing still; and how often they may come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiortc.mediastreams import MediaStreamError

from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.rtc_client import RtcViewer, new_session, prepare, watching, whep_of
from transport import webrtc
from transport.rtc_patches import Connecting
from transport.rtc_peers import Peers
from transport.webrtc import Peer

ROOT = Path(__file__).parents[2]
IS_LONG = float(os.environ.get("SOAK_SECONDS", "60")) >= 600


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """The WebRTC viewers of the servers."""
    return prepare(monkeypatch)


class Elsewhere:
    """A viewer in another process and what it prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.reading = asyncio.create_task(self._read())

    async def until_shown(self, more: int, timeout_s: float = 60.0) -> None:
        """Wait until so many more frames were shown."""
        number = len(self.lines) + more
        await eventually(lambda: len(self.lines) >= number, timeout_s)

    def behind(self, peer: Peer) -> float:
        """Return how many seconds of video the newest frame sent is ahead of the one shown last."""
        sent = peer._transceiver.sender._RTCRtpSender__rtp_timestamp
        shown = int(self.lines[-1].split()[1])
        return ((sent - shown) & 0xFFFFFFFF) / webrtc.CLOCK_HZ

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().strip())


@contextlib.asynccontextmanager
async def elsewhere(server: RunningServer, whep: str) -> AsyncIterator[Elsewhere]:
    """Watch in another process, as a browser does."""
    url = f"http://127.0.0.1:{server.port}{whep}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.transport.rtc_client", url,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    watcher = Elsewhere(process)
    try:
        yield watcher
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()
        await watcher.reading


async def test_q07_polite_ends(
    serve: Serve, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed, or a session that ends, is gone on both sides: it is told so."""
    monkeypatch.setattr(webrtc, "SILENCE_TIMEOUT_S", 600.0)
    server = await serve()
    whep = await whep_of(server)
    async with watching(server, whep) as viewer:
        await viewer.until_seen(5)
        await viewer.close()
        await eventually(lambda: not peers[0], 15.0)  # ICE would find out after 30 s
    async with watching(server, whep) as viewer:
        await viewer.until_seen(5)
        async with server.http() as http:
            answer = await http.delete("/v1/realtime/sessions/s1", headers=server.owner())
            assert answer.status_code == 200
        await viewer.until_closed()
        await eventually(lambda: not peers[0])
    made = await new_session(server, num_frames=40)
    async with server.http() as http, watching(server, made["urls"]["whep"]) as viewer:
        pause = {"type": "session.update", "paused": True}
        owner = server.owner(made["id"])
        await http.post(made["urls"]["events"], json=pause, headers=owner)
        await viewer.until_connected()
        await http.post(made["urls"]["events"], json={**pause, "paused": False}, headers=owner)
        await viewer.until_closed()
        assert len(viewer.seen) >= 20, "it was sent what came after it was connected"


async def test_the_server_stops(serve: Serve, peers: list[Peers]) -> None:
    """Viewers are told."""
    server = await serve()
    async with watching(server, await whep_of(server)) as viewer:
        await viewer.until_seen(5)
        await peers[0].close()
        await viewer.until_closed()
        assert not peers[0]


async def test_q07_a_client_that_is_killed(
    serve: Serve, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free after some silence; the stream is suspended, and a new viewer wakes it."""
    server = await serve()
    whep = await whep_of(server)
    async with elsewhere(server, whep) as watcher:
        await watcher.until_shown(10)
        watcher.process.kill()
        if not IS_LONG:
            monkeypatch.setattr(webrtc, "SILENCE_TIMEOUT_S", 2.0)
        await eventually(lambda: not peers[0], 25.0)  # ICE would find out after 30 s
        await eventually(lambda: server.host.streams["s1"].state == "suspended")
    async with watching(server, whep) as viewer:
        await viewer.until_seen(5)


async def test_q07_a_client_that_stands_still(
    serve: Serve, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 s do not end its connection, and it sees the newest frames again; much more does, once."""
    if not IS_LONG:
        monkeypatch.setattr(webrtc, "SILENCE_TIMEOUT_S", 60.0)
    server = await serve(FakeHost(fps=20, chunk_s=0.15))
    whep = await whep_of(server)
    async with elsewhere(server, whep) as watcher:
        await watcher.until_shown(10)
        (peer,) = peers[0]
        watcher.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(10.0 if IS_LONG else 3.0)
        watcher.process.send_signal(signal.SIGCONT)
        await watcher.until_shown(20)
        assert list(peers[0]) == [peer]
        # It does not play what it missed for as long as that took.
        await eventually(lambda: watcher.behind(peer) < 1.0)
        if not IS_LONG:
            monkeypatch.setattr(webrtc, "SILENCE_TIMEOUT_S", 2.0)
        watcher.process.send_signal(signal.SIGSTOP)
        await eventually(lambda: not peers[0], 25.0)  # ICE would find out after 30 s
        watcher.process.send_signal(signal.SIGCONT)
    async with watching(server, whep) as viewer:
        await viewer.until_seen(5)


async def test_q49_coming_and_going(serve: Serve, peers: list[Peers]) -> None:
    """Again and again from one page, with two places."""
    server = await serve(max_viewers=2)
    whep = await whep_of(server)
    for _ in range(20 if IS_LONG else 6):
        async with watching(server, whep) as viewer:
            await viewer.until_seen(2)
            assert await viewer.leave() == 200
        assert not peers[0]


@pytest.mark.parametrize("moments_s", [(0.0, 0.08), (0.05, 0.6)])
async def test_who_leaves_while_connecting_leaves_nothing(
    serve: Serve, peers: list[Peers], moments_s: tuple[float, float]
) -> None:
    """At whatever moment, of ICE or of DTLS: no task goes on, and no socket stays open."""
    server = await serve()
    whep = await whep_of(server, run_unwatched=True)
    url, moments = f"http://127.0.0.1:{server.port}{whep}", random.Random(7)

    async def come_and_go() -> None:
        viewer = RtcViewer(url)
        connecting = Connecting(viewer.connection)  # the client must not leave anything either
        await viewer.connect()
        await asyncio.sleep(moments.uniform(*moments_s))
        assert await viewer.leave() == 200
        await connecting.stop()
        await viewer.close()

    await come_and_go()  # what is made once and kept
    await eventually(lambda: not peers[0])
    base = await settled()
    for _ in range(4):
        await asyncio.gather(*(come_and_go() for _ in range(6)))
    assert not peers[0]
    deadline = time.monotonic() + 30.0
    while left_open() != base and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert left_open() == base


async def settled() -> tuple[list[str], int]:
    """Return what is left open, once nothing of it goes on its own any more."""
    seen = [left_open()]
    while len(seen) < 10 or any(one != seen[-1] for one in seen[-10:]):
        await asyncio.sleep(0.05)
        seen.append(left_open())
    return seen[-1]


def left_open() -> tuple[list[str], int]:
    """Return what the tasks of this process do, and how many files and sockets are open."""
    doing = sorted(getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return doing, len(os.listdir("/proc/self/fd"))


async def test_a_track_that_was_stopped_ends_its_sender(peers: list[Peers]) -> None:
    """Also one that nobody cancels: aiortc may begin to send after it has stopped the sender."""
    track = webrtc.PacketTrack("vp8", lambda: None)
    waiting = asyncio.create_task(track.recv())
    await asyncio.sleep(0.01)
    track.stop()
    for reading in (waiting, asyncio.create_task(track.recv())):
        with pytest.raises(MediaStreamError):
            await asyncio.wait_for(reading, 30.0)
