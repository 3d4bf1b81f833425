"""Video over the realtime socket: decodable from the first frame, fresh, and never in the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.transport import bars
from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.media_client import bar_host
from transport.video import Packet

PATIENCE_S = 60.0


class VideoClient:
    """Takes frames of h264 or m4s: each is announced and follows as one message."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.frames: list[tuple[dict[str, Any], bytes]] = []

    async def send(self, type: str, **fields: Any) -> None:
        """Send one message."""
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def until(self, type: str) -> dict[str, Any]:
        """Receive until a message of this type comes."""
        while True:
            message = await self._receive()
            if message is not None and message["type"] == type:
                return message

    async def more(self, number: int) -> list[tuple[dict[str, Any], bytes]]:
        """Receive so many frames more and return them."""
        wanted = len(self.frames) + number
        while len(self.frames) < wanted:
            await self._receive()
        return self.frames[wanted - number :]

    async def _receive(self) -> dict[str, Any] | None:
        data = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        if isinstance(data, str):
            message: dict[str, Any] = json.loads(data)
            self.messages.append(message)
            return message
        announced = self.messages[-1]
        assert announced["type"] == "video.chunk_metadata"
        assert announced["byte_length"] == len(data)
        assert announced["num_frames"] == 1
        self.frames.append((announced, data))
        return None


@contextlib.asynccontextmanager
async def opened(server: RunningServer, path: str = "/video") -> AsyncIterator[VideoClient]:
    """Open a realtime socket."""
    url = f"ws://127.0.0.1:{server.port}/v1/realtime{path}"
    async with connect(url, max_size=None, close_timeout=1) as socket:
        yield VideoClient(socket)


def numbers(format: str, frames: list[tuple[dict[str, Any], bytes]]) -> list[int]:
    """Return the numbers that frames of one stream carry, from its first one on."""
    if format == "m4s":
        return bars.numbers_of(bars.decode_mp4(b"".join(data for _, data in frames))[0])
    return bars.numbers_of(bars.decode("h264", (Packet(data, False) for _, data in frames)))


@pytest.mark.parametrize("format", ["h264", "m4s"])
async def test_every_frame_comes_in_order(serve: Serve, format: str) -> None:
    """And the metadata counts them."""
    server = await serve(bar_host())
    async with opened(server) as client:
        await client.send("session.start", prompt="bars", format=format)
        frames = await client.more(30)
    assert numbers(format, frames) == list(range(30))
    told = [message for message, _ in frames]
    assert [message["first_frame_index"] for message in told] == list(range(30))
    assert [message["transport_chunk_index"] for message in told] == list(range(30))


@pytest.mark.parametrize("format", ["h264", "m4s"])
async def test_who_joins_late_sees_a_picture_at_once(serve: Serve, format: str) -> None:
    """From the frames since the last keyframe, while the first viewer goes on."""
    server = await serve(bar_host())
    async with opened(server) as first:
        await first.send("session.start", prompt="bars", format="h264")
        begun = await first.until("video.start")
        await first.more(20)
        async with opened(server, f"/sessions/{begun['session_id']}/view") as second:
            await second.send("session.view", viewer_token=begun["viewer_token"], format=format)
            joined = numbers(format, await second.more(25))
        await first.more(5)
    assert joined == list(range(joined[0], joined[0] + 25))
    assert numbers("h264", first.frames) == list(range(len(first.frames)))


async def test_who_joins_a_paused_session_sees_the_picture_it_stands_at(serve: Serve) -> None:
    """Encoded anew, as the last keyframe is long gone; the first viewer can go on after it."""
    server = await serve(bar_host())
    async with opened(server) as first:
        await first.send("session.start", prompt="bars", format="h264")
        begun = await first.until("video.start")
        await first.more(140)  # the ring is empty by now
        await first.send("session.update", paused=True)
        while (await first.until("session.state"))["state"] != "paused":
            pass
        await asyncio.sleep(0.3)
        async with opened(server, f"/sessions/{begun['session_id']}/view") as second:
            await second.send("session.view", viewer_token=begun["viewer_token"], format="h264")
            (seen,) = numbers("h264", await second.more(1))
            await first.send("session.update", paused=False)
            await second.more(12)
            later = numbers("h264", second.frames)
        await first.more(12)
    assert seen >= 139
    assert later[-1] >= seen + 8
    all_seen = numbers("h264", first.frames)
    assert all_seen == sorted(all_seen)
    assert set(all_seen) == set(range(all_seen[-1] + 1))


async def test_a_viewer_with_another_format_gets_it_within_two_frames(serve: Serve) -> None:
    server = await serve(bar_host())
    async with opened(server) as first:
        await first.send("session.start", prompt="bars", format="h264")
        begun = await first.until("video.start")
        await first.more(10)
        second = await server.connect(f"/v1/realtime/sessions/{begun['session_id']}/view")
        await second.send("session.view", viewer_token=begun["viewer_token"], format="jpeg")
        await second.more_frames(3)
    indices = [frame.index for frame in second.frames]
    assert indices == list(range(indices[0], indices[0] + 3))
    assert [bars.read_number(frame.decode()) for frame in second.frames] == indices


async def test_acknowledgements_bound_what_is_on_its_way(serve: Serve) -> None:
    """Then the viewer is behind, and goes on with a keyframe."""
    server = await serve(bar_host())
    async with opened(server) as client:
        await client.send("session.start", prompt="bars", format="h264", acks=True)
        await client.more(2)
        (stream,) = server.host.streams.values()
        await eventually(lambda: stream.played_frame > 40)
        for message, _ in client.frames:
            await client.send("session.ack", frame_index=message["first_frame_index"])
        ((message, data),) = await client.more(1)
    assert message["first_frame_index"] > 20
    assert bars.numbers_of(bars.decode("h264", [Packet(data, True)])) == [
        message["first_frame_index"]
    ]
