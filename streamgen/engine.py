"""The engine: sessions in, chunks out, one pass at a time.

Everything here runs on one thread; only decodes run beside it. What leaves goes to `output`, in
order: chunks and events, each with its session's id.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvcache import PageTable, PoolExhausted
from streamgen.chunk_run import ChunkRun, Decode, begin_chunk
from streamgen.config import EngineConfig
from streamgen.decoder import DecoderStream, StreamingDecoder
from streamgen.errors import (
    Capacity,
    GenerationFailed,
    NotFound,
    OutOfMemory,
    StreamgenError,
)
from streamgen.messages import (
    Chunk,
    Event,
    Failed,
    Receipt,
    SetPrompt,
    StateChanged,
    Update,
)
from streamgen.model_runner import ModelRunner, StepBatch
from streamgen.models.presets import Preset
from streamgen.scheduler import Scheduler
from streamgen.session import Session, SessionState
from streamgen.session_config import SessionConfig, SessionRequest

logger: Final = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 2
RETRY_AFTER_S: Final = 5.0
ENDED: Final = (SessionState.CLOSED, SessionState.FAILED)

Output = Callable[[str, Chunk | Event], None]


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
        output: Output,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_decoded: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.preset = preset
        self.runner = runner
        self.decoder = decoder
        self.output = output
        self.clock = clock
        self.scheduler = Scheduler(runner.config.max_rows)
        self.sessions: dict[str, Session] = {}
        self._decodes: deque[Decode] = deque()
        self._on_decoded = on_decoded  # called in the decoder's thread

    def step(self) -> bool:
        """Run one pass of the most urgent sessions; return False when none could run."""
        now = self.clock()
        self.emit_decoded()
        self._note_ready(now)
        chosen = self.scheduler.pick(self.sessions.values(), now)
        runs = [run for run in (self._begun(session, now) for session in chosen) if run]
        for run, flow in zip(runs, self._forward(runs), strict=True):
            self._advance(run, flow)
        return bool(chosen)

    # Sessions.

    def open(self, request: SessionRequest) -> Session:
        """Admit a session; its first chunk begins with the next step.

        Raises InvalidRequest, Unsupported, or Capacity when every place is taken.
        """
        config = request.resolve(self.preset, self.config)
        table = self._admit(config)
        session_id = f"session-{secrets.token_hex(6)}"
        session = Session(session_id, config, self.preset, self.clock(), table, self.decoder.open())
        self.sessions[session_id] = session
        self.output(session_id, StateChanged(session.state.value))
        return session

    def control(self, session_id: str, control: SetPrompt | Update) -> Receipt:
        """Accept a control. Raises NotFound, InvalidRequest or Unsupported; the session goes on."""
        session = self.find(session_id)
        before = session.state
        if isinstance(control, SetPrompt):
            receipt, superseded = session.set_prompt(control)
        else:
            receipt, superseded = session.update(control)
        for event in superseded:
            self.output(session_id, event)
        if session.state is not before:
            self.output(session_id, StateChanged(session.state.value))
        return receipt

    def played(self, session_id: str, frame_index: int) -> None:
        """Learn that a frame was shown. About a session that has ended it is late, not wrong."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.mark_played(frame_index, self.clock())

    def suspend(self, session_id: str) -> None:
        """Free a session's pages at once and keep the latents that remake them. Idempotent."""
        session = self.find(session_id)
        if session.phase is not SessionState.SUSPENDED:
            self._free(session)
            self._enter(session, SessionState.SUSPENDED)

    def resume(self, session_id: str) -> None:
        """Go on where `suspend` stopped: K/V and the decoder's memory are remade from the latents.

        Idempotent. Raises NotFound or Capacity.
        """
        session = self.find(session_id)
        if session.phase is not SessionState.SUSPENDED:
            return
        session.table = self._admit(session.config)
        session.uncommitted = deque(session.kept)
        session.stream = self.decoder.open()
        if session.kept:
            latents = torch.cat([chunk.latents for chunk in session.kept])
            self.decoder.prime(session.stream, latents)
        session.started_at, session.played_at = self.clock(), None
        self._enter(session, SessionState.STARTING)

    def close(self, session_id: str, reason: str | None = None) -> None:
        """End a session; frames that are not out yet are dropped. Raises NotFound."""
        self._end(self.find(session_id), SessionState.CLOSED, reason)

    def find(self, session_id: str) -> Session:
        """Return a living session, or raise NotFound."""
        if session_id not in self.sessions:
            raise NotFound(f"there is no session {session_id}; it may have ended")
        return self.sessions[session_id]

    @property
    def num_free(self) -> int:
        """Return how many more sessions would be admitted now."""
        active = sum(session.table is not None for session in self.sessions.values())
        return self.config.max_sessions - active

    def _admit(self, config: SessionConfig) -> PageTable:
        chunk_frames = self.runner.config.chunk_frames
        try:
            if self.num_free < 1:
                raise PoolExhausted(1, 0, f"of {self.config.max_sessions} sessions")
            return PageTable(self.runner.pool, config.window, chunk_frames, fused=False)
        except PoolExhausted as error:
            raise Capacity(
                f"no room for another session: {error}", retry_after_s=RETRY_AFTER_S
            ) from error

    def _free(self, session: Session) -> None:
        """Give back all that a session holds on the device. The chunk in work is undone."""
        if session.run is not None:
            session.run.abort()
        if session.table is not None:
            session.table.release()
        session.table, session.stream = None, DecoderStream()

    def _fail(self, session: Session, error: Exception) -> None:
        logger.error("session %s failed", session.id, exc_info=error)
        if isinstance(error, torch.OutOfMemoryError):
            error = OutOfMemory(f"the device's memory is full: {error}")
        if not isinstance(error, StreamgenError):
            error = GenerationFailed(f"a pass failed twice: {error}")
        self.output(session.id, Failed(error.code, error.message, error.retryable))
        self._end(session, SessionState.FAILED, error.code)

    def _end(self, session: Session, phase: SessionState, reason: str | None) -> None:
        self._free(session)
        del self.sessions[session.id]
        self._enter(session, phase, reason)

    def _enter(self, session: Session, phase: SessionState, reason: str | None = None) -> None:
        before, session.phase = session.state, phase
        if session.state is not before:
            self.output(session.id, StateChanged(session.state.value, reason))

    # Passes.

    def _note_ready(self, now: float) -> None:
        for session in self.sessions.values():
            if session.ready_at is None and session.may_begin:
                session.ready_at = now

    def _begun(self, session: Session, now: float) -> ChunkRun | None:
        """Return the session's chunk in work, begun now if there is none."""
        if session.run is None:
            try:
                begin_chunk(session, self.runner, self.decoder, now)
            except Exception as error:  # of this session alone: it is told, the others go on
                self._failed(session, error)
        return session.run

    def _forward(self, runs: Sequence[ChunkRun]) -> list[Tensor | Exception]:
        """Return each run's flow. If a batch raises, its rows run alone to find who is at fault."""
        if not runs:
            return []
        try:
            return list(self.runner.run(StepBatch(tuple(run.row for run in runs))))
        except Exception as error:
            if len(runs) == 1:
                return [error]
        return [self._forward([run])[0] for run in runs]

    def _advance(self, run: ChunkRun, flow: Tensor | Exception) -> None:
        session = run.session
        if isinstance(flow, Exception):
            run.abort()
            self._failed(session, flow)
        elif run.steps.is_denoised:
            run.commit()
            session.num_failures = 0
        elif run.advance(flow):
            self._denoised(run)

    def _denoised(self, run: ChunkRun) -> None:
        """Send a chunk's latents to the decoder. Its frames leave before its commit."""
        session, spec, latents = run.session, run.spec, run.steps.latents
        assert spec is not None
        if not torch.isfinite(latents).all():
            run.abort()
            self._failed(session, GenerationFailed("the model gave values that are not finite"))
            return
        session.keep(spec, latents)
        frames = self.decoder.submit(session.stream, latents, spec.num_frames)
        self._decodes.append(Decode(session, spec, latents, run.ready_at, frames))
        frames.add_done_callback(lambda _: self._on_decoded())
        if spec.is_last:
            self._free(session)

    def _failed(self, session: Session, error: Exception) -> None:
        """Let the session try once more from committed state, or end it."""
        session.num_failures += 1
        if session.num_failures < MAX_ATTEMPTS:
            logger.warning("session %s: pass failed, tried again: %s", session.id, error)
        else:
            self._fail(session, error)

    # Frames.

    @property
    def num_decoding(self) -> int:
        """Return how many chunks are denoised but not sent out."""
        return len(self._decodes)

    def emit_decoded(self, *, wait_for: int = 0) -> None:
        """Send out what the decoder has finished; wait for the oldest `wait_for` chunks."""
        while self._decodes and (wait_for > 0 or self._decodes[0].frames.done()):
            wait_for -= 1
            decode = self._decodes.popleft()
            if decode.session.phase in ENDED:
                continue
            try:
                frames = decode.frames.result()
            except Exception as error:  # of this session alone, as in a pass
                self._fail(decode.session, error)
            else:
                self._emit(decode, frames)

    def _emit(self, decode: Decode, frames: npt.NDArray[np.uint8]) -> None:
        session = decode.session
        if session.phase is SessionState.STARTING:
            self._enter(session, SessionState.RUNNING)
        for message in decode.messages(frames, self.clock()):
            self.output(session.id, message)
        if decode.spec.is_last:
            self._end(session, SessionState.CLOSED, "done")
