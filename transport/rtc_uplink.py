"""The way to one WebRTC viewer: paced, following what it carries, resending within bounds."""

from __future__ import annotations

import time
from typing import Final, Protocol

from aiortc import RTCRtpTransceiver

from transport import rtc_patches
from transport.rtc_pacer import PACKET_BYTES, Pacer, ResendLimiter
from transport.rtc_playout import Playout
from transport.rtc_rate import RateControl
from transport.rtc_sender import PacketSource, RtpSender

PACE: Final = 2.5  # x the target: a keyframe leaves in time and small buffers hold
CAREFUL_PACE: Final = 1.5  # of a link that may be just full
MAX_MISSING: Final = 1024  # sequence numbers remembered


class Source(Protocol):
    """Who sends over an uplink."""

    def need_key(self) -> None:
        """Be asked for a keyframe."""

    def told(self, bps: float) -> None:
        """Be told what the connection carries."""

    def broken(self) -> None:
        """Be told that what waits is useless: so much is lost that only a keyframe helps."""


class Uplink:
    """Controls one sender, for its source."""

    def __init__(self, source: Source, start_bps: float) -> None:
        self.rate = RateControl(start_bps)
        self.num_resent = 0
        self.num_refused = 0
        self._source = source
        self._pacer = Pacer(CAREFUL_PACE * start_bps)
        self._playout = Playout()
        self._limiter = ResendLimiter()
        self._missing: dict[int, None] = {}  # in the order they were first asked for
        self._newest = 0  # sequence number
        self._num_falls = 0
        self._num_breaks = 0
        self._fell_at: int | None = None  # the newest sequence number when the target fell
        self._broke_at: int | None = None

    def control(self, transceiver: RTCRtpTransceiver, source: PacketSource) -> None:
        """Take over the sender of a transceiver whose offer is set: it sends what `source` has."""
        sender = transceiver.sender
        rtc_patches.hook_keyframes(sender, self._source.need_key)
        rtc_patches.hook_feedback(sender, self)
        rtc_patches.limit_resends(sender, self._allow)
        loop = RtpSender(source, self._pacer, self._playout, self.sent)
        rtc_patches.send_with(transceiver, loop.run)

    def sent(self, newest: int, num_packets: int, num_bytes: int) -> None:
        """Be told what left since the last time, and the newest sequence number."""
        self._newest = newest
        if self.rate.sent(time.monotonic(), num_bytes, num_packets):
            self._follow()

    def lost(self, sequence_numbers: list[int]) -> None:
        """Be told which packets are missing; the same ones are asked for more than once."""
        new = [number for number in sequence_numbers if number not in self._missing]
        self._missing.update(dict.fromkeys(new))
        while len(self._missing) > MAX_MISSING:
            del self._missing[next(iter(self._missing))]
        # What left before the target fell says nothing of the new one.
        num_lost = sum(_is_after(number, self._fell_at) for number in new)
        self.rate.lost(time.monotonic(), num_lost)
        self._follow()

    def reported(self, share_lost: float, jitter: int) -> None:
        """Be told the share of packets lost since the last report, and the jitter in 1/90000 s."""
        self._playout.reported(jitter / 90_000)
        self.rate.reported(time.monotonic(), share_lost)
        self._follow()

    def estimated(self, bps: float) -> None:
        """Be told what the receiver thinks the connection carries."""
        self.rate.estimated(time.monotonic(), bps)
        self._follow()

    def _allow(self, sequence_number: int) -> bool:
        now = time.monotonic()
        useful = _is_after(sequence_number, self._broke_at)
        if useful and self._limiter.allow(sequence_number, now, self.rate.target_bps):
            self._pacer.sent(now, PACKET_BYTES)
            self.num_resent += 1
            return True
        self.num_refused += 1
        return False

    def _follow(self) -> None:
        rate = self.rate
        pace = CAREFUL_PACE if rate.careful(time.monotonic()) else PACE
        self._pacer.bps = pace * rate.target_bps
        self._source.told(rate.target_bps)
        if rate.num_falls != self._num_falls:
            self._num_falls, self._fell_at = rate.num_falls, self._newest
        if rate.num_breaks != self._num_breaks:
            self._num_breaks, self._broke_at = rate.num_breaks, self._newest
            self._source.broken()


def _is_after(number: int, other: int | None) -> bool:
    """Return whether a sequence number comes after another, both modulo 2^16."""
    return other is None or 0 < (number - other) % 65_536 < 32_768
