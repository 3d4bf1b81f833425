"""Figures of one session's playout over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

NUM_CHUNKS: Final = 64
NUM_LATE: Final = 256  # frames whose lateness is kept
WINDOW_S: Final = 2.0


class Tally:
    """Counts frames and chunks. Times are seconds on the caller's monotonic clock."""

    def __init__(self) -> None:
        self.num_chunks = 0
        self.num_frames = 0
        self._generation_s: deque[float] = deque(maxlen=NUM_CHUNKS)
        self._played_at: deque[float] = deque(maxlen=512)
        self._late_s: deque[float] = deque(maxlen=NUM_LATE)

    def chunk(self, generation_s: float) -> None:
        """A chunk arrived."""
        self._generation_s.append(generation_s)

    def frame(self, now: float, due_s: float) -> None:
        """A frame that was due at a time was played."""
        self.num_frames += 1
        self._late_s.append(max(0.0, now - due_s))
        self._played_at.append(now)

    def fps(self, now: float) -> float:
        """Return the frames a second over the last two seconds."""
        while self._played_at and now - self._played_at[0] > WINDOW_S:
            self._played_at.popleft()
        if len(self._played_at) < 2:
            return 0.0
        span_s = self._played_at[-1] - self._played_at[0]
        return (len(self._played_at) - 1) / span_s if span_s > 0 else 0.0

    def chunk_s(self, share: float) -> float | None:
        """Return this quantile of the generation times of the latest chunks."""
        return _quantile(self._generation_s, share)

    def late_s(self, share: float) -> float | None:
        """Return this quantile of how late the latest frames left: the jitter that is ours."""
        return _quantile(self._late_s, share)


def _quantile(values: Iterable[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
