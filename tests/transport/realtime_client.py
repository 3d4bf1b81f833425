"""A small client of the realtime socket for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

PATIENCE_S = 60.0  # the machine may be busy


@dataclass(frozen=True)
class Frame:
    """One picture as it arrived."""

    index: int
    chunk_index: int
    pts_us: int
    payload: bytes

    def decode(self) -> NDArray[np.uint8]:
        """Return the JPEG's pixels."""
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(self.payload)
        return pixels


@dataclass
class RealtimeClient:
    """Keeps all that was received; `acks` answers each frame."""

    socket: ClientConnection
    acks: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    patience_s: float = PATIENCE_S

    async def send(self, type: str, **fields: Any) -> None:
        """Send one message."""
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def start(self, prompt: Any = "a red ball", **fields: Any) -> dict[str, Any]:
        """Start a session and return `video.start`."""
        await self.send("session.start", prompt=prompt, **fields)
        return await self.until("video.start")

    async def prompt(self, prompt: Any, event_id: str, **fields: Any) -> None:
        """Send a change of prompt."""
        interaction = {"event_id": event_id, "event": {"prompt": prompt}, **fields}
        await self.send("session.interaction", interaction=interaction)

    async def receive(self, patience_s: float | None = None) -> dict[str, Any] | Frame:
        """Return the next message or frame."""
        if patience_s is None:
            patience_s = self.patience_s
        data = await asyncio.wait_for(self.socket.recv(), patience_s)
        if isinstance(data, str):
            message: dict[str, Any] = json.loads(data)
            self.messages.append(message)
            return message
        index, chunk_index, pts_us = struct.unpack(">IIQ", data[:16])
        frame = Frame(index, chunk_index, pts_us, data[16:])
        self.frames.append(frame)
        if self.acks:
            with contextlib.suppress(ConnectionClosed):  # it may have been the last frame
                await self.send("session.ack", frame_index=frame.index)
        return frame

    async def until(self, type: str, **wanted: Any) -> dict[str, Any]:
        """Receive until a message of this type with these values comes, and return it."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            match await self.receive():
                case {"type": found, **rest} if found == type and wanted.items() <= rest.items():
                    return self.messages[-1]
        raise TimeoutError(f"no {type} came")

    async def until_frame(self, index: int) -> Frame:
        """Receive until the frame of this index, or a later one, comes."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            match await self.receive():
                case Frame() as frame if frame.index >= index:
                    return frame
        raise TimeoutError(f"frame {index} did not come")

    async def more_frames(self, number: int) -> None:
        """Receive until so many further frames have come."""
        for _ in range(number):
            await self.until_frame(0)

    async def until_closed(self) -> int:
        """Receive until the connection is closed, and return the code."""
        deadline = time.monotonic() + self.patience_s
        try:
            while time.monotonic() < deadline:
                await self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006
        raise TimeoutError("the connection was not closed")

    async def receive_for(self, seconds: float) -> None:
        """Receive whatever comes for a while."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(asyncio.TimeoutError):
            while True:
                await self.receive(deadline - time.monotonic())

    def of_type(self, type: str) -> list[dict[str, Any]]:
        """Return the messages of one type received so far."""
        return [message for message in self.messages if message["type"] == type]

    async def check_streaming(self) -> None:
        """Check that frames come, and that a prompt is obeyed."""
        await self.more_frames(4)
        await self.prompt("a blue star", "proof")
        await self.until("session.interaction.applied", event_id="proof")
