"""What a viewer's connection carries, from the losses and estimates it reports. Does no I/O.

The target is the lesser of what losses allow and, once packets queue up on the way, 0.95 x the
receiver's estimate (REMB). That they queue up is seen by an estimate that falls, below what is
sent. One that rises says little: it follows what is sent, by 8 % a second, and would hold the
picture down for half a minute. The target climbs, quickly until the first congestion, while what
is sent makes use of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

START_BPS: Final = 800_000.0
LEAST_BPS: Final = 200_000.0
TELLING_BPS: Final = 250_000.0  # whoever sends less is not the cause of losses
MOST_BPS: Final = 20_000_000.0
WINDOW_S: Final = 0.3
NUM_WINDOWS: Final = 6
LEAST_PACKETS: Final = 10  # in a window that is judged
MANY_PACKETS: Final = 10  # lost: it is judged before its end
REMB_SHARE: Final = 0.95
CONGESTED: Final = 0.9  # of what is sent
SAME: Final = 0.97  # of an earlier estimate
LOSS_HOLDS: Final = 0.02  # more does not climb
LOSS_LOWERS: Final = 0.1
LOSS_BREAKS: Final = 0.3  # so much is a link that is full, not a bad one
HOLD_S: Final = 0.5  # what is reported then was sent before the target fell
DEEPEST: Final = 0.5  # of the target, in one fall: estimates after a gap are far too low
DEEPEST_BREAK: Final = 0.25
BREAK_AT_MOST: Final = 0.45  # of the target
BREAK_SHARE: Final = 0.7  # of what seemed to be carried: what waits on the way has to get through
REST_S: Final = 1.0  # at the start and after a fall, before climbing
CAREFUL_S: Final = 3.0
FIRST_CLIMB: Final = 0.3  # a second
CLIMB: Final = 0.08
USED: Final = 0.6  # of the target: with less sent nothing is learnt


@dataclass(frozen=True, slots=True)
class Window:
    """What was sent in a while."""

    length_s: float
    num_bytes: int
    num_packets: int


class RateControl:
    """Follow one connection. Times are seconds of one clock, rates bits a second.

    `num_falls` and `num_breaks` count the times the target was lowered, and those of them at which
    so much was lost that only a keyframe helps.
    """

    def __init__(self, start_bps: float = START_BPS) -> None:
        self.target_bps = min(max(start_bps, LEAST_BPS), MOST_BPS)
        self.num_falls = 0
        self.num_breaks = 0
        self._windows: deque[Window] = deque(maxlen=NUM_WINDOWS)
        self._began_at: float | None = None
        self._num_bytes = self._num_sent = self._num_lost = 0
        self._highest_bps = 0.0  # estimated since the last that fell
        self._num_estimates = 0
        self._is_broken = False  # by the last fall
        self._changed_at: float | None = None  # the start or the last fall

    def careful(self, now: float) -> bool:
        """Return whether little is known of the connection, or what was known has changed."""
        return self._since_change(now) < CAREFUL_S

    def sent(self, now: float, num_bytes: int, num_packets: int = 1) -> bool:
        """Take note of packets of the stream that left; return whether the target was judged."""
        if self._began_at is None:
            self._began_at = self._changed_at = now
        judged = now - self._began_at >= WINDOW_S and self._num_sent >= LEAST_PACKETS
        if judged:
            self._end_window(now)
        self._num_bytes += num_bytes
        self._num_sent += num_packets
        return judged

    def lost(self, now: float, num_packets: int) -> None:
        """Take note of packets that are asked for again, for the first time."""
        self._num_lost += num_packets
        if self._num_lost >= MANY_PACKETS and self._share_lost() > LOSS_BREAKS:
            self._end_window(now)  # there is nothing to wait for

    def reported(self, now: float, share_lost: float) -> None:
        """Take note of a receiver report, from whoever does not ask for packets again."""
        if share_lost > LOSS_LOWERS:
            self._lose(now, share_lost)

    def estimated(self, now: float, bps: float) -> None:
        """Take note of a receiver's estimate."""
        self._highest_bps = max(self._highest_bps, bps)
        if self._num_estimates and bps > SAME * self._highest_bps:
            return
        self._num_estimates += 1
        if bps < CONGESTED * self._sent_bps(NUM_WINDOWS):
            self._fall(now, REMB_SHARE * bps, DEEPEST)
        self._highest_bps = bps

    def _end_window(self, now: float) -> None:
        assert self._began_at is not None
        length_s = now - self._began_at
        share_lost = self._share_lost()
        self._windows.append(Window(length_s, self._num_bytes, self._num_sent))
        self._began_at, self._num_bytes, self._num_sent, self._num_lost = now, 0, 0, 0
        if share_lost > LOSS_LOWERS:
            self._lose(now, share_lost)
        elif share_lost <= LOSS_HOLDS and self._since_change(now) >= REST_S:
            self._climb(length_s)

    def _share_lost(self) -> float:
        # What is missed now left in this window or in the one before.
        num_before = self._windows[-1].num_packets if self._windows else 0
        return min(1.0, self._num_lost / max(self._num_sent, num_before, 1))

    def _climb(self, seconds: float) -> None:
        if self._sent_bps(NUM_WINDOWS) >= USED * self.target_bps:
            climb = CLIMB if self.num_falls else FIRST_CLIMB
            target_bps = self.target_bps * (1 + climb * min(seconds, 2 * WINDOW_S))
            self.target_bps = min(target_bps, MOST_BPS)

    def _lose(self, now: float, share_lost: float) -> None:
        target_bps = self.target_bps * (1 - share_lost / 2)
        if share_lost <= LOSS_BREAKS:
            self._fall(now, target_bps, DEEPEST)
            return
        carried_bps = self._sent_bps(1) * (1 - share_lost)
        target_bps = min(BREAK_SHARE * carried_bps, BREAK_AT_MOST * self.target_bps)
        # Losses that were counted before the last fall are not counted again: this is a new one.
        hold_s = WINDOW_S if self._is_broken else 0.0
        if self._fall(now, target_bps, DEEPEST_BREAK, hold_s):
            self._is_broken = True
            self.num_breaks += 1

    def _fall(self, now: float, target_bps: float, deepest: float, hold_s: float = HOLD_S) -> bool:
        """Lower the target, if it was not lowered just now; return whether it was."""
        held = self.num_falls > 0 and self._since_change(now) < hold_s
        if target_bps >= self.target_bps or held or self._sent_bps(2) < TELLING_BPS:
            return False
        self.target_bps = max(target_bps, deepest * self.target_bps, LEAST_BPS)
        self._changed_at = now
        self._is_broken = False
        self.num_falls += 1
        return True

    def _since_change(self, now: float) -> float:
        return 0.0 if self._changed_at is None else now - self._changed_at

    def _sent_bps(self, num_windows: int) -> float:
        recent = list(self._windows)[-num_windows:]
        seconds = max(WINDOW_S, sum(window.length_s for window in recent)) if recent else 0.0
        return 8 * sum(window.num_bytes for window in recent) / seconds if seconds else 0.0
