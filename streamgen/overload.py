"""What is traded when the device cannot keep up, step by step and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

REFUSE, FEWER_STEPS, SHORTER_WINDOW, LOWER_FPS, RE_ANCHOR = LEVELS = (1, 2, 3, 4, 5)
ACTIONS: Final = {
    0: "The server keeps up again; everything is as asked for.",
    REFUSE: "The server is at its limit and takes no new sessions for now.",
    FEWER_STEPS: "The server is overloaded: pictures are made in fewer steps for now.",
    SHORTER_WINDOW: "The server is overloaded: the video remembers less of its past for now.",
    LOWER_FPS: "The server is overloaded: the frame rate is lower for now.",
    RE_ANCHOR: "The server is overloaded: the video stops and goes on, and does not catch up.",
}

TOO_MUCH: Final = 1.0  # utilisation at which lateness is certain, before anybody is late
# At or below it, and with nobody late, what was traded is given back. It leaves the bound of
# admission room for costs that are never exactly known: else a full device would never recover.
ENOUGH: Final = 0.92
RISE_S: Final = 2.0  # time that a level has to show what it does
SETTLE_S: Final = 1.0  # of that, in which what was begun before still comes out late
CALM_S: Final = 10.0  # without lateness before each step back
LONGEST_CALM_S: Final = 160.0
NUM_LATE: Final = 2  # late chunks within RISE_S that are no accident


def levels_of(*, fewer_steps: bool, shorter_window: bool) -> list[int]:
    """Return the levels that change something where steps or windows can be less, or cannot."""
    without = {FEWER_STEPS} if not fewer_steps else set()
    without |= {SHORTER_WINDOW} if not shorter_window else set()
    return [level for level in LEVELS if level not in without]


class OverloadLadder:
    """Go up one level while chunks are late, and down one after a calm while.

    `levels` are those that can change something here, ascending; others are passed over. A step
    back that has to be taken again makes the next one wait twice as long.
    """

    def __init__(self, levels: Sequence[int] = LEVELS) -> None:
        assert list(levels) == sorted(set(levels) & set(LEVELS)), levels
        self._rungs = (0, *levels)
        self._rung = 0
        self._changed_at = -inf
        self._lowered_at = -inf
        self._troubled_at = -inf
        self._calm_s = CALM_S
        self._late: deque[float] = deque(maxlen=NUM_LATE)

    @property
    def level(self) -> int:
        """Return the level: 0 when nothing is traded, else what this and all below it trade."""
        return self._rungs[self._rung]

    @property
    def action(self) -> str:
        """Return what the level means for viewers, as a sentence."""
        return ACTIONS[self.level]

    def note_chunk(self, now: float, *, late: bool) -> None:
        """Learn of a chunk that left; it was `late` if playout had run dry before."""
        if late:
            self._late.append(now)

    def update(self, now: float, *, utilisation: float, asked: float) -> bool:
        """Decide anew, and return whether the level is another one now.

        `utilisation` is that of the sessions as they run, which tells whether more must be traded;
        `asked` is that of the sessions as they were asked for, whether that can be given back; at
        zero nobody plays, and whoever comes next begins with everything.
        """
        if asked == 0:
            return self._clear(now)
        since = max(self._changed_at + SETTLE_S, now - RISE_S)
        is_late = len(self._late) == NUM_LATE and self._late[0] > since
        if is_late or utilisation > TOO_MUCH:
            self._troubled_at = now
            return now - self._changed_at >= RISE_S and self._raise(now)
        calm_since = max(self._changed_at, self._troubled_at, *self._late)
        is_calm = asked <= ENOUGH and now - calm_since >= self._calm_s
        return is_calm and self._lower(now)

    def _clear(self, now: float) -> bool:
        if self._rung == 0:
            return False
        self._rung, self._changed_at, self._lowered_at = 0, now, -inf
        self._calm_s = CALM_S
        self._late.clear()
        return True

    def _raise(self, now: float) -> bool:
        if self._rung + 1 == len(self._rungs):
            return False
        again = now - self._lowered_at < 2 * self._calm_s
        self._calm_s = min(2 * self._calm_s, LONGEST_CALM_S) if again else CALM_S
        self._rung, self._changed_at, self._lowered_at = self._rung + 1, now, -inf
        return True

    def _lower(self, now: float) -> bool:
        if self._rung == 0:
            return False
        self._rung, self._changed_at, self._lowered_at = self._rung - 1, now, now
        return True


@dataclass(frozen=True, slots=True)
class Settings:
    """What a level may change of a session."""

    steps: int
    window_frames: int
    fps: int


def traded(level: int, asked: Settings, least: Settings) -> Settings:
    """Return what a session that asked for `asked` runs with at a level.

    Half the steps, half the window, three quarters of the frame rate, and never below `least` or
    above what was asked for.
    """

    def reduced(from_level: int, whole: int, share: float, fewest: int) -> int:
        return min(whole, max(fewest, ceil(share * whole))) if level >= from_level else whole

    return Settings(
        reduced(FEWER_STEPS, asked.steps, 1 / 2, least.steps),
        reduced(SHORTER_WINDOW, asked.window_frames, 1 / 2, least.window_frames),
        reduced(LOWER_FPS, asked.fps, 3 / 4, least.fps),
    )
