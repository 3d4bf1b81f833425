"""One run of a program of the user's: bounded in what is kept of it, and ended with all it started.

`asyncio.create_subprocess_exec` does neither: its `communicate` keeps whatever is written, and its
`wait` returns only when every pipe is closed, which a grandchild, or a reader that was given up,
may hold open for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from types import TracebackType
from typing import Final, cast

MAX_SAID_BYTES: Final = 1 << 12  # the end of what is written to standard error
EXIT_TIMEOUT_S: Final = 1.0  # for one that was killed
_STDIN, _STDOUT = 0, 1


class ProgramRun(asyncio.SubprocessProtocol):
    """A program that was given its input.

    As a context it ends the program, and the processes of its session, when it is left.
    """

    def __init__(self, max_bytes: int) -> None:
        self.output, self.said = bytearray(), bytearray()
        self.is_too_long = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes
        self._transport: asyncio.SubprocessTransport | None = None
        self._is_open = False

    @classmethod
    async def start(cls, argv: Sequence[str], text: bytes, max_bytes: int) -> ProgramRun:
        """Start a program, without a shell. Raises OSError where that is not possible.

        `ended` is done when it has ended and all that it wrote is here, or when that is more than
        `max_bytes`.
        """
        loop = asyncio.get_running_loop()
        _, run = await loop.subprocess_exec(lambda: cls(max_bytes), *argv, start_new_session=True)
        assert run._transport is not None
        stdin = cast(asyncio.WriteTransport, run._transport.get_pipe_transport(_STDIN))
        stdin.write(text)
        stdin.write_eof()
        return run

    @property
    def status(self) -> int | None:
        """Return the exit status, None while it runs."""
        assert self._transport is not None
        return self._transport.get_returncode()

    async def __aenter__(self) -> ProgramRun:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._transport is not None
        if self._is_open:
            # Its number is the session's, too, which lives as long as one process that is in it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        self._transport.close()
        await asyncio.wait({self._exited}, timeout=EXIT_TIMEOUT_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the program."""
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._is_open = True

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what it writes, up to the limit, and of its errors the end."""
        if fd != _STDOUT:
            self.said += data
            del self.said[:-MAX_SAID_BYTES]
            return
        self.is_too_long = self.is_too_long or len(self.output) + len(data) > self._max_bytes
        if not self.is_too_long:
            self.output += data
        elif not self.ended.done():
            self.ended.set_result(None)

    def process_exited(self) -> None:
        """Note that it has ended; a process that it started may still hold its pipes."""
        self._exited.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Note that it has ended and that its pipes are closed."""
        self._is_open = False
        if not self.ended.done():
            self.ended.set_result(None)
