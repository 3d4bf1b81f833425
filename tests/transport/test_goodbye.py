"""Requests that are under way when the server stops."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from tests.transport.conftest import RunningServer, Serve
from tests.transport.fake_host import FakeHost

SESSIONS = "/v1/realtime/sessions"
BODIES = [
    (SESSIONS, "application/json"),
    (f"{SESSIONS}/restore", "application/octet-stream"),
    (f"{SESSIONS}/s1/rewind", "application/json"),
    (f"{SESSIONS}/s1/whep", "application/sdp"),
]


async def answer_at_goodbye(
    server: RunningServer, head: str, body: bytes, asked: asyncio.Event | None = None
) -> bytes:
    """Send a request, stop the server once its body is read, and return all that it answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert told.startswith(b"HTTP/1.1 100")
    writer.write(body)
    if asked is not None:
        await asyncio.wait_for(asked.wait(), 30)
    server.uvicorn.config.app.state.goodbye.say()  # type: ignore[union-attr]
    server.uvicorn.should_exit = True
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


def check(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Require the documented answer, and no fault in the log."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "worker_restarted"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("path", "kind"), BODIES)
async def test_q53_an_upload_ends_at_once(
    serve: Serve, path: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for the client alone."""
    server = await serve()
    server.uvicorn.config.timeout_graceful_shutdown = 60
    client = await server.start()
    token = client.messages[0]["resume_token"]
    head = f"POST {path}?token={token} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
    answer = await answer_at_goodbye(server, f"{head}Content-Length: 9\r\n", b"half")
    check(answer, caplog)
    cut_off = [record for record in caplog.records if "Cancel" in record.getMessage()]
    assert cut_off == []  # it did not take the server's time-out


@dataclass
class Slow(FakeHost):
    """An engine that never answers."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def restore(self, blob: bytes) -> None:  # type: ignore[override]
        """Wait."""
        self.asked.set()
        await asyncio.sleep(3600)


async def test_q53_what_the_engine_does_not_answer_in_time_is_no_fault(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """It may take the server's time-out."""
    host = Slow()
    head = (
        f"POST {SESSIONS}/restore HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 4\r\n"
    )
    check(await answer_at_goodbye(await serve(host), head, b"blob", host.asked), caplog)
