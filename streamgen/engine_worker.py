"""The engine as something that is sent commands and sends replies, in a thread or a process.

The worker owns the engine's thread. Between two passes it obeys the commands that have come; when
no session can run it sleeps until one comes or a decode is done.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, get_args

import numpy as np

from streamgen import machine
from streamgen.config import EngineConfig
from streamgen.device_state import measures_of
from streamgen.engine import StreamEngine
from streamgen.engine_commands import (
    Admitting,
    Answer,
    Apply,
    Call,
    Command,
    Fork,
    Load,
    Open,
    Opened,
    Ping,
    Played,
    Pong,
    Release,
    Reply,
    Restore,
    Sent,
    Shutdown,
    Stage,
    Stopped,
    Wake,
)
from streamgen.errors import EngineStopped, StreamgenError
from streamgen.frame_ring import FrameRing
from streamgen.measures import Meter
from streamgen.messages import Chunk, Event, StateChanged
from streamgen.models.presets import Preset
from streamgen.startup import start_engine
from streamgen.warm_up import Measured

logger: Final = logging.getLogger(__name__)

MEASURES_INTERVAL_S: Final = 0.5  # pings wake a worker as often
NO_FRAMES: Final = np.empty((0, 0, 0, 3), np.uint8)


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
        measured: Measured | None = None,
    ) -> None:
        self._measured = measured
        self._config = config
        self._preset = preset
        self._send = send
        self._ring = ring
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._load = Load(0, 0)
        self._meter = Meter()  # the engine's, once there is one
        self._measured_at = 0.0
        self._held: list[Sent] | None = None  # what comes of an admission before its answer

    def put(self, command: Command) -> None:
        """Queue a command; may be called from any thread."""
        if isinstance(command, Shutdown):
            self._stopping.set()
            command = Wake()
        self._commands.put(command)

    def run(self) -> None:
        """Load, warm up and serve. Every error is sent as the last reply; none is raised."""
        try:
            self._gate()
            engine = start_engine(
                self._config,
                self._deliver,
                preset=self._preset,
                report=self._report,
                on_decoded=lambda: self._commands.put(Wake()),
                measured=self._measured,
                encode_beside=self._preset.published is not None,
                pixel_format=self._config.pixel_format,
            )
            try:
                self._serve(engine)
            finally:
                engine.watch.close()
                engine.decoder.close()
                if engine.passes.encoding is not None:
                    engine.passes.encoding.close()
        except StreamgenError as error:
            self._send(Stopped(None if self._stopping.is_set() else error))
        except Exception as error:  # the client is told, and may start another
            logger.exception("the engine failed")
            self._send(Stopped(EngineStopped(f"the engine failed: {error!r}")))
        else:
            self._send(Stopped(None))

    def _gate(self) -> None:
        """Tell what lossy options cost, if that was asked for; an engine's successor need not."""
        if self._config.gate and self._measured is None:
            from streamgen.quality_start import gate_lines

            self._report("gate", 0.0)
            for line in gate_lines(self._config, self._preset):
                logger.info("gate: %s", line)
            gc.collect()  # of its engines, whose parts know each other
            machine.give_back_freed_memory()

    def _serve(self, engine: StreamEngine) -> None:
        self._meter = engine.runner.meter
        self._send_load(engine)
        self._send(Stage("ready", 1.0, engine.measured))
        idle = True
        while not self._stopping.is_set():
            for command in self._take(wait=idle):
                self._obey(engine, command)
            idle = not engine.step()
            if idle:
                idle = not engine.watch.step()
            else:
                engine.faults.hit("worker.stall")
                engine.faults.hit("worker.kill")
            self._send_load(engine)
            self._send_measures(engine)

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
        elif isinstance(command, Ping):
            self._send(Pong())
        elif isinstance(command, get_args(Call)):
            self._answer(engine, command)

    def _answer(self, engine: StreamEngine, command: Call) -> None:
        # The client knows a session from the answer on; what is sent for it before would be lost.
        held: list[Sent] = []
        self._held = held if isinstance(command, get_args(Admitting)) else None
        try:
            answer = Answer(command.call, _call(engine, command))
        except StreamgenError as error:
            answer = Answer(command.call, None, error)
        finally:
            self._held = None
        self._send_load(engine)
        self._send(answer)
        for sent in held:
            if not isinstance(sent.item, StateChanged):  # the state is in the answer
                self._send(sent)

    def _deliver(self, session_id: str, item: Chunk | Event) -> None:
        slot = None
        if isinstance(item, Chunk) and self._ring is not None:
            began = time.perf_counter()
            slot = self._ring.put(item.frames)
            self._meter.stage("copy", time.perf_counter() - began)
        if slot is None:
            sent = Sent(session_id, item)
        else:
            assert isinstance(item, Chunk)
            bare = dataclasses.replace(item, frames=NO_FRAMES)
            sent = Sent(session_id, bare, slot, item.frames.shape)
        if self._held is None:
            self._send(sent)
        else:
            self._held.append(sent)

    def _report(self, stage: str, progress: float) -> None:
        if self._stopping.is_set():
            raise EngineStopped("told to stop while starting")
        if stage != "ready":  # said once commands are obeyed
            self._send(Stage(stage, progress))

    def _send_load(self, engine: StreamEngine) -> None:
        load = Load(
            engine.num_free,
            engine.runner.pool.num_unreserved,
            engine.num_queued,
            engine.overload_level,
            round(engine.utilisation, 2),
            engine.runner.pool.num_pages,
        )
        if load != self._load:
            self._load = load
            self._send(load)

    def _send_measures(self, engine: StreamEngine) -> None:
        now = time.monotonic()
        if now - self._measured_at >= MEASURES_INTERVAL_S:
            self._measured_at = now
            self._send(measures_of(engine))


def _call(engine: StreamEngine, command: Call) -> object:
    """Do what a command asks and return its answer."""
    if isinstance(command, Apply):
        return engine.control(command.session_id, command.control)
    if isinstance(command, Open):
        session = engine.open(command.request)
    elif isinstance(command, Restore):
        session = engine.restore(
            command.record,
            command.session_id,
            suspended=command.state == "suspended",
            had_place=command.state != "queued",
        )
    elif isinstance(command, Fork):
        session = engine.fork(command.session_id, command.at_chunk)
    else:
        changes = {"suspend": engine.suspend, "resume": engine.resume, "close": engine.close}
        changes[command.action](command.session_id)
        return None
    return Opened(session.id, engine.record(session.id), session.state.value)
