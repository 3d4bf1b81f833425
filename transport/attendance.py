"""Whether anybody watches a session, and what follows when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from transport.options import TransportOptions
from transport.stream import Stream, StreamError


class Attendance:
    """Suspends a stream that nobody watches, wakes it for a viewer, and ends it when none comes.

    A stream that still waits for a place is ended at once: it gives its place in the queue back. A
    session that runs unwatched is left alone.
    """

    def __init__(
        self,
        stream: Stream,
        options: TransportOptions,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        *,
        needed: bool,
    ) -> None:
        self._stream = stream
        self._options = options
        self._spawn = spawn  # an error of the task ends the session
        self._needed = needed
        self._suspended = False
        self._has_lived = False  # was suspended and may wait in the queue again, with a past
        self._changing = asyncio.Lock()  # held while the stream is suspended or resumed
        self._absence: asyncio.Task[None] | None = None  # runs while nobody watches

    async def wake(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        """Let the stream go on and call `enter`; `leave` in any case, the viewer may have gone.

        Raises StreamError when there is no room to go on, or what `enter` raises.
        """
        async with self._changing:
            self.end_absence()
            try:
                if self._suspended:
                    await self._stream.resume()
                    self._suspended, self._has_lived = False, True
                enter()
            finally:
                leave()

    def begin_absence(self, grace_s: float = 0.0) -> None:
        """Nobody watches."""
        self.end_absence()
        if self._needed:
            self._absence = self._spawn(self._wait_for_viewers(grace_s))

    def end_absence(self) -> None:
        """Somebody watches."""
        if self._absence:
            self._absence.cancel()
            self._absence = None

    async def _wait_for_viewers(self, grace_s: float) -> None:
        """Suspend the stream after the grace, and end it after the idle time-out."""
        await asyncio.sleep(grace_s)
        async with self._changing:
            if self._stream.state == "queued" and not self._has_lived:
                raise StreamError("timeout_idle", "nobody waited for the session")
            self._suspended = True
            await self._stream.suspend()
        if self._options.idle_timeout_s is not None:
            await asyncio.sleep(self._options.idle_timeout_s)
            raise StreamError("timeout_idle", "nobody watched the session")
