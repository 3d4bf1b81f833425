"""How fast packets leave for one viewer, and which lost ones leave again. Does no I/O.

A frame that leaves as one burst overflows small router buffers: measured, a 3 Mbps stream with a
keyframe in it did not get through a 5 Mbps link with 30 ms of buffer at all. And a receiver behind
a full link asks for thousands of lost packets, which would fill it for good if all were sent again.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.008  # so much leaves at once: a sleep for each packet would cost too much
RESEND_GAP_S: Final = 0.08  # the same packet is not sent again sooner
RESEND_SHARE: Final = 0.3  # of the target rate
RESEND_BURST_S: Final = 0.5
HISTORY: Final = 512  # sequence numbers remembered
PACKET_BYTES: Final = 1300


class Pacer:
    """A leaky bucket: says how long a packet has to wait. Times are seconds of one clock."""

    def __init__(self, bps: float) -> None:
        self.bps = bps
        self._free_at = 0.0  # when all that was let go has left at this rate

    def delay(self, now: float) -> float:
        """Return how long the next packet waits."""
        wait_s = self._free_at - now
        # Half of what may leave at once has room then: the end of a frame does not wait for all.
        return wait_s - BURST_S / 2 if wait_s > BURST_S else 0.0

    def sent(self, now: float, num_bytes: int) -> None:
        """Take note of a packet that leaves."""
        self._free_at = max(self._free_at, now) + 8 * num_bytes / self.bps


class ResendLimiter:
    """Says which of the packets that a viewer asks for again it gets."""

    def __init__(self) -> None:
        self._sent_at: dict[int, float] = {}
        self._tokens_s = RESEND_BURST_S  # in seconds of what may be resent
        self._filled_at: float | None = None

    def allow(self, sequence_number: int, now: float, target_bps: float) -> bool:
        """Return whether this packet is sent again now, and take note that it is."""
        if now - self._sent_at.get(sequence_number, -1.0) < RESEND_GAP_S:
            return False
        if self._filled_at is not None:
            self._tokens_s = min(self._tokens_s + now - self._filled_at, RESEND_BURST_S)
        self._filled_at = now
        cost_s = 8 * PACKET_BYTES / (RESEND_SHARE * target_bps)
        if self._tokens_s < min(cost_s, RESEND_BURST_S):
            return False
        self._tokens_s -= cost_s
        self._sent_at.pop(sequence_number, None)
        self._sent_at[sequence_number] = now
        while len(self._sent_at) > HISTORY:
            del self._sent_at[next(iter(self._sent_at))]
        return True
