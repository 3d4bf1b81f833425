"""Downloads of recordings: whole, in ranges, while they grow, and after the session."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest
from starlette.exceptions import HTTPException

from tests.transport import bars
from tests.transport.conftest import Serve, eventually
from tests.transport.media_client import (
    PATIENCE_S,
    bar_host,
    make_session,
    media_path,
    raw_request,
    reset,
)
from transport.byte_ranges import byte_range


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, None),
        ("bytes=0-", (0, 100)),
        ("bytes=0-0", (0, 1)),
        ("bytes=10-19", (10, 20)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=-30", (70, 100)),
        ("bytes=-300", (0, 100)),
        (" bytes=1-2 ", (1, 3)),
        ("bytes=-", None),
        ("bytes=5-4", None),
        ("bytes=0-1,5-6", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes=٣-٤", None),
        ("bytes=0-" + "9" * 400, None),
    ],
)
def test_ranges(header: str | None, wanted: tuple[int, int] | None) -> None:
    """One range is obeyed, what is none is ignored."""
    assert byte_range(header, 100) == wanted


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_outside_are_refused(header: str) -> None:
    """With the size there is."""
    with pytest.raises(HTTPException) as raised:
        byte_range(header, 100)
    assert raised.value.status_code == 416
    assert raised.value.headers == {"Content-Range": "bytes */100"}


async def until_grown(http: httpx.AsyncClient, path: str, num_bytes: int) -> httpx.Response:
    """Download a recording until there are more bytes than so many."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := await http.get(path)).status_code != 200 or len(answer.content) <= num_bytes:
        assert answer.status_code in (200, 404)
        assert time.monotonic() < deadline, "it does not grow"
        await asyncio.sleep(0.05)
    return answer


async def test_the_recording_so_far(serve: Serve, tmp_path: Path) -> None:
    """It grows, each download is whole, and ranges of it fit together."""
    server = await serve(bar_host(), record_dir=tmp_path / "kept")
    session = await make_session(server)
    path = media_path(session, "recording.mp4")
    sizes = [0]
    async with server.http() as http:
        early = await http.get(path)
        assert early.status_code in (200, 404)
        for _ in range(3):
            answer = await until_grown(http, path, sizes[-1])
            assert int(answer.headers["content-length"]) == len(answer.content)
            numbers = bars.numbers_of(bars.decode_mp4(answer.content)[0])
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            sizes.append(len(answer.content))
        cut = sizes[1] // 2
        first = await http.get(path, headers={"Range": f"bytes=0-{cut - 1}"})
        assert first.status_code == 206
        assert first.headers["content-range"].startswith(f"bytes 0-{cut - 1}/")
        going_on = {"Range": f"bytes={cut}-"}
        second = await http.get(path, headers=going_on)
        assert second.status_code == 206
        assert (first.content + second.content).startswith(answer.content)
        bars.decode_mp4(first.content + second.content)
        other = await http.get(path, headers={**going_on, "If-Range": '"other"'})
        assert other.status_code == 200
        outside = await http.get(path, headers={"Range": "bytes=999999999-"})
        assert outside.status_code == 416
        assert outside.headers["content-range"].startswith("bytes */")
        head = await http.head(path)
        assert (head.content, head.headers["accept-ranges"]) == (b"", "bytes")
        assert int(head.headers["content-length"]) >= sizes[-1]
        assert "attachment" in head.headers["content-disposition"]


