"""Field cases of prompts and sizes that cannot be, and of text that must survive."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from tests.transport.conftest import Serve, eventually, raw_socket
from tests.transport.fake_host import FakeHost

BAD_PROMPTS: list[Any] = [
    "",
    "   ",
    "\n\t",
    None,
    [],
    [""],
    [{"text": "", "weight": 1}],
    [{"text": "a", "weight": 1}] * 1000,
    "a\0b",
    "\ud83d",
    "x" * 100_000,
]
TEXTS = [
    "👨‍👩‍👧‍👦 in the rain",
    "你好，雨中的猫",
    "قطة \u202e في المطر",
    "e" + "\u0301" * 200,
    "\ufffe",
    "cafe\u0301",
    "café",
    "red\x1b[31m\nball",
]


async def test_q17_long_prompts_are_refused_with_the_limit(serve: Serve) -> None:
    """100,000 characters, and what the model itself finds too long: at start and by switch."""
    server = await serve()
    for prompt, limit in (("x" * 100_000, "2,000"), ("x" * 1_500, "too long")):
        client = await server.connect()
        await client.send("session.start", prompt=prompt)
        error = await client.until("error")
        assert (error["code"], error["param"]) == ("invalid_request", "prompt")
        assert limit in error["message"]
        await client.start()
        # 100,000 characters are above the size of a control, which is another case.
        await client.prompt(prompt[:60_000], "long")
        error = await client.until("error", event_id="long")
        assert error["param"] == "interaction.event.prompt"
        await client.check_streaming()


async def test_q18_bad_prompts_leave_the_old_one_active(serve: Serve) -> None:
    """At the start and in mid-stream, while another session streams."""
    server = await serve()
    other = await server.start()
    client = await server.start()
    stream = server.host.streams["s2"]
    for number, prompt in enumerate(BAD_PROMPTS[:-1]):
        if number == 8:  # below the limit of bad messages in ten seconds
            await client.socket.close()
            client = await server.start()
            stream = server.host.streams["s3"]
        await client.prompt(prompt, f"bad{number}")
        error = await client.until("error", event_id=f"bad{number}")
        assert error["code"] == "invalid_request"
        assert "prompt" in error["param"]
        assert stream.revision == 0
    await client.check_streaming()
    await other.check_streaming()


async def test_q18_bad_prompts_start_nothing(serve: Serve) -> None:
    """Neither over the socket nor over HTTP; the socket may try again."""
    server = await serve()
    async with server.http() as http:
        for prompt in BAD_PROMPTS:
            client = await server.connect()
            await client.send("session.start", prompt=prompt)
            assert (await client.until("error"))["param"].startswith("prompt")
            body = json.dumps({"prompt": prompt})
            headers = {"content-type": "application/json"}
            answer = await http.post("/v1/realtime/sessions", content=body, headers=headers)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"].startswith("prompt")
    assert server.host.num_opened == 0
    await client.start()


async def test_q18_a_missing_prompt(serve: Serve) -> None:
    """The key itself is required."""
    server = await serve()
    client = await server.connect()
    await client.send("session.start")
    assert (await client.until("error"))["param"] == "prompt"


async def test_q20_text_survives_end_to_end(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Echoed as it was, at the start, in the timeline and over HTTP; the log shows escapes."""
    caplog.set_level(logging.INFO, "transport")
    server = await serve(FakeHost(max_sessions=len(TEXTS)))
    async with server.http() as http:
        for text in TEXTS:
            client = await server.connect()
            start = await client.start(text)
            assert start["config"]["prompt"] == text
            await client.prompt(text + "!", "e")
            await client.until("session.interaction.applied")
            answer = await http.get(f"/v1/realtime/sessions/{start['session_id']}")
            assert [entry["prompt"] for entry in answer.json()["prompts"]] == [text, text + "!"]
            await client.send("session.stop")
            await client.until_closed()
    logged = [record.getMessage() for record in caplog.records if "opened" in record.message]
    assert len(logged) == len(TEXTS)
    assert not {"\x1b", "\n", "\u202e", "\ufffe"} & set("".join(logged))


