"""When the next frame is due: chunks arrive in bursts, frames leave evenly. Does no I/O.

The interval is recomputed at each chunk so that the frames at hand last until the next chunk is
expected: (mean + 2 x mean deviation of the generation time) / frames queued, kept between the
nominal interval and twice that. It may fall to 0.94 x nominal only while more is queued than
back-pressure lets be made (two chunks and two frames), that is, after the clock itself was late.
Generation time is what the engine measured, without its waits: an estimate from arrivals would let
back-pressure and pacer slow each other down.
"""

from __future__ import annotations

from typing import Final

FASTEST: Final = 0.94  # of the nominal interval
SLOWEST: Final = 2.0
MEAN_WEIGHT: Final = 0.25  # of the newest chunk
UNDERRUN: Final = 0.5  # of an interval: a frame later than this counts


class Pacer:
    """The playout clock of one session. All times are seconds on the caller's monotonic clock."""

    def __init__(self) -> None:
        self.num_queued = 0
        self.interval_s = 0.0
        self.num_underruns = 0
        self.stall_s = 0.0
        self._due: float | None = None  # when the next frame should leave; None before the first
        self._paused_at: float | None = None
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    @property
    def paused(self) -> bool:
        """Whether the clock stands."""
        return self._paused_at is not None

    @property
    def lead_s(self) -> float:
        """Playing time of what is queued."""
        return self.num_queued * self.interval_s

    def push(self, now: float, num_frames: int, fps: float, generation_s: float) -> None:
        """Take note of a chunk that arrived."""
        if self.num_queued == 0 and self._due is not None and not self.paused:
            self._restart(now)
        self.num_queued += num_frames
        self._estimate(generation_s)
        assert self._mean_s is not None
        nominal_s = 1 / fps
        surplus = self.num_queued > 2 * num_frames + 2
        wanted_s = (self._mean_s + 2 * self._deviation_s) / self.num_queued
        fastest_s = nominal_s * (FASTEST if surplus else 1.0)
        self.interval_s = min(max(wanted_s, fastest_s), nominal_s * SLOWEST)

    def delay(self, now: float) -> float | None:
        """Return the seconds until the next frame is due, or None when none is waited for."""
        if self.num_queued == 0 or self.paused:
            return None
        return 0.0 if self._due is None else max(0.0, self._due - now)

    def pop(self, now: float) -> float:
        """Take note that the frame that is due leaves; return when it was due."""
        assert self.num_queued > 0, "no frame is queued"
        self.num_queued -= 1
        due = now if self._due is None else self._due
        # A late wake-up is caught up with the next frame; after a long one the clock starts anew,
        # so that frames never leave in a burst.
        self._due = max(due, now - self.interval_s) + self.interval_s
        return due

    def discard(self) -> None:
        """Take note that a queued frame will not be shown.

        When none is left the clock starts anew with the next one, and nothing was late.
        """
        assert self.num_queued > 0, "no frame is queued"
        self.num_queued -= 1
        if self.num_queued == 0:
            self._due = None

    def pause(self, now: float) -> None:
        """Stop the clock."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        """Let the clock go on from where it stood."""
        if self._paused_at is None:
            return
        if self._due is not None:
            self._due += now - self._paused_at
        self._paused_at = None

    def _restart(self, now: float) -> None:
        """Start the clock anew with a chunk that met an empty queue."""
        assert self._due is not None
        late_s = now - self._due
        if late_s > 0:
            self._due = now
        if late_s > UNDERRUN * self.interval_s:
            self.num_underruns += 1
            self.stall_s += late_s

    def _estimate(self, generation_s: float) -> None:
        if self._mean_s is None:
            self._mean_s = generation_s
        error_s = generation_s - self._mean_s
        self._mean_s += MEAN_WEIGHT * error_s
        self._deviation_s += MEAN_WEIGHT * (abs(error_s) - self._deviation_s)
