"""Whether an engine still answers, and whether replacing it again makes sense."""

from __future__ import annotations

from collections import deque
from typing import Final

PING_INTERVAL_S: Final = 0.5
MAX_DEATHS: Final = 3
DEATH_WINDOW_S: Final = 60.0


class Pulse:
    """Count how long an engine has not answered.

    Time is counted in ticks of `PING_INTERVAL_S`, a late one as two at most: a machine that slept,
    or a client that was stopped, says nothing about the engine.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._is_asked = False

    def tick(self, elapsed_s: float) -> bool:
        """Let time pass; return whether to send a ping now."""
        if self._is_asked:
            self.busy_s += min(elapsed_s, 2 * PING_INTERVAL_S)
            return False
        self._is_asked = True
        return True

    def heard(self) -> None:
        """Note a sign of life."""
        self._is_asked = False
        self.busy_s = 0.0


class Deaths:
    """Count the deaths of engines, and say when to give up.

    Only the time that an engine was ready counts, so a slow start between two deaths does not make
    them rare, and starts that fail are given up after the third.
    """

    def __init__(self) -> None:
        self.total = 0
        self._ready_s = 0.0
        self._times: deque[float] = deque(maxlen=MAX_DEATHS)

    def add(self, ready_s: float) -> bool:
        """Note the death of an engine that was ready for so long; return whether to give up."""
        self.total += 1
        self._ready_s += ready_s
        self._times.append(self._ready_s)
        return len(self._times) == MAX_DEATHS and self._ready_s - self._times[0] <= DEATH_WINDOW_S
