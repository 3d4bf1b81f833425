"""What a pass costs on this machine, by how many rows it has: measured, then kept true.

Whoever decides asks here: the scheduler what a batch is worth now, the planner what another session
usually takes. Knows no tensor and does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

# A larger batch makes its rows at least this much cheaper, or is not taken. Who is left out runs
# alone later, in small batches that cost more: with 5 % eight sessions of the bundled model ran as
# seven and one, and made a twentieth less.
MIN_GAIN: Final = 0.02
FOLLOW_RATE: Final = 1 / 8
LARGEST_ERROR: Final = 1 / 4  # a stall of seconds moves a cost no more than one of a quarter
# A size that is not run for long is believed to have changed as those have that are: else one that
# was measured in a bad moment would never be tried again.
DRIFT: Final = 1 / 64  # of the rate at which that one is followed
# Nobody is to be late in a bad moment either: one that costs more by so many mean deviations, as
# one in twenty does where they are normally distributed. (TCP bounds its round trips alike.)
BAD_MOMENT: Final = 2.0
# What is usual is a mean of so many seconds at work: a machine that is slow for a few has had a bad
# moment.
USUAL_S: Final = 30.0
LARGEST_CHANGE: Final = 16.0  # from what was measured at the start, either way


class CostTable:
    """Tell the seconds of passes, decodes and recaches.

    `pass_s` maps numbers of rows, 1 among them, to the seconds measured at warm-up; `decode_s` is
    of one chunk, `recache_s` of a full window in one forward. `decode_shares_device` says that a
    decode takes time from the passes, and not that of a processor of its own. Else `slowdown` is
    how much longer a pass takes beside a decode, as they share caches and memory. `scatter` is the
    mean absolute deviation of costs, as a share of them: what neighbours on the machine, clocks
    and caches make of equal work.

    It follows what passes take at once, or is a mean of `memory_s` seconds at work. `usual` is such
    a table beside it, for whoever decides for longer than a pass; itself where there is none.
    """

    def __init__(
        self,
        pass_s: Mapping[int, float],
        *,
        decode_s: float,
        recache_s: float,
        decode_shares_device: bool = False,
        slowdown: float = 1.0,
        scatter: float = 0.0,
        memory_s: float | None = None,
        usual: CostTable | None = None,
    ) -> None:
        assert 1 in pass_s, f"no cost of a single row in {pass_s}"
        assert min(*pass_s, *pass_s.values(), decode_s, recache_s) > 0, (pass_s, decode_s)
        self.decode_s = decode_s
        self.recache_s = recache_s
        self.decode_shares_device = decode_shares_device
        self.slowdown = max(1.0, slowdown)
        self.scatter = scatter
        self.usual = usual or self
        self._memory_s = memory_s
        self.beside = 0.0  # share of the passes' time that decodes ran beside them, of late
        self._measured_decode_s = decode_s
        self._measured_recache_s = recache_s
        # No rows cost nothing, so that a single size means that every row costs the same.
        self._sizes = [0, *sorted(pass_s)]
        self._measured_s = [0.0, *(pass_s[size] for size in self._sizes[1:])]  # all of these alone
        self._seconds = list(self._measured_s)

    @property
    def bad_moment(self) -> float:
        """Return how many times what is usual work costs in a bad moment."""
        return 1 + BAD_MOMENT * self.scatter

    def pass_s(self, rows: int, beside: float | None = None) -> float:
        """Return the seconds of a pass: as measured, or on the line between two measured sizes.

        Beyond the largest the last line goes on, but does not fall. Decodes run beside it for a
        share `beside` of its time, by default the one of late.
        """
        low, share = self._between(rows)
        low_s, high_s = self._seconds[low : low + 2]
        seconds = low_s + share * (high_s - low_s)
        seconds = max(seconds, high_s) if share > 1 else seconds
        return seconds / self._speed(self.beside if beside is None else beside)

    def row_s(self, rows: int, beside: float | None = None) -> float:
        """Return the seconds that each row of a pass of this size costs."""
        return self.pass_s(rows, beside) / rows

    def batch_size(self, ready: int) -> int:
        """Return how many of `ready` rows without deadlines should share a pass."""
        best, best_row_s = 1, self.row_s(1)
        for rows in range(2, ready + 1):
            row_s = self.row_s(rows)
            if row_s <= (1 - MIN_GAIN) * best_row_s:
                best, best_row_s = rows, row_s
        return best

    def observe(
        self, rows: int, seconds: float, beside: float = 0.0, *, is_equal: bool = True
    ) -> None:
        """Take in what a pass over full windows really took. One outlier counts for little.

        A decode ran beside it for the share `beside` of that time. Unless the pass `is_equal` to
        what was measured, as one over smaller windows is not, it says nothing about scatter.
        """
        if self.usual is not self:
            self.usual.observe(rows, seconds, beside, is_equal=is_equal)
        self.beside += FOLLOW_RATE * (beside - self.beside)
        expected_s = self.pass_s(rows, beside)
        error, rate = seconds / expected_s - 1, self._rate(expected_s)
        # On a shared device a pass beside a decode is longer for certain.
        if is_equal and not (self.decode_shares_device and beside):
            self._note_scatter(error, expected_s)
        low, share = self._between(rows)
        near = {low: 1 - share, low + 1: share} if share < 1 else {low + 1: 1.0}
        for i, weight in near.items():
            self._seconds[i] = _followed(
                self._seconds[i], self._measured_s[i], weight * error, rate
            )
        change = self._seconds[low + 1] / self._measured_s[low + 1]
        for i, measured_s in enumerate(self._measured_s):
            if i not in near:
                self._seconds[i] += DRIFT * rate * (change * measured_s - self._seconds[i])

    def observe_decode(self, seconds: float) -> None:
        """Take in what the decode of one chunk really took."""
        if self.usual is not self:
            self.usual.observe_decode(seconds)
        error, rate = seconds / self.decode_s - 1, self._rate(self.decode_s)
        if not self.decode_shares_device:
            self._note_scatter(error, self.decode_s)
        self.decode_s = _followed(self.decode_s, self._measured_decode_s, error, rate)

    def observe_recache(self, seconds: float) -> None:
        """Take in what a recache of a full window really took."""
        if self.usual is not self:
            self.usual.observe_recache(seconds)
        error, rate = seconds / self.recache_s - 1, self._rate(self.recache_s)
        self.recache_s = _followed(self.recache_s, self._measured_recache_s, error, rate)

    def _rate(self, expected_s: float) -> float:
        """Return how far one observation moves a cost."""
        return FOLLOW_RATE if self._memory_s is None else min(1.0, expected_s / self._memory_s)

    def _note_scatter(self, error: float, expected_s: float) -> None:
        self.scatter += min(1.0, expected_s / USUAL_S) * (min(abs(error), 1.0) - self.scatter)

    def _speed(self, beside: float) -> float:
        """Return how fast a pass is, 1 alone, when decodes run for a share of its time."""
        return 1 - beside + beside / self.slowdown

    def _between(self, rows: int) -> tuple[int, float]:
        """Return the place of the measured size below, and how far it is on to the one above.

        At a measured size, and beyond the largest, that is at least the whole way.
        """
        assert rows >= 1, rows
        high = min(bisect_left(self._sizes, rows), len(self._sizes) - 1)
        below = self._sizes[high - 1]
        return high - 1, (rows - below) / (self._sizes[high] - below)


def _followed(seconds: float, measured_s: float, error: float, rate: float) -> float:
    """Return a cost after a relative error of it was seen; it stays near what was measured."""
    bounded = min(max(error, -LARGEST_ERROR), LARGEST_ERROR)
    followed = seconds * (1 + rate * bounded)
    return min(max(followed, measured_s / LARGEST_CHANGE), measured_s * LARGEST_CHANGE)
