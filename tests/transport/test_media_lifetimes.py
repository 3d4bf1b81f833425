"""How viewers over plain HTTP come and go, and what is left of them."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.transport import bars
from tests.transport.conftest import RunningServer, Serve, eventually
from tests.transport.media_client import (
    SESSIONS,
    STREAMS,
    bar_host,
    collect,
    first_bytes,
    make_session,
    media_path,
    pictures_of,
    raw_request,
    reset,
    streaming,
    until_watching,
)
from transport import media_viewers

FOR_EVER_S = 600.0  # no test has the time to wait for it


@pytest.mark.parametrize("name", STREAMS)
async def test_a_viewer_that_is_cut_off_leaves_at_once(serve: Serve, name: str) -> None:
    """No time-out has to pass; and the session, watched by nobody, is suspended."""
    server = await serve(bar_host(), send_timeout_s=FOR_EVER_S)
    session = await make_session(server, run_unwatched=False)
    sock = await raw_request(server, media_path(session, name))
    await until_watching(server, session["id"], 1)
    assert server.host.streams[session["id"]].state == "running"
    reset(sock)
    await until_watching(server, session["id"], 0)
    await eventually(lambda: server.host.streams[session["id"]].state == "suspended")


async def noisy(serve: Serve, send_timeout_s: float) -> RunningServer:
    """Return a server of pictures that are too much for the buffers between here and there."""
    host = bar_host(width=256, height=256, fps=20)
    host.paint = bars.paint_noise_shot
    return await serve(host, send_timeout_s=send_timeout_s, bitrate=20_000_000)


@pytest.mark.parametrize("name", STREAMS)
async def test_nobody_waits_for_a_viewer_that_takes_nothing(serve: Serve, name: str) -> None:
    """While nothing more can be sent to it the other one goes on."""
    server = await noisy(serve, FOR_EVER_S)
    session = await make_session(server)
    async with streaming(server, media_path(session, "stream.mjpeg")) as other:
        pictures = pictures_of(other)
        await anext(pictures)
        (watching,) = server.viewers(session["id"])
        await raw_request(server, media_path(session, name))
        await eventually(lambda: len(server.viewers(session["id"])) == 2)
        (stuck,) = (one for one in server.viewers(session["id"]) if one is not watching)
        sent = 0
        while not sent or stuck.num_sent != sent:
            sent = stuck.num_sent
            for _ in range(10):
                await anext(pictures)
        assert stuck in server.viewers(session["id"])


@pytest.mark.parametrize("name", STREAMS)
async def test_a_viewer_that_takes_nothing_is_dropped(
    serve: Serve, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After the send time-out, which is told once."""
    caplog.set_level("INFO")
    server = await noisy(serve, 0.5)
    session = await make_session(server)
    await raw_request(server, media_path(session, name))
    told = "dropped a client that took nothing for 0.5 s"
    await eventually(lambda: told in caplog.text)
    await until_watching(server, session["id"], 0)
    assert caplog.text.count(told) == 1
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_ends_with_its_session(serve: Serve, name: str) -> None:
    """The response is completed, as the video played to its end."""
    server = await serve(bar_host())
    session = await make_session(server, num_frames=20)
    async with streaming(server, media_path(session, name)) as answer:
        data = await collect(answer)
    if name == "stream.mp4":
        assert bars.numbers_of(bars.decode_mp4(data)[0])[-1] == 19
    else:
        assert data.endswith(b"\xff\xd9\r\n--frame--")
        jpeg = data[data.rindex(b"\xff\xd8") :]
        assert bars.read_number(bars.decode_jpeg(jpeg)) == 19


@pytest.mark.parametrize("name", STREAMS)
async def test_deleting_a_session_ends_its_streams(
    serve: Serve, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, whatever the client was sent: no silence has to be filled first."""
    monkeypatch.setattr(media_viewers, "REPEAT_S", FOR_EVER_S)
    monkeypatch.setattr(media_viewers, "SIGN_OF_LIFE_S", FOR_EVER_S)
    server = await serve(bar_host())
    session = await make_session(server)
    async with streaming(server, media_path(session, name)) as answer, server.http() as http:
        rest = answer.aiter_raw()
        await anext(rest)
        await http.delete(f"{SESSIONS}/{session['id']}", headers=server.owner(session["id"]))
        async for _ in rest:
            pass


async def test_q53_streams_end_with_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Completed where the client reads, and no error is logged of the response."""
    server = await serve(bar_host())
    session = await make_session(server)
    await raw_request(server, media_path(session, "stream.mjpeg"))
    async with (
        streaming(server, media_path(session, "stream.mjpeg")) as pictures,
        streaming(server, media_path(session, "stream.mp4")) as video,
    ):
        await until_watching(server, session["id"], 3)
        server.uvicorn.should_exit = True
        await asyncio.gather(collect(pictures), collect(video))
    assert not [record for record in caplog.records if "Exception in ASGI" in record.message]


def num_tasks_and_descriptors() -> NDArray[np.int64]:
    """Return how many there are of each in this process, which server and clients share."""
    return np.array([len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))])


@pytest.mark.parametrize("name", STREAMS)
async def test_q51_two_hundred_visits_leave_nothing(serve: Serve, name: str) -> None:
    """No viewer, task or descriptor, whether they leave politely or not."""
    server = await serve(bar_host())
    session = await make_session(server)
    path = media_path(session, name)
    await first_bytes(server, path)
    await until_watching(server, session["id"], 0)
    await asyncio.sleep(0.3)
    before = num_tasks_and_descriptors()
    for number in range(200):
        sock = await raw_request(server, path)
        if number % 2:
            await asyncio.get_running_loop().sock_recv(sock, 100)
        reset(sock) if number % 4 < 2 else sock.close()
    await until_watching(server, session["id"], 0)
    await eventually(lambda: bool((num_tasks_and_descriptors() <= before).all()))
    assert await first_bytes(server, path)
