"""How an engine fares, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How the engine fares. `stage` and `progress` (0 to 1) describe the start-up.

    `alive` is False once there is no engine and will be none; while one is replaced the stage is
    "restart". `busy_s` is for how long it has not answered; `overload` the level of the ladder.
    """

    alive: bool
    ready: bool
    stage: str
    progress: float
    sessions_free: int
    pages_free: int
    queue_length: int = 0
    overload: int = 0
    utilisation: float = 0.0
    pages: int = 0
    sessions_running: int = 0
    busy_s: float = 0.0
    restarts: int = 0
