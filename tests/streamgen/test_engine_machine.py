"""Ten thousand things that may be done to sessions, in any order: the books are always right."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from streamgen.errors import Capacity, NotFound
from streamgen.messages import (
    Applied,
    Chunk,
    Control,
    Failed,
    Rejected,
    Rewind,
    SetPrompt,
    Superseded,
    Update,
)
from streamgen.model_runner import StepBatch
from streamgen.record import SessionRecord
from streamgen.refill import Refill
from streamgen.session import Session
from streamgen.session_config import SessionRequest
from streamgen.step import ChunkPlan
from streamgen.work import ChunkWork
from tests.streamgen.studio import Studio
from tests.streamgen.tiny import TINY

NUM_RUNS, NUM_ACTIONS = 8, 1_250
MAX_SESSIONS = 5
TINIER = dataclasses.replace(
    TINY,
    dit=dataclasses.replace(TINY.dit, dim=24, ffn_dim=24, num_layers=1),
    steps=1,
    size=(16, 16),
    chunks=ChunkPlan(chunk_frames=2),
    window_frames=6,
)


@dataclasses.dataclass(frozen=True)
class NoMemory:
    """The memory of a decoder that has none."""

    nbytes: int = 0


class BlankVAE:
    """Decode to black: pixels are not what is looked at here."""

    def decoder_state(self) -> NoMemory:
        return NoMemory()

    def decode_step(self, latents: Tensor, state: NoMemory) -> tuple[Tensor, NoMemory]:
        return torch.zeros(1, 4 * latents.shape[1], 3, 2, 2), state


class Machine:
    """An engine, what is done to it at random, and what has to be true of it at any moment."""

    def __init__(self, studio: Studio, seed: int) -> None:
        self.studio, self.engine = studio, studio.engine
        self.random = np.random.default_rng(seed)
        self.engine.decoder._vae = BlankVAE()
        self.records: list[SessionRecord] = []
        self.told: dict[str, set[str]] = {}  # events that were accepted, by session
        self.seen: dict[str, int] = {}  # chunks looked at
        self.done: dict[str, int] = {}
        self.breaks = self.num_passes = 0
        run = self.engine.runner.run

        def may_break(batch: StepBatch) -> list[Tensor]:
            self.num_passes += 1
            if self.breaks:
                self.breaks -= 1
                raise RuntimeError("out of luck")
            return run(batch)

        self.engine.runner.run = may_break  # type: ignore[method-assign]

    def act(self) -> None:
        """Do one thing."""
        actions: dict[Callable[[], object], float] = {
            self.studio.step: 6,
            self.open: 2,
            self.prompt: 3,
            self.update: 2,
            self.rewind: 1.5,
            self.fork: 1.5,
            self.restore: 0.5,
            self.suspend: 1,
            self.resume: 1.5,
            self.close: 1.5,
            self.break_a_pass: 0.5,
            self.shorten_a_batch: 0.5,
        }
        weights = np.array([*actions.values()])
        action = [*actions][self.random.choice(len(actions), p=weights / weights.sum())]
        try:
            action()
        except (Capacity, NotFound):
            self.done["refused"] = self.done.get("refused", 0) + 1
        else:
            self.done[action.__name__] = self.done.get(action.__name__, 0) + 1

    def some(self) -> Session:
        """Return any session, or raise NotFound."""
        sessions = list(self.engine.sessions.values())
        if not sessions:
            raise NotFound("none is open")
        return sessions[self.random.integers(len(sessions))]

    def open(self) -> None:
        window = int(self.random.choice([3, 4, 6]))
        score = [{"at_chunk": int(self.random.integers(1, 9)), "prompt": "from the score"}]
        self.engine.open(
            SessionRequest(
                prompt=f"scene {self.random.integers(2)}",
                seed=int(self.random.integers(2)),
                window=window,
                sink=int(self.random.integers(window - 1)),
                num_frames=int(self.random.integers(1, 90))
                if not self.random.integers(5)
                else None,
                score=score if self.random.integers(2) else None,
                priority=str(self.random.choice(["live", "batch"])),
            )
        )

    def prompt(self) -> None:
        transition = str(self.random.choice(["cut", "blend", "recache", "reset"]))
        chunks = int(self.random.integers(1, 6)) if transition == "blend" else None
        texts = [f"scene {n}" for n in range(self.random.integers(1, 4))]
        self.control(SetPrompt(texts, transition, chunks))

    def update(self) -> None:
        values: dict[str, Any] = {
            "seed": int(self.random.integers(2)),
            "steps": int(self.random.integers(1, 3)),
            "fps": int(self.random.integers(1, 61)),
            "reset": "cache",
            "paused": bool(self.random.integers(3) == 0),
        }
        names = self.random.choice([*values], self.random.integers(1, 4))
        self.control(Update(**{name: values[name] for name in names}))

    def rewind(self) -> None:
        session = self.some()
        if session.config.num_frames is None:
            to_chunk = session.num_chunks - int(self.random.integers(-1, 9))
            self.told_of(session, Rewind(max(0, to_chunk)))

    def control(self, control: Control) -> None:
        self.told_of(self.some(), control)

    def told_of(self, session: Session, control: Control) -> None:
        receipt = self.engine.control(session.id, control)
        assert receipt.prompt_revision == session.revision
        self.told.setdefault(session.id, set()).add(receipt.event_id)

    def fork(self) -> None:
        session = self.some()
        now = bool(self.random.integers(2))
        at = None if now else max(0, session.num_chunks - int(self.random.integers(1, 9)))
        num_passes = self.num_passes
        child = self.engine.fork(session.id, at)
        assert self.num_passes == num_passes  # what the child needs is made in its turn
        assert child.num_chunks <= session.num_chunks

    def restore(self) -> None:
        if self.records:
            record = self.records[self.random.integers(len(self.records))]
            self.engine.restore(record, suspended=bool(self.random.integers(2)))

    def suspend(self) -> None:
        self.engine.suspend(self.some().id)

    def resume(self) -> None:
        self.engine.resume(self.some().id)

    def close(self) -> None:
        session = self.some()
        self.records = [*self.records[-3:], self.engine.record(session.id)]
        self.engine.close(session.id)

    def break_a_pass(self) -> None:
        self.breaks = int(self.random.integers(1, 3))
        self.studio.step()

    def shorten_a_batch(self) -> None:
        """Let a pass have room for few rows, so that much is begun that has to wait."""
        self.engine.scheduler.max_rows = int(self.random.integers(6, 11))
        self.studio.step()

    def check(self) -> None:
        """Require all that is true between any two actions."""
        studio, pool = self.studio, self.studio.pool
        sessions = list(self.engine.sessions.values())
        placed = [s for s in sessions if s.table is not None]
        assert len(placed) <= MAX_SESSIONS
        reserved = [s.config.window.reserved_frames(2, fused=True) for s in placed]
        assert pool.num_unreserved == pool.num_pages - sum(reserved)
        assert studio.audit() >= pool.num_unreserved
        pins = {id(s.commit): s.commit._slot is not None for s in placed if s.commit is not None}
        works = [s.work for s in sessions if s.work is not None]
        assert sum(self.engine.runner.text._pins) == sum(pins.values()) + sum(
            len(w._slots) if isinstance(w, Refill) else isinstance(w, ChunkWork) for w in works
        )
        for session in sessions:
            if session.table is None:
                assert session.stream.state is None
                assert session.work is session.commit is None
        for session_id, chunks in studio.chunks.items():
            self.check_chunks(chunks[max(0, self.seen.get(session_id, 0) - 1) :])
            self.seen[session_id] = len(chunks)

    @staticmethod
    def check_chunks(chunks: list[Chunk]) -> None:
        """Require whole numbers without a gap, and pictures."""
        for chunk in chunks:
            assert np.isfinite(chunk.latents).all()
        for chunk, following in pairwise(chunks):
            assert following.index == chunk.index + 1
            assert following.first_frame_index == chunk.first_frame_index + len(chunk.frames)
            assert following.pts_s >= chunk.pts_s + len(chunk.frames) / chunk.fps - 1e-9
            assert following.prompt_revision >= chunk.prompt_revision

    def see_all_off(self) -> None:
        """Close all sessions in order, and find everything given back."""
        self.engine.scheduler.max_rows = self.engine.runner.config.max_rows
        for session in list(self.engine.sessions.values()):
            self.see_off(session)
        self.engine.emit_decoded(wait_for=self.engine.num_decoding)
        assert self.studio.audit() == self.studio.pool.num_pages == self.studio.pool.num_unreserved
        assert not any(self.engine.runner.text._pins)

    def see_off(self, session: Session) -> None:
        """Let a session make what it was asked for, and close it.

        Each of its controls has had a second answer then, once.
        """
        for other in self.engine.sessions.values():
            self.engine.control(other.id, Update(paused=other is not session))
        while session.id in self.engine.sessions and session.table is None:
            self.make_room(session)
            self.studio.step()
        while session.id in self.engine.sessions and self.unanswered(session):
            assert self.studio.step(), session.pending
        self.engine.emit_decoded(wait_for=self.engine.num_decoding)
        self.check()
        events = self.studio.events[session.id]
        answered = [e.event_id for e in events if isinstance(e, (Applied, Superseded, Rejected))]
        assert len(set(answered)) == len(answered)
        if session.id in self.engine.sessions:
            assert self.told.get(session.id, set()) <= {*answered}, session.log
            self.engine.close(session.id)

    def make_room(self, session: Session) -> None:
        """Let all others that have a place give it up; those who wait come before it."""
        for other in list(self.engine.sessions.values()):
            if other is not session and other.table is not None:
                self.engine.suspend(other.id)
        with contextlib.suppress(Capacity):
            self.engine.resume(session.id)

    @staticmethod
    def unanswered(session: Session) -> set[str]:
        taken = () if session.spec is None else session.spec.event_ids
        return {*taken, *session.pending.event_ids()}


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_q41_whatever_is_done_to_sessions_the_books_are_right_and_all_comes_back(seed: int) -> None:
    with Studio(TINIER, max_sessions=MAX_SESSIONS, max_queue=2, history_seconds=2) as studio:
        machine = Machine(studio, seed)
        for _ in range(NUM_ACTIONS):
            machine.act()
            machine.check()
        assert {"open", "prompt", "rewind", "fork", "restore", "resume"} <= machine.done.keys()
        machine.see_all_off()
        assert studio.engine.num_decoding == studio.engine.num_queued == 0
        assert not studio.engine.step()
        failed = [e for events in studio.events.values() for e in events if isinstance(e, Failed)]
        assert all(e.message == "a pass failed twice: out of luck" for e in failed)
