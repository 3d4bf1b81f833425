"""The engine as something that is sent commands and sends replies, in a thread or a process.

The worker owns the engine's thread. Between two passes it obeys the commands that have come; when
no session can run it sleeps until one comes or a decode is done.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from streamgen.config import EngineConfig
from streamgen.engine import StreamEngine
from streamgen.errors import EngineStopped, StreamgenError
from streamgen.frame_ring import FrameRing
from streamgen.messages import Chunk, Event, SetPrompt, Update
from streamgen.models.presets import Preset
from streamgen.session_config import SessionConfig, SessionRequest
from streamgen.startup import start_engine

logger: Final = logging.getLogger(__name__)

NO_FRAMES: Final = np.empty((0, 0, 0, 3), np.uint8)


@dataclass(frozen=True, slots=True)
class Open:
    """Admit a session; answered with Opened."""

    call: int
    request: SessionRequest


@dataclass(frozen=True, slots=True)
class Apply:
    """Hand a control to a session; answered with its Receipt."""

    call: int
    session_id: str
    control: SetPrompt | Update


@dataclass(frozen=True, slots=True)
class Change:
    """Suspend, resume or close a session; answered with None."""

    call: int
    session_id: str
    action: Literal["suspend", "resume", "close"]


@dataclass(frozen=True, slots=True)
class Played:
    """A frame was shown."""

    session_id: str
    frame_index: int


@dataclass(frozen=True, slots=True)
class Release:
    """A slot of the frame ring may be written again."""

    slot: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Look again: a decode is done, or the worker is to stop."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the worker, whatever it is doing."""


Command = Open | Apply | Change | Played | Release | Wake | Shutdown


@dataclass(frozen=True, slots=True)
class Opened:
    """A session was admitted."""

    session_id: str
    config: SessionConfig
    state: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call, or the error it raised."""

    call: int
    result: object
    error: StreamgenError | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the start-up is, 0 to 1; "ready" is the last stage."""

    stage: str
    progress: float


@dataclass(frozen=True, slots=True)
class Load:
    """How much room there is."""

    sessions_free: int
    pages_free: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Something for a session. A chunk whose frames lie in the ring comes with slot and shape."""

    session_id: str
    item: Chunk | Event
    slot: int | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has ended, by itself when there is an error. Nothing follows."""

    error: StreamgenError | None


Reply = Answer | Stage | Load | Sent | Stopped


class EngineWorker:
    """Start an engine and obey commands until told to stop.

    `send` takes the replies. With a `ring`, frames go there while it has room, else by value.
    """

    def __init__(
        self,
        config: EngineConfig,
        preset: Preset,
        send: Callable[[Reply], None],
        ring: FrameRing | None = None,
    ) -> None:
        self._config = config
        self._preset = preset
        self._send = send
        self._ring = ring
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._load = Load(0, 0)

    def put(self, command: Command) -> None:
        """Queue a command; may be called from any thread."""
        if isinstance(command, Shutdown):
            self._stopping.set()
            command = Wake()
        self._commands.put(command)

    def run(self) -> None:
        """Load, warm up and serve. Every error is sent as the last reply; none is raised."""
        try:
            engine = start_engine(
                self._config,
                self._deliver,
                preset=self._preset,
                report=self._report,
                on_decoded=lambda: self._commands.put(Wake()),
            )
            try:
                self._serve(engine)
            finally:
                engine.decoder.close()
        except StreamgenError as error:
            self._send(Stopped(None if self._stopping.is_set() else error))
        except Exception as error:  # the client is told, and may start another
            logger.exception("the engine failed")
            self._send(Stopped(EngineStopped(f"the engine failed: {error!r}")))
        else:
            self._send(Stopped(None))

    def _serve(self, engine: StreamEngine) -> None:
        self._send_load(engine)
        self._send(Stage("ready", 1.0))
        idle = True
        while not self._stopping.is_set():
            for command in self._take(wait=idle):
                self._obey(engine, command)
            idle = not engine.step()
            self._send_load(engine)

    def _take(self, *, wait: bool) -> Iterator[Command]:
        """Yield the commands that have come; with `wait`, sleep until there is one."""
        if wait:
            yield self._commands.get()
        while not self._commands.empty():
            yield self._commands.get()

    def _obey(self, engine: StreamEngine, command: Command) -> None:
        if isinstance(command, Played):
            engine.played(command.session_id, command.frame_index)
        elif isinstance(command, Release):
            assert self._ring is not None
            self._ring.release(command.slot)
        elif isinstance(command, Open | Apply | Change):
            try:
                answer = Answer(command.call, _call(engine, command))
            except StreamgenError as error:
                answer = Answer(command.call, None, error)
            self._send_load(engine)
            self._send(answer)

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        slot = None
        if isinstance(item, Chunk) and self._ring is not None:
            slot = self._ring.put(item.frames)
        if slot is None:
            self._send(Sent(session_id, item))
        else:
            assert isinstance(item, Chunk)
            bare = dataclasses.replace(item, frames=NO_FRAMES)
            self._send(Sent(session_id, bare, slot, item.frames.shape))

    def _report(self, stage: str, progress: float) -> None:
        if self._stopping.is_set():
            raise EngineStopped("told to stop while starting")
        if stage != "ready":  # said once commands are obeyed
            self._send(Stage(stage, progress))

    def _send_load(self, engine: StreamEngine) -> None:
        load = Load(engine.num_free, engine.runner.pool.num_unreserved)
        if load != self._load:
            self._load = load
            self._send(load)


def _call(engine: StreamEngine, command: Open | Apply | Change) -> object:
    """Do what a command asks and return its answer."""
    if isinstance(command, Open):
        session = engine.open(command.request)
        return Opened(session.id, session.config, session.state.value)
    if isinstance(command, Apply):
        return engine.control(command.session_id, command.control)
    {"suspend": engine.suspend, "resume": engine.resume, "close": engine.close}[command.action](
        command.session_id
    )
    return None
