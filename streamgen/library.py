"""The engine without a server: open a session and iterate over its chunks.

The thread that asks for a chunk computes it; several threads take turns. Same seed and same prompts
at the same chunks give the same pixels: a chunk is handed out before the next one has begun.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from streamgen.config import EngineConfig, engine_config
from streamgen.engine import ENDED
from streamgen.errors import Conflict, StreamgenError, ending_error
from streamgen.messages import Chunk, Control, Event, Failed, Receipt, Rewind, SetPrompt, Update
from streamgen.models.presets import Preset
from streamgen.record import SessionRecord
from streamgen.session import Session
from streamgen.session_config import SessionConfig, SessionRequest
from streamgen.startup import start_engine


class Engine:
    """A model, loaded and warm.

    `model` is its name, and `options` are those of `EngineConfig`; or `model` is an `EngineConfig`
    that says all. `preset` stands in for the named one, as in tests. Frames are RGB, whatever a
    server's `pixel_format` is. Raises ConfigError for an option that does not exist or has an
    impossible value.
    """

    def __init__(
        self,
        model: str | EngineConfig = "pocket",
        *,
        preset: Preset | None = None,
        **options: object,
    ) -> None:
        if isinstance(model, EngineConfig):
            config = dataclasses.replace(model, **options)  # type: ignore[arg-type]
        else:
            config = engine_config(flags={"model": model, **options})
        # Nothing is played out in real time here: memory alone decides, and nobody can wait.
        config = dataclasses.replace(config, max_utilisation=None, max_queue=0)
        self.lock = threading.RLock()  # one thread at a time computes or asks
        self._is_closed = False
        self._outboxes: dict[str, EngineSession] = {}
        self.stream_engine = start_engine(config, self._deliver, preset=preset)

    def open(
        self,
        prompt: object,
        *,
        seed: int | None = None,
        steps: int | None = None,
        window: int | None = None,
        sink: int | None = None,
        num_frames: int | None = None,
        score: object = None,
    ) -> EngineSession:
        """Open a session; with `num_frames` it ends after exactly that many frames.

        `score` lists changes of prompt, `{"at_s" or "at_chunk", "prompt", "transition", ...}`.
        Raises InvalidRequest, Unsupported or Capacity.
        """
        request = SessionRequest(
            prompt=prompt,
            seed=seed,
            steps=steps,
            window=window,
            sink=sink,
            num_frames=num_frames,
            score=score,
        )
        with self._opened():
            return self.adopt(self.stream_engine.open(request))

    def open_config(self, config: SessionConfig) -> EngineSession:
        """Open a session with settings that were checked before. Raises Capacity."""
        with self._opened():
            return self.adopt(self.stream_engine.open_config(config))

    def restore(self, record: SessionRecord) -> EngineSession:
        """Go on with a session from its record. Raises InvalidRequest or Capacity."""
        with self._opened():
            return self.adopt(self.stream_engine.restore(record))

    def adopt(self, session: Session) -> EngineSession:
        """Return the iterator over a session of this engine."""
        session.max_lead_frames = 0
        self._outboxes[session.id] = EngineSession(self, session)
        return self._outboxes[session.id]

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Let one thread in. Raises Conflict when the engine was closed."""
        with self.lock:
            if self._is_closed:
                raise Conflict("the engine was closed; make another one")
            yield

    def close(self) -> None:
        """End all sessions and the decoder's thread. Idempotent."""
        with self.lock:
            self._is_closed = True
            for session in self._outboxes.values():
                session.close()
            self.stream_engine.decoder.close()

    def __enter__(self) -> Engine:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        session = self._outboxes.get(session_id)
        if session is not None:  # a session's first event comes before `open` returns
            session.deliver(item)


