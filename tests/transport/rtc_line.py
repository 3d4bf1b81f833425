"""What the tests of our sending loop send: encoded frames, over a line that keeps all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiortc.rtp import RtpPacket

from transport.rtc_pacer import Pacer
from transport.rtc_patches import MID, SEND_TIME
from transport.rtc_playout import Playout
from transport.rtc_sender import RtpSender
from transport.video import Codec, Packet, VideoEncoder

SSRC = 0x01020304
BOTH = {MID: (1, b"0"), SEND_TIME: (3, bytes(3))}


def encoded(codec: Codec, num_frames: int = 6) -> list[Packet]:
    """Return frames of noise, which are large, and flat ones, which are small."""
    chance = np.random.default_rng(1)
    encoder = VideoEncoder(codec, 320, 176, fps=30, bitrate=2_000_000)
    flat = np.full((176, 320, 3), 90, np.uint8)
    noise = chance.integers(0, 256, (176, 320, 3), dtype=np.uint8)
    return [encoder.encode(noise if i % 3 == 0 else flat) for i in range(num_frames)]


@dataclass
class FakeLine:
    """Keeps what is sent."""

    ssrc: int = SSRC
    extensions: dict[str, tuple[int, bytes]] = field(default_factory=lambda: dict(BOTH))
    is_enabled: bool = True
    sent: list[bytes] = field(default_factory=list)
    began: list[int] = field(default_factory=list)
    counted: list[tuple[int, int]] = field(default_factory=list)
    history: Any = None

    async def send(self, data: bytes) -> None:
        """Keep a packet."""
        self.sent.append(data)

    def begins(self, timestamp: int) -> None:
        """Take note."""
        self.began.append(timestamp)

    def count(self, num_packets: int, num_octets: int) -> None:
        """Take note."""
        self.counted.append((num_packets, num_octets))

    def remember(self, history: Any) -> None:
        """Take note."""
        self.history = history

    def packets(self) -> list[RtpPacket]:
        """Return what was sent, read by aiortc."""
        return [RtpPacket.parse(data) for data in self.sent]


class FakeSource:
    """Has some packets, and then none."""

    def __init__(self, packets: list[Packet], encoding: str = "h264") -> None:
        self.encoding = encoding
        self._left = [(packet, 3000 * i) for i, packet in enumerate(packets)]

    async def recv(self) -> tuple[Packet, int]:
        """Return the next one."""
        if not self._left:
            raise ConnectionError("all was sent")
        return self._left.pop(0)


Told = list[tuple[int, int, int]]


def make_sender(source: Any, bps: float = 1e9) -> tuple[RtpSender, Told]:
    """Return a sender and what it tells."""
    told: Told = []
    return RtpSender(source, Pacer(bps), Playout(), lambda *sent: told.append(sent)), told
