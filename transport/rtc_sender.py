"""Send one viewer its packets: cut once a frame for all viewers, stamped as they leave.

aiortc's own loop cuts the frame again for each viewer, makes an object of each packet and hands it
through five coroutines: that cost more than twice as much.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final, Protocol

import av
from aiortc.codecs.h264 import PACKET_MAX, H264Encoder
from aiortc.rtp import RTP_HISTORY_SIZE, RtpPacket, pack_header_extensions

from transport.rtc_pacer import Pacer
from transport.rtc_patches import MID, PLAYOUT_DELAY, SEND_TIME, Line
from transport.rtc_playout import Playout
from transport.video import Packet

NUM_CUT: Final = 128  # frames kept as they were cut: viewers are not all at the same one
TIME_UNITS: Final = 1 << 18  # a second's, of a send time, which is these modulo 2^24
ONE_BYTE: Final = 0xBEDE  # RFC 8285: the profile of header extensions with small numbers
VP8_FIRST, VP8_NEXT = b"\x10", b"\x00"  # RFC 7741: the frame begins, the frame goes on
RTP: Final = struct.Struct("!BBHLL")

Sent = Callable[[int, int, int], None]


class PacketSource(Protocol):
    """Who has the packets of one viewer."""

    @property
    def encoding(self) -> str:
        """What they are: "h264" or "vp8"."""

    async def recv(self) -> tuple[Packet, int]:
        """Return the next packet and its time in 1/90000 s, once there is one."""


@lru_cache(maxsize=NUM_CUT)
def payloads_of(encoding: str, packet: Packet) -> tuple[bytes, ...]:
    """Cut a frame into what RTP packets carry, RFC 6184 or RFC 7741."""
    if encoding == "h264":
        whole = av.Packet(packet.data)
        whole.pts, whole.time_base = 0, Fraction(1, 90_000)
        return tuple(H264Encoder().pack(whole)[0])
    # There is no picture number, which would differ from viewer to viewer.
    size, data = PACKET_MAX - 1, packet.data
    pieces = (data[begin : begin + size] for begin in range(0, len(data), size))
    return tuple((VP8_NEXT if i else VP8_FIRST) + piece for i, piece in enumerate(pieces))


def send_time(now: float) -> int:
    """Return what the header extension abs-send-time says at this time since the epoch."""
    return round(now * TIME_UNITS) & 0xFFFFFF


class Headers:
    """Makes the RTP packets of one stream."""

    def __init__(
        self, ssrc: int, payload_type: int, extensions: Mapping[str, tuple[int, bytes]]
    ) -> None:
        self._ssrc = ssrc
        self._payload_type = payload_type
        self._first = 0x90 if extensions else 0x80
        self._timed = SEND_TIME in extensions
        # The time comes first, so that its place is known.
        ordered = sorted(extensions, key=lambda uri: uri != SEND_TIME)
        self._extensions = {uri: extensions[uri] for uri in ordered}
        self._lay_out()

    def limit_delay(self, limits: bytes) -> None:
        """Say from now on how long frames may be kept, to a viewer that knows how."""
        number, before = self._extensions.get(PLAYOUT_DELAY, (0, limits))
        if limits != before:
            self._extensions[PLAYOUT_DELAY] = (number, limits)
            self._lay_out()

    def _lay_out(self) -> None:
        profile, values = pack_header_extensions(list(self._extensions.values()))
        block = struct.pack("!HH", profile, len(values) // 4) + values if values else b""
        place = (5 if profile == ONE_BYTE else 6) if self._timed else len(block)
        self._before, self._after = block[:place], block[place + 3 :]
        self.num_bytes = RTP.size + len(block)

    def packet(self, number: int, timestamp: int, is_last: bool, payload: bytes) -> bytes:
        """Return a packet that leaves now."""
        kind = self._payload_type | 0x80 if is_last else self._payload_type
        start = RTP.pack(self._first, kind, number, timestamp, self._ssrc)
        if not self._timed:
            return b"".join((start, self._before, payload))
        moment = send_time(time.time()).to_bytes(3, "big")
        return b"".join((start, self._before, moment, self._after, payload))


class SentPackets:
    """The packets of late, for those of them that are lost: aiortc sends these again."""

    def __init__(self, line: Line, payload_type: int) -> None:
        self._ssrc = line.ssrc
        self._payload_type = payload_type
        self._mid = line.extensions[MID][1].decode() if MID in line.extensions else None
        self._slots: list[tuple[int, int, bool, bytes] | None] = [None] * RTP_HISTORY_SIZE

    def add(self, number: int, timestamp: int, is_last: bool, payload: bytes) -> None:
        """Keep a packet in place of an old one."""
        self._slots[number % RTP_HISTORY_SIZE] = (number, timestamp, is_last, payload)

    def get(self, slot: int) -> RtpPacket | None:
        """Return the newest packet whose number is this modulo RTP_HISTORY_SIZE, to leave now."""
        kept = self._slots[slot]
        if kept is None:
            return None
        number, timestamp, is_last, payload = kept
        packet = RtpPacket(self._payload_type, int(is_last), number, timestamp, self._ssrc, payload)
        packet.extensions.mid = self._mid
        packet.extensions.abs_send_time = send_time(time.time())
        return packet


class RtpSender:
    """The sending loop of one viewer.

    Packets wait for their turn by `pacer`, and say what `playout` does of how long they may be
    kept. `sent(newest, num_packets, num_bytes)` is called before each wait and after each frame:
    nobody else runs in between.
    """

    def __init__(self, source: PacketSource, pacer: Pacer, playout: Playout, sent: Sent) -> None:
        self._source = source
        self._pacer = pacer
        self._playout = playout
        self._sent = sent
        # SRTP goes wrong when the number starts over before the first packet has arrived.
        self._number = random.randrange(1 << 15)
        self._origin = random.randrange(1 << 32)
        self._num_packets = self._num_bytes = 0  # that were not told yet

    async def run(self, line: Line, payload_type: int) -> None:
        """Send until cancelled; raise ConnectionError when the connection ends."""
        headers = Headers(line.ssrc, payload_type, line.extensions)
        history = SentPackets(line, payload_type)
        line.remember(history)
        source = self._source
        while True:
            packet, pts = await source.recv()
            if line.is_enabled:
                timestamp = (self._origin + pts) & 0xFFFFFFFF
                line.begins(timestamp)
                headers.limit_delay(self._playout.limits)
                payloads = payloads_of(source.encoding, packet)
                await self._send(line, headers, history, timestamp, payloads)

    async def _send(
        self,
        line: Line,
        headers: Headers,
        history: SentPackets,
        timestamp: int,
        payloads: tuple[bytes, ...],
    ) -> None:
        pacer, num_left = self._pacer, len(payloads)
        for payload in payloads:
            now = time.monotonic()
            while (wait_s := pacer.delay(now)) > 0:
                self._tell(line, headers)
                await asyncio.sleep(wait_s)
                now = time.monotonic()
            num_left -= 1
            data = headers.packet(self._number, timestamp, not num_left, payload)
            await line.send(data)
            history.add(self._number, timestamp, not num_left, payload)
            pacer.sent(now, len(data))
            self._num_packets += 1
            self._num_bytes += len(data)
            self._number = (self._number + 1) & 0xFFFF
        self._tell(line, headers)

    def _tell(self, line: Line, headers: Headers) -> None:
        """Tell what left."""
        num_packets, num_bytes = self._num_packets, self._num_bytes
        if num_packets:
            self._num_packets = self._num_bytes = 0
            line.count(num_packets, num_bytes - num_packets * headers.num_bytes)
            self._sent((self._number - 1) & 0xFFFF, num_packets, num_bytes)
