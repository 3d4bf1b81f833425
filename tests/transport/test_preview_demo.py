"""The demo that watches over WebRTC, as a process of its own, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.transport.conftest import Serve, eventually
from tests.transport.fake_host import FakeHost
from tests.transport.rtc_client import new_session, prepare

DEMO = Path(__file__).parents[2] / "demos" / "webrtc_preview.py"


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the servers be reached on loopback."""
    prepare(monkeypatch)


async def start(*argv: str) -> asyncio.subprocess.Process:
    """Start the demo."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, str(DEMO), *argv, stdout=pipe, stderr=pipe
    )


async def end_of(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Wait for its end; return its status and what it said."""
    said, complained = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode, (said + complained).decode()


async def test_it_waits_for_its_place_and_gives_it_back(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """In the queue it asks again; when it has seen enough nothing of it is left."""
    caplog.set_level("INFO", "uvicorn.access")
    server = await serve(FakeHost(fps=20, chunk_s=0.15, max_sessions=1, max_queue=2))
    first = await new_session(server)
    process = await start("blue", "--seconds", "1", "--url", f"http://127.0.0.1:{server.port}")
    asked = re.compile("POST .*/whep.* 409")
    await eventually(lambda: any(asked.search(r.getMessage()) for r in caplog.records), 60)
    async with server.http() as http:
        location = f"/v1/realtime/sessions/{first['id']}"
        await http.delete(location, params={"token": first["resume_token"]})
        status, said = await end_of(process)
        assert (status, "frames of 64x48" in said) == (0, True), said
        assert "the server says: the session still waits for its place" in said
        assert (await http.get("/v1/realtime/sessions")).json()["data"] == []


async def test_a_stranger_is_told_in_words() -> None:
    """A server that is another one and a file that cannot be written end it without a traceback."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\n<p/>")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        status, said = await end_of(await start(f"http://127.0.0.1:{port}/whep"))
        assert (status, said.strip()) == (1, "the server says: 502 Bad Gateway")
    for file in ("seen.txt", "nowhere/seen.mp4"):
        status, said = await end_of(await start("--save", file))
        assert status == 2
        assert f"--save {file}: name an .mp4 or a .png" in said
