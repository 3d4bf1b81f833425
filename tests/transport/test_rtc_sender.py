"""Our own sending loop: what it makes of frames, when packets leave, and what is told of them."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from aiortc.codecs.h264 import PACKET_MAX, H264Encoder, h264_depayload
from aiortc.codecs.vpx import vp8_depayload
from aiortc.jitterbuffer import JitterBuffer
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpParameters
from aiortc.rtp import (
    RTP_HISTORY_SIZE,
    HeaderExtensionsMap,
    RtpPacket,
)

from tests.transport.rtc_line import (
    BOTH,
    SSRC,
    FakeLine,
    FakeSource,
    encoded,
    make_sender,
)
from transport.rtc_pacer import BURST_S
from transport.rtc_patches import MID, SEND_TIME
from transport.rtc_sender import Headers, RtpSender, payloads_of, send_time
from transport.video import Codec, Packet


async def send_all(sender: RtpSender, line: Any) -> None:
    """Send what there is."""
    with pytest.raises(ConnectionError, match="all was sent"):
        await sender.run(line, 96)


def units(data: bytes) -> list[bytes]:
    """Return the NAL units of an access unit in Annex B."""
    return [unit for unit in re.split(rb"\x00*\x00\x00\x01", data) if unit]


@pytest.mark.parametrize("codec", ["h264", "vp8"])
async def test_frames_come_back(codec: Codec) -> None:
    """aiortc's receiver puts together what was encoded, and it can be decoded."""
    frames = encoded(codec)
    line = FakeLine()
    await send_all(make_sender(FakeSource(frames, codec))[0], line)
    buffer, found = JitterBuffer(capacity=128, is_video=True), []
    depayload = h264_depayload if codec == "h264" else vp8_depayload
    packets = line.packets()
    assert max(len(packet.payload) for packet in packets) <= PACKET_MAX
    assert len(packets) > len(frames), "some frames take more than one"
    for packet in [*packets, RtpPacket(sequence_number=packets[-1].sequence_number + 1)]:
        packet._data = depayload(packet.payload) if packet.payload else b""
        _, frame = buffer.add(packet)
        if frame is not None:
            found.append(frame.data)
    if codec == "h264":
        assert [units(data) for data in found] == [units(frame.data) for frame in frames]
    else:
        assert found == [frame.data for frame in frames]
    decoder = av.CodecContext.create(codec, "r")
    assert sum(len(decoder.decode(av.Packet(data))) for data in found) == len(frames)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("extensions", "num_bytes"),
    [
        ({}, 12),
        ({MID: (1, b"0")}, 20),
        ({SEND_TIME: (3, bytes(3))}, 20),
        (BOTH, 24),
        ({MID: (1, b"video-0"), SEND_TIME: (15, bytes(3))}, 32),  # with the long form of RFC 8285
        ({MID: (1, b"longer than sixteen"), SEND_TIME: (3, bytes(3))}, 44),
    ],
)
def test_headers(extensions: dict[str, tuple[int, bytes]], num_bytes: int) -> None:
    """aiortc reads them with the numbers that were negotiated; the time is that of the call."""
    headers = Headers(SSRC, 96, extensions)
    before = send_time(time.time())
    data = headers.packet(7, 123, True, b"payload")
    after = send_time(time.time())
    ids = HeaderExtensionsMap()
    uris = [RTCRtpHeaderExtensionParameters(id=one[0], uri=uri) for uri, one in extensions.items()]
    ids.configure(RTCRtpParameters(headerExtensions=uris))
    packet = RtpPacket.parse(data, ids)
    assert (packet.ssrc, packet.payload_type, packet.payload) == (SSRC, 96, b"payload")
    assert (packet.sequence_number, packet.timestamp, packet.marker) == (7, 123, 1)
    assert headers.num_bytes == num_bytes == len(data) - len(b"payload")
    mid = extensions.get(MID)
    assert packet.extensions.mid == (mid and mid[1].decode())
    if SEND_TIME in extensions:
        assert (packet.extensions.abs_send_time - before) % (1 << 24) <= (after - before) % (
            1 << 24
        )
    else:
        assert packet.extensions.abs_send_time is None
    assert RtpPacket.parse(headers.packet(8, 123, False, b"x")).marker == 0


def test_send_time() -> None:
    """Seconds with 18 bits behind the point, of which 24 bits are left."""
    assert send_time(1.5) == 3 << 17
    assert send_time(64.25) == 1 << 16


