"""Viewers over WebRTC: each is sent the packets that are encoded once for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from aioice.candidate import Candidate
from aioice.ice import Connection
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from aiortc.sdp import candidate_from_sdp

from transport.broadcast import Broadcast
from transport.encoder import Frame
from transport.packets import PacketQueue
from transport.projector import BITRATE_INTERVAL_S
from transport.replies import CloseCode, ServerMessage
from transport.rtc_candidates import Reach
from transport.rtc_patches import Connecting, gather_with
from transport.rtc_rate import START_BPS
from transport.rtc_uplink import PACE, Uplink
from transport.sdp_rules import MAX_CANDIDATES, Offer, Trickle, complete_answer
from transport.video import Packet

logger = logging.getLogger(__name__)

CLOCK_HZ: Final = 90_000
CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 15.0  # a tab that is suspended for 10 s is not gone
CLOSE_TIMEOUT_S: Final = 5.0
LONGEST_QUEUE_S: Final = 1.0
KEY_TRAVELS_S: Final = 0.8
CATCH_UP_S: Final = 0.4
KEY_WAITS_S: Final = BITRATE_INTERVAL_S + 0.05  # by then the encoder has the new rate


class PacketTrack(MediaStreamTrack):  # type: ignore[misc]  # aiortc is not typed here
    """What a viewer is sent. aiortc knows it as a track, and our own sender takes its packets."""

    kind = "video"

    def __init__(self, encoding: str, starved: Callable[[], None]) -> None:
        super().__init__()
        self.queue = PacketQueue(encoding, LONGEST_QUEUE_S, starved=starved)
        self.key_taken_at = float("-inf")
        self.num_sent = 0
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._began_s: float | None = None
        self._pts = -1

    def offer(self, frame: Frame, due_s: float) -> None:
        """Let a frame be sent after those that wait."""
        self.queue.offer(frame, due_s)
        if len(self.queue):
            self._empty.clear()
            self._wake.set()

    @property
    def encoding(self) -> str:
        """What is sent: "h264" or "vp8"."""
        return self.queue.encoding

    async def recv(self) -> tuple[Packet, int]:
        """Return the next packet and its time on the media clock, in 1/90000 s from the first.

        Raises MediaStreamError once the track was stopped.
        """
        while (taken := self.queue.take()) is None and self.readyState == "live":
            self._empty.set()
            self._wake.clear()
            await self._wake.wait()
        if taken is None or self.readyState != "live":
            raise MediaStreamError
        self.num_sent += 1
        frame, due_s = taken
        if self._began_s is None:
            self._began_s = due_s
        self._pts = max(self._pts + 1, round((due_s - self._began_s) * CLOCK_HZ))
        encoded = frame.packets[self.queue.encoding]
        if encoded.is_key:
            self.key_taken_at = time.monotonic()
        return encoded, self._pts

    def stop(self) -> None:
        """End the track, and whoever waits for a packet."""
        super().stop()
        self._empty.set()
        self._wake.set()

    async def drained(self) -> None:
        """Wait until nothing waits to be sent."""
        await self._empty.wait()


class Peer:
    """One viewer over WebRTC, a Spectator, from its offer to its end."""

    transport = "webrtc"

    def __init__(self, broadcast: Broadcast, offer: Offer, reach: Reach) -> None:
        self.id = secrets.token_urlsafe(12)
        self.etag = f'"{secrets.token_hex(8)}"'
        self.broadcast = broadcast
        self.codec = offer.codec
        self.format = "none"  # until it is connected: its first frame is a keyframe made then
        self.connected = False
        self.never_connected = False  # and ICE has given up, or time is up
        self._offer = offer
        self._reach = reach
        self._over = asyncio.Event()
        self._heard_at = time.monotonic()
        self._key_wanted_at = 0.0
        self._num_candidates = offer.num_candidates
        self._track = PacketTrack(offer.codec, self.need_key)
        self._track.on("ended", self.leave)  # nothing can be sent any more
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connecting = Connecting(self._connection)
        self._transceiver = self._connection.addTransceiver(self._track, "sendonly")
        # Who joins others must not pull down what all of them see before anything is known.
        start_bps = max(START_BPS, broadcast.viewers.least_bps() or 0.0)
        self.uplink = Uplink(self, start_bps)
        self.estimate_bps: float | None = None if len(broadcast.viewers) else start_bps

    @property
    def ufrag(self) -> str:
        """The name under which the viewer's ICE speaks."""
        return self._offer.ufrag

    @property
    def num_sent(self) -> int:
        """Frames that were cut into packets for it."""
        return self._track.num_sent

    @property
    def num_dropped(self) -> int:
        """Frames it was not sent."""
        return self._track.queue.num_dropped

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._over.is_set()

    def put(self, message: ServerMessage) -> None:
        """Messages go over a view socket: WHEP carries pictures only."""

    def offer(self, frame: Frame, due_s: float) -> None:
        """Send a frame, once the viewer is connected."""
        if self.connected and not self.finished:
            self._track.offer(frame, due_s)

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Keep what waits: later packets need it, and it is at most a second's worth."""

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Let the connection end with the session."""
        self.leave()

    def leave(self) -> None:
        """Let the connection end."""
        self._over.set()

    async def drained(self) -> None:
        """Wait until no frame waits."""
        if self.connected and not self.finished:
            await self._track.drained()

    def need_key(self) -> None:
        """Ask for a keyframe, unless one is on its way or has to wait for the encoder's new rate.

        A viewer that waits asks again and again, and keyframes asked for too often become rare.
        """
        now = time.monotonic()
        on_its_way = now - self._track.key_taken_at < KEY_TRAVELS_S
        if not (self.finished or on_its_way or now < self._key_wanted_at):
            self.broadcast.ask_key(self.codec)

    def told(self, bps: float) -> None:
        """Take note of what the connection carries."""
        self.estimate_bps = bps

    def broken(self) -> None:
        """Skip what waits, and go on with a keyframe that is small enough for the new rate."""
        self._key_wanted_at = time.monotonic() + KEY_WAITS_S
        self._track.queue.clear()
        self._track.key_taken_at = float("-inf")

    async def answer(self) -> str:
        """Return the answer to the offer, with all candidates; raise StreamError without a port."""
        connection = self._connection
        connection.on("connectionstatechange", self._changed)
        await connection.setRemoteDescription(RTCSessionDescription(self._offer.sdp, "offer"))
        self.uplink.control(self._transceiver, self._track)
        gatherer = self._transceiver.sender.transport.transport.iceGatherer
        gather_with(gatherer, self._gather)
        await connection.setLocalDescription()
        return complete_answer(self._offer, connection.localDescription.sdp)

    async def trickle(self, trickle: Trickle) -> None:
        """Take candidates that came after the offer, up to the limit."""
        for text in trickle.candidates:
            if self._num_candidates >= MAX_CANDIDATES:
                logger.info("peer %s offers too many candidates", self.id)
                return
            self._num_candidates += 1
            candidate = candidate_from_sdp(text)
            candidate.sdpMid = self._offer.video.mid
            await self._connection.addIceCandidate(candidate)

    async def watch(self) -> None:
        """Wait until the viewer leaves, vanishes or never comes, or the session ends."""
        began_at = time.monotonic()
        while not self.finished:
            now = time.monotonic()
            silent_s = now - self._heard_at
            if not self.connected and now - began_at > CONNECT_TIMEOUT_S:
                logger.info("peer %s did not connect within %g s", self.id, CONNECT_TIMEOUT_S)
                self.never_connected = True
                return
            if self.connected and silent_s > SILENCE_TIMEOUT_S:
                logger.info("peer %s was not heard for %.0f s", self.id, silent_s)
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), 0.5)

    async def close(self) -> None:
        """End the connection; the viewer is told."""
        self._over.set()
        self.broadcast.detach(self)
        self._track.stop()
        await self._connecting.stop()
        try:
            await asyncio.wait_for(self._connection.close(), CLOSE_TIMEOUT_S)
        except asyncio.TimeoutError:
            logger.warning("peer %s did not close within %g s", self.id, CLOSE_TIMEOUT_S)

    async def _gather(
        self, connection: Connection, component: int, addresses: list[str]
    ) -> list[Candidate]:
        return await self._reach.gather(connection, component, addresses, self._hear)

    def _changed(self) -> None:
        state = self._connection.connectionState
        if state == "connected" and not self.connected:
            self.connected = True
            self.format = self.codec
            self.estimate_bps = self.uplink.rate.target_bps
            self._hear()
            self._begin()
        elif state in ("closed", "failed"):
            self.never_connected = state == "failed" and not self.connected
            self._over.set()

    def _begin(self) -> None:
        """Begin with what followed the last keyframe if that is little, else ask for another.

        Keyframes are rare when many come, and cost all of them.
        """
        ring = self.broadcast.ring(self.codec)
        num_bits = 8 * sum(len(frame.packets[self.codec].data) for frame in ring)
        if ring and num_bits < CATCH_UP_S * PACE * self.uplink.rate.target_bps:
            now = time.monotonic()
            for frame in ring:
                self._track.offer(frame, now)
        else:
            self.need_key()

    def _hear(self) -> None:
        self._heard_at = time.monotonic()
