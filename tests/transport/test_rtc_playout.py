"""How long viewers are asked to keep frames: what is said, when, and to whom."""

from __future__ import annotations

import struct
import time

import pytest
from aiortc.rtp import unpack_header_extensions

from tests.transport.conftest import Serve, eventually
from tests.transport.offers import VP8, offer, sections_of, video
from tests.transport.rtc_client import prepare, watching, whep_of
from tests.transport.rtc_line import BOTH, SSRC
from tests.transport.whep_requests import GOOD, post
from transport.rtc_patches import PLAYOUT_DELAY, SEND_TIME
from transport.rtc_peers import Peers
from transport.rtc_playout import (
    AS_LONG_AS_NEEDED,
    AT_ONCE,
    EVEN_S,
    UNEVEN_S,
    Playout,
    delay_limits,
)
from transport.rtc_sender import Headers, send_time


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """The WebRTC viewers of the servers."""
    return prepare(monkeypatch)


def extensions_of(packet: bytes) -> dict[int, bytes]:
    """Return the header extensions of an RTP packet, which SRTP leaves readable."""
    profile, num_words = struct.unpack_from("!HH", packet, 12)
    assert packet[0] & 0x10, "it has none"
    return dict(unpack_header_extensions(profile, packet[16 : 16 + 4 * num_words]))


def test_what_is_said() -> None:
    """Two times of 12 bits, in units of 10 ms."""
    assert delay_limits(0.1, 0.5) == bytes([0x00, 0xA0, 0x32])
    assert delay_limits(40.95, 40.95) == b"\xff\xff\xff"
    assert (AT_ONCE, AS_LONG_AS_NEEDED) == (b"\0\0\0", b"\0\x0f\xff")


def test_uneven_frames_may_be_kept() -> None:
    """Until they come evenly again, and not to and fro in between."""
    playout = Playout()
    assert playout.limits == AT_ONCE
    between_s = (EVEN_S + UNEVEN_S) / 2
    for jitter_s, limits in (
        (between_s, AT_ONCE),
        (2 * UNEVEN_S, AS_LONG_AS_NEEDED),
        (between_s, AS_LONG_AS_NEEDED),
        (EVEN_S / 2, AT_ONCE),
    ):
        playout.reported(jitter_s)
        assert playout.limits == limits


@pytest.mark.parametrize("number", [4, 15])  # the second one needs the long form of RFC 8285
def test_headers_say_it(number: int) -> None:
    """What is asked for is in each packet from then on, and the time is where it was."""
    headers = Headers(SSRC, 96, {**BOTH, PLAYOUT_DELAY: (number, AT_ONCE)})
    for limits in (AT_ONCE, AS_LONG_AS_NEEDED, AT_ONCE):
        headers.limit_delay(limits)
        packet = headers.packet(7, 123, True, b"payload")
        found = extensions_of(packet)
        assert found[number] == limits
        assert found[1] == b"0"
        sent_at = int.from_bytes(found[BOTH[SEND_TIME][0]], "big")
        assert (send_time(time.time()) - sent_at) % (1 << 24) < 30 << 18  # it wraps after 64 s
        assert len(packet) == headers.num_bytes + len(b"payload")


def test_who_does_not_know_it_is_told_nothing() -> None:
    """Its packets stay as they were."""
    headers = Headers(SSRC, 96, BOTH)
    before = headers.num_bytes
    headers.limit_delay(AS_LONG_AS_NEEDED)
    assert headers.num_bytes == before
    assert set(extensions_of(headers.packet(7, 123, True, b"payload"))) == {1, 3}


async def test_answers(serve: Serve) -> None:
    """It is agreed to under the viewer's number, by who offers it."""
    server = await serve()
    url = await whep_of(server)
    line = f"a=extmap:12 {PLAYOUT_DELAY}"
    answer = await post(server, url, offer(video("96 97", VP8, more=f"{line}\n")))
    assert line in sections_of(answer.text)[0].lines
    assert PLAYOUT_DELAY not in (await post(server, url, GOOD)).text


async def test_a_viewer_is_told(serve: Serve, peers: list[Peers]) -> None:
    """At first to show all at once, and otherwise when it has reported that they come unevenly."""
    server = await serve()
    told: list[bytes] = []
    async with watching(server, await whep_of(server), "h264") as viewer:
        peer = viewer.peer(peers[0])
        number = next(
            int(line.split(" ")[0].rpartition(":")[2])
            for line in viewer.answer.splitlines()
            if line.endswith(PLAYOUT_DELAY)
        )
        ice = peer._transceiver.sender.transport.transport
        original = ice._send

        async def send(data: bytes) -> None:
            if data[0] & 0xC0 == 0x80 and data[1] & 0x7F >= 96:  # not ICE or DTLS, nor a report
                told.append(extensions_of(data)[number])
            await original(data)

        ice._send = send
        await eventually(lambda: len(told) > 3)
        assert set(told) == {AT_ONCE}
        peer.uplink.reported(0.0, round(2 * UNEVEN_S * 90_000))
        await eventually(lambda: told[-1] == AS_LONG_AS_NEEDED)
        peer.uplink.reported(0.0, 0)
        await eventually(lambda: told[-1] == AT_ONCE)
