"""Two ways to reach a worker: a thread of this process, or a process of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from streamgen import logs
from streamgen.config import EngineConfig
from streamgen.engine_commands import Command, Reply, Shutdown, Stage, Stopped
from streamgen.engine_worker import EngineWorker
from streamgen.errors import EngineStopped
from streamgen.frame_ring import FrameRing
from streamgen.models.presets import Preset
from streamgen.pixels import frame_bytes
from streamgen.warm_up import Measured

# A worker stops between two passes. One that does not is stuck: it is asked, told, then killed.
STOP_TIMEOUT_S: Final = 2.5
ORPHAN_GRACE_S: Final = 2.0
# By back-pressure a session has at most three chunks that are made but not let go.
SLOTS_PER_SESSION: Final = 3

Deliver = Callable[[Reply], None]


class EngineLink(Protocol):
    """A way to a worker. `deliver` is called from a thread of the link's."""

    def start(self, deliver: Deliver) -> None:
        """Start the worker; its replies go to `deliver`, in order, the last one is Stopped."""

    def send(self, command: Command) -> None:
        """Send a command without waiting. To a worker that is gone it does nothing."""

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Return the frames in a slot of the ring."""

    def stop(self) -> None:
        """End the worker and wait for it, at most 5 seconds when it is a process. Idempotent."""

    def kill(self) -> None:
        """End a worker that is stuck, without waiting; a thread cannot be ended."""


class ThreadLink:
    """The worker in a thread: no copy, and no shelter from what holds the interpreter."""

    def __init__(
        self, preset: Preset, config: EngineConfig, measured: Measured | None = None
    ) -> None:
        self._arguments = (config, preset)
        self._measured = measured
        self._worker: EngineWorker | None = None
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver) -> None:
        """Start the thread."""
        self._worker = EngineWorker(*self._arguments, deliver, measured=self._measured)
        self._thread = threading.Thread(target=self._worker.run, name="engine", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        """Queue a command."""
        if self._worker is not None:
            self._worker.put(command)

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Never called: without a ring, frames come by value."""
        raise AssertionError(f"slot {slot} of a link that has no ring")

    def stop(self) -> None:
        """End the thread after the pass or the start-up stage in work."""
        self.send(Shutdown())
        if self._thread is not None:
            self._thread.join()

    def kill(self) -> None:
        """Do nothing: a thread ends when it wants to."""


class ProcessLink:
    """The worker in a process: loading, compiling or a stuck kernel never stops its client.

    Frames cross in shared memory, all else as small frozen messages through a pipe. The process
    ends when this one does, however that comes about.
    """

    def __init__(
        self, preset: Preset, config: EngineConfig, measured: Measured | None = None
    ) -> None:
        assert config.size is not None, "the options are resolved first"
        frames = preset.chunks.temporal_factor * max(
            preset.chunks.chunk_frames, preset.chunks.num_frames(0)
        )
        slot_bytes = frames * frame_bytes(config.pixel_format, *config.size)
        self._ring_size = (SLOTS_PER_SESSION * config.max_sessions, slot_bytes)
        self._arguments = (config, preset, measured)
        self._outgoing: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ready = False
        self._ring: FrameRing
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, deliver: Deliver) -> None:
        """Start the process and the threads that read from and write to it."""
        context = multiprocessing.get_context("spawn")
        self._ring = ring = FrameRing.create(*self._ring_size)
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_worker_process,
            args=(theirs, ring, logs.current("engine"), *self._arguments),
            name="streamgen-engine",
            daemon=True,
        )
        with _sigint_blocked():
            process.start()
        ring.seal()
        theirs.close()  # the process's own copy is the last one: when it ends, reading ends
        self._process = process
        self._threads = [
            threading.Thread(target=self._read, args=(ours, process, deliver), daemon=True),
            threading.Thread(target=self._write, args=(ours,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, command: Command) -> None:
        """Queue a command for the writing thread, so that a full pipe stops nobody."""
        self._outgoing.put(command)

    def view(self, slot: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Return a view of the shared memory."""
        return self._ring.view(slot, shape)

    def stop(self) -> None:
        """Ask the process to end, then make it end."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self.send(Shutdown())
        if self._ready:  # while it loads it hears nothing, and has nothing to lose
            process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join()
        process.join()
        process.close()

    def kill(self) -> None:
        """Kill the process; the reading thread says that it is gone."""
        if self._process is not None:
            self._process.kill()

    def _read(
        self,
        connection: Connection,
        process: multiprocessing.process.BaseProcess,
        deliver: Deliver,
    ) -> None:
        reply: Reply | None = None
        while not isinstance(reply, Stopped):
            try:
                reply = connection.recv()
            except (EOFError, OSError):  # it ended without a word
                process.join()
                reply = Stopped(
                    EngineStopped(f"the engine's process ended (exit code {process.exitcode})")
                )
            if isinstance(reply, Stage) and reply.stage == "ready":
                self._ready = True
            deliver(reply)

    def _write(self, connection: Connection) -> None:
        with connection:
            while (command := self._outgoing.get()) is not None:
                try:
                    connection.send(command)
                except OSError:  # it is gone; the reading thread says so
                    return


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Let a process that is started meanwhile begin with Ctrl-C blocked.

    It goes to every process of the terminal, and is only for the one that ends the others in order.
    """
    resource_tracker.ensure_running()  # which would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_worker_process(
    connection: Connection,
    ring: FrameRing,
    log_setup: logs.LogSetup,
    config: EngineConfig,
    preset: Preset,
    measured: Measured | None,
) -> None:
    """Be the engine's process."""
    logs.set_up(log_setup)
    # Ctrl-C reaches every process of the terminal; whoever started this one ends it in order.
    # So may a signal to end them all.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    worker = EngineWorker(config, preset, connection.send, ring, measured)
    listening = threading.Thread(target=_listen, args=(connection, worker), daemon=True)
    listening.start()
    try:
        worker.run()
    except OSError:
        os._exit(1)  # the pipe is broken: nobody is left to tell
    logging.shutdown()
    os._exit(0)  # taking torch down in order can take longer than a client should wait


def _listen(connection: Connection, worker: EngineWorker) -> None:
    """Pass commands on until the client is gone; then end the process, busy or not."""
    while True:
        try:
            worker.put(connection.recv())
        except (EOFError, OSError):
            break
    worker.put(Shutdown())
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)
