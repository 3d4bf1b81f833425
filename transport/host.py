"""An engine as seen from here: the streams that it opens, and how it fares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transport.stream import SessionConfig, Stream


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model as `/v1/models` lists it; `details` is JSON beyond the fields named here."""

    id: str
    width: int
    height: int
    fps: float
    chunk_frames: int
    suggestions: Sequence[str] = ()
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HostStats:
    """How the engine fares. `stage` and `progress` (0 to 1) describe the warm-up.

    `busy_s` is the time since the engine last answered: an engine in a long computation is busy,
    not dead. `overload` is the level of what is traded for speed, 0 for nothing, and `restarts`
    counts the engine processes that were replaced. `pages` are all that the cache has.
    """

    alive: bool
    ready: bool
    stage: str
    progress: float
    sessions_free: int
    pages_free: int
    models: Sequence[ModelInfo]
    busy_s: float = 0.0
    queue_length: int = 0
    overload: int = 0
    restarts: int = 0
    pages: int = 0
    sessions_running: int = 0


class StreamHost(Protocol):
    """An engine."""

    async def open(self, config: SessionConfig) -> Stream:
        """Admit a session; raise StreamError when it is refused. Cancelled, it leaves nothing.

        One that has to wait for a place is returned at once, its state "queued".
        """

    async def restore(self, blob: bytes) -> Stream:
        """Go on from a snapshot; raise StreamError when it is refused, as for `open`."""

    def stats(self) -> HostStats:
        """Return the latest figures without waiting."""
