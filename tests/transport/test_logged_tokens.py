"""What a server logs at its most talkative gives no session away."""

from __future__ import annotations

import logging

import pytest

from streamgen.logs import TextFormatter
from tests.transport.conftest import Serve

SESSIONS = "/v1/realtime/sessions"


async def test_no_token_is_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of addresses, nor of headers, nor of messages."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "httpx")  # the client's
    server = await serve()
    async with server.http() as http:
        made = (await http.post(SESSIONS, json={"prompt": "a"})).json()
        viewer = await server.connect(f"{made['urls']['view']}?token={made['viewer_token']}")
        await viewer.send("session.resume", resume_token=made["resume_token"])
        await viewer.until_frame(0)
        await http.get(made["urls"]["frame"])
        await http.delete(f"{SESSIONS}/{made['id']}", params={"token": made["resume_token"]})
    raw = "\n".join(record.getMessage() for record in caplog.records)
    written = "\n".join(map(TextFormatter("server").format, caplog.records))
    for name in ("viewer_token", "resume_token"):
        assert made[name] in raw  # the libraries do log it
        assert made[name] not in written
