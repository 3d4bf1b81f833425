"""Our own sending loop between two of aiortc's over real sockets: reports, resends, ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aioice.ice
import pytest
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCRtpReceiver
from aiortc.rtp import RTP_HISTORY_SIZE, RtcpSrPacket, RtpPacket, unwrap_rtx

from tests.transport.conftest import eventually
from tests.transport.rtc_line import Told, encoded, make_sender
from transport.rtc_patches import send_with
from transport.rtc_sender import payloads_of
from transport.video import Packet


class LiveTrack(MediaStreamTrack):  # type: ignore[misc]  # aiortc is not typed here
    """Has what is put into it."""

    kind = "video"
    encoding = "h264"

    def __init__(self) -> None:
        super().__init__()
        self.waiting: asyncio.Queue[tuple[Packet, int] | Exception] = asyncio.Queue()

    async def recv(self) -> tuple[Packet, int]:
        """Return the next packet."""
        found = await self.waiting.get()
        if isinstance(found, Exception):
            raise found
        return found


@dataclass
class Pair:
    """A sender and the receiver it is connected with, over real sockets."""

    sender: Any
    receiver: Any
    track: LiveTrack
    told: Told
    packets: list[RtpPacket] = field(default_factory=list)
    reports: list[RtcpSrPacket] = field(default_factory=list)

    def listen(self) -> None:
        """Keep what comes."""

        async def rtp(packet: RtpPacket, arrival_time_ms: int) -> None:
            self.packets.append(packet)

        async def rtcp(packet: Any) -> None:
            if isinstance(packet, RtcpSrPacket):
                self.reports.append(packet)

        self.receiver._handle_rtp_packet, self.receiver._handle_rtcp_packet = rtp, rtcp

    def stream(self) -> list[RtpPacket]:
        """Return the packets that were not sent again."""
        return [packet for packet in self.packets if packet.ssrc == self.sender._ssrc]

    def again(self) -> list[RtpPacket]:
        """Return those that were."""
        return [packet for packet in self.packets if packet.ssrc != self.sender._ssrc]


@contextlib.asynccontextmanager
async def connected(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Connect two of aiortc's over loopback, one of them with our loop."""
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])
    here, there = (RTCPeerConnection(RTCConfiguration(iceServers=[])) for _ in range(2))
    track = LiveTrack()
    try:
        transceiver = here.addTransceiver(track, "sendonly")
        kinds = RTCRtpReceiver.getCapabilities("video").codecs
        wanted = ("video/h264", "video/rtx")
        transceiver.setCodecPreferences([k for k in kinds if k.mimeType.lower() in wanted])
        sender, told = make_sender(track, 10e6)
        send_with(transceiver, sender.run)
        await here.setLocalDescription(await here.createOffer())
        await there.setRemoteDescription(here.localDescription)
        pair = Pair(transceiver.sender, there.getReceivers()[0], track, told)
        pair.listen()
        await there.setLocalDescription(await there.createAnswer())
        await here.setRemoteDescription(there.localDescription)
        await eventually(lambda: here.connectionState == there.connectionState == "connected")
        yield pair
    finally:
        await there.close()
        await asyncio.wait_for(here.close(), 30)


async def test_reports_and_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sender reports count what was sent, and say when a frame of which time left."""
    async with connected(monkeypatch) as pair:
        frames, sent_at = encoded("h264"), time.time()
        for i, frame in enumerate(frames):
            pair.track.waiting.put_nowait((frame, 3000 * i))
        num_packets = sum(len(payloads_of("h264", frame)) for frame in frames)
        await eventually(lambda: len(pair.stream()) == num_packets)
        pair.reports.clear()
        await eventually(lambda: bool(pair.reports))
        told = pair.reports[0].sender_info
        packets = pair.stream()
        assert pair.reports[0].ssrc == packets[0].ssrc
        assert told.packet_count == num_packets
        assert told.octet_count == sum(len(packet.payload) for packet in packets)
        assert told.rtp_timestamp == packets[-1].timestamp
        left_at = told.ntp_timestamp / 2**32 - 2_208_988_800
        assert sent_at - 0.01 <= left_at <= time.time() + 0.01
        assert all(packet.extensions.mid == "0" for packet in packets)
        times = [packet.extensions.abs_send_time for packet in packets]
        assert all((b - a) % (1 << 24) < 30 << 18 for a, b in pairwise(times))  # wraps after 64 s
        found = await pair.sender.getStats()
        stream = next(one for one in found.values() if one.type == "outbound-rtp")
        assert (stream.packetsSent, stream.bytesSent) == (told.packet_count, told.octet_count)
        line = next(one for one in found.values() if one.type == "transport")
        assert line.packetsSent > num_packets  # reports and the handshake are in it
        assert line.bytesSent > told.octet_count + num_packets * (24 + 10)


async def test_a_lost_packet_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By RTX, with its old number and a new time; one that is too old is not."""
    async with connected(monkeypatch) as pair:
        frames = encoded("h264") * 6
        for i, frame in enumerate(frames):
            pair.track.waiting.put_nowait((frame, 3000 * i))
        num_packets = sum(len(payloads_of("h264", frame)) for frame in frames)
        await eventually(lambda: len(pair.stream()) == num_packets)
        assert sum(one[1] for one in pair.told) == num_packets > RTP_HISTORY_SIZE
        packets = pair.stream()
        old, lost = packets[-RTP_HISTORY_SIZE - 1], packets[-5]
        await asyncio.sleep(0.1)
        for packet in (old, lost):
            await pair.receiver._send_rtcp_nack(pair.sender._ssrc, [packet.sequence_number])
        await eventually(lambda: bool(pair.again()))
        (again,) = pair.again()
        assert again.ssrc == pair.sender._rtx_ssrc
        (number,) = struct.unpack("!H", again.payload[:2])
        assert number == lost.sequence_number
        found = unwrap_rtx(again, payload_type=lost.payload_type, ssrc=lost.ssrc)
        assert (found.payload, found.marker) == (lost.payload, lost.marker)
        assert again.timestamp == lost.timestamp
        later = (again.extensions.abs_send_time - lost.extensions.abs_send_time) % (1 << 24)
        assert 0.1 <= later / 2**18 < 30  # it wraps after 64 s


@pytest.mark.parametrize("trouble", [None, ConnectionError("gone"), KeyError("a mistake")])
async def test_how_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception | None
) -> None:
    """Closing does not wait for a loop that has ended; what nobody expects is logged."""
    async with connected(monkeypatch) as pair:
        pair.track.waiting.put_nowait((encoded("h264", 1)[0], 0))
        await eventually(lambda: bool(pair.stream()))
        if trouble is not None:
            pair.track.waiting.put_nowait(trouble)
            await eventually(lambda: pair.track.readyState == "ended")
    assert pair.track.readyState == "ended"
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == isinstance(trouble, KeyError)


async def test_a_connection_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop ends when there is no way left."""
    async with connected(monkeypatch) as pair:
        await pair.sender.transport.stop()
        pair.track.waiting.put_nowait((encoded("h264", 1)[0], 0))
        await eventually(lambda: pair.track.readyState == "ended")
        assert not pair.told
