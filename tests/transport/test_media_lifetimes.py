"""How viewers over plain HTTP come and go, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.transport import bars
from tests.transport.conftest import Serve, eventually
from tests.transport.media_client import (
    SESSIONS,
    STREAMS,
    bar_host,
    collect,
    first_bytes,
    make_session,
    media_path,
    num_watching,
    pictures_of,
    raw_request,
    reset,
    streaming,
    until_watching,
)


@pytest.mark.parametrize("name", STREAMS)
async def test_a_viewer_that_is_cut_off_leaves_at_once(serve: Serve, name: str) -> None:
    """And the session, watched by nobody, is suspended."""
    server = await serve(bar_host())
    session = await make_session(server, run_unwatched=False)
    sock = await raw_request(server, media_path(session, name))
    await until_watching(server, session["id"], 1)
    assert server.host.streams[session["id"]].state == "running"
    reset(sock)
    assert await until_watching(server, session["id"], 0) < 2.0
    await eventually(lambda: server.host.streams[session["id"]].state == "suspended")


@pytest.mark.parametrize("name", STREAMS)
async def test_a_viewer_that_takes_nothing_is_dropped(
    serve: Serve, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After the send time-out, which is told once; nobody else waits for it meanwhile."""
    caplog.set_level("INFO")
    host = bar_host(width=256, height=256, fps=20)
    host.paint = bars.paint_noise_shot  # too much for the buffers between here and there
    server = await serve(host, send_timeout_s=2.0, bitrate=20_000_000)
    session = await make_session(server)
    async with streaming(server, media_path(session, "stream.mjpeg")) as other:
        pictures = pictures_of(other)
        await anext(pictures)
        await raw_request(server, media_path(session, name))
        await until_watching(server, session["id"], 2)
        gaps, before = [], time.monotonic()
        latest = before + 12  # the kernel gives up on it after 30 s
        while await num_watching(server, session["id"]) == 2:
            await anext(pictures)
            gaps.append(time.monotonic() - before)
            before += gaps[-1]
            assert before < latest, "it was not dropped"
        assert max(gaps) < 1.0
        assert await num_watching(server, session["id"]) == 1
    assert caplog.text.count("dropped a client that took nothing for 2 s") == 1
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_ends_with_its_session(serve: Serve, name: str) -> None:
    """The response is completed, as the video played to its end."""
    server = await serve(bar_host())
    session = await make_session(server, num_frames=20)
    async with streaming(server, media_path(session, name)) as answer:
        data = await collect(answer, 20.0)
    if name == "stream.mp4":
        assert bars.numbers_of(bars.decode_mp4(data)[0])[-1] == 19
    else:
        assert data.endswith(b"\xff\xd9\r\n--frame--")
        jpeg = data[data.rindex(b"\xff\xd8") :]
        assert bars.read_number(bars.decode_jpeg(jpeg)) == 19


@pytest.mark.parametrize("name", STREAMS)
async def test_deleting_a_session_ends_its_streams(serve: Serve, name: str) -> None:
    """Within a second, whatever the client was sent."""
    server = await serve(bar_host())
    session = await make_session(server)
    async with streaming(server, media_path(session, name)) as answer, server.http() as http:
        rest = answer.aiter_raw()
        await anext(rest)
        began_at = time.monotonic()
        await http.delete(f"{SESSIONS}/{session['id']}", headers=server.owner(session["id"]))
        async for _ in rest:
            pass
        assert time.monotonic() - began_at < 1.0


async def test_q53_streams_end_with_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Within 4 s, completed where the client reads, and no error is logged of the response."""
    server = await serve(bar_host())
    session = await make_session(server)
    await raw_request(server, media_path(session, "stream.mjpeg"))
    async with (
        streaming(server, media_path(session, "stream.mjpeg")) as pictures,
        streaming(server, media_path(session, "stream.mp4")) as video,
    ):
        await until_watching(server, session["id"], 3)
        began_at = time.monotonic()
        server.uvicorn.should_exit = True
        await asyncio.gather(collect(pictures, 20.0), collect(video, 20.0))
        assert time.monotonic() - began_at < 4.0
    assert not [record for record in caplog.records if "Exception in ASGI" in record.message]


@pytest.mark.parametrize("name", STREAMS)
async def test_q51_two_hundred_visits_leave_nothing(serve: Serve, name: str) -> None:
    """No viewer, task or descriptor, whether they leave politely or not."""
    server = await serve(bar_host())
    session = await make_session(server)
    path = media_path(session, name)
    await first_bytes(server, path)
    await until_watching(server, session["id"], 0)
    await asyncio.sleep(0.3)
    before = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    for number in range(200):
        sock = await raw_request(server, path)
        if number % 2:
            await asyncio.get_running_loop().sock_recv(sock, 100)
        reset(sock) if number % 4 < 2 else sock.close()
    await until_watching(server, session["id"], 0)
    await eventually(
        lambda: (len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))) == before, 10.0
    )
    assert await first_bytes(server, path)
