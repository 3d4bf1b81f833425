"""Forwards over the rows of chosen sessions, and what came of each."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from streamgen.admission import Admissions
from streamgen.chunk_spec import ChunkSpec
from streamgen.cost_table import CostTable
from streamgen.decoding import Decoding, Denoised
from streamgen.encoding import Encoding
from streamgen.errors import GenerationFailed, NotFound
from streamgen.faults import Faults
from streamgen.messages import Event, Rejected, SetPrompt
from streamgen.model_runner import ModelRunner, Row, StepBatch
from streamgen.next_chunk import follow_script, go_back, next_spec
from streamgen.pass_clock import Note, pass_clock
from streamgen.refill import Refill, begin_rebuild, begin_recache
from streamgen.session import Session
from streamgen.sharing import find_twin
from streamgen.step import COMMIT_TIMESTEP
from streamgen.text import Text
from streamgen.work import (
    ChunkWork,
    Commit,
    LoneCommit,
    Work,
    begin_chunk,
    drop_commit,
)

logger: Final = logging.getLogger(__name__)

Tell = Callable[[str, Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass did to a session: it failed, or finished a chunk, or neither."""

    session: Session
    error: Exception | None = None
    denoised: Denoised | None = None


class Passes:
    """Begin what sessions have to do next and run it, several sessions' rows in one forward.

    `fused`: the commit of a chunk rides with the first pass of the next. Without `encoding`, texts
    are encoded when they are needed. An error is that of the session at fault; only a device that
    is lost (torch.AcceleratorError) ends more than one.
    """

    def __init__(
        self,
        runner: ModelRunner,
        decoding: Decoding,
        admissions: Admissions,
        sessions: Mapping[str, Session],
        costs: CostTable,
        faults: Faults,
        encoding: Encoding | None = None,
        *,
        fused: bool,
    ) -> None:
        self.runner = runner
        self.decoding = decoding
        self.admissions = admissions
        self.sessions = sessions
        self.costs = costs
        self.faults = faults
        self.encoding = encoding
        self.fused = fused
        self.busy_s = 0.0  # spent in forwards
        self.clock = pass_clock(runner.config.device)
        self.decoder = decoding.decoder

    def prepare(self, now: float, tell: Tell) -> None:
        """Take up texts that are encoded, and note since when sessions could begin a chunk."""
        if self.encoding is not None:
            self.encoding.step(self.sessions.values())
            for session in self.sessions.values():
                rejected = self.encoding.hold(session, now)
                if rejected is not None:
                    tell(session.id, rejected)
        for session in self.sessions.values():
            if session.ready_at is None and session.may_begin:
                session.ready_at = now

    def run(self, chosen: Sequence[Session], now: float, tell: Tell) -> list[Outcome]:
        """Run one forward of the chosen sessions, as many as it has room for."""
        outcomes: list[Outcome] = []
        works: list[tuple[Session, Work]] = []
        num_rows = 0
        for session in chosen:
            try:
                work = session.work or self._begun(session, now, tell)
            except torch.AcceleratorError:
                raise
            except Exception as error:  # of this session alone: it is told, the others go on
                outcomes.append(Outcome(session, error))
                continue
            if isinstance(work, Denoised):
                outcomes.append(Outcome(session, denoised=work))
            elif work is None or num_rows + work.num_rows > self.runner.config.max_rows:
                continue
            elif claims(work):
                works.append((session, work))
                num_rows += work.num_rows
        return outcomes + self._forward(works)

    def _begun(self, session: Session, now: float, tell: Tell) -> Work | Denoised | None:
        """Begin what comes next for a session; it may be there already, made by another."""
        for event in follow_script(session, now):
            tell(session.id, event)
        pending = session.pending
        if pending.rewind is not None and not pending.is_rewound and session.may_begin:
            self._go_back(session, now, tell)
        if session.needs_rebuild:
            if self._lacks(session, [text for _, text in session.history.texts_in_window()]):
                drop_commit(session)
            else:
                begin_rebuild(session, self.runner)
        elif session.may_begin:
            return self._begin_chunk(session, now) or session.work
        elif session.may_commit:
            self._commit_alone(session)
        return session.work

    def _go_back(self, session: Session, now: float, tell: Tell) -> None:
        rewind = session.pending.rewind
        assert rewind is not None
        assert rewind.event_id is not None
        try:
            for event in go_back(session, now):
                tell(session.id, event)
        except NotFound as error:  # it was let go since the rewind was accepted
            session.pending.rewind = None
            tell(session.id, Rejected(rewind.event_id, error.code, error.message))
            return
        self.decoding.begin_again(session)

    def _begin_chunk(self, session: Session, now: float) -> Denoised | None:
        spec = next_spec(session, self.admissions.trade)
        if self._lacks(session, [spec.text]):
            return None
        if spec.is_reset and session.table is not None and session.table.frames:
            self._empty(session)
        if spec.is_recached and session.recached_for != spec.index:
            if self.admissions.may_recache(session, self.sessions.values(), now):
                drop_commit(session)  # its K/V are made again with the others
                begin_recache(session, self.runner, spec)
                return None
            session.spec = spec = as_cut(spec)
            logger.info("session %s: too many recaches, cut instead", session.id)
        commit = session.commit
        waits = commit is not None and not commit.is_settled
        twin = find_twin(session, spec, self.sessions.values())
        if isinstance(twin, ChunkWork):
            session.waits_for = twin
        elif waits and (twin is not None or not self._rides(commit, spec)):
            self._commit_alone(session)
        elif twin is not None:
            return Denoised.adopted(session, spec, *twin)
        else:
            self.faults.hit("cache.write")
            begin_chunk(session, self.runner, spec, now)
        return None

    def _lacks(self, session: Session, texts: Iterable[Text]) -> bool:
        """Return whether a session has to wait for texts. Raises what an encoder of one raised."""
        if self.encoding is None:
            return False
        session.waits_for = wait = self.encoding.wait_for(texts)
        if wait.error is not None:
            raise wait.error
        if wait.is_open:
            session.ready_at = None  # it could not begin after all
        return wait.is_open

    def _empty(self, session: Session) -> None:
        """Let a reset forget the cache and the decoder's memory."""
        assert session.table is not None
        drop_commit(session)
        session.made = {}
        session.table.reset(0)
        self.decoding.begin_again(session)

    def _rides(self, commit: Commit | None, spec: ChunkSpec) -> bool:
        """Return whether a commit shares a forward with the next chunk, which must be as long."""
        return self.fused and commit is not None and commit.staging.num_frames == spec.num_latents

    @staticmethod
    def _commit_alone(session: Session) -> None:
        assert session.commit is not None
        session.work = LoneCommit(session, session.commit)

    def _forward(self, works: Sequence[tuple[Session, Work]]) -> list[Outcome]:
        """Run works together. If that raises, each runs alone, to find who is at fault."""
        if not works:
            return []
        try:
            rows = [list(work.rows) for _, work in works]
            flows = self._flows([row for own in rows for row in own], works)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            if len(works) > 1:
                return [outcome for one in works for outcome in self._forward([one])]
            session, work = works[0]
            work.abort()
            return [Outcome(session, error)]
        outcomes = []
        for (session, work), own in zip(works, rows, strict=True):
            mine, flows = flows[: len(own)], flows[len(own) :]
            outcomes.append(self._taken(session, work, mine))
        return outcomes

    def _flows(self, rows: list[Row], works: Sequence[tuple[Session, Work]]) -> list[Tensor]:
        for row in rows:
            self.faults.hit("pass.commit" if row.timestep == COMMIT_TIMESTEP else "pass.denoise")
        started, decoded_s = self.clock.start(), self.decoder.busy_s
        flows = self.runner.run(StepBatch(tuple(rows)))
        self.clock.stop(started, self._note_of(len(rows), works, self.decoder.busy_s - decoded_s))
        return [torch.full_like(f, torch.nan) if self.faults.hit("pass.nan") else f for f in flows]

    def _note_of(
        self, num_rows: int, works: Sequence[tuple[Session, Work]], decoded_s: float
    ) -> Note:
        """Return what takes a forward's seconds in; for `decoded_s` a decode ran beside it."""
        refills, is_alone = any(isinstance(work, Refill) for _, work in works), len(works) == 1
        is_full = all(session.sees_full_window for session, _ in works)
        tables = [session.table for session, _ in works]
        window = self.admissions.config.window
        is_equal = all(t is not None and t.config.window_frames == window for t in tables)

        def note(seconds: float) -> None:
            self.busy_s += seconds
            self.runner.meter.passed(num_rows, seconds)
            for _, work in works:
                work.spent_s += seconds
            if refills:
                if is_alone:
                    self.costs.observe_recache(seconds)
            elif is_full:
                beside = min(1.0, decoded_s / max(seconds, 1e-9))
                self.costs.observe(num_rows, seconds, beside, is_equal=is_equal)

        return note

    def _taken(self, session: Session, work: Work, flows: list[Tensor]) -> Outcome:
        if not work.take(flows):
            return Outcome(session)
        # Told in the order of the passes, when the last one's seconds are known.
        self.clock.stop(
            self.clock.start(), lambda _: self.runner.meter.stage(work.stage, work.spent_s)
        )
        if not isinstance(work, ChunkWork):
            return Outcome(session)
        latents = work.steps.latents
        if not torch.isfinite(latents).all():
            work.abort()
            return Outcome(session, GenerationFailed("the model gave values that are not finite"))
        return Outcome(session, denoised=Denoised.of(work))


def as_cut(spec: ChunkSpec) -> ChunkSpec:
    """Return the chunk as it is when its prompt takes over by a cut, and is logged so."""
    controls = tuple(
        dataclasses.replace(control, transition="cut")
        if isinstance(control, SetPrompt)
        else control
        for control in spec.controls
    )
    return dataclasses.replace(spec, is_recached=False, controls=controls)


def claims(work: Work) -> bool:
    """Take the commit that a work has, unless a forward in preparation has it already.

    A fork and its parent share one; the second of them waits a pass.
    """
    commit = work.commit if isinstance(work, (ChunkWork, LoneCommit)) else None
    if commit is None:
        return True
    if commit.is_settled:
        if isinstance(work, LoneCommit):  # nothing is left to do
            work.session.work = work.session.commit = None
        return isinstance(work, ChunkWork)
    if commit.is_claimed:
        return False
    commit.is_claimed = True
    return True
