"""How early a frame is there, on the clock of a session's viewers. Pure: no tensor, no I/O."""

from __future__ import annotations

from typing import Protocol


class Played(Protocol):
    """What is read of a session."""

    num_played: int
    played_at: float | None
    fps: int

    @property
    def is_batch(self) -> bool:
        """Whether nobody watches it live."""


def slack_s(session: Played, frame_index: int, now: float) -> float | None:
    """Return the seconds until a frame that is there now is due; below 0 it is late.

    None before anything was played, and where nobody watches live. A player that has other frames
    but shows none stands still.
    """
    if session.is_batch or session.played_at is None:
        return None
    ahead, frame_s = max(0, frame_index - session.num_played), 1 / session.fps
    clock = max(session.played_at, now - frame_s) if ahead else session.played_at
    return clock + (ahead + 1) * frame_s - now
