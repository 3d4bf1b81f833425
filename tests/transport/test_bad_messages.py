"""Field cases of malformed and oversized messages: each is answered, nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from websockets.exceptions import ConnectionClosed

from tests.transport.conftest import Serve

MIB = 1024 * 1024

ODD_MESSAGES = [
    "",
    "{",
    "[]",
    '"x"',
    "null",
    '{"type":"nope"}',
    '{"type":["prompt"]}',
    '{"type":"session.stop","type":"session.stop"}',
]
WRONG_TYPES = [
    {"type": "session.start", "prompt": 5, "width": "a", "seed": [], "acks": 1},
    {"type": "session.interaction", "interaction": []},
    {"type": "session.interaction", "interaction": {"event_id": 5, "event": 5}},
    {"type": "session.update", "event_id": {}, "paused": 1, "seed": "1", "steps": [], "reset": 0},
    {"type": "session.ack", "frame_index": "1", "displayed_at_ms": {}},
    {"type": "session.resume", "resume_token": 5},
    {"type": "session.rewind", "to_chunk": "x"},
]


async def test_q12_malformed_messages_are_answered_and_the_stream_goes_on(serve: Serve) -> None:
    """Each odd message gets an error, then a valid prompt on the same socket is obeyed."""
    server = await serve()
    other = await server.start()
    odd = [*ODD_MESSAGES, "[" * 60_000, *map(json.dumps, WRONG_TYPES)]
    for some in (odd[:8], odd[8:]):  # ten in ten seconds would be too many
        client = await server.start()
        for message in some:
            await client.socket.send(message)
            error = await client.until("error")
            assert error["code"] in ("invalid_request", "unsupported")
            assert error["retryable"] is False
        await client.check_streaming()
    await other.check_streaming()


async def test_q12_malformed_first_messages_may_be_corrected(serve: Serve) -> None:
    """Before the start too: errors, then a good start on the same socket."""
    server = await serve()
    client = await server.connect()
    for odd in ODD_MESSAGES:
        await client.socket.send(odd)
        await client.until("error")
    await client.start()
    await client.check_streaming()


async def test_q12_a_binary_message_closes_with_1003(serve: Serve) -> None:
    """After an error that says why; the session can be resumed."""
    server = await serve()
    client = await server.start()
    await client.socket.send(b'{"type":"session.ping"}')
    await client.until("error")
    assert await client.until_closed() == 1003


async def test_q12_the_first_message_must_begin_something(serve: Serve) -> None:
    """Controls before a session, and a second start, are errors."""
    server = await serve()
    client = await server.connect()
    await client.prompt("a", "early")
    assert (await client.until("error"))["event_id"] == "early"
    await client.start()
    await client.send("session.start", prompt="again")
    assert (await client.until("error"))["code"] == "invalid_request"
    await client.check_streaming()
    view = await server.connect(f"/v1/realtime/sessions/{client.messages[1]['session_id']}/view")
    await view.send("session.start", prompt="not here")
    assert "session.view" in (await view.until("error"))["message"]


async def test_ten_bad_messages_in_ten_seconds_close_with_1008(serve: Serve) -> None:
    """The tenth is still answered."""
    server = await serve()
    client = await server.start()
    for _ in range(10):
        await client.socket.send("{")
    assert await client.until_closed() == 1008
    assert len(client.of_type("error")) == 10


@pytest.mark.parametrize("size", [1 * MIB, 3 * MIB])
async def test_q13_large_controls_close_with_1009(serve: Serve, size: int) -> None:
    """Once a session runs 64 KiB are the limit; another session is not touched."""
    server = await serve()
    client, other = await server.start(), await server.start()
    await client.prompt("x" * size, "large")
    assert (await client.until("error"))["code"] == "invalid_request"
    assert await client.until_closed() == 1009
    await other.check_streaming()


@pytest.mark.parametrize("size", [5 * MIB, 17 * MIB])
async def test_q13_larger_first_messages_close_with_1009(serve: Serve, size: int) -> None:
    """4 MiB are the limit of the first message: it has room for an image."""
    server = await serve()
    client = await server.connect()
    with contextlib.suppress(ConnectionClosed):
        await client.socket.send("x" * size)
    assert await client.until_closed() in (1009, 1006)  # see the next test


async def test_q13_the_limit_counts_fragments_together(serve: Serve) -> None:
    """17 MiB in 4,096 pieces are no way around it."""
    server = await serve()
    client = await server.connect()
    piece = "x" * (17 * MIB // 4096)

    async def send() -> None:
        await client.socket.send(piece for _ in range(4096))

    other = await server.start()
    sending = asyncio.create_task(send())
    # The server closes while the client still sends, so the close frame may be lost on the way.
    assert await client.until_closed() in (1009, 1006)
    await asyncio.gather(sending, return_exceptions=True)
    await other.check_streaming()


async def test_q13_compression_is_never_agreed_to(serve: Serve) -> None:
    """So there is nothing that could expand."""
    server = await serve()
    client = await server.connect(compression="deflate")
    assert client.socket.protocol.extensions == []


async def test_q13_a_first_message_within_the_limit_is_read(serve: Serve) -> None:
    """3 MiB of an image are refused for what they are, not for their size."""
    server = await serve()
    client = await server.connect()
    image = {"image_url": "data:" + "A" * (3 * MIB)}
    await client.send("session.start", prompt="a", image_reference=image)
    error = await client.until("error")
    assert (error["code"], error["param"]) == ("unsupported", "image_reference")
    await client.start()
