"""Figures of one session's playout over the last seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

NUM_CHUNKS: Final = 64
WINDOW_S: Final = 2.0


class Tally:
    """Counts frames and chunks. Times are seconds on the caller's monotonic clock."""

    def __init__(self) -> None:
        self.num_chunks = 0
        self.num_frames = 0
        self._generation_s: deque[float] = deque(maxlen=NUM_CHUNKS)
        self._played_at: deque[float] = deque(maxlen=512)

    def chunk(self, generation_s: float) -> None:
        """A chunk arrived."""
        self._generation_s.append(generation_s)

    def frame(self, now: float) -> None:
        """A frame was played."""
        self.num_frames += 1
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
        ordered = sorted(self._generation_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