async def test_numbers_and_times() -> None:
    """Numbers count packets and start over; a frame's packets have its time, the last a marker."""
    frames = encoded("h264")
    sender, told = make_sender(FakeSource(frames))
    sender._number, sender._origin = 65_534, (1 << 32) - 3000
    line = FakeLine()
    await send_all(sender, line)
    packets = line.packets()
    numbers = [packet.sequence_number for packet in packets]
    assert numbers == [(65_534 + i) % 65_536 for i in range(len(packets))]
    sizes = [len(payloads_of("h264", frame)) for frame in frames]
    wanted = [(3000 * i - 3000) % (1 << 32) for i in range(len(frames))]
    assert line.began == wanted
    assert [packet.timestamp for packet in packets] == list(np.repeat(wanted, sizes))
    ends = list(np.cumsum(sizes) - 1)
    assert [i for i, packet in enumerate(packets) if packet.marker] == ends
    assert [newest for newest, _, _ in told] == [numbers[end] for end in ends], "once a frame"
    assert [num_packets for _, num_packets, _ in told] == sizes
    assert sum(num_bytes for _, _, num_bytes in told) == sum(map(len, line.sent))
    assert [num_packets for num_packets, _ in line.counted] == sizes
    payload_bytes = sum(len(packet.payload) for packet in packets)
    assert sum(num_octets for _, num_octets in line.counted) == payload_bytes


@pytest.mark.parametrize("codec", ["h264", "vp8"])
async def test_a_frame_is_cut_once(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    """Two viewers are sent the same payloads, the very objects."""
    cut: list[int] = []
    pack = H264Encoder.pack

    def count(self: H264Encoder, packet: Any) -> Any:
        cut.append(packet.size)
        return pack(self, packet)

    monkeypatch.setattr(H264Encoder, "pack", count)
    payloads_of.cache_clear()
    frames = encoded(codec)
    lines = [FakeLine(ssrc=SSRC + i) for i in range(2)]
    for line in lines:
        await send_all(make_sender(FakeSource(frames, codec))[0], line)
    assert payloads_of.cache_info().misses == len(set(frames))
    assert cut == ([len(frame.data) for frame in frames] if codec == "h264" else [])
    one, other = (
        {id(line.history._slots[packet.sequence_number % RTP_HISTORY_SIZE][3])
         for packet in line.packets()}
        for line in lines
    )  # fmt: skip
    assert one == other


async def test_packets_wait_for_their_turn() -> None:
    """A large frame is spread, and what left is told before each wait."""
    bps = 2e6
    frame = Packet(b"\0\0\0\1\x65" + bytes(range(1, 256)) * 200, True)
    sender, told = make_sender(FakeSource([frame]), bps)
    began = time.monotonic()
    await send_all(sender, FakeLine())
    assert time.monotonic() - began > 8 * 51_000 / bps - 3 * BURST_S
    assert len(told) > 10
    assert max(num_bytes for _, _, num_bytes in told) <= bps / 8 * 2 * BURST_S + 2 * PACKET_MAX
    assert all(num_packets > 0 for _, num_packets, _ in told)
    assert all((b[0] - a[0]) % 65_536 == b[1] for a, b in pairwise(told))


async def test_there_is_no_wait_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the pacer has nothing against it, packets leave in one go."""

    async def sleep(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s")

    monkeypatch.setattr("transport.rtc_sender.asyncio", SimpleNamespace(sleep=sleep))
    line = FakeLine()
    await send_all(make_sender(FakeSource(encoded("h264")))[0], line)
    assert line.sent


async def test_a_viewer_that_is_sent_nothing() -> None:
    """While its stream is switched off frames are taken and not sent."""
    line = FakeLine(is_enabled=False)
    sender, told = make_sender(FakeSource(encoded("h264")))
    await send_all(sender, line)
    assert (line.sent, told, line.began) == ([], [], [])


async def test_the_history() -> None:
    """The last packets are found by their number, with the time at which they leave now."""
    line = FakeLine()
    frames = encoded("h264") * 6
    await send_all(make_sender(FakeSource(frames))[0], line)
    packets = line.packets()
    assert len(packets) > RTP_HISTORY_SIZE
    for packet in packets[-RTP_HISTORY_SIZE:]:
        found = line.history.get(packet.sequence_number % RTP_HISTORY_SIZE)
        for name in ("sequence_number", "timestamp", "marker", "payload_type", "ssrc", "payload"):
            assert getattr(found, name) == getattr(packet, name)
        assert found.extensions.mid == "0"
        age = (send_time(time.time()) - found.extensions.abs_send_time) % (1 << 24)
        assert age < 30 << 18  # it wraps after 64 s
    empty = FakeLine()
    await send_all(make_sender(FakeSource([]))[0], empty)
    assert empty.history.get(5) is None
