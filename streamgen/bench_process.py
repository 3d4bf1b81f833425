"""A server that is measured in a process of its own: its commands, its time and its lag."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import aioice.ice

from streamgen.errors import StreamgenError

LOOPBACK: Final = "127.0.0.1"
LAG_INTERVAL_S: Final = 0.005
STOP_TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.5
PATIENCE_S: Final = 300.0  # torch alone can take a minute to import on a busy machine

Command = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time used so far, of the server and, where it can be read, of its children."""

    at_s: float
    server_s: float
    children_s: float | None


class ServerProcess:
    """A server's process as its parent has it. An asynchronous context: at its end it ends."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments))
        self.process.start()
        theirs.close()
        self.port = 0

    async def __aenter__(self) -> ServerProcess:
        """Wait until it serves."""
        try:
            self.port = await self.ask("port")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """End it."""
        self._pipe.close()
        await asyncio.to_thread(self.process.join, STOP_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    async def ask(self, command: str, *arguments: object) -> Any:
        """Return the answer to a command; raise StreamgenError when there is none."""
        return await asyncio.to_thread(self._ask, command, *arguments)

    def _ask(self, command: str, *arguments: object) -> Any:
        try:
            self._pipe.send((command, arguments))
            deadline = time.monotonic() + PATIENCE_S
            # In short waits, so that a pipe that is closed meanwhile is noticed.
            while not self._pipe.poll(POLL_S):
                if time.monotonic() > deadline:
                    raise StreamgenError(f"no answer to {command} within {PATIENCE_S:g} s")
            done, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise StreamgenError(f"the server's process ended before {command}") from error
        if not done:
            raise StreamgenError(f"the server failed at {command}: {answer}")
        return answer


@contextlib.contextmanager
def ice_on_loopback() -> Iterator[None]:
    """Let ICE use 127.0.0.1 alone, so that no network is needed and none is measured."""
    before = aioice.ice.get_host_addresses
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: [LOOPBACK]
    try:
        yield
    finally:
        aioice.ice.get_host_addresses = before


def run_server(
    pipe: Connection, serve: Callable[[], AbstractAsyncContextManager[Mapping[str, Command]]]
) -> None:
    """Serve, and obey the commands of `serve`, `usage` and `lag`, until the pipe is closed."""
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which closes the pipe

    async def main() -> None:
        async with serve() as commands:
            lag = LagMeter()
            await obey(pipe, {"usage": _usage, "lag": lag.take, **commands})
            await lag.close()

    with ice_on_loopback():
        asyncio.run(main())


async def obey(pipe: Connection, commands: Mapping[str, Command]) -> None:
    """Answer commands in order until the other end closes the pipe."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    async def answer(name: str, arguments: tuple[object, ...]) -> tuple[bool, Any]:
        try:
            return True, await commands[name](*arguments)
        except Exception:  # the parent tells it
            return False, traceback.format_exc()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                name, arguments = pipe.recv()
                pipe.send(asyncio.run_coroutine_threadsafe(answer(name, arguments), loop).result())
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()


class LagMeter:
    """How late the event loop runs what is due, looked at every 5 ms."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._task = asyncio.get_running_loop().create_task(self._look())

    async def take(self) -> list[float]:
        """Return the seconds of each look since this was asked last."""
        lags, self._lags = self._lags, []
        return lags

    async def close(self) -> None:
        """Look no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _look(self) -> None:
        while True:
            due = time.monotonic() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lags.append(max(0.0, time.monotonic() - due))


async def _usage() -> Usage:
    children = [_cpu_s(child.pid) for child in multiprocessing.active_children()]
    known = [seconds for seconds in children if seconds is not None]
    children_s = sum(known) if len(known) == len(children) else None
    return Usage(time.monotonic(), time.process_time(), children_s)


def _cpu_s(pid: int | None) -> float | None:
    """Return the processor time of a process, where /proc tells it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))
