"""A session over plain HTTP: MJPEG, MP4 without end, the newest picture."""

from __future__ import annotations

import asyncio
import shutil
import time

import numpy as np
import pytest

from tests.transport import bars
from tests.transport.conftest import Serve, eventually
from tests.transport.media_client import (
    SESSIONS,
    STREAMS,
    bar_host,
    film_of,
    first_bytes,
    make_session,
    media_path,
    num_watching,
    pictures_of,
    streaming,
    until_watching,
)


@pytest.mark.parametrize("pixel_format", bars.PAINTED)
async def test_mjpeg_shows_bars_and_numbers(serve: Serve, pixel_format: str) -> None:
    """Pictures come in order, with their colours and no header of ours."""
    server = await serve(bar_host(pixel_format))
    session = await make_session(server)
    pictures = []
    async with streaming(server, media_path(session, "stream.mjpeg")) as answer:
        assert answer.headers["content-type"].startswith("multipart/x-mixed-replace; boundary=")
        assert answer.headers["cache-control"] == "no-store"
        async for jpeg in pictures_of(answer):
            pictures.append(bars.decode_jpeg(jpeg))
            if len(pictures) == 12:
                break
    numbers = bars.numbers_of(pictures)
    assert numbers == sorted(set(numbers))
    assert numbers[-1] - numbers[0] < 200  # a slow machine may skip some, not show one a second
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE


@pytest.mark.parametrize("pixel_format", bars.PAINTED)
async def test_mp4_shows_bars_and_numbers(serve: Serve, pixel_format: str) -> None:
    """No frame is missing or comes twice, and the times are those of the clock."""
    server = await serve(bar_host(pixel_format))
    began = time.monotonic()
    session = await make_session(server)
    async with streaming(server, media_path(session, "stream.mp4")) as answer:
        assert answer.headers["content-type"] == "video/mp4"
        data = await film_of(answer, 40)
    took_s = time.monotonic() - began
    pictures, times = bars.decode_mp4(data)
    numbers = bars.numbers_of(pictures)
    assert len(numbers) >= 40
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE
    assert times[0] == 0.0
    assert np.median(np.diff(times)) > 0.9 / 30  # and more where the machine is slow
    assert times[-1] < took_s


async def test_mp4_begins_with_the_last_keyframe(serve: Serve) -> None:
    """Who joins late gets the frames since then at once, at their own times."""
    server = await serve(bar_host())
    began = time.monotonic()
    session = await make_session(server)
    async with streaming(server, media_path(session, "stream.mp4")) as first:
        before = bars.numbers_of(bars.decode_mp4(await film_of(first, 15))[0])
        async with streaming(server, media_path(session, "stream.mp4")) as late:
            data = await film_of(late, 30)
    took_s = time.monotonic() - began
    pictures, times = bars.decode_mp4(data)
    numbers = bars.numbers_of(pictures)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] in before[:-1]
    assert np.median(np.diff(times)) > 0.9 / 30  # and more where the machine is slow
    assert times[-1] < took_s


async def test_the_newest_picture(serve: Serve) -> None:
    """A JPEG of its own, never kept by a cache; none before the first frame."""
    server = await serve(bar_host())
    waiting = await make_session(server, run_unwatched=False)
    running = await make_session(server)
    stream = server.host.streams[running["id"]]
    async with server.http() as http:
        early = await http.get(media_path(waiting, "frame.jpg"))
        assert (early.status_code, early.headers["retry-after"]) == (409, "1")
        numbers = []
        await first_bytes(server, media_path(running, "stream.mjpeg"))
        for _ in range(3):
            answer = await http.get(media_path(running, "frame.jpg"))
            assert answer.headers["content-type"] == "image/jpeg"
            assert answer.headers["cache-control"] == "no-store"
            picture = bars.decode_jpeg(answer.content)
            assert bars.error_of(picture) <= bars.TOLERANCE
            numbers.append(bars.read_number(picture))
            await eventually(lambda: stream.played_frame > numbers[-1] + 1)
    assert numbers == sorted(set(numbers))
    assert await num_watching(server, running["id"]) == 0


