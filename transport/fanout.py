"""One session's frames and messages to its viewers; a slow viewer skips and delays nobody."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from transport.encoder import Frame
from transport.fields import Prompt, ProtocolError
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
    """What waits to be sent over one connection: messages in order, and the latest frame."""

    def __init__(self) -> None:
        self.request_id = f"req_{secrets.token_hex(8)}"
        self.format = "none"
        self.acks = False
        self.num_dropped = 0
        self.last_ack: SessionAck | None = None
        self._messages: deque[ServerMessage] = deque()
        self._slot: Frame | None = None
        self._in_flight: deque[int] = deque(maxlen=MAX_IN_FLIGHT)
        self._last_sent = -1
        self._chunk_index: int | None = None
        self._num_chunks = 0
        self._prompt: Prompt | None = None  # that was announced last
        self._finish: Finish | None = None
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()

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

    def offer(self, frame: Frame) -> None:
        """Make this the frame that is sent next, in place of one that still waits."""
        if frame.chunk.index != self._chunk_index:
            self._announce(frame)
        if self.format not in frame.payloads or self.finished:
            return
        if self._slot is not None:
            self.num_dropped += 1
        self._slot = frame
        self._wake.set()

    def withdraw(self, unwanted: Callable[[int], bool]) -> None:
        """Do not send the frame that waits if its chunk is unwanted."""
        if self._slot is not None and unwanted(self._slot.chunk.index):
            self._slot = None
            self._taken.set()

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Close the connection once the messages that wait are sent. The first reason counts."""
        if self._finish is None:
            self._finish = Finish(code, reason)
            self._slot = None
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
            if self._messages:
                return self._messages.popleft()
            if self._finish is not None:
                return self._finish
            if self._slot is not None and len(self._in_flight) < MAX_IN_FLIGHT:
                return self._take(self._slot)
            self._wake.clear()
            await self._wake.wait()

    async def drained(self) -> None:
        """Wait until no frame waits."""
        while self._slot is not None:
            self._taken.clear()
            await self._taken.wait()

    def _take(self, frame: Frame) -> bytes:
        self._slot = None
        self._taken.set()
        self._last_sent = frame.index
        if self.acks:
            self._in_flight.append(frame.index)
        return frame.payloads[self.format]

    def _announce(self, frame: Frame) -> None:
        chunk = frame.chunk
        self.put(
            ChunkMetadata(
                request_id=self.request_id,
                kind="media",
                generation_chunk_index=chunk.index,
                transport_chunk_index=self._num_chunks,
                num_frames=chunk.num_frames,
                first_frame_index=chunk.first_frame_index,
                pts_ms=round(chunk.pts_s * 1000, 3),
                prompt_revision=chunk.prompt_revision,
                seed=chunk.seed,
                started_event_ids=chunk.started_event_ids,
                active_event_ids=chunk.active_event_ids,
                completed_event_ids=chunk.completed_event_ids,
                prompt=None if chunk.prompt == self._prompt else chunk.prompt,
            )
        )
        self._prompt = chunk.prompt
        self._chunk_index = chunk.index
        self._num_chunks += 1


class Fanout:
    """The viewers of one session."""

    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()

    def __len__(self) -> int:
        return len(self._viewers)

    def __iter__(self) -> Iterator[Viewer]:
        return iter(tuple(self._viewers))

    def add(self, viewer: Viewer) -> None:
        """Let a viewer take part."""
        self._viewers.add(viewer)

    def discard(self, viewer: Viewer) -> None:
        """Let a viewer go."""
        self._viewers.discard(viewer)

    def formats(self) -> frozenset[str]:
        """Return the picture formats that are looked at."""
        return frozenset(viewer.format for viewer in self._viewers)

    def publish(self, frame: Frame) -> None:
        """Offer a frame to every viewer."""
        for viewer in self._viewers:
            viewer.offer(frame)

    def broadcast(self, message: ServerMessage) -> None:
        """Send a message to every viewer."""
        for viewer in self._viewers:
            viewer.put(message)

    def finish(self, code: CloseCode, reason: str = "") -> None:
        """Close every viewer's connection."""
        for viewer in self._viewers:
            viewer.finish(code, reason)
