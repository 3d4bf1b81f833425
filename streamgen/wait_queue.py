"""Who waits for a place, in which order, and for how long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

NUM_LIVES: Final = 64  # ended sessions whose lives the estimate rests on
UNKNOWN_WAIT_S: Final = 5.0
LONGEST_RETRY_S: Final = 600.0


class WaitQueue:
    """Hold at most `max_length` sessions: live ones first, else in the order they came.

    Only the first may be admitted. Nobody overtakes it, however little they need: else a session
    that needs much would wait for ever.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self._live: list[str] = []
        self._batch: list[str] = []
        self._lives_s: deque[float] = deque(maxlen=NUM_LIVES)

    def __len__(self) -> int:
        return len(self._live) + len(self._batch)

    def __iter__(self) -> Iterator[str]:
        yield from self._live
        yield from self._batch

    @property
    def first(self) -> str | None:
        """Return the session that is next, or None when nobody waits."""
        return next(iter(self), None)

    def join(self, session_id: str, *, is_batch: bool = False) -> bool:
        """Put a session behind those of its class; return False when the queue is full."""
        assert session_id not in self, session_id
        if len(self) >= self.max_length:
            return False
        (self._batch if is_batch else self._live).append(session_id)
        return True

    def leave(self, session_id: str) -> None:
        """Forget a session, because it was admitted or does not want to any more. Idempotent."""
        for waiting in (self._live, self._batch):
            if session_id in waiting:
                waiting.remove(session_id)

    def position(self, session_id: str) -> int:
        """Return how many are before a session that waits."""
        return list(self).index(session_id)

    def ended(self, life_s: float) -> None:
        """Learn that a session gave its place back after so many seconds."""
        self._lives_s.append(life_s)

    def estimated_wait_s(self, position: int, ages_s: Iterable[float]) -> float | None:
        """Return the expected seconds until that many and one more places are given back.

        `ages_s` are of those that hold places; they count as time in which none ended, so that one
        short life does not promise another. None when no session has ended yet.
        """
        ages = list(ages_s)
        if not ages or not self._lives_s:
            return None
        mean_life_s = (sum(self._lives_s) + sum(ages)) / len(self._lives_s)
        return (position + 1) * mean_life_s / len(ages)

    def retry_after_s(self, ages_s: Iterable[float]) -> float:
        """Return the seconds after which somebody that finds no place should ask again."""
        wait_s = self.estimated_wait_s(len(self), ages_s)
        return UNKNOWN_WAIT_S if wait_s is None else min(max(wait_s, 1.0), LONGEST_RETRY_S)
