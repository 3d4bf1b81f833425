"""What waits to be sent over one socket: messages in order, and frames as far as there is room."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from transport.encoder import ChunkHeader, Frame
from transport.fields import Prompt, ProtocolError
from transport.mp4 import FragmentedMP4
from transport.packets import PICTURES, PacketQueue, encoding_of
from transport.replies import ChunkMetadata, CloseCode, ServerMessage
from transport.wire import SessionAck

MAX_IN_FLIGHT: Final = 2  # frames sent and not acknowledged; more only grows their age
MAX_MESSAGES: Final = 256  # waiting for one viewer


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a viewer's connection."""

    code: CloseCode
    reason: str


class Viewer:
    """Messages in order, and the latest picture or the video from a keyframe on.

    `ask_key` is called with the encoding when the video cannot go on without a keyframe.
    """

    transport = "websocket"

    def __init__(self) -> None:
        self.request_id = f"req_{secrets.token_hex(8)}"
        self.acks = False
        self.last_ack: SessionAck | None = None
        self.estimate_bps: float | None = None
        self.num_sent = 0
        self.ask_key: Callable[[str], None] = lambda encoding: None
        self._format = "none"
        self._messages: deque[ServerMessage] = deque()
        self._slot: Frame | None = None
        self._video: PacketQueue | None = None
        self._muxer: FragmentedMP4 | None = None
        self._payload: bytes | None = None  # of the frame that was announced
        self._in_flight: deque[int] = deque(maxlen=MAX_IN_FLIGHT)
        self._num_skipped = 0
        self._last_sent = -1
        self._chunk_index: int | None = None
        self._num_chunks = 0
        self._prompt: Prompt | None = None  # that was announced last
        self._finish: Finish | None = None
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def format(self) -> str:
        """What the client shows."""
        return self._format

    @format.setter
    def format(self, format: str) -> None:
        self._format = format
        encoding = encoding_of(format)
        if encoding is not None and encoding not in PICTURES:
            self._video = PacketQueue(
                encoding,
                starved=lambda: self.ask_key(encoding),
            )

    @property
    def num_dropped(self) -> int:
        """Frames that were not sent because newer ones took their place."""
        return self._num_skipped + (self._video.num_dropped if self._video else 0)

    @property
    def finished(self) -> bool:
        """Whether the connection is about to be closed."""
        return self._finish is not None

    def put(self, message: ServerMessage) -> None:
        """Queue a message. A viewer that lets too many wait is cut off."""
        if len(self._messages) >= MAX_MESSAGES:
            self._messages.clear()
            self.finish(CloseCode.TOO_SLOW, "too slow")
        if not self.finished:
            self._messages.append(message)
            self._wake.set()

    def offer(self, frame: Frame, due_s: float) -> None:
        """Take a picture in place of one that still waits, or a video frame behind the others."""
        if self.finished:
            return
        if self._video is not None:
            self._video.offer(frame, due_s)
            self._wake.set()
            return
        if frame.chunk.index != self._chunk_index:
            self.put(self._metadata(frame.chunk, frame.chunk.num_frames, frame.chunk.pts_s))
            self._chunk_index = frame.chunk.index
        if self.format in frame.payloads:
            self._num_skipped += self._slot is not None
            self._slot = frame
            self._wake.set()

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Do not send the picture that waits if its chunk is unwanted."""
        if self._slot is not None and unwanted(self._slot.chunk.index):
            self._slot = None
            self._taken.set()

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Close the connection once the messages that wait are sent. The first reason counts."""
        if self._finish is None:
            self._finish = Finish(code, reason)
            self._slot = None
            if self._video is not None:
                self._video.clear()
            self._taken.set()
            self._wake.set()

    def ack(self, ack: SessionAck) -> None:
        """Take note that the client has this frame and all before it."""
        if not self.acks:
            raise ProtocolError("session.ack needs acks in the first message")
        if ack.frame_index > self._last_sent:
            raise ProtocolError(f"frame {ack.frame_index} was not sent", param="frame_index")
        while self._in_flight and self._in_flight[0] <= ack.frame_index:
            self._in_flight.popleft()
        self.last_ack = ack
        self._wake.set()

    async def next(self) -> ServerMessage | bytes | Finish:
        """Wait for what is to be sent next."""
        while True:
            if self._payload is not None:
                payload, self._payload = self._payload, None
                return payload
            if self._messages:
                return self._messages.popleft()
            if self._finish is not None:
                return self._finish
            if len(self._in_flight) < MAX_IN_FLIGHT and (item := self._next_frame()) is not None:
                return item
            self._wake.clear()
            await self._wake.wait()

    async def drained(self) -> None:
        """Wait until no frame waits."""
        while self._slot is not None or self._video:
            self._taken.clear()
            await self._taken.wait()

    def _next_frame(self) -> ServerMessage | bytes | None:
        """Return the picture that waits, or the announcement of a video frame, before its data."""
        if self._slot is not None:
            frame, self._slot = self._slot, None
            self._sent(frame)
            return frame.payloads[self.format]
        if self._video is None or (taken := self._video.take()) is None:
            return None
        frame, due_s = taken
        self._sent(frame)
        self._payload = self._video_payload(frame, due_s, self._video.encoding)
        begins = frame.index == frame.chunk.first_frame_index
        chunk = frame.chunk if begins else frame.chunk.going_on()
        message = self._metadata(chunk, 1, frame.pts_s, frame.index)
        return dataclasses.replace(message, byte_length=len(self._payload))

    def _video_payload(self, frame: Frame, due_s: float, encoding: str) -> bytes:
        packet = frame.packets[encoding]
        if self.format != "m4s":
            return packet.data
        if self._muxer is None:
            self._muxer = FragmentedMP4(*frame.size)
        # Not the media time: where frames come slower than that, a player would run dry.
        return self._muxer.write(packet, due_s, 1 / frame.chunk.fps)

    def _sent(self, frame: Frame) -> None:
        self._taken.set()
        self.num_sent += 1
        self._last_sent = frame.index
        if self.acks:
            self._in_flight.append(frame.index)

    def _metadata(
        self, chunk: ChunkHeader, num_frames: int, pts_s: float, first: int | None = None
    ) -> ChunkMetadata:
        message = ChunkMetadata(
            request_id=self.request_id,
            kind="media",
            generation_chunk_index=chunk.index,
            transport_chunk_index=self._num_chunks,
            num_frames=num_frames,
            first_frame_index=chunk.first_frame_index if first is None else first,
            pts_ms=round(pts_s * 1000, 3),
            prompt_revision=chunk.prompt_revision,
            seed=chunk.seed,
            started_event_ids=chunk.started_event_ids,
            active_event_ids=chunk.active_event_ids,
            completed_event_ids=chunk.completed_event_ids,
            prompt=None if chunk.prompt == self._prompt else chunk.prompt,
        )
        self._prompt = chunk.prompt
        self._num_chunks += 1
        return message
