"""K/V of a session's window made again: after they were given up, or under a new text."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvcache import Staging
from streamgen.chunk_spec import ChunkSpec
from streamgen.model_runner import ModelRunner, Row
from streamgen.session import Session
from streamgen.step import COMMIT_TIMESTEP
from streamgen.text import Text
from streamgen.work import drop_commit, latents_of


@dataclass(slots=True, eq=False)
class Refill:
    """K/V of the window made again: a rebuild, each chunk under its own text, or a recache.

    `waiting` are the rows in order. In a rebuild a row reads only those before it, so they may be
    split over forwards; a recache's read each other and share one.
    """

    session: Session
    runner: ModelRunner
    waiting: deque[tuple[Tensor, Text, Staging]]
    rows_at_once: int
    recached: ChunkSpec | None = None  # the chunk that a recache is for
    stage: str = "recache"
    spent_s: float = 0.0
    _slots: list[int] = field(default_factory=list)

    @property
    def rows(self) -> Sequence[Row]:
        """Return the rows of the next forward."""
        self._release()
        rows = []
        for latents, text, staging in [*self.waiting][: self.rows_at_once]:
            self._slots.append(self.runner.acquire_text(text))
            rows.append(Row(latents, COMMIT_TIMESTEP, staging, self._slots[-1]))
        return rows

    @property
    def num_rows(self) -> int:
        """Return the rows of the next forward."""
        return min(len(self.waiting), self.rows_at_once)

    @property
    def passes_left(self) -> int:
        """Return how many forwards it still takes."""
        return -(-len(self.waiting) // self.rows_at_once)

    @property
    def is_open(self) -> bool:
        """Return whether it is still under way."""
        return self.session.work is self

    def take(self, flows: Sequence[Tensor]) -> bool:
        """Count the rows that are written."""
        for _ in flows:
            self.waiting.popleft()
        self._release()
        if self.waiting:
            return False
        self.session.work = None
        if self.session.needs_rebuild:
            self.session.needs_rebuild = False
            self.session.lineage, self.session.made = os.urandom(32), {}  # close, and no one else's
        if self.recached is not None:
            spec = self.recached
            self.session.recached_for = spec.index
        return True

    def abort(self) -> None:
        """Leave it to be done, from the beginning: what was written is not history's any more."""
        self._release()
        self.session.needs_rebuild = True
        self.session.work = None

    def _release(self) -> None:
        for slot in self._slots:
            self.runner.release_text(slot)
        self._slots.clear()


def begin_rebuild(session: Session, runner: ModelRunner) -> None:
    """Begin to make the K/V of the window again, each chunk under the text it had.

    What comes of it is close to what was there before, not equal: deep layers remembered more.
    """
    assert session.table is not None
    chunks = session.history.in_window()
    stagings = session.table.rebuild(
        [range(c.first_latent, c.first_latent + len(c.latents)) for c in chunks]
    )
    frames = _frames(session)
    waiting = deque((*_of(staging, frames), staging) for staging in stagings)
    drop_commit(session)
    session.recached_for = None  # a recache that was done for a chunk in work is lost with it
    session.work = Refill(session, runner, waiting, runner.config.max_rows)


def _frames(session: Session) -> dict[int, tuple[Tensor, Text]]:
    """Return the latents of each frame in view, and the text that its K/V are made under."""
    return {
        chunk.first_latent + i: (latent, text)
        for chunk, text in session.history.texts_in_window()
        for i, latent in enumerate(latents_of(chunk))
    }


def _of(staging: Staging, frames: dict[int, tuple[Tensor, Text]]) -> tuple[Tensor, Text]:
    """Return what a row is fed: its frames' latents, and the text of the first of them."""
    row = [frames[staging.frame_index + i] for i in range(staging.num_frames)]
    return torch.stack([latent for latent, _ in row]), row[0][1]


def begin_recache(session: Session, runner: ModelRunner, spec: ChunkSpec) -> None:
    """Begin to make the K/V of the window again under a new text, as the model was trained to."""
    assert session.table is not None
    frames, made = _frames(session), session.preset.rebuilds_sink
    session.made = {}  # its pages will hold K/V under another text
    waiting = deque(
        (_of(staging, frames)[0], spec.text, staging)
        for staging in session.table.recache(rebuild_sink=made)
    )
    session.work = Refill(session, runner, waiting, max(1, len(waiting)), spec)