async def test_q20_a_text_frame_that_is_no_utf8_closes_with_1007(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """By the WebSocket layer itself, in the middle of a stream; that is no error of ours."""
    server = await serve()
    sock = await raw_socket(server)
    loop = asyncio.get_running_loop()
    start = b'{"type":"session.start","prompt":"a","format":"none"}'
    for text in (start, b"\xc3\x28"):
        await loop.sock_sendall(sock, WebSocketFrame(Opcode.TEXT, text).serialize(mask=True))
    answer = b""
    while part := await asyncio.wait_for(loop.sock_recv(sock, 65_536), 30):
        answer += part
    assert answer.endswith(b"\x88\x02\x03\xef")  # close, 2 bytes, 1007
    await eventually(lambda: server.host.pages_free == 30)
    assert not [record for record in caplog.records if "ASGI" in record.getMessage()]


SIZES: list[tuple[Any, Any]] = [
    (674, 389),
    (833, 480),
    (832, 488),
    (8, 8),
    (15, 15),
    (0, 480),
    (-832, 480),
    (832, 100_000),
    (16, 4096 * 8),
    ("832", "480"),
    (832.0, 480.5),
    (None, 480),
]


async def test_q26_sizes_off_the_grid_are_refused(serve: Serve) -> None:
    """Over the socket and over HTTP alike, before anything is opened."""
    server = await serve()
    other = await server.start()
    async with server.http() as http:
        for width, height in SIZES:
            client = await server.connect()
            fields = {"prompt": "a", "width": width, "height": height}
            await client.send("session.start", **fields)
            error = await client.until("error")
            assert error["code"] == "invalid_request"
            answer = await http.post("/v1/realtime/sessions", json=fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"] == error["message"]
    assert server.host.num_opened == 1
    await other.check_streaming()
    await client.start(width=48, height=64)


async def test_q26_size_strings(serve: Serve) -> None:
    """WxH is the one form."""
    server = await serve()
    client = await server.connect()
    for size in ("832*480", "480p", "NaN", "832x480x1", 832):
        await client.send("session.start", prompt="a", size=size)
        assert (await client.until("error"))["param"] == "size"
    assert (await client.start(size="48x64"))["config"]["height"] == 64


async def test_q26_a_size_that_is_not_a_number(serve: Serve) -> None:
    """NaN is not JSON, though many writers write it."""
    server = await serve()
    client = await server.connect()
    await client.socket.send('{"type":"session.start","prompt":"a","width":NaN,"height":480}')
    assert "NaN" in (await client.until("error"))["message"]


async def test_q26_the_size_cannot_change_in_mid_stream(serve: Serve) -> None:
    """The field is unknown there."""
    server = await serve()
    client = await server.start()
    await client.send("session.update", width=64, height=64)
    assert (await client.until("error"))["code"] == "unsupported"
    await client.check_streaming()


async def test_what_the_model_cannot_do_is_the_hosts_answer(serve: Serve) -> None:
    """Several texts, another transition, another model: `unsupported` or `not_found`."""
    server = await serve(FakeHost(max_texts=1, transitions=("cut",)))
    client = await server.connect()
    mixed = [{"text": "a", "weight": 1}, {"text": "b", "weight": 1}]
    await client.send("session.start", prompt=mixed)
    assert (await client.until("error"))["code"] == "unsupported"
    await client.start()
    await client.prompt("a", "t", transition={"mode": "recache"})
    error = await client.until("error", event_id="t")
    assert (error["code"], error["param"]) == ("unsupported", "interaction.transition.mode")
    await client.check_streaming()
    stranger = await server.connect()
    await stranger.send("session.start", prompt="a", model="other")
    assert (await stranger.until("error"))["code"] == "not_found"
    assert await stranger.until_closed() == 1008
