"""What the device does for one session: a chunk, its commit, and K/V made again.

Each is rows for forwards, whose flows it takes, and can be called off between any two. All that
raises while it is begun leaves the session as if nothing had begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from kvcache import Staging
from streamgen.chunk_spec import ChunkSpec
from streamgen.model_runner import ModelRunner, Row
from streamgen.pass_inputs import moved
from streamgen.record import ChunkRecord
from streamgen.session import Session
from streamgen.step import COMMIT_TIMESTEP, ChunkSteps
from streamgen.text import Text


class Work(Protocol):
    """Something under way on the device."""

    @property
    def rows(self) -> Sequence[Row]:
        """Return the rows of its next forward."""

    @property
    def num_rows(self) -> int:
        """Return how many rows those are."""

    @property
    def passes_left(self) -> int:
        """Return how many forwards it still takes."""

    @property
    def is_open(self) -> bool:
        """Return whether it is still under way."""

    @property
    def stage(self) -> str:
        """Return what metrics call it."""

    spent_s: float  # in the forwards it had rows in

    def take(self, flows: Sequence[Tensor]) -> bool:
        """Take the flows of its rows; return whether it is done."""

    def abort(self) -> None:
        """Undo its beginning: the pages are as before."""


@dataclass(slots=True, eq=False)
class Commit:
    """The clean pass of a finished chunk, which leaves its K/V in the cache.

    It rides with the first pass of the next chunk, or runs alone in idle time. A fork shares it
    with its parent, as it shares the pages: whoever comes first settles it for both.
    """

    runner: ModelRunner
    latents: Tensor
    staging: Staging
    text: Text
    is_settled: bool = False
    is_claimed: bool = False  # a row of the forward in preparation
    _slot: int | None = None

    @property
    def row(self) -> Row:
        """Return its row, the text's slot pinned."""
        if self._slot is None:
            self._slot = self.runner.acquire_text(self.text)
        return Row(self.latents, COMMIT_TIMESTEP, self.staging, self._slot)

    def settle(self) -> None:
        """Note that its K/V are in the cache."""
        self.is_settled = True
        self.let_go()

    def let_go(self) -> None:
        """Unpin the text's slot."""
        self.is_claimed = False
        if self._slot is not None:
            self.runner.release_text(self._slot)
            self._slot = None


@dataclass(slots=True, eq=False)
class LoneCommit:
    """A commit that no chunk rides with."""

    session: Session
    commit: Commit
    num_rows: int = 1
    passes_left: int = 1
    stage: str = "commit"
    spent_s: float = 0.0

    @property
    def rows(self) -> Sequence[Row]:
        """Return the commit's row."""
        return (self.commit.row,)

    @property
    def is_open(self) -> bool:
        """Return whether it is still under way."""
        return self.session.work is self

    def take(self, flows: Sequence[Tensor]) -> bool:
        """Settle the commit; the flow says nothing."""
        if not self.commit.is_settled:
            self.commit.settle()
        self.session.work = self.session.commit = None
        return True

    def abort(self) -> None:
        """Leave the commit to be done."""
        self.commit.let_go()
        self.session.work = None


@dataclass(slots=True, eq=False)
class ChunkWork:
    """A chunk from noise through its passes, the commit of the one before riding with the first."""

    session: Session
    runner: ModelRunner
    spec: ChunkSpec
    steps: ChunkSteps
    staging: Staging
    text_slot: int
    ready_at: float  # when it could have begun
    commit: Commit | None
    stage: str = "denoise"
    spent_s: float = 0.0

    @property
    def rows(self) -> Sequence[Row]:
        """Return its next pass, the commit's row before it."""
        step = self.steps.current_pass
        row = Row(self.steps.latents, step.timestep, self.staging, self.text_slot)
        commit = self._riding
        return (row,) if commit is None else (commit.row, row)

    @property
    def num_rows(self) -> int:
        """Return 1, or 2 with the commit."""
        return 1 if self._riding is None else 2

    @property
    def _riding(self) -> Commit | None:
        return None if self.commit is None or self.commit.is_settled else self.commit

    @property
    def passes_left(self) -> int:
        """Return how many denoise passes it still takes."""
        return self.steps.passes_left

    @property
    def is_open(self) -> bool:
        """Return whether it is still under way."""
        return self.session.work is self

    def take(self, flows: Sequence[Tensor]) -> bool:
        """Take the flow of a denoise pass; return whether that was the last one."""
        if self.commit is not None:
            if not self.commit.is_settled:
                self.commit.settle()
            self.commit = self.session.commit = None
        self.steps.advance(flows[-1])
        return self.steps.is_denoised

    def finish(self) -> None:
        """Make the chunk history. Its clean pass is still to come."""
        assert self.session.table is not None
        self.session.table.commit()
        self.session.commit = Commit(self.runner, self.steps.latents, self.staging, self.spec.text)
        self._leave()

    def abort(self) -> None:
        """Undo the beginning: the table is as before, and the chunk is still to be made."""
        assert self.session.table is not None
        self.session.table.rollback()
        if self.commit is not None:
            self.commit.let_go()
        self._leave()

    def _leave(self) -> None:
        self.runner.release_text(self.text_slot)
        self.session.work = None


def drop_commit(session: Session) -> None:
    """Let go of a commit that need not be run any more."""
    if session.commit is not None:
        session.commit.let_go()
        session.commit = None


def begin_chunk(session: Session, runner: ModelRunner, spec: ChunkSpec, now: float) -> None:
    """Begin the next chunk; the commit of the one before, if it waits, rides along."""
    assert session.table is not None
    slot = runner.acquire_text(spec.text)
    try:
        steps = _first_step(spec, session, runner)
        session.table.skip_to(spec.first_latent)
        staging = session.table.begin(spec.num_latents)
    except BaseException:
        runner.release_text(slot)
        raise
    commit = session.commit
    if commit is not None and commit.is_settled:  # by a fork
        commit = session.commit = None
    ready_at, session.ready_at = session.ready_at or now, None
    session.work = ChunkWork(session, runner, spec, steps, staging, slot, ready_at, commit)


def _first_step(spec: ChunkSpec, session: Session, runner: ModelRunner) -> ChunkSteps:
    shape = (spec.num_latents, *runner.config.latent_shape)
    noise = partial(session.preset.draw_noise, spec.seed, spec.draw, shape=shape)
    device = runner.config.device
    sampler = session.preset.make_sampler(spec.steps, first_chunk=spec.draw == 0)
    return ChunkSteps(sampler, lambda index: moved(noise(index), device))


def latents_of(chunk: ChunkRecord) -> Tensor:
    """Return a record's latents as a tensor of its own."""
    return torch.tensor(chunk.latents)
