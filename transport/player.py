"""A stream's chunks in, its frames out, evenly."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from transport.encoder import Frame, Picture, Renditions
from transport.pacer import Pacer
from transport.rewinds import Rewind, Rewinds
from transport.session_meter import SessionMeter
from transport.stream import Chunk, Stream
from transport.tally import Tally
from transport.video import Codec


class Player:
    """Encodes the pictures of one stream and gives each to `show` when it is due, with that time.

    A picture is encoded when the one before it has left, so that whoever comes, or needs a
    keyframe, waits for two frames and not for a chunk. `encodings` says what to encode at the
    moment. The clock stands until `resume`. Frames of chunks that a rewind abandoned go to
    `throw_away` at once, and count as played for the stream.
    """

    def __init__(
        self,
        stream: Stream,
        renditions: Renditions,
        encodings: Callable[[], frozenset[str]],
        show: Callable[[Frame, float], None],
        throw_away: Callable[[Picture], None],
        meter: SessionMeter,
    ) -> None:
        self.pacer = Pacer()
        self.tally = Tally()
        self.rewinds = Rewinds()
        self.last: Picture | None = None  # that was shown
        self._stream = stream
        self._renditions = renditions
        self._encodings = encodings
        self._show = show
        self._discard = throw_away
        self._meter = meter
        self._pictures: deque[Picture] = deque()
        self._next: Frame | None = None  # the first of the pictures, encoded
        self._shown_again: set[Codec] = set()  # what the last picture is wanted in once more
        self._received_all = False
        self._wake = asyncio.Event()  # a picture is there, the clock runs, or all is received
        self._room = asyncio.Event()  # a frame left
        self.pacer.pause(time.monotonic())

    def pause(self) -> None:
        """Stop the clock."""
        self.pacer.pause(time.monotonic())
        self._meter.paused()

    def resume(self) -> None:
        """Let the clock go on."""
        self.pacer.resume(time.monotonic())
        self._wake.set()

    def rewound(self, rewind: Rewind) -> None:
        """Throw away what a rewind abandons, now that it was accepted."""
        rewind.accepted = True
        self._wake.set()

    def ask_key(self, codec: Codec) -> None:
        """Make the next frame a keyframe; if none is to come, show the last one again as one."""
        wait_s = self._renditions.ask_key(codec)
        if (self.pacer.paused or not self._pictures) and codec not in self._shown_again:
            self._shown_again.add(codec)
            asyncio.get_running_loop().call_later(wait_s, self._wake.set)

    async def receive(self) -> None:
        """Take the stream's chunks until there are no more."""
        async for chunk in self._stream.chunks():
            try:
                await self._take(chunk)
            finally:
                chunk.release()
            # The engine's own back-pressure keeps less than this; nothing here grows if it fails.
            while len(self._pictures) > 2 * len(chunk.frames) + 2:
                self._room.clear()
                await self._room.wait()
        self._received_all = True
        self._wake.set()

    async def play(self) -> None:
        """Show the frames until the last one is shown."""
        while True:
            self._throw_away()
            if self._received_all and not self._pictures:
                return
            for codec in [c for c in self._shown_again if not self._renditions.ask_key(c)]:
                await self._show_again(codec)
            if self._pictures and self._next is None:
                self._next = await self._renditions.encode(self._pictures[0], self._encodings())
                continue  # what was waited for may have changed meanwhile
            delay_s = self.pacer.delay(time.monotonic())
            if delay_s is None or self._next is None:
                self._wake.clear()
                await self._wake.wait()
            elif delay_s > 0:
                await asyncio.sleep(delay_s)
            else:
                await self._play_one(self._next)
                await asyncio.sleep(0)  # let it be sent before the next one takes its place

    async def _take(self, chunk: Chunk) -> None:
        self.rewinds.arrived(chunk.index, tuple(chunk.started_event_ids))
        self.tally.chunk(chunk.generation_s)
        self._meter.arrived(chunk, time.monotonic())
        pictures = await self._renditions.take(chunk)
        self.pacer.push(time.monotonic(), len(pictures), chunk.fps, chunk.generation_s)
        self._meter.queued(self.pacer)
        self._pictures.extend(pictures)
        self._wake.set()

    def _throw_away(self) -> None:
        while self._pictures and self.rewinds.abandon(self._pictures[0].chunk.index):
            picture = self._pictures.popleft()
            if self._next is not None:
                self._renditions.break_chain(self._next)
                self._next = None
            self.pacer.discard()
            self._meter.thrown_away()
            self._room.set()
            self._discard(picture)
            self._stream.played(picture.index)

    async def _play_one(self, frame: Frame) -> None:
        # Who came since it was encoded may want it in another way.
        frame = await self._renditions.encode(self._pictures[0], self._encodings(), frame)
        self.last = self._pictures.popleft()
        self._next = None
        self._shown_again.clear()
        due_s = self.pacer.pop(time.monotonic())
        self._room.set()
        self.tally.frame(time.monotonic(), due_s)
        self._show(frame, due_s)
        if frame.index == frame.chunk.last_frame_index:
            self._meter.shown(frame.chunk, self._renditions.encoded_s, self.pacer)
        self._stream.played(frame.index)

    async def _show_again(self, codec: Codec) -> None:
        self._shown_again.discard(codec)
        if self.last is None or codec not in self._encodings():
            return
        if self._next is not None:  # it was encoded as what follows something else
            self._next = self._renditions.break_chain(self._next)
        again = await self._renditions.encode(self.last, {codec})
        self._show(again, time.monotonic())
