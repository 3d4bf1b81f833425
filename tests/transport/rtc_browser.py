"""A receiver that behaves as a browser's does where aiortc's own does not.

It asks for a lost packet again every 60 ms, goes on with a keyframe when one is complete, and asks
for one when it has been stuck for 300 ms. What it shows is noted, not decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from aiortc import RTCRtpReceiver
from aiortc.rtcrtpparameters import RTCRtpReceiveParameters
from aiortc.rtp import RtpPacket, unwrap_rtx

AGAIN_S = 0.06
STUCK_S = 0.3


class NoJitterBuffer:
    """Takes the place of aiortc's, so that nothing is decoded."""

    def add(self, packet: Any) -> tuple[bool, None]:
        """Keep nothing."""
        return False, None


@dataclass
class Assembly:
    """The packets of a frame that are here."""

    packets: dict[int, RtpPacket] = field(default_factory=dict)
    last: int | None = None  # sequence number of the packet with the marker


class BrowserReceiver:
    """Puts H.264 frames together; `shown` has when each was there, and its time in 90 kHz."""

    def __init__(
        self, receiver: RTCRtpReceiver, arrivals: dict[bytes, float] | None = None
    ) -> None:
        self.shown: list[tuple[float, int]] = []
        self.num_keys = 0
        self.num_plis = 0
        self._receiver = receiver
        self._arrivals = {} if arrivals is None else arrivals
        self._frames: dict[int, Assembly] = {}
        self._next: int | None = None  # sequence number that the next frame begins with
        self._newest: int | None = None
        self._missing: dict[int, float] = {}  # and when it was asked for last
        self._ssrc = 0
        self._asked_key_at = 0.0
        self._original = receiver._handle_rtp_packet
        self._rtx: dict[int, int] = {}
        receive = receiver.receive

        async def note(parameters: RTCRtpReceiveParameters) -> None:
            for codec in parameters.codecs:
                if codec.name.lower() == "rtx":
                    self._rtx[codec.payloadType] = codec.parameters["apt"]
            await receive(parameters)

        receiver.receive = note
        receiver._handle_rtp_packet = self._handle
        receiver._RTCRtpReceiver__jitter_buffer = NoJitterBuffer()
        receiver._RTCRtpReceiver__nack_generator = None
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def close(self) -> None:
        """Ask no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def freezes(self, interval_s: float, since_s: float = 0.0) -> list[float]:
        """Return the gaps that Chromium would count as freezes, in seconds, after a time."""
        times = [at_s for at_s, _ in self.shown if at_s >= since_s] + [time.monotonic()]
        longest = max(3 * interval_s, interval_s + 0.15)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return [round(gap, 3) for gap in gaps if gap > longest]

    async def _handle(self, packet: RtpPacket, arrival_time_ms: int) -> None:
        name = packet.sequence_number.to_bytes(2, "big") + packet.ssrc.to_bytes(4, "big")
        if name in self._arrivals:
            arrival_time_ms = round(1000 * self._arrivals.pop(name))
        await self._original(packet, arrival_time_ms=arrival_time_ms)
        if packet.payload_type in self._rtx:
            if len(packet.payload) > 2:
                kind = self._rtx[packet.payload_type]
                self._take(unwrap_rtx(packet, payload_type=kind, ssrc=self._ssrc))
        else:
            self._ssrc = packet.ssrc
            self._take(packet)

    def _take(self, packet: RtpPacket) -> None:
        number = packet.sequence_number
        if self._newest is None:
            self._newest = number - 1
        ahead = (number - self._newest) % 65536
        if ahead < 32768:
            for step in range(1, ahead):
                self._missing[(self._newest + step) % 65536] = 0.0
            self._newest = number
        self._missing.pop(number, None)
        frame = self._frames.setdefault(packet.timestamp, Assembly())
        frame.packets[number] = packet
        if packet.marker:
            frame.last = number
        self._show()

    def _show(self) -> None:
        for timestamp in sorted(self._frames):
            frame = self._frames[timestamp]
            first = self._first(frame)
            if first is None:
                continue
            is_key = _is_key(frame.packets[first].payload)
            if not is_key and first != self._next:
                continue
            assert frame.last is not None
            self.num_keys += is_key
            self._next = (frame.last + 1) % 65536
            self.shown.append((time.monotonic(), timestamp))
            for old in [t for t in self._frames if t <= timestamp]:
                for number in self._frames.pop(old).packets:
                    self._missing.pop(number, None)
            for number in [n for n in self._missing if (self._next - n) % 65536 < 32768]:
                del self._missing[number]

    def _first(self, frame: Assembly) -> int | None:
        """Return a complete frame's first sequence number."""
        if frame.last is None:
            return None
        first = frame.last
        while (first - 1) % 65536 in frame.packets:
            first = (first - 1) % 65536
        begins = _begins(frame.packets[first].payload)
        return first if begins and len(frame.packets) == (frame.last - first) % 65536 + 1 else None

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            late = [number for number, asked in self._missing.items() if now - asked > AGAIN_S]
            late = late[-250:]
            if late:
                self._missing.update(dict.fromkeys(late, now))
                await self._receiver._send_rtcp_nack(self._ssrc, sorted(late))
            stuck = bool(self._frames) and (not self.shown or now - self.shown[-1][0] > STUCK_S)
            if stuck and now - self._asked_key_at > STUCK_S:
                self._asked_key_at = now
                self.num_plis += 1
                await self._receiver._send_rtcp_pli(self._ssrc)


def _is_key(payload: bytes) -> bool:
    kind = payload[0] & 0x1F
    if kind == 24:  # several units in one packet: the parameter sets and perhaps the picture
        return payload[3] & 0x1F in (5, 7)
    return kind in (5, 7) or (kind == 28 and payload[1] & 0x1F == 5)


def _begins(payload: bytes) -> bool:
    """Return whether a packet begins a picture's first unit."""
    return payload[0] & 0x1F != 28 or bool(payload[1] & 0x80)