class EngineSession:
    """One video: an iterator over its chunks that takes controls in between."""

    def __init__(self, library: Engine, session: Session) -> None:
        self.id = session.id
        self._library = library
        self._engine = library.stream_engine
        self._session = session
        self._chunks: deque[Chunk] = deque()
        self._events: list[Event] = []
        self._error: StreamgenError | None = None
        self._num_taken = session.num_played

    @property
    def config(self) -> SessionConfig:
        """Return the effective settings, the chosen seed among them."""
        return self._session.config

    @property
    def state(self) -> str:
        """Return the session's state, as the wire protocol names it."""
        return self._session.state.value

    def __iter__(self) -> EngineSession:
        """Return itself."""
        return self

    def __next__(self) -> Chunk:
        """Compute the next chunk; taking it means that all before it were played.

        Ends after `num_frames` or `close`. Raises the error the session failed with, and
        RuntimeError when it is paused or suspended, for no chunk would ever come.
        """
        with self._library.lock:
            return self._next()

    def _next(self) -> Chunk:
        if self._num_taken:
            self._engine.played(self.id, self._num_taken - 1)
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._session.phase in ENDED:
                raise StopIteration
            earlier = self._engine.num_decoding
            ran = self._engine.step()
            self._engine.emit_decoded(wait_for=earlier)
            if not ran and not earlier and not self._chunks:
                raise RuntimeError(f"session {self.id} is {self.state}: no chunk is being made")
        chunk = self._chunks.popleft()
        self._num_taken = chunk.first_frame_index + len(chunk.frames)
        return chunk

    def set_prompt(
        self,
        prompt: object,
        transition: str | None = None,
        event_id: str | None = None,
        *,
        chunks: int | None = None,
        curve: str | None = None,
    ) -> Receipt:
        """Show something else from the next chunk on; None is the preset's way. See `SetPrompt`.

        Raises InvalidPrompt or InvalidRequest; the session goes on as it was.
        """
        return self._control(SetPrompt(prompt, transition, chunks, curve, event_id))

    def rewind(self, to_chunk: int, event_id: str | None = None) -> Receipt:
        """Go on from the end of an earlier chunk. Raises NotFound when it is not kept."""
        return self._control(Rewind(to_chunk, event_id))

    def fork(self, at_chunk: int | None = None) -> EngineSession:
        """Return a session with the same past up to a chunk, by default the newest.

        Raises NotFound or Capacity.
        """
        with self._library.lock:
            return self._library.adopt(self._engine.fork(self.id, at_chunk))

    def record(self) -> SessionRecord:
        """Return the durable state: what `Engine.restore` and a snapshot take."""
        with self._library.lock:
            return self._engine.record(self.id)

    def update(
        self,
        *,
        paused: bool | None = None,
        seed: int | None = None,
        steps: int | None = None,
        fps: int | None = None,
        reset: str | None = None,
        event_id: str | None = None,
    ) -> Receipt:
        """Change settings; see `Update`. Raises InvalidRequest or Unsupported."""
        return self._control(Update(paused, seed, steps, fps, reset, event_id))

    def _control(self, control: Control) -> Receipt:
        with self._library.lock:
            return self._engine.control(self.id, control)

    def events(self) -> list[Event]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def suspend(self) -> None:
        """Free the session's pages; `resume` goes on with the chunk that would have been next."""
        with self._library.lock:
            self._engine.suspend(self.id)

    def resume(self) -> None:
        """Go on after `suspend`. Raises Capacity when there is no room."""
        with self._library.lock:
            self._engine.resume(self.id)

    def close(self) -> None:
        """End the session and free what it holds. Idempotent."""
        with self._library.lock:
            if self._session.phase not in ENDED:
                self._engine.close(self.id)

    def deliver(self, item: Chunk | Event) -> None:
        """Take what the engine sends."""
        if isinstance(item, Chunk):
            self._chunks.append(item)
            return
        self._events.append(item)
        if isinstance(item, Failed):
            self._error = ending_error(item.code, item.message)

    def __enter__(self) -> EngineSession:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()
