"""The lives of sessions: how they come to a place, hold it, and leave it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final

import torch

from streamgen.admission import Admissions
from streamgen.config import EngineConfig
from streamgen.decoding import Decoding
from streamgen.errors import GenerationFailed, OutOfMemory, StreamgenError
from streamgen.history import History
from streamgen.messages import Chunk, Event, Failed, StateChanged
from streamgen.models.presets import Preset
from streamgen.next_chunk import take_up
from streamgen.record import SessionRecord
from streamgen.session import Session, SessionState
from streamgen.session_config import SessionConfig
from streamgen.sharing import new_lineage

logger: Final = logging.getLogger(__name__)

Output = Callable[[str, Chunk | Event], None]


class Lives:
    """The sessions of an engine, each with its place on the device, in the queue, or suspended.

    Every change of state is told to `output`.
    """

    def __init__(
        self,
        config: EngineConfig,
        preset: Preset,
        admissions: Admissions,
        decoding: Decoding,
        output: Output,
        clock: Callable[[], float],
    ) -> None:
        self.sessions: dict[str, Session] = {}
        self.config = config
        self.preset = preset
        self.admissions = admissions
        self.decoding = decoding
        self.output = output
        self.clock = clock

    def new(
        self, config: SessionConfig, session_id: str | None = None,
        record: SessionRecord | None = None,
    ) -> Session:  # fmt: skip
        """Return a session that has no place yet, taken up from its record if it has one."""
        chunks = () if record is None else record.chunks
        history = History(config.window, self.config.history_seconds or 0.0, chunks)
        session_id = session_id or f"session-{secrets.token_hex(6)}"
        max_rows = self.admissions.runner.config.max_rows
        session = Session(session_id, config, self.preset, self.clock(), history, max_rows)
        session.lineage = new_lineage(session)
        if record is not None:
            take_up(session, record)
        return session

    def add(self, session: Session, *, queue: bool, for_memory: bool = False) -> Session:
        """Give a new session its place, or one in the queue. Raises Capacity."""
        if session.table is None and not self.admissions.place(
            session, self.sessions.values(), queue=queue, for_memory=for_memory
        ):
            self.sessions[session.id] = session
            self.output(session.id, StateChanged(session.state.value))
            self.tell_positions()
            return session
        self.sessions[session.id] = session
        self.start(session)
        return session

    def start(self, session: Session) -> None:
        """Let a session that has its place begin."""
        if session.table is None:
            session.table = self.admissions.take_pages(session)
        self.decoding.begin_again(session)
        session.started_at, session.played_at = self.clock(), None
        self.enter(session, SessionState.STARTING)
        if session.is_complete:  # restored or forked after its last frame was made
            self.end(session, SessionState.CLOSED, "done")

    def start_waiting(self) -> None:
        """Give places that came free to those who wait longest."""
        while (first := self.admissions.next_in_line(self.sessions)) is not None:
            self.start(first)
            self.tell_positions()

    def tell_positions(self) -> None:
        """Tell those who wait how long it will be."""
        for session_id, event in self.admissions.positions(self.sessions.values(), self.clock()):
            self.output(session_id, event)

    def free(self, session: Session) -> None:
        """Give back all that a session holds on the device. What is in work is undone."""
        if session.work is not None:
            session.work.abort()
        self.admissions.give_back(session, self.clock())

    def suspend(self, session: Session) -> None:
        """Let a session go on without a place, in the queue or on the device."""
        waited = session.phase is SessionState.QUEUED
        self.free(session)
        self.enter(session, SessionState.SUSPENDED)
        if waited:
            self.tell_positions()

    def fail(self, session: Session, error: Exception) -> None:
        """End a session with an error that its viewers see."""
        logger.error("session %s failed", session.id, exc_info=error)
        if isinstance(error, torch.OutOfMemoryError):
            error = OutOfMemory(f"the device's memory is full: {error}")
        if not isinstance(error, StreamgenError):
            error = GenerationFailed(f"a pass failed twice: {error}")
        self.output(session.id, Failed(error.code, error.message, error.retryable))
        self.end(session, SessionState.FAILED, error.code)

    def end(self, session: Session, phase: SessionState, reason: str | None) -> None:
        """End a session and give back what it holds."""
        waited = session.phase is SessionState.QUEUED
        self.free(session)
        del self.sessions[session.id]
        self.enter(session, phase, reason)
        if waited:
            self.tell_positions()

    def enter(self, session: Session, phase: SessionState, reason: str | None = None) -> None:
        """Let a session be in another state."""
        before, session.phase = session.state, phase
        if session.state is not before:
            self.output(session.id, StateChanged(session.state.value, reason))
