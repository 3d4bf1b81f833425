"""What an engine does, in figures for its client: counted here, told in steps.

A step is what happened since the one before. So the client's counts never go down: when an engine
is replaced, only what it had not told yet is lost.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

logger: Final = logging.getLogger(__name__)

MOST_KEPT: Final = 4096  # of each kind until they are told: in the library nobody asks


@dataclass(frozen=True, slots=True)
class DeviceState:
    """How the device stands. `memory` has the bytes of each kind."""

    busy_share: float  # of time that passes are expected to take
    scatter: float  # mean absolute deviation of costs, as a share of them
    pages_unowned: int
    memory: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Measures:
    """What happened since the step before. All lists are in the order in which it happened."""

    device: DeviceState
    stage_s: tuple[tuple[str, float], ...] = ()  # the stage and its seconds, of one chunk each
    batch_rows: tuple[int, ...] = ()  # of each pass
    busy_s: float = 0.0  # spent in passes
    slack_s: tuple[float, ...] = ()  # of each live chunk, negative when it was late
    quality_db: tuple[float, ...] = ()  # of each sampled chunk
    num_oom: int = 0
    num_new_shapes: int = 0
    prompt_hits: int = 0
    prompt_misses: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """What others count from an engine's beginning on."""

    prompt_hits: int = 0
    prompt_misses: int = 0
    decoder_oom: int = 0


class Meter:
    """Counts what one engine does, on the engine's thread."""

    def __init__(self) -> None:
        self._shapes: set[tuple[int, int]] = set()
        self.begin(Totals())

    def begin(self, totals: Totals) -> None:
        """Begin to count: what was done until now was warm-up. Its shapes stay known."""
        self._totals = totals  # that were told
        self._forget()

    def _forget(self) -> None:
        self._stage_s: deque[tuple[str, float]] = deque(maxlen=MOST_KEPT)
        self._batch_rows: deque[int] = deque(maxlen=MOST_KEPT)
        self._slack_s: deque[float] = deque(maxlen=MOST_KEPT)
        self._quality_db: deque[float] = deque(maxlen=MOST_KEPT)
        self._busy_s = 0.0
        self._num_oom = self._num_new_shapes = 0

    def stage(self, name: str, seconds: float) -> None:
        """Note what a chunk spent in a stage."""
        self._stage_s.append((name, seconds))

    def passed(self, rows: int, seconds: float) -> None:
        """Note a pass."""
        self._batch_rows.append(rows)
        self._busy_s += seconds

    def shape(self, rows: int, frames: int) -> None:
        """Note the shape of a forward, before it runs."""
        if (rows, frames) not in self._shapes:
            self._shapes.add((rows, frames))
            self._num_new_shapes += 1
            logger.debug("a pass of a new shape: %d rows of %d frames", rows, frames)

    def slack(self, seconds: float) -> None:
        """Note by how much a live chunk was in time."""
        self._slack_s.append(seconds)

    def quality(self, psnr_db: float) -> None:
        """Note how near a sampled chunk was to the reference."""
        self._quality_db.append(psnr_db)

    def oom(self) -> None:
        """Note that the device's memory was full."""
        self._num_oom += 1

    def take(self, device: DeviceState, totals: Totals) -> Measures:
        """Return the step and begin the next."""
        before, self._totals = self._totals, totals
        step = Measures(
            device,
            tuple(self._stage_s),
            tuple(self._batch_rows),
            self._busy_s,
            tuple(self._slack_s),
            tuple(self._quality_db),
            self._num_oom + totals.decoder_oom - before.decoder_oom,
            self._num_new_shapes,
            totals.prompt_hits - before.prompt_hits,
            totals.prompt_misses - before.prompt_misses,
        )
        self._forget()
        return step
