"""The directory of recordings: who may download which, and which are removed to make room."""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transport.mp4 import file_type
from transport.recording import Recorder
from transport.stream import StreamError

logger = logging.getLogger(__name__)

MAX_TOTAL: Final = 10  # times what one session may have, for all that are finished
MAX_FILES: Final = 1000
MAX_AGE_S: Final = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class _Entry:
    recorder: Recorder
    tokens: tuple[str, ...]


def check_directory(directory: Path) -> None:
    """Make a directory if need be; raise OSError, saying so, when nothing can be recorded to it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        text = f"cannot record to {directory}: {error.strerror}; give --record another one"
        raise OSError(error.errno, text) from error


@contextmanager
def claimed(directory: Path | None) -> Iterator[None]:
    """Keep other servers away from a directory, or none, for the length of the block.

    Raises OSError when another one records to it: each would remove what the other still writes.
    """
    if directory is None:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        _lock(handle, directory)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, directory: Path) -> None:
    """Lock the directory itself; the lock goes with the process, however that ends."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        text = f"cannot record to {directory}: another server does; give --record another one"
        raise OSError(error.errno, text) from error
    except OSError as error:  # some network file systems have no locks
        logger.warning(
            "%s cannot be locked (%s): no other server may record to it", directory, error.strerror
        )


class Recordings:
    """Begins recordings and keeps them, bounded in number, size and age, after their sessions end.

    Raises OSError when nothing can be written to the directory, which is made if need be. Files in
    it that were not recorded here are never removed.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of one session
        self._directory = directory
        self._entries: dict[str, _Entry] = {}  # by session, the oldest first
        check_directory(directory)

    def begin(
        self,
        session_id: str,
        tokens: Collection[str],
        width: int,
        height: int,
        ask_key: Callable[[], None],
    ) -> Recorder:
        """Return the recorder of a session. Those who have one of the tokens may download it."""
        path = self._directory / f"{session_id}.mp4"
        recorder = Recorder(path, width, height, self.max_bytes, ask_key=ask_key)
        self._entries[session_id] = _Entry(recorder, tuple(tokens))
        return recorder

    async def end(self, recorder: Recorder) -> None:
        """Close a recorder whose session is over, and remove what is too much."""
        await recorder.close()
        await self.prune()

    def find(self, session_id: str, token: str | None) -> Path:
        """Return where a session's recording is; raise StreamError when there is none to see."""
        entry = self._entries.get(session_id)
        if entry is None:
            raise StreamError("not_found", "there is no recording of such a session")
        given = (token or "").encode()
        fits = [hmac.compare_digest(given, known.encode()) for known in entry.tokens]
        if not any(fits):
            raise StreamError(
                "unauthorized",
                "the session's viewer token is missing or wrong; send it as ?token=... or as "
                "Authorization: Bearer ...",
            )
        if entry.recorder.num_bytes == 0:
            why = entry.recorder.stopped or "nothing was shown"
            raise StreamError("not_found", f"nothing is recorded yet: {why}")
        return entry.recorder.path

    async def prune(self) -> None:
        """Remove the oldest finished recordings until the rest is within bounds."""
        live = {e.recorder.path for e in self._entries.values() if not e.recorder.closed}
        removed = await asyncio.to_thread(self._remove_surplus, live)
        for path in removed:
            self._entries.pop(path.stem, None)
        ended = [i for i, entry in self._entries.items() if entry.recorder.closed]
        for session_id in ended[:-MAX_FILES]:  # those that never had a file count too
            del self._entries[session_id]

    def _remove_surplus(self, live: set[Path]) -> list[Path]:
        found = []
        for path in self._directory.glob("*.mp4"):
            try:
                if path not in live and _is_ours(path):
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
            except OSError as error:
                logger.warning("cannot look at %s: %s", path, error.strerror)
        removed, num_bytes = [], 0
        for num_newer, (modified_at, size, path) in enumerate(sorted(found, reverse=True)):
            num_bytes += size
            fits = num_newer < MAX_FILES and num_bytes <= MAX_TOTAL * self.max_bytes
            if not (fits and time.time() - modified_at <= MAX_AGE_S) and _remove(path):
                removed.append(path)
        return removed


def _is_ours(path: Path) -> bool:
    """Return whether a file begins as our recordings do."""
    head = file_type()
    with path.open("rb") as file:
        return file.read(len(head)) == head


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError as error:
        logger.warning("cannot remove the old recording %s: %s", path, error.strerror)
        return False
    logger.info("removed the old recording %s to make room", path)
    return True
