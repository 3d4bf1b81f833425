"""A WebRTC viewer for tests: aiortc's, over WHEP, in the test's own process or in another.

python -m tests.transport.rtc_client WHEP_URL     prints a line for each frame
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aioice.ice
import av
import httpx
import numpy as np
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.exceptions import InvalidStateError
from aiortc.mediastreams import MediaStreamError
from numpy.typing import NDArray

import transport.http
from tests.transport.conftest import RunningServer, eventually
from tests.transport.rtc_browser import BrowserReceiver
from transport import webrtc
from transport.metrics import Metrics
from transport.options import TransportOptions
from transport.rtc_peers import Peers
from transport.webrtc import Peer

SDP = {"content-type": "application/sdp"}


def prepare(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """Let ICE use 127.0.0.1; return the WebRTC viewers of each server that is started, in order.

    Viewers have all the time to connect, unless a test is about that.
    """
    kept: list[Peers] = []

    def make(options: TransportOptions, metrics: Metrics) -> Peers:
        kept.append(Peers(options, metrics))
        return kept[-1]

    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])
    monkeypatch.setattr(transport.http, "Peers", make)
    monkeypatch.setattr(webrtc, "CONNECT_TIMEOUT_S", 600.0)
    return kept


async def new_session(server: RunningServer, **fields: Any) -> dict[str, Any]:
    """Make a session over HTTP and return what it is."""
    async with server.http() as http:
        answer = await http.post("/v1/realtime/sessions", json={"prompt": "red", **fields})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made


@dataclass(frozen=True)
class Seen:
    """When a frame was there, when it is due by its own clock, and what it shows."""

    at_s: float
    pts_s: float
    frame: av.VideoFrame

    def pixels(self) -> NDArray[np.uint8]:
        """Return the picture, uint8 RGB [H, W, 3]."""
        return self.frame.to_ndarray(format="rgb24")


@dataclass
class RtcViewer:
    """Watches one session. `codec` is the only one it offers, if given."""

    url: str
    codec: str | None = None
    audio: bool = False
    connection: RTCPeerConnection = field(
        default_factory=lambda: RTCPeerConnection(RTCConfiguration(iceServers=[]))
    )
    seen: list[Seen] = field(default_factory=list)
    location: str = ""
    etag: str = ""
    answer: str = ""
    reading: asyncio.Task[None] | None = None

    async def offer(self) -> str:
        """Return an offer, its candidates gathered."""
        if self.audio:
            self.connection.addTransceiver("audio", direction="recvonly")
        transceiver = self.connection.addTransceiver("video", direction="recvonly")
        if self.codec is not None:
            kinds = RTCRtpReceiver.getCapabilities("video").codecs
            wanted = (f"video/{self.codec}", "video/rtx")
            transceiver.setCodecPreferences([k for k in kinds if k.mimeType.lower() in wanted])
        await self.connection.setLocalDescription(await self.connection.createOffer())
        sdp: str = self.connection.localDescription.sdp
        return sdp

    async def connect(self, offer: str | None = None) -> None:
        """Offer, take the answer and begin to read."""
        offer = offer or await self.offer()
        async with httpx.AsyncClient(timeout=30) as http:
            response = await http.post(self.url, content=offer, headers=SDP)
        assert response.status_code == 201, response.text
        host = self.url.split("/v1/")[0]
        self.location = host + "/v1/" + response.headers["location"].split("/v1/", 1)[1]
        self.etag = response.headers["etag"]
        await self.take(response.text)

    async def take(self, answer: str) -> None:
        """Take an answer and begin to read."""
        self.answer = answer
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        tracks = [receiver.track for receiver in self.connection.getReceivers()]
        video = next(track for track in tracks if track is not None and track.kind == "video")
        self.reading = asyncio.create_task(self._read(video))

    async def until_seen(self, number: int, timeout_s: float = 30.0) -> None:
        """Wait until so many frames were seen."""
        await eventually(lambda: len(self.seen) >= number, timeout_s)

    async def until_connected(self, timeout_s: float = 30.0) -> None:
        """Wait until the connection is there."""
        await eventually(lambda: self.connection.connectionState == "connected", timeout_s)

    async def until_closed(self, timeout_s: float = 30.0) -> None:
        """Wait until the other side has closed the connection."""
        await eventually(lambda: self.connection.connectionState == "closed", timeout_s)

    async def leave(self) -> int:
        """Leave in the polite way and return the status."""
        async with httpx.AsyncClient(timeout=30) as http:
            return (await http.delete(self.location)).status_code

    async def close(self) -> None:
        """Close the connection, which tells the server."""
        await self.connection.close()
        if self.reading is not None:
            self.reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.reading

    def peer(self, peers: Peers) -> Peer:
        """Return what the server has of this viewer."""
        name = self.location.partition("?")[0].rsplit("/", 1)[1]
        return next(peer for peer in peers if peer.id == name)

    async def _read(self, track: Any) -> None:
        with contextlib.suppress(MediaStreamError, InvalidStateError):
            while True:
                frame = await track.recv()
                pts_s = float(frame.pts * frame.time_base)
                self.seen.append(Seen(time.monotonic(), pts_s, frame))


@contextlib.asynccontextmanager
async def watching(
    server: RunningServer, whep: str, codec: str | None = None, *, audio: bool = False
) -> AsyncIterator[RtcViewer]:
    """Watch a session, and leave it at the end."""
    viewer = RtcViewer(f"http://127.0.0.1:{server.port}{whep}", codec, audio)
    try:
        await viewer.connect()
        yield viewer
    finally:
        await viewer.close()


async def whep_of(server: RunningServer, **fields: object) -> str:
    """Make a session and return where it is watched."""
    url: str = (await new_session(server, **fields))["urls"]["whep"]
    return url


async def watch(url: str) -> None:
    """Watch until killed as a browser would, and print when each frame was there."""
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    viewer = RtcViewer(url, "h264")
    offer = await viewer.offer()
    browser = BrowserReceiver(viewer.connection.getReceivers()[0])
    await viewer.connect(offer)
    told = 0
    while viewer.connection.connectionState != "closed":
        await asyncio.sleep(0.02)
        for at_s, timestamp in browser.shown[told:]:
            print(f"{at_s:.3f} {timestamp}", flush=True)
            told += 1
    print("closed", flush=True)
    await browser.close()


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1]))
