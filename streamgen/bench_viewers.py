"""Viewers that receive and decode nothing, so that many of them fit beside the server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RtcpPsfbPacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    pack_remb_fci,
)
from websockets.asyncio.client import connect

from streamgen.bench_figures import Name
from streamgen.bench_process import LOOPBACK
from streamgen.bench_server import TAIL_BYTES
from streamgen.errors import StreamgenError

REPORT_INTERVAL_S: Final = 1.0  # as Chromium reports
ESTIMATE_BPS: Final = 20_000_000  # loopback carries whatever is sent
TIMEOUT_S: Final = 60.0
MARKER: Final = 0x80
HEADER: Final = struct.Struct(">IIQ")  # frame index, chunk index, presentation time


@dataclass
class Counts:
    """What a viewer has received; of each frame its name and when it was there in full."""

    num_bytes: int = 0
    arrivals: list[tuple[Name, float]] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, name: Name) -> None:
        """Note a frame."""
        self.arrivals.append((name, time.monotonic()))
        self.first.set()

    async def until_first(self) -> None:
        """Wait for the first frame; raise StreamgenError when none comes."""
        try:
            await asyncio.wait_for(self.first.wait(), TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise StreamgenError(f"no frame came within {TIMEOUT_S:g} s") from error


class RtcViewer:
    """An aiortc viewer of one codec that takes RTP as it comes and reports like a browser."""

    def __init__(self, codec: str) -> None:
        self.counts = Counts()
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        transceiver = self._connection.addTransceiver("video", direction="recvonly")
        kinds = RTCRtpReceiver.getCapabilities("video").codecs
        wanted = (f"video/{codec}", "video/rtx")
        transceiver.setCodecPreferences([k for k in kinds if k.mimeType.lower() in wanted])
        # In place of the receiver, which would put frames together and decode them.
        self._transport = transceiver.receiver.transport
        self._transport._handle_rtp_data = self._take
        self._ssrc = self._sequence = 0
        self._reports: asyncio.Task[None] | None = None

    async def offer(self) -> str:
        """Return an offer, its candidates gathered."""
        await self._connection.setLocalDescription(await self._connection.createOffer())
        sdp: str = self._connection.localDescription.sdp
        return sdp

    async def accept(self, answer: str) -> None:
        """Take the answer and begin to receive."""
        await self._connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        self._reports = asyncio.get_running_loop().create_task(self._report())

    async def close(self) -> None:
        """End the connection, which tells the server. Idempotent."""
        if self._reports is not None:
            self._reports.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reports
        await self._connection.close()

    async def _take(self, data: bytes, arrival_time_ms: int) -> None:
        self.counts.num_bytes += len(data)
        self._sequence, self._ssrc = struct.unpack_from("!2xH4xI", data)
        if data[1] & MARKER:
            self.counts.add(data[-TAIL_BYTES:])

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            if not self._ssrc:
                continue
            report = RtcpReceiverInfo(self._ssrc, 0, 0, self._sequence, 0, 0, 0)
            estimate = pack_remb_fci(ESTIMATE_BPS, [self._ssrc])
            packets = (RtcpRrPacket(1, [report]), RtcpPsfbPacket(RTCP_PSFB_APP, 1, 0, estimate))
            with contextlib.suppress(ConnectionError):  # the server may be gone
                await self._transport._send_rtp(b"".join(map(bytes, packets)))


class SocketViewer:
    """A viewer over the view socket; JPEG is acknowledged frame by frame, as the page does."""

    def __init__(self, port: int, session: dict[str, Any], format: str) -> None:
        self.counts = Counts()
        self._url = f"ws://{LOOPBACK}:{port}/v1/realtime/sessions/{session['id']}/view"
        self._acks = format == "jpeg"
        self._first = {
            "type": "session.view",
            "viewer_token": session["viewer_token"],
            "format": format,
            "acks": self._acks,
        }
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """End the connection; raise what it ended with before, if it was an error."""
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def _watch(self) -> None:
        async with connect(self._url, max_size=None, compression=None) as socket:
            await socket.send(json.dumps(self._first))
            async for message in socket:
                if isinstance(message, str):
                    self._check(message)
                    continue
                self.counts.num_bytes += len(message)
                if not self._acks:
                    self.counts.add(message[-TAIL_BYTES:])
                    continue
                index, _, _ = HEADER.unpack_from(message)
                self.counts.add(index)
                await socket.send(json.dumps({"type": "session.ack", "frame_index": index}))

    def _check(self, message: str) -> None:
        told = json.loads(message)
        if told["type"] == "error":
            raise StreamgenError(f"the server answers: {told['message']}")


@contextlib.asynccontextmanager
async def audience() -> AsyncIterator[list[RtcViewer | SocketViewer]]:
    """Yield a list of viewers; whoever is in it at the end leaves."""
    viewers: list[RtcViewer | SocketViewer] = []
    try:
        yield viewers
    finally:
        await asyncio.gather(*(viewer.close() for viewer in viewers))


async def post(port: int, path: str, body: str, media_type: str = "application/json") -> str:
    """Return what the server answers with 201; raise StreamgenError for anything else."""
    return await asyncio.to_thread(_post, port, path, body, media_type)


def _post(port: int, path: str, body: str, media_type: str) -> str:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": media_type})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != 201:
        raise StreamgenError(f"POST {path} is answered {response.status}: {text}")
    return text


async def new_session(port: int, **fields: Any) -> dict[str, Any]:
    """Make a session and return what the server says of it."""
    answer = await post(port, "/v1/realtime/sessions", json.dumps(fields))
    session: dict[str, Any] = json.loads(answer)
    return session


async def watch(port: int, session: dict[str, Any], codec: str = "h264") -> tuple[RtcViewer, float]:
    """Return a viewer over WHEP, and the seconds from its offer to the first frame."""
    viewer = RtcViewer(codec)
    try:
        offer = await viewer.offer()
        began_at = time.monotonic()
        answer = await post(port, session["urls"]["whep"], offer, "application/sdp")
        await viewer.accept(answer)
        await viewer.counts.until_first()
    except BaseException:
        await viewer.close()
        raise
    return viewer, viewer.counts.arrivals[0][1] - began_at
