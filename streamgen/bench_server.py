"""What `bench transport` measures: the server, over a moving picture or the engine, and aiortc.

aiortc alone encodes for each viewer anew, with the encoders it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from fractions import Fraction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

import av
import uvicorn
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription, VideoStreamTrack

from streamgen.bench_figures import Due
from streamgen.bench_process import LOOPBACK, Command, run_server
from streamgen.bench_source import Picture, ReelHost, paint_reel
from streamgen.config import EngineConfig
from transport.encoder import Frame
from transport.host import StreamHost
from transport.http import create_app
from transport.options import TransportOptions
from transport.replies import CloseCode, ServerMessage
from transport.server import listen, uvicorn_config
from transport.sessions import Sessions

if TYPE_CHECKING:
    from streamgen.models.presets import (
        Preset,
    )  # it imports torch, which most servers here do without

TAIL_BYTES: Final = 12  # of a frame's packet, by which a viewer's is known to be the same
CLOCK_HZ: Final = 90_000


def serve_reel(pipe: Connection, picture: Picture) -> None:
    """Serve the moving picture until the pipe is closed."""
    run_server(pipe, lambda: _serving(ReelHost(picture)))


def serve_engine(pipe: Connection, config: EngineConfig, preset: Preset) -> None:
    """Serve the engine, which has a process of its own, until the pipe is closed."""
    run_server(pipe, lambda: _serving_engine(config, preset))


def serve_aiortc(pipe: Connection, picture: Picture) -> None:
    """Answer offers as aiortc does by itself until the pipe is closed."""
    run_server(pipe, lambda: _answering(picture))


# The server as it is.


class Witness:
    """A spectator that is sent nothing and notes when the pacer let each frame go."""

    format = "none"
    transport = None
    estimate_bps: float | None = None
    num_sent = num_dropped = 0
    finished = False

    def __init__(self) -> None:
        self.due: list[Due] = []

    def put(self, message: ServerMessage) -> None:
        """Take no messages."""

    def offer(self, frame: Frame, due_s: float) -> None:
        """Note a frame: its index, when it is due, and the ends of its packets."""
        tails = {name: packet.data[-TAIL_BYTES:] for name, packet in frame.packets.items()}
        self.due.append((frame.index, due_s, tails))

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Nothing waits."""

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """It has no connection."""

    async def drained(self) -> None:
        """Nothing waits."""


@contextlib.asynccontextmanager
async def _serving(host: StreamHost) -> AsyncIterator[dict[str, Command]]:
    """Serve a host; the commands are `port`, `witness` (a session) and `due` (since asked last)."""
    app, witness = create_app(host, TransportOptions()), Witness()
    sessions: Sessions = app.state.sessions

    async def port() -> int:
        number: int = sock.getsockname()[1]
        return number

    async def attend(session_id: str) -> None:
        await sessions.get(session_id).attach(witness)

    async def due() -> list[Due]:
        noted, witness.due = witness.due, []
        return noted

    with listen(LOOPBACK, 0) as sock:
        web = uvicorn.Server(uvicorn_config(app))
        serving = asyncio.create_task(web.serve(sockets=[sock]))
        try:
            yield {"port": port, "witness": attend, "due": due}
        finally:
            web.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def _serving_engine(
    config: EngineConfig, preset: Preset
) -> AsyncIterator[dict[str, Command]]:
    from streamgen.engine_client import EngineClient  # it imports torch
    from streamgen.stream_host import EngineHost

    client = EngineClient(config, preset=preset)
    await client.start()
    try:
        await client.wait_ready()
        async with _serving(EngineHost(client)) as commands:
            yield commands
    finally:
        await client.close()


# aiortc by itself.


class ReelTrack(VideoStreamTrack):  # type: ignore[misc]  # aiortc is not typed here
    """One viewer's track as aiortc's examples have it: a picture, and the clock of the base."""

    def __init__(self, reel: Any, fps: int) -> None:
        super().__init__()
        self._reel = reel
        self._fps = fps
        self._number = 0
        self._began_s = time.monotonic()

    async def recv(self) -> av.VideoFrame:
        """Return the next frame when it is due."""
        due_s = self._began_s + self._number / self._fps
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        frame = av.VideoFrame.from_ndarray(self._reel[self._number % len(self._reel)])
        frame.pts = self._number * CLOCK_HZ // self._fps
        frame.time_base = Fraction(1, CLOCK_HZ)
        self._number += 1
        return frame


@contextlib.asynccontextmanager
async def _answering(picture: Picture) -> AsyncIterator[dict[str, Command]]:
    """Answer offers; the commands are `port` (there is none) and `offer`."""
    reel = paint_reel(picture)
    connections: list[RTCPeerConnection] = []

    async def port() -> int:
        return 0

    async def offer(sdp: str) -> str:
        connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        connections.append(connection)
        connection.addTrack(ReelTrack(reel, picture.fps))
        await connection.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        await connection.setLocalDescription(await connection.createAnswer())
        answer: str = connection.localDescription.sdp
        return answer

    try:
        yield {"port": port, "offer": offer}
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))
