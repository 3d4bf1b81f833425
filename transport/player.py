"""A stream's chunks in, its frames out, evenly."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from transport.encoder import Encoder, Frame
from transport.pacer import Pacer
from transport.rewinds import Rewinds
from transport.stream import Chunk, Stream
from transport.tally import Tally


class Player:
    """Encodes the chunks of one stream and gives each frame to `show` when it is due.

    `formats` says what to encode at the moment. The clock stands until `resume`. Frames of chunks
    that a rewind abandoned go to `throw_away` at once, and count as played for the stream.
    """

    def __init__(
        self,
        stream: Stream,
        encoder: Encoder,
        formats: Callable[[], frozenset[str]],
        show: Callable[[Frame], None],
        throw_away: Callable[[Frame], None],
    ) -> None:
        self.pacer = Pacer()
        self.tally = Tally()
        self.rewinds = Rewinds()
        self._stream = stream
        self._encoder = encoder
        self._formats = formats
        self._show = show
        self._discard = throw_away
        self._frames: deque[Frame] = deque()
        self._received_all = False
        self._wake = asyncio.Event()  # a frame is there, the clock runs, or all is received
        self._room = asyncio.Event()  # a frame left
        self.pacer.pause(time.monotonic())

    def pause(self) -> None:
        """Stop the clock."""
        self.pacer.pause(time.monotonic())

    def resume(self) -> None:
        """Let the clock go on."""
        self.pacer.resume(time.monotonic())
        self._wake.set()

    def rewound(self, event_id: str) -> None:
        """Throw away what a rewind that was accepted abandons."""
        self.rewinds.accepted(event_id)
        self._wake.set()

    async def receive(self) -> None:
        """Take the stream's chunks until there are no more."""
        async for chunk in self._stream.chunks():
            try:
                await self._encode(chunk)
            finally:
                chunk.release()
            # The engine's own back-pressure keeps less than this; nothing here grows if it fails.
            while len(self._frames) > 2 * len(chunk.frames) + 2:
                self._room.clear()
                await self._room.wait()
        self._received_all = True
        self._wake.set()

    async def play(self) -> None:
        """Show the frames until the last one is shown."""
        while True:
            self._throw_away()
            if self._received_all and not self._frames:
                return
            delay_s = self.pacer.delay(time.monotonic())
            if delay_s is None or not self._frames:
                self._wake.clear()
                await self._wake.wait()
            elif delay_s > 0:
                await asyncio.sleep(delay_s)
            else:
                self._play_one(time.monotonic())
                await asyncio.sleep(0)  # let it be sent before the next one takes its place

    async def _encode(self, chunk: Chunk) -> None:
        self.rewinds.arrived(chunk.index, tuple(chunk.started_event_ids))
        self.tally.chunk(chunk.generation_s)
        self.pacer.push(time.monotonic(), len(chunk.frames), chunk.fps, chunk.generation_s)
        formats = frozenset() if self.rewinds.abandon(chunk.index) else self._formats()
        async for frame in self._encoder.encode(chunk, formats):
            self._frames.append(frame)
            self._wake.set()

    def _throw_away(self) -> None:
        while self._frames and self.rewinds.abandon(self._frames[0].chunk.index):
            frame = self._frames.popleft()
            self.pacer.discard()
            self._room.set()
            self._discard(frame)
            self._stream.played(frame.index)

    def _play_one(self, now: float) -> None:
        frame = self._frames.popleft()
        self.pacer.pop(now)
        self._room.set()
        self.tally.frame(now)
        self._show(frame)
        self._stream.played(frame.index)