@pytest.mark.parametrize("name", [*STREAMS, "frame.jpg", "recording.mp4"])
async def test_tokens(serve: Serve, name: str) -> None:
    """By header or by query, the viewer's or the owner's; else 401, and 404 for no session."""
    server = await serve(bar_host())
    session = await make_session(server)
    path = f"{SESSIONS}/{session['id']}/{name}"
    await first_bytes(server, media_path(session, "stream.mjpeg"))
    good = 404 if name == "recording.mp4" else 200  # it is off
    async with server.http() as http:
        for token in (session["viewer_token"], session["resume_token"]):
            bearer = {"Authorization": f"Bearer {token}"}
            assert (await http.head(path, headers=bearer)).status_code == good
            assert (await http.head(f"{path}?token={token}")).status_code == good
        for bad in ("", "?token=", "?token=%C3%A9", f"?token={session['viewer_token']}x"):
            assert (await http.get(path + bad)).status_code == 401
        wrong = {"Authorization": "Bearer nonsense"}
        refused = await http.get(path, headers=wrong)
        assert refused.json()["error"]["code"] == "unauthorized"
        assert "?token=" in refused.json()["error"]["message"]
        assert (await http.get(f"{SESSIONS}/nope/{name}?token=x")).status_code == 404


async def test_recordings_are_off_unless_asked_for(serve: Serve) -> None:
    """The answer says which option turns them on."""
    server = await serve(bar_host())
    session = await make_session(server)
    async with server.http() as http:
        answer = await http.get(media_path(session, "recording.mp4"))
    assert answer.status_code == 404
    assert "--record" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", STREAMS)
async def test_head_watches_nothing(serve: Serve, name: str) -> None:
    """It tells the type and leaves."""
    server = await serve(bar_host())
    session = await make_session(server, run_unwatched=False)
    async with server.http() as http:
        answer = await http.head(media_path(session, name))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(("video/mp4", "multipart/"))
    assert answer.content == b""
    assert await num_watching(server, session["id"]) == 0


@pytest.mark.parametrize("name", STREAMS)
async def test_a_full_server_says_when_to_come_again(serve: Serve, name: str) -> None:
    """503 with Retry-After; a place that is left is free again."""
    server = await serve(bar_host(), max_viewers=1)
    session = await make_session(server)
    async with streaming(server, media_path(session, "stream.mjpeg")):
        async with server.http() as http:
            full = await http.get(media_path(session, name))
        assert full.status_code == 503
        assert full.headers["retry-after"] == "10"
        assert full.json()["error"]["code"] == "capacity"
    await until_watching(server, session["id"], 0)
    assert await first_bytes(server, media_path(session, name))


async def test_the_last_picture_before_a_pause_is_seen(serve: Serve) -> None:
    """Browsers show a picture when the next one begins, so it is sent twice; it stays alive."""
    server = await serve(bar_host())
    client = await server.start()
    session = {**client.messages[0], "id": client.messages[0]["session_id"]}
    async with streaming(server, media_path(session, "stream.mjpeg")) as answer:
        pictures = pictures_of(answer)
        stream = server.host.streams[session["id"]]

        async def number() -> int:
            return bars.read_number(bars.decode_jpeg(await anext(pictures)))

        seen = [await number() for _ in range(5)]
        await client.send("session.update", paused=True)
        await client.until("session.state", state="paused")
        while seen.count(stream.played_frame) < 2:
            assert len(seen) < 50
            seen.append(await number())


@pytest.mark.parametrize("name", STREAMS)
async def test_a_paused_session_can_be_joined(serve: Serve, name: str) -> None:
    """The picture it stands at comes at once."""
    server = await serve(bar_host())
    client = await server.start()
    session = {**client.messages[0], "id": client.messages[0]["session_id"]}
    await client.more_frames(5)
    await client.send("session.update", paused=True)
    await client.until("session.state", state="paused")
    stream = server.host.streams[session["id"]]
    async with streaming(server, media_path(session, name)) as answer:
        if name == "stream.mjpeg":
            picture = bars.decode_jpeg(await anext(pictures_of(answer)))
        else:
            parts = answer.aiter_raw()
            data = await anext(parts)
            while b"mdat" not in data:
                data += await anext(parts)
            picture = bars.decode_mp4(data)[0][0]
    assert bars.read_number(picture) == stream.played_frame


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")
@pytest.mark.parametrize("name", STREAMS)
async def test_ffmpeg_plays_it(serve: Serve, name: str) -> None:
    """From the address alone."""
    server = await serve(bar_host())
    session = await make_session(server, num_frames=60, run_unwatched=False)
    url = f"http://127.0.0.1:{server.port}{media_path(session, name)}"
    command = ("-v", "error", "-i", url, "-f", "null", "-")
    process = await asyncio.create_subprocess_exec(
        "ffmpeg", *command, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, errors) == (0, b"")
