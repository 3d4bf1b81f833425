"""Offers over WHEP that are odd, hostile or too many."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, NoReturn

import aioice.ice
import httpx
import pytest

from tests.transport.conftest import Serve, eventually
from tests.transport.offers import VP8, VP9, audio, data, h264, offer, sections_of, video
from tests.transport.rtc_client import SDP, RtcViewer, prepare
from tests.transport.test_http import check_error
from tests.transport.whep_requests import GOOD, location_of, post, session
from transport import rtc_peers, webrtc
from transport.rtc_peers import Peers

FRAGMENT = {"content-type": "application/trickle-ice-sdpfrag"}
CANDIDATE = "a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host\r\n"


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """The WebRTC viewers of the servers."""
    return prepare(monkeypatch)


async def test_q03_nothing_in_common(serve: Serve, peers: list[Peers]) -> None:
    """422 that names both sides; no place is taken, and a good offer straight after works."""
    server = await serve()
    _, url = await session(server)
    for section in (
        video("102", h264("4d001f")),
        video("102", h264("640032")),
        video("102", h264("zz")),
        video("102", h264("42e01f", mode=None)),
        video("98", VP9),
    ):
        error = check_error(await post(server, url, offer(section)), 422, "unsupported")
        assert "no common video codec" in error["message"]
        assert "H.264" in error["message"]
    assert len(peers[0]) == 0
    for profile in ("42e01f", "42e033", "42001f"):
        location_of(await post(server, url, offer(video("102", h264(profile)))))


async def test_q01_sections(serve: Serve, peers: list[Peers]) -> None:
    """Video is sendonly whatever stands beside it; what cannot receive takes no place."""
    server = await serve()
    _, url = await session(server)
    one = video("96 97", VP8)
    for sections, expected in (
        ([one], ["sendonly"]),
        ([audio("1"), one], ["inactive", "sendonly"]),
        ([video("96 97", VP8, "sendrecv")], ["sendonly"]),
        ([video("96 97", VP8, "")], ["sendonly"]),
        ([one, data("1")], ["sendonly", "inactive"]),
    ):
        answer = await post(server, url, offer(*sections))
        told = sections_of(answer.text)
        assert [section.direction for section in told] == expected
        mids = [line[6:] for text in sections for line in text.split("\n") if "a=mid:" in line]
        assert [section.mid for section in told] == mids
        assert all(section.port for section in told if section.direction == "sendonly")
    num_before = len(peers[0])
    for way in ("sendonly", "inactive"):
        error = check_error(
            await post(server, url, offer(video("96 97", VP8, way))), 400, "invalid_request"
        )
        assert way in error["message"]
    assert len(peers[0]) == num_before


async def test_q05_a_thousand_names(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are not looked up, which takes a second each."""
    looked_up: list[object] = []

    async def look_up(subscriber: object) -> NoReturn:
        looked_up.append(subscriber)
        raise OSError("nobody knows it")

    monkeypatch.setattr(aioice.ice, "get_or_create_mdns_protocol", look_up)
    server = await serve()
    _, url = await session(server)
    line = "a=candidate:1 1 udp 1 {}.local 5000 typ host\n"
    for number in (1, 500):
        more = "".join(line.format(f"0a1b2c3d-1111-2222-3333-{i:012x}") for i in range(number))
        location_of(await post(server, url, offer(video("96 97", VP8, more=more))))
        assert looked_up == []


async def test_q13_a_body_that_is_too_large(serve: Serve) -> None:
    """413, whether its length is told or found out, and the session goes on."""
    server = await serve()
    _, url = await session(server)
    check_error(await post(server, url, "v=0\r\n" + "a" * 70_000), 413, "invalid_request")

    async def pieces() -> Any:
        for _ in range(1600):  # of 64 KiB: 100 MiB
            yield b"a" * 65_536

    try:
        async with server.http() as http:
            answer = await http.post(url, content=pieces(), headers=SDP)
            check_error(answer, 413, "invalid_request")
    except (httpx.WriteError, httpx.ReadError):
        pass  # the answer was sent and the rest not taken
    location_of(await post(server, url, GOOD))


async def test_q49_offers_that_are_never_followed(
    serve: Serve, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten leave room for one that connects; 500 are bounded and given back; a stream goes on."""
    server = await serve(max_viewers=200)
    _, url = await session(server)
    good = RtcViewer(f"http://127.0.0.1:{server.port}{url}")
    await good.connect()
    await good.until_seen(3)
    for _ in range(10):
        location_of(await post(server, url, GOOD))
    second = RtcViewer(f"http://127.0.0.1:{server.port}{url}")
    await second.connect()
    await second.until_seen(3)
    async with server.http() as http:
        for _ in range(5):
            answers = await asyncio.gather(
                *(http.post(url, content=GOOD, headers=SDP, timeout=60) for _ in range(100))
            )
            refused = [answer for answer in answers if answer.status_code != 201]
            assert len(refused) >= 98  # two more may be connecting to the session
            check_error(refused[0], 503, "capacity")
            assert int(refused[0].headers["retry-after"]) > 0
            assert len(peers[0]) <= rtc_peers.MAX_CONNECTING_TO_ONE + 2
    num_seen = len(good.seen)
    await good.until_seen(num_seen + 20)
    monkeypatch.setattr(webrtc, "CONNECT_TIMEOUT_S", 0.0)
    await eventually(lambda: len(peers[0]) == 2)
    await good.close()
    await second.close()


async def test_q49_one_too_many(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with a hint, of this kind and of all viewers; a place is free again at once."""
    server = await serve(max_viewers=2)
    _, url = await session(server)
    places = [location_of(await post(server, url, GOOD)) for _ in range(2)]
    full = await post(server, url, GOOD)
    check_error(full, 503, "capacity")
    assert int(full.headers["retry-after"]) > 0
    async with server.http() as http:
        assert (await http.delete(places[0])).status_code == 200
    location_of(await post(server, url, GOOD))
    monkeypatch.setattr(rtc_peers, "MAX_PEERS", 2)
    other = await serve()
    _, url = await session(other)
    for _ in range(2):
        location_of(await post(other, url, GOOD))
    error = check_error(await post(other, url, GOOD), 503, "capacity")
    assert "WebRTC" in error["message"]


async def test_q08_no_port_is_left(serve: Serve, peers: list[Peers]) -> None:
    """503 with a hint; nothing is left behind, and whoever comes after one left has its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    server = await serve(udp_ports=(port, port))
    _, url = await session(server)
    place = location_of(await post(server, url, GOOD))
    for _ in range(3):
        error = check_error(await post(server, url, GOOD), 503, "capacity")
        assert f"{port}-{port}" in error["message"]
    assert len(peers[0]) == 1
    async with server.http() as http:
        listed = (await http.get("/v1/realtime/sessions/s1")).json()["viewers"]
        assert len(listed) == 1
        assert (await http.delete(place)).status_code == 200
    location_of(await post(server, url, GOOD))
