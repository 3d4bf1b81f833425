"""Viewers over plain HTTP: pictures one after another, and one MP4 without end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from transport.broadcast import Broadcast
from transport.encoder import HEADER, Frame
from transport.mp4 import FragmentedMP4, free_box
from transport.packets import RING_S, PacketQueue
from transport.replies import CloseCode, ServerMessage

BOUNDARY: Final = "frame"
CLOSING: Final = f"--{BOUNDARY}--".encode()  # ffmpeg takes a line after it for a broken part
REPEAT_S: Final = 0.5  # browsers show a part when the next one begins
SIGN_OF_LIFE_S: Final = 10.0  # proxies cut what is silent for a minute
# Chromium's <video> reads in blocks of so many bytes: with less every half second it would wait.
BLOCK_BYTES: Final = 32 * 1024
BLOCK_S: Final = 0.5


class MediaViewer:
    """What both kinds have in common: they carry no messages, and wait for frames or the end."""

    format = "none"
    transport = "mp4"
    estimate_bps: float | None = None

    def __init__(self) -> None:
        self.num_sent = 0
        self._finished = False
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether the response is about to end."""
        return self._finished

    def put(self, message: ServerMessage) -> None:
        """Let a message pass: there is no place for it."""

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """End the response once what waits is sent."""
        self._finished = True
        self._wake.set()

    async def _silence(self, longest_s: float) -> None:
        """Wait until something comes, at most so long."""
        # Not `wait_for`: before Python 3.12 it can lose a cancellation.
        timer = asyncio.get_running_loop().call_later(longest_s, self._wake.set)
        try:
            self._wake.clear()
            await self._wake.wait()
        finally:
            timer.cancel()


class PictureViewer(MediaViewer):
    """The parts of a multipart/x-mixed-replace response: always the newest JPEG."""

    format = "jpeg"
    transport = "mjpeg"

    def __init__(self, broadcast: Broadcast) -> None:
        super().__init__()
        self.num_dropped = 0
        self._broadcast = broadcast
        self._slot: Frame | None = None
        self._last: bytes | None = None  # the part that was sent last
        self._repeated = False
        self._began = False
        self._closed = False  # the last boundary was sent

    def offer(self, frame: Frame, due_s: float) -> None:
        """Take a picture in place of one that still waits."""
        if "jpeg" in frame.payloads and not self._finished:
            self.num_dropped += self._slot is not None
            self._slot = frame
            self._wake.set()

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Do not send the picture that waits if its chunk is unwanted."""
        if self._slot is not None and unwanted(self._slot.chunk.index):
            self._slot = None
            self._taken.set()

    async def drained(self) -> None:
        """Wait until no picture waits."""
        while self._slot is not None:
            self._taken.clear()
            await self._taken.wait()

    async def next_part(self) -> bytes | None:
        """Wait for the next picture; when none comes the last one is sent again.

        The closing boundary comes before the end.
        """
        await self._begin()
        while True:
            if self._slot is not None:
                frame, self._slot = self._slot, None
                self.num_sent += 1
                self._taken.set()
                self._last, self._repeated = _part(frame.payloads["jpeg"][HEADER.size :]), False
                return self._last
            if self._finished:
                end, self._closed = None if self._closed else CLOSING, True
                return end
            await self._silence(SIGN_OF_LIFE_S if self._repeated else REPEAT_S)
            if self._slot is None and not self._finished and self._last is not None:
                self._repeated = True
                return self._last

    async def _begin(self) -> None:
        """Show at once what others see."""
        if self._began:
            return
        self._began = True
        still = await self._broadcast.still()
        if still is not None and self._slot is None:
            self.offer(still, 0.0)


class VideoViewer(MediaViewer):
    """The fragments of an MP4 that begins with the last keyframe, or the next one."""

    format = "h264"

    def __init__(self, broadcast: Broadcast, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._broadcast = broadcast
        self._clock = clock
        # A player that reads ahead of its clock may be as far behind as it began.
        self._queue = PacketQueue("h264", 2 * RING_S, starved=self._ask_key)
        self._muxer: FragmentedMP4 | None = None
        self._began = False
        self._block_began_at = -math.inf
        self._block_bytes = 0

    @property
    def num_dropped(self) -> int:
        """Frames that were not sent because the client was too slow."""
        return self._queue.num_dropped

    def offer(self, frame: Frame, due_s: float) -> None:
        """Take a frame behind the others."""
        if self._began and not self._finished:
            self._queue.offer(frame, due_s)
            self._wake.set()

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Keep what waits: what follows builds on it."""

    async def drained(self) -> None:
        """Wait until no frame waits."""
        while len(self._queue):
            self._taken.clear()
            await self._taken.wait()

    async def next_part(self) -> bytes | None:
        """Wait for the next fragment; in a long silence the part is a box that says nothing."""
        self._begin()
        while True:
            if (taken := self._queue.take()) is not None:
                self.num_sent += 1
                self._taken.set()
                return self._filled_up(self._fragment(*taken))
            if self._finished:
                return None
            await self._silence(SIGN_OF_LIFE_S)
            if not len(self._queue) and not self._finished and self._muxer is not None:
                return free_box()

    def _begin(self) -> None:
        """Begin with the frames since the last keyframe, due when they were; or ask for one."""
        if self._began:
            return
        self._began = True
        ring = self._broadcast.ring("h264")
        for frame in ring:
            self.offer(frame, self._clock() + frame.pts_s - ring[-1].pts_s)
        if not ring:
            self._ask_key()

    def _ask_key(self) -> None:
        self._broadcast.ask_key("h264")

    def _fragment(self, frame: Frame, due_s: float) -> bytes:
        if self._muxer is None:
            self._muxer = FragmentedMP4(*frame.size)
        return self._muxer.write(frame.packets["h264"], due_s, 1 / frame.chunk.fps)

    def _filled_up(self, part: bytes) -> bytes:
        """Return a part, and twice a second with it what is missing of a block."""
        now = self._clock()
        self._block_bytes += len(part)
        if now - self._block_began_at < BLOCK_S:
            return part
        missing = BLOCK_BYTES - self._block_bytes
        self._block_began_at, self._block_bytes = now, 0
        return part + free_box(missing) if missing >= 8 else part


def _part(jpeg: bytes) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
    return head.encode() + jpeg + b"\r\n"
