"""The engine: sessions in, chunks out, one pass at a time.

Everything here runs on one thread; only decodes run beside it. What leaves goes to `output`, in
order: chunks and events, each with its session's id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from streamgen import limits
from streamgen.admission import Admissions
from streamgen.chunk_watch import ChunkWatch
from streamgen.config import EngineConfig
from streamgen.decoder import StreamingDecoder
from streamgen.decoding import Decoding
from streamgen.encoding import Encoding
from streamgen.errors import NotFound
from streamgen.faults import NO_FAULTS, Faults
from streamgen.lives import Lives, Output
from streamgen.messages import Control, Overloaded, Receipt, Rewind, StateChanged, Update
from streamgen.model_runner import ModelRunner
from streamgen.models.presets import Preset
from streamgen.next_chunk import past_of, record_of
from streamgen.passes import Passes
from streamgen.pending import check_update
from streamgen.record import LogEntry, SessionRecord
from streamgen.refill import Refill
from streamgen.scheduler import Scheduler
from streamgen.session import Session, SessionState
from streamgen.session_config import SessionConfig, SessionRequest
from streamgen.text_check import check_control, check_session
from streamgen.warm_up import Measured

logger: Final = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 2
ENDED: Final = (SessionState.CLOSED, SessionState.FAILED)


class StreamEngine:
    """Generate the videos of many sessions over one model, one pool of pages and one decoder.

    Sessions that can run share each pass as rows, whatever passes they are at. A pass that fails is
    rolled back and tried once more; then that session alone ends with an error.
    """

    def __init__(
        self,
        config: EngineConfig,
        preset: Preset,
        runner: ModelRunner,
        decoder: StreamingDecoder,
        measured: Measured,
        output: Output,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_decoded: Callable[[], None] = lambda: None,
        faults: Faults = NO_FAULTS,
        encoding: Encoding | None = None,
    ) -> None:
        self.config = config
        self.preset = preset
        self.runner = runner
        self.decoder = decoder
        self.measured = measured
        self.costs = costs = measured.costs()
        self.output = output
        self.clock = clock
        self.faults = faults
        self.weight_bytes = 0
        self.watch = ChunkWatch(runner.meter)
        self.admissions = Admissions(config, preset, runner, decoder, costs)
        self.scheduler = Scheduler(runner.config.max_rows, costs)
        self.decoding = Decoding(decoder, on_decoded)
        self.lives = Lives(config, preset, self.admissions, self.decoding, output, clock)
        self.sessions = self.lives.sessions
        self.passes = Passes(
            runner,
            self.decoding,
            self.admissions,
            self.sessions,
            costs,
            faults,
            encoding,
            fused=config.fused,
        )

    def step(self) -> bool:
        """Run one pass of the most urgent sessions; return False when none could run."""
        now = self.clock()
        self.emit_decoded()
        self._watch_load(now)
        self.lives.start_waiting()
        self.passes.prepare(now, self.output)
        chosen = self.scheduler.pick(self.sessions.values(), now)
        for outcome in self.passes.run(chosen, now, self.output):
            session = outcome.session
            if outcome.error is not None:
                self._failed(session, outcome.error)
            elif outcome.denoised is not None:
                session.num_failures = 0
                self.decoding.submit(outcome.denoised)
                if outcome.denoised.spec.is_last:
                    self.lives.free(session)
        return bool(chosen)

    # Sessions.

    def open(self, request: SessionRequest) -> Session:
        """Admit a session, or let it wait in the queue; it is then `queued`.

        Raises InvalidRequest, Unsupported, or Capacity when the queue is full.
        """
        config = request.resolve(self.preset, self.config)
        check_session(self.runner.text_encoder, config)
        return self.open_config(config)

    def open_config(self, config: SessionConfig) -> Session:
        """Admit a session whose settings are checked, or let it wait. Raises Capacity."""
        return self.lives.add(self.lives.new(config), queue=True)

    def restore(
        self, record: SessionRecord, session_id: str | None = None, *,
        suspended: bool = False, had_place: bool = False,
    ) -> Session:  # fmt: skip
        """Go on with a session from its record, as after `open`; `suspended`: without pages.

        One that `had_place` in an engine that is gone is weighed for memory alone.
        Raises Capacity, or InvalidRequest when its settings do not fit this engine.
        """
        session = self.lives.new(record.config, session_id, record)
        session.log.append(LogEntry(session.num_chunks, None))
        if suspended:
            session.phase = SessionState.SUSPENDED
            self.sessions[session.id] = session
            return session
        return self.lives.add(session, queue=True, for_memory=had_place)

    def fork(self, session_id: str, at_chunk: int | None = None) -> Session:
        """Return a new session that shares another's past up to a chunk, by default its newest.

        At the newest chunk the pages are shared, and copied only where one of the two writes;
        earlier K/V are made again. Raises NotFound, or Capacity: a fork does not wait in a queue.
        """
        parent = self.find(session_id)
        if at_chunk is not None:
            limits.check_chunk(at_chunk, "at_chunk")
        record = past_of(parent, at_chunk)
        child = self.lives.new(record.config, None, record)
        child.paused = False
        at_newest = record.num_chunks == record_of(parent).num_chunks
        # Pages that a recache or a reset has made ready for a chunk that is not done are no past.
        refills = parent.needs_rebuild or isinstance(parent.work, Refill) or parent.is_prepared
        if at_newest and parent.table is not None and not refills:
            self.admissions.check(child, self.sessions.values())
            child.table = parent.table.fork()
            child.commit, child.needs_rebuild = parent.commit, False
            child.lineage, child.made = parent.lineage, dict(parent.made)
        elif at_newest and record.chunks:
            child.log.append(LogEntry(record.num_chunks, None))  # K/V are made again
        return self.lives.add(child, queue=False)

    def control(self, session_id: str, control: Control) -> Receipt:
        """Accept a control; when that raises, the session goes on as it was.

        Raises NotFound, InvalidRequest, Unsupported, Capacity, or Conflict when its id names
        another that waits.
        """
        session = self.find(session_id)
        session.pending.require_new(control.event_id)
        check_control(self.runner.text_encoder, control)
        before = session.state
        if isinstance(control, Rewind):
            chunk = session.history.find(limits.check_chunk(control.to_chunk, "to_chunk"))
            self.admissions.check_rewind(session, chunk, self.sessions.values(), self.clock())
        if isinstance(control, Update):
            check_update(control, self.preset)  # what is wrong in itself is said first
            self.admissions.check_update(session, control, self.sessions.values())
        receipt, superseded = session.accept(control, self.clock())
        for event in superseded:
            self.output(session_id, event)
        if session.state is not before:
            self.output(session_id, StateChanged(session.state.value))
        return receipt

    def record(self, session_id: str) -> SessionRecord:
        """Return the durable state of a session, whatever it is doing. Raises NotFound."""
        return record_of(self.find(session_id))

    def played(self, session_id: str, frame_index: int) -> None:
        """Learn that a frame was shown. About a session that has ended it is late, not wrong."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.mark_played(frame_index, self.clock())

    def suspend(self, session_id: str) -> None:
        """Free a session's pages at once and keep the latents that remake them. Idempotent."""
        session = self.find(session_id)
        if session.phase is not SessionState.SUSPENDED:
            self.lives.suspend(session)

    def resume(self, session_id: str) -> None:
        """Go on where `suspend` stopped: K/V and the decoder's memory are remade from the latents.

        Without room it waits in the queue, as a new one does. Idempotent. Raises NotFound, or
        Capacity when the queue is full.
        """
        session = self.find(session_id)
        if session.phase is SessionState.SUSPENDED:
            has_place = self.admissions.place(session, self.sessions.values(), queue=True)
            session.needs_rebuild = len(session.history) > 0
            if session.needs_rebuild:
                unmade = session.spec is not None
                session.log.append(LogEntry(session.num_chunks - unmade, None))
            if has_place:
                self.lives.start(session)
            else:
                self.lives.enter(session, SessionState.QUEUED)
                self.lives.tell_positions()

    def close(self, session_id: str, reason: str | None = None) -> None:
        """End a session; frames that are not out yet are dropped. Raises NotFound."""
        self.lives.end(self.find(session_id), SessionState.CLOSED, reason)

    def find(self, session_id: str) -> Session:
        """Return a living session, or raise NotFound."""
        if session_id not in self.sessions:
            raise NotFound(f"there is no session {session_id}; it may have ended")
        return self.sessions[session_id]

    @property
    def num_free(self) -> int:
        """Return how many more sessions have room in memory."""
        return self.admissions.num_free(self.sessions.values())

    @property
    def num_queued(self) -> int:
        """Return how many sessions wait for a place."""
        return len(self.admissions.queue)

    @property
    def overload_level(self) -> int:
        """Return the level of the overload ladder, 0 when all is well."""
        return self.admissions.ladder.level

    @property
    def utilisation(self) -> float:
        """Return the share of the device's time that the live sessions take."""
        return self.admissions.utilisation(self.sessions.values())

    def _failed(self, session: Session, error: Exception) -> None:
        """Let the session try once more from committed state, or end it."""
        self.watch.failed(error)
        session.num_failures += 1
        if session.num_failures < MAX_ATTEMPTS:
            logger.warning("session %s: pass failed, tried again: %s", session.id, error)
        else:
            self.lives.fail(session, error)

    # Load.

    def _watch_load(self, now: float) -> None:
        """Follow the overload ladder and tell the viewers what is traded."""
        if self.admissions.watch(self.sessions.values(), now):
            ladder = self.admissions.ladder
            for session in self.sessions.values():
                self.output(session.id, Overloaded(ladder.level, ladder.action))

    # Frames.

    @property
    def num_decoding(self) -> int:
        """Return how many chunks are denoised but not sent out."""
        return len(self.decoding)

    def emit_decoded(self, *, wait_for: int = 0) -> None:
        """Send out what the decoder has finished; wait for the oldest `wait_for` chunks."""
        for seconds in self.decoder.take_seconds():
            self.costs.observe_decode(seconds)
            self.runner.meter.stage("decode", seconds)
        for denoised, frames in self.decoding.finished(wait_for):
            session = denoised.session
            if session.phase in ENDED:
                continue
            if isinstance(frames, Exception):  # of this session alone, as in a pass
                self.lives.fail(session, frames)
                continue
            if session.phase is SessionState.STARTING:
                self.lives.enter(session, SessionState.RUNNING)
            now = self.clock()
            slack_s = self.admissions.note_chunk(session, denoised.spec.first_frame_index, now)
            self.watch.left(denoised, frames, now, slack_s, self.overload_level)
            for message in denoised.messages(frames, now, self.overload_level):
                self.output(session.id, message)
            if denoised.spec.is_last:
                self.lives.end(session, SessionState.CLOSED, "done")
