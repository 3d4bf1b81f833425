"""Doors that are tried in the wrong way: sockets without an upgrade, no token, a slash too many."""

from __future__ import annotations

import pytest

from tests.transport.conftest import Serve
from tests.transport.rtc_client import new_session
from tests.transport.test_http import SESSIONS, check_error, request


@pytest.mark.parametrize("path", ["/v1/realtime/video", f"{SESSIONS}/any/view"])
async def test_a_socket_asked_for_over_plain_http(serve: Serve, path: str) -> None:
    """Who opens it with curl, or through a proxy that drops the upgrade, is told what it is."""
    response = await request(await serve(), "GET", path)
    error = check_error(response, 426, "invalid_request")
    assert "WebSocket" in error["message"]
    assert response.headers["upgrade"] == "websocket"


async def test_a_missing_token_says_how_it_is_sent(serve: Serve) -> None:
    """401 names the scheme, whatever was to be seen or done."""
    server = await serve()
    made = await new_session(server)
    for method, path in (
        ("GET", "frame.jpg"),
        ("GET", "stream.mp4"),
        ("POST", "whep"),
        ("POST", "fork"),
        ("DELETE", ""),
    ):
        url = f"{SESSIONS}/{made['id']}/{path}".rstrip("/")
        response = await request(server, method, url)
        check_error(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", [f"{SESSIONS}/", "/v1/models/", "/metrics/"])
async def test_q15_nobody_is_sent_out_of_the_prefix(serve: Serve, path: str) -> None:
    """Behind a proxy that strips it the server does not know the prefix, and names no address."""
    response = await request(await serve(), "GET", path)
    check_error(response, 404, "not_found")
    assert "location" not in response.headers
