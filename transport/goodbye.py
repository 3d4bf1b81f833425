"""The end of a server: requests that are still answered then end quietly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transport.problems import STATUS, problem
from transport.stream import StreamError

T = TypeVar("T")
CODE: Final = "worker_restarted"
TEXT: Final = "the server stops: send the request again when it is back"


class Goodbye:
    """Middleware that answers 503 to requests which the server would cut off when it stops.

    Who runs the server calls `say` first. Work that waits for the client alone ends at once, by
    `unless_said`; what the engine is asked for may still be answered until the server's time-out
    cancels it, which is no fault and is not logged as one.
    """

    def __init__(self) -> None:
        self._said = asyncio.Event()

    def say(self) -> None:
        """Let requests end from now on."""
        self._said.set()

    async def unless_said(self, work: Awaitable[T]) -> T:
        """Wait for work that only the client can finish; raise StreamError when goodbye is said."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._said.wait())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise StreamError(CODE, TEXT, retryable=True)
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application with the cancellation of its requests answered."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            begun = False

            async def note(message: Message) -> None:
                nonlocal begun
                begun = True
                await send(message)

            try:
                await app(scope, receive, note)
            except asyncio.CancelledError:
                if not self._said.is_set():
                    raise
                if scope["type"] == "http" and not begun:
                    await problem(STATUS[CODE], CODE, TEXT, retry_after_s=1)(scope, receive, send)

        return answer