async def test_conditions_on_a_recording(serve: Serve, tmp_path: Path) -> None:
    """Its tag is another one whenever it has grown: a part is of the file that the tag names."""
    server = await serve(bar_host(), record_dir=tmp_path / "kept")
    session = await make_session(server, num_frames=60)
    path = media_path(session, "recording.mp4")
    async with server.http() as http:

        async def get(**headers: str) -> httpx.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await http.get(path, headers=named)

        while (early := await get()).status_code == 404:
            await asyncio.sleep(0.1)
        old = early.headers["etag"]
        whole = await get()
        while len(bars.decode_mp4(whole.content)[0]) < 60:
            await asyncio.sleep(0.1)
            whole = await get()
        tag, size = whole.headers["etag"], len(whole.content)
        assert len(early.content) < size
        assert old != tag
        assert (await get(if_none_match=old)).status_code == 200
        for names in (tag, f"W/{tag}", f'"a", {tag}', "*"):
            same = await get(if_none_match=names)
            assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
            assert "content-length" not in same.headers
            assert "content-type" not in same.headers
        assert (await http.head(path, headers={"If-None-Match": tag})).status_code == 304
        part = await get(range="bytes=10-19", if_range=tag)
        assert (part.status_code, part.content) == (206, whole.content[10:20])
        for other in (old, f"W/{tag}", '"x"', "Sat, 29 Oct 1994 19:43:31 GMT"):
            assert (await get(range="bytes=10-19", if_range=other)).content == whole.content
            assert (await get(range=f"bytes={size}-", if_range=other)).status_code == 200
        assert (await get(range=f"bytes={size}-", if_range=tag)).status_code == 416
        head = await http.head(path, headers={"Range": "bytes=10-19"})
        assert (head.status_code, head.headers["content-length"]) == (200, str(size))


async def test_a_recording_outlives_its_session(serve: Serve, tmp_path: Path) -> None:
    """With the session's token it is there, complete, when the session is over."""
    server = await serve(bar_host(), record_dir=tmp_path / "kept")
    session = await make_session(server, num_frames=40)
    async with server.http() as http:
        while (await http.get("/v1/realtime/sessions")).json()["data"]:
            await asyncio.sleep(0.05)
        answer = await http.get(media_path(session, "recording.mp4"))
        assert (await http.get(media_path(session, "frame.jpg"))).status_code == 404
    pictures, times = bars.decode_mp4(answer.content)
    assert bars.numbers_of(pictures) == list(range(40))
    assert times == pytest.approx([i / 30 for i in range(40)], abs=1e-4)
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"{session['id']}.mp4"]


async def test_recording_is_not_watching(serve: Serve, tmp_path: Path) -> None:
    """A session that nobody watches is suspended all the same."""
    server = await serve(bar_host(), record_dir=tmp_path / "kept")
    client = await server.start()
    await client.more_frames(10)
    stream = server.host.streams[client.messages[0]["session_id"]]
    await client.socket.close()
    await eventually(lambda: stream.state == "suspended")


async def test_q51_a_full_disk_does_not_stop_the_stream(serve: Serve, tmp_path: Path) -> None:
    """The viewer sees on; the answer says why there is no recording."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "s1.mp4").symlink_to("/dev/full")
    server = await serve(bar_host(), record_dir=kept)
    client = await server.start()
    session = {**client.messages[0], "id": client.messages[0]["session_id"]}
    assert session["id"] == "s1"
    await client.more_frames(50)
    async with server.http() as http:
        answer = await http.get(media_path(session, "recording.mp4"))
    assert answer.status_code == 404
    assert "No space left" in answer.json()["error"]["message"]
    await client.check_streaming()


async def test_downloads_that_are_broken_off_leave_no_file_open(
    serve: Serve, tmp_path: Path
) -> None:
    """Whether the client closes or resets."""
    server = await serve(bar_host(), record_dir=tmp_path / "kept")
    session = await make_session(server, num_frames=60)
    await eventually(lambda: server.host.streams == {})
    path = media_path(session, "recording.mp4")
    kept = str(tmp_path / "kept")

    def num_open() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum(str(link.readlink()).startswith(kept) for link in links if link.is_symlink())

    for number in range(50):
        sock = await raw_request(server, path)
        reset(sock) if number % 2 else sock.close()
    await eventually(lambda: num_open() == 0)
