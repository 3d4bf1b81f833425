"""Who runs next: earliest deadline first, decided anew before every pass.

Knows no tensor and does no I/O. A session in the middle of a chunk always may go on; one between
chunks only while the frames it is ahead of its viewers are at most a chunk and two frames. So a
control never waits behind more than that, and a session nobody watches comes to rest by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Schedulable(Protocol):
    """What the scheduler reads of a session."""

    @property
    def is_mid_chunk(self) -> bool:
        """Whether a pass of a begun chunk is due."""

    @property
    def may_begin(self) -> bool:
        """Whether the next chunk may be begun: there is one, and the lead allows it."""

    def deadline_s(self, now: float) -> float:
        """When its playout runs dry, on the clock of `now`, in seconds."""


S = TypeVar("S", bound=Schedulable)


class Scheduler:
    """Pick the rows of the next pass. A row is one session's next pass, whichever that is."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows

    def pick(self, sessions: Iterable[S], now: float) -> list[S]:
        """Return at most `max_rows` sessions that can run now, most urgent first.

        Who is late is the more urgent the later it is, and being served moves its deadline on, so
        that under overload sessions take turns. Equals keep their order.
        """
        ready = [s for s in sessions if s.is_mid_chunk or s.may_begin]
        ready.sort(key=lambda s: s.deadline_s(now))
        return ready[: self.max_rows]
