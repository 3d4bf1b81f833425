"""Viewers in the metrics: by the kind of their connection, and those that never connect."""

from __future__ import annotations

import asyncio

import pytest

from tests.transport.conftest import Serve
from tests.transport.offers import VP8, offer, video
from tests.transport.rtc_client import SDP, new_session, prepare, watching, whep_of
from tests.transport.scraped import scrape
from transport import webrtc


async def test_media_viewers_are_counted_by_kind(serve: Serve) -> None:
    """MJPEG and MP4; what they were sent stays counted when they have left."""
    server = await serve()
    made = await new_session(server)
    async with server.http() as http:
        for name in ("mjpeg", "mp4"):
            async with http.stream("GET", made["urls"][name]) as response:
                parts = response.aiter_raw()
                for _ in range(4):
                    await anext(parts)
                assert (await scrape(server))("viewers", transport=name) == 1
    left = await scrape(server)
    assert left("frames_sent_total", transport="mjpeg") >= 3
    assert left("frames_sent_total", transport="mp4") >= 3
    assert left("frames_sent_total", transport="websocket") == 0


async def test_webrtc_viewers_and_those_that_never_connect(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer counts once it is connected; one that is answered and never comes is a failure."""
    prepare(monkeypatch)
    server = await serve()
    whep = await whep_of(server)
    async with watching(server, whep) as viewer:
        await viewer.until_seen(5)
        seen = await scrape(server)
        assert seen("viewers", transport="webrtc") == 1
        assert seen("frames_sent_total", transport="webrtc") >= 5
        assert seen("webrtc_ice_failures_total") == 0
    monkeypatch.setattr(webrtc, "CONNECT_TIMEOUT_S", 0.2)
    async with server.http() as http:
        answer = await http.post(whep, content=offer(video("96", VP8)), headers=SDP)
        assert answer.status_code == 201, answer.text

    async def failures() -> float:
        return (await scrape(server))("webrtc_ice_failures_total")

    while await failures() == 0:
        await asyncio.sleep(0.1)
    assert await failures() == 1
