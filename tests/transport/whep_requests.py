"""Requests of WHEP for tests."""

from __future__ import annotations

from typing import Any

import httpx

from tests.transport.conftest import RunningServer
from tests.transport.offers import VP8, offer, video
from tests.transport.rtc_client import SDP, new_session

GOOD = offer(video("96 97", VP8))


async def session(server: RunningServer) -> tuple[dict[str, Any], str]:
    """Make a session and return it and where it is watched."""
    made = await new_session(server)
    return made, made["urls"]["whep"]


async def post(server: RunningServer, url: str, sdp: str | bytes, **headers: str) -> httpx.Response:
    """Send an offer."""
    async with server.http() as http:
        return await http.post(url, content=sdp, headers={**SDP, **headers}, timeout=30)


def location_of(answer: httpx.Response) -> str:
    """Return where a viewer is, as the server says it."""
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]
