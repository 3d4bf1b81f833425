"""What is shown of one session, to its viewers and to its recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from transport.encoder import Encoder, Frame, Picture, Renditions
from transport.fanout import Fanout, Viewer, encoding_of
from transport.packets import PICTURES
from transport.player import Player
from transport.recording import Recorder
from transport.recordings import Recordings
from transport.session_meter import SessionMeter
from transport.stream import Stream
from transport.video import CODECS

BITRATE_INTERVAL_S: Final = 0.1  # a viewer whose link got narrow waits as long

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Projector:
    """Plays a stream to its viewers, each picture encoded once in each way that is wanted.

    `began` is called with the first frame that is shown of each chunk, `throw_away` with pictures
    that are not shown; an error in what `spawn` runs ends the session.
    """

    def __init__(
        self,
        stream: Stream,
        encoder: Encoder,
        spawn: Spawn,
        *,
        began: Callable[[Frame], None],
        throw_away: Callable[[Picture], None],
        meter: SessionMeter,
    ) -> None:
        self.viewers = Fanout()
        self._renditions = Renditions(encoder)
        self.player = Player(
            stream, self._renditions, self._encodings, self._show, throw_away, meter
        )
        self._stream = stream
        self._spawn = spawn
        self._began = began
        self._recordings: Recordings | None = None
        self._recorder: Recorder | None = None
        self._last_frame: Frame | None = None
        self._last_due_s = 0.0

    def record(self, recordings: Recordings, tokens: tuple[str, ...]) -> None:
        """Keep the video, as it is shown, in a file for those who have one of the tokens."""
        config = self._stream.config
        self._recordings = recordings
        self._recorder = recordings.begin(
            self._stream.id, tokens, config.width, config.height, lambda: self.ask_key("h264")
        )

    async def close(self) -> None:
        """End the recording."""
        if self._recordings is not None and self._recorder is not None:
            await self._recordings.end(self._recorder)

    async def follow_connections(self) -> None:
        """Let the bitrate be what the slowest viewer's connection carries, for ever."""
        while True:
            await asyncio.sleep(BITRATE_INTERVAL_S)
            self._renditions.set_bitrate(self.viewers.least_bps())

    def ask_key(self, encoding: str) -> None:
        """Let a keyframe be made for a viewer that cannot go on without one."""
        for codec in CODECS:
            if codec == encoding:
                self.player.ask_key(codec)

    def ring(self, encoding: str) -> list[Frame]:
        """Return the video frames of the last seconds, from a keyframe on, if there is one."""
        return next((self.viewers.ring(codec) for codec in CODECS if codec == encoding), [])

    async def still(self) -> Frame | None:
        """Return the picture shown last as JPEG, or None before the first."""
        if self.player.last is None:
            return None
        return await self._renditions.encode(self.player.last, {"jpeg"})

    def bitrate(self) -> int:
        """Return the bits a second that video may take."""
        return self._renditions.bitrate_for(self._stream.config.width, self._stream.config.height)

    def catch_up(self, viewer: Viewer) -> None:
        """Show a viewer that comes at once what others see."""
        viewer.ask_key = self.ask_key
        encoding = encoding_of(viewer.format)
        if self._last_frame is None or encoding is None:
            return
        if encoding in PICTURES:
            self._spawn(self._show_last(viewer, encoding))
        elif ring := self.ring(encoding):
            for frame in ring:
                viewer.offer(frame, self._last_due_s - (ring[-1].pts_s - frame.pts_s))
        else:
            self.ask_key(encoding)

    async def _show_last(self, viewer: Viewer, encoding: str) -> None:
        frame, picture = self._last_frame, self.player.last
        assert picture is not None
        encoded = await self._renditions.encode(picture, {encoding}, frame)
        if self._last_frame is frame:  # else it has been shown a newer one
            viewer.offer(encoded, self._last_due_s)

    def _encodings(self) -> frozenset[str]:
        records = self._recorder is not None and not self._recorder.finished
        return self.viewers.encodings() | ({"h264"} if records else frozenset())

    def _show(self, frame: Frame, due_s: float) -> None:
        before, self._last_frame, self._last_due_s = self._last_frame, frame, due_s
        self.viewers.publish(frame, due_s)
        if self._recorder is not None:
            self._recorder.offer(frame, due_s)
        if before is None or before.chunk.index != frame.chunk.index:
            self._began(frame)
