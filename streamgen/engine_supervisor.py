"""Keep an engine running: start it, watch it, and start another when it dies or is stuck."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from streamgen.config import EngineConfig
from streamgen.engine_commands import Ping, Reply, Stage, Stopped
from streamgen.engine_link import EngineLink
from streamgen.errors import EngineStopped, StreamgenError
from streamgen.warm_up import Measured
from streamgen.watchdog import PING_INTERVAL_S, Deaths, Pulse

logger: Final = logging.getLogger(__name__)

# A start after the first one may take as long as three of those before it counts as stuck.
START_FACTOR: Final = 3.0


class EngineListener(Protocol):
    """Who hears of an engine, on its event loop."""

    def heard(self, reply: Reply) -> None:
        """Take what the engine says of sessions and calls."""

    def engine_ready(self) -> None:
        """Learn that commands are obeyed: of the first engine, or of one that knows no session."""

    def engine_died(self, error: StreamgenError) -> None:
        """Learn that the engine is gone with all that it knew. Another is being started."""

    def engine_ended(self, error: StreamgenError | None) -> None:
        """Learn that there is no engine and will be none; of an error, unless it was closed."""


class EngineSupervisor:
    """One engine at a time, behind a link that is made anew for each.

    An engine is busy while it does not answer, and killed and replaced when that lasts for the
    option `stall_timeout`. It is given up when its first start fails, and after three deaths within
    a minute. Use it on one event loop.
    """

    def __init__(
        self,
        config: EngineConfig,
        make_link: Callable[[EngineConfig, Measured | None], EngineLink],
        listener: EngineListener,
    ) -> None:
        self.stage = Stage("starting", 0.0)
        self.is_ready = False
        self.link = make_link(config, None)
        self._config = config
        self._make_link = make_link
        self._listener = listener
        self._pulse = Pulse()
        self._deaths = Deaths()
        self._measured: Measured | None = None  # by the first engine, so that the next need not
        self._is_closing = False
        self._is_over = False
        self._is_killed = False
        self._started_at = self._ready_at = 0.0
        self._first_start_s: float | None = None  # None until the first engine is ready
        self._watching: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    @property
    def busy_s(self) -> float:
        """Return for how long the engine has not answered."""
        return self._pulse.busy_s

    @property
    def num_restarts(self) -> int:
        """Return how many engines were replaced, or would be if it had not been given up."""
        return self._deaths.total

    def start(self) -> None:
        """Start the engine without waiting for it."""
        self._loop = asyncio.get_running_loop()
        self._started_at = time.monotonic()
        self.link.start(partial(self._deliver, self.link))
        self._watching = self._loop.create_task(self._watch())

    async def close(self) -> None:
        """End the engine for good, within 5 seconds when it has its own process. Idempotent."""
        self._is_closing = True
        if self._replacing is not None:
            await self._replacing  # which stops where it can
        await asyncio.to_thread(self.link.stop)
        self._end(None)

    # What the engine says.

    def _deliver(self, link: EngineLink, reply: Reply) -> None:
        """Hand a reply from the link's thread to the loop."""
        self._loop.call_soon_threadsafe(self._hear, link, reply)

    def _hear(self, link: EngineLink, reply: Reply) -> None:
        if link is not self.link or self._is_over:
            return
        self._pulse.heard()
        if isinstance(reply, Stopped):
            self._stopped(reply.error)
        elif isinstance(reply, Stage):
            self._reached(reply)
        else:
            self._listener.heard(reply)

    def _reached(self, stage: Stage) -> None:
        is_first = self._first_start_s is None
        self.stage = stage
        if stage.stage != "ready":
            if not is_first:
                self.stage = Stage("restart", stage.progress)
            return
        self.is_ready, self._ready_at = True, time.monotonic()
        self._measured = stage.measured
        if is_first:
            self._first_start_s = self._ready_at - self._started_at
        else:
            logger.info("the engine is there again")
        self._listener.engine_ready()

    def _stopped(self, error: StreamgenError | None) -> None:
        ready_s = time.monotonic() - self._ready_at if self.is_ready else 0.0
        self.is_ready, self._pulse = False, Pulse()
        if self._is_closing or error is None or self._first_start_s is None:
            self._end(error)
        elif self._deaths.add(ready_s):
            logger.error("%s; it is given up, for it died too often", error)
            self._end(EngineStopped(f"{error.message}; it died too often to be started again"))
        else:
            logger.error("%s; another one is started", error)
            self.stage = Stage("restart", 0.0)
            self._listener.engine_died(error)
            self._replacing = self._loop.create_task(self._replace())

    def _end(self, error: StreamgenError | None) -> None:
        if self._is_over:
            return
        self._is_over, self.is_ready = True, False
        if self._watching is not None:
            self._watching.cancel()
        self._listener.engine_ended(None if self._is_closing else error)

    # What is done about it.

    async def _replace(self) -> None:
        await asyncio.to_thread(self.link.stop)
        if self._is_closing:
            return
        # A fault is for the first engine: the next one would only die of it too.
        config = dataclasses.replace(self._config, faults=None)
        self.link = link = self._make_link(config, self._measured)
        self._is_killed, self._started_at = False, time.monotonic()
        try:
            await asyncio.to_thread(link.start, partial(self._deliver, link))
        except OSError as error:
            self._hear(link, Stopped(EngineStopped(f"the engine cannot be started: {error}")))

    async def _watch(self) -> None:
        """Ask for signs of life, and kill an engine that gives none for too long."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            now = time.monotonic()
            if self.is_ready and self._pulse.tick(now - before):
                self.link.send(Ping())
            before = now
            if self._is_stuck(now) and not self._is_killed:
                logger.error("the engine is stuck: it did not answer in time and is killed")
                self._is_killed = True
                self.link.kill()

    def _is_stuck(self, now: float) -> bool:
        limit = self._config.stall_timeout
        if limit is None or self._first_start_s is None:
            return False
        if self.is_ready:
            return self._pulse.busy_s >= limit
        return now - self._started_at > limit + START_FACTOR * self._first_start_s
