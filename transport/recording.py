"""The recording of a session: its H.264 packets, written to a file as fragmented MP4."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from transport.encoder import Frame
from transport.mp4 import FragmentedMP4
from transport.replies import CloseCode, ServerMessage
from transport.video import Packet

logger = logging.getLogger(__name__)

KEY_INTERVAL_S: Final = 10.0  # of media, so that the recording can be sought
BATCH_S: Final = 0.25  # packets of so long are written at a time
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024  # for a disk that is slow
CLOSE_TIMEOUT_S: Final = 2.0


class Recorder:
    """Writes what is shown to `path`, in a worker thread; fits Spectator, but nobody watches.

    The times are the media's own: a slow generation is not seen in the file, and pauses are left
    out. The file only grows, and can be read at any moment. At `max_bytes`, and at any error of
    the disk, the recording stops with what it has; `stopped` then says why.
    """

    estimate_bps: float | None = None

    def __init__(
        self,
        path: Path,
        width: int,
        height: int,
        max_bytes: int,
        *,
        ask_key: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.num_bytes = 0
        self.num_dropped = 0
        self.stopped: str | None = None  # why it ended before the session did
        self._max_bytes = max_bytes
        self._ask_key = ask_key
        self._muxer = FragmentedMP4(width, height)
        self._file: BinaryIO | None = None
        self._waiting: deque[tuple[Packet, float, float]] = deque()  # with pts and duration
        self._waiting_bytes = 0
        self._writing = False
        self._key_at_s: float | None = None  # None: nothing can be written before a keyframe
        self._ending = False
        self._wake = asyncio.Event()
        self._written = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def format(self) -> str:
        """What is needed: nothing any more once the recording has stopped."""
        return "none" if self.finished else "h264"

    @property
    def finished(self) -> bool:
        """Whether nothing more is taken in."""
        return self._ending or self.stopped is not None

    @property
    def closed(self) -> bool:
        """Whether the file is complete."""
        return self._task.done()

    def put(self, message: ServerMessage) -> None:
        """Let a message pass."""

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Keep what waits: it was shown."""

    def offer(self, frame: Frame, due_s: float) -> None:
        """Take a frame in; ask for a keyframe when the last one is long ago."""
        packet = frame.packets.get("h264")
        if packet is None or self.finished:
            return
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._skip()
        if packet.is_key:
            self._key_at_s = frame.pts_s
        elif self._key_at_s is None or frame.pts_s - self._key_at_s >= KEY_INTERVAL_S:
            self._ask_key()
        if self._key_at_s is None:
            self.num_dropped += 1
            return
        self._waiting.append((packet, frame.pts_s, 1 / frame.chunk.fps))
        self._waiting_bytes += len(packet.data)
        self._wake.set()

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Take nothing more in, and write what waits."""
        self._ending = True
        self._wake.set()

    async def drained(self) -> None:
        """Wait until no frame waits."""
        while (self._waiting or self._writing) and not self._task.done():
            self._written.clear()
            await self._written.wait()

    async def close(self) -> None:
        """Write what waits and close the file; a disk that hangs is left alone."""
        self.finish(CloseCode.DONE)
        await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
        if self._task.done():
            self._task.result()
        else:
            self._stop("the disk does not answer")
            self._task.cancel()

    def _skip(self) -> None:
        logger.warning("%s: the disk is too slow, frames are left out", self.path)
        self.num_dropped += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._key_at_s = None

    async def _run(self) -> None:
        try:
            while not (self._ending and not self._waiting) and self.stopped is None:
                await self._wake.wait()
                self._wake.clear()
                await self._write_waiting()
                if not self._ending:
                    await asyncio.sleep(BATCH_S)
        finally:
            if self._file is not None:
                await asyncio.to_thread(self._file.close)
            self._written.set()

    async def _write_waiting(self) -> None:
        batch = tuple(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if not batch:
            return
        self._writing = True
        try:
            await asyncio.to_thread(self._write, batch)
        except OSError as error:
            self._stop(error.strerror or str(error))
        except ValueError as error:
            self._stop(str(error))
        self._writing = False
        self._written.set()

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._waiting.clear()
        logger.warning("the recording %s stops at %d bytes: %s", self.path, self.num_bytes, reason)

    def _write(self, batch: tuple[tuple[Packet, float, float], ...]) -> None:
        """Write whole fragments; after an error none is left in part. Runs in a thread."""
        if self._file is None:
            self._file = open(self.path, "wb", buffering=0)  # noqa: SIM115 - closed at the end
        try:
            for packet, pts_s, duration_s in batch:
                fragment = self._muxer.write(packet, pts_s, duration_s)
                if self.num_bytes + len(fragment) > self._max_bytes:
                    raise OSError(f"it has the {self._max_bytes:,} bytes that a session may have")
                write_all(self._file, fragment)
                self.num_bytes += len(fragment)
        except OSError:
            self._cut_off(self._file)
            raise

    def _cut_off(self, file: BinaryIO) -> None:
        try:
            file.truncate(self.num_bytes)
        except OSError as error:
            logger.warning("%s ends with a broken fragment: %s", self.path, error.strerror)


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write to an unbuffered file, which may take less than all at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
