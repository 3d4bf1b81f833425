"""What aiortc and aioice lack, put in through names they keep to themselves.

Everything that touches such a name is here, so that a new version of either is checked in one
place: `check_names` raises when one is gone, and so does each patch.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from aioice.ice import Connection, StunProtocol
from aiortc import (
    RTCCertificate,
    RTCDtlsTransport,
    RTCIceGatherer,
    RTCRtpSender,
    RTCRtpTransceiver,
)
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_RTPFB_NACK,
    RtcpPsfbPacket,
    RtcpRrPacket,
    RtcpRtpfbPacket,
    is_rtcp,
    unpack_remb_fci,
)

# aiortc's own certificate is ECDSA, and it offers suites for that alone; GStreamer's is RSA.
CIPHERS: Final = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-SHA:"
    b"ECDHE-ECDSA-AES256-SHA:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-SHA"
)
NAMES: Final[tuple[tuple[type, str], ...]] = (
    (RTCRtpSender, "_handle_rtcp_packet"),
    (RTCRtpSender, "_retransmit"),
    (RTCRtpSender, "_send_keyframe"),
    (RTCDtlsTransport, "_send_rtp"),
    (RTCCertificate, "_create_ssl_context"),
    (Connection, "get_component_candidates"),
)
SEND_TIME: Final = "http://www.webrtc.org/experiments/rtp-hdrext/abs-send-time"
Gather = Callable[..., Awaitable[list[Any]]]


class Feedback(Protocol):
    """Who is told what a viewer reports."""

    def lost(self, sequence_numbers: list[int]) -> None:
        """Be told which packets are missing."""

    def reported(self, share_lost: float) -> None:
        """Be told the share of packets that were lost since the last report."""

    def estimated(self, bps: float) -> None:
        """Be told what the receiver thinks the connection carries."""


def check_names() -> None:
    """Raise RuntimeError when the libraries have changed what is patched here."""
    for owner, name in NAMES:
        _own(owner, name)


def hook_keyframes(sender: RTCRtpSender, ask: Callable[[], None]) -> None:
    """Have requests for a keyframe (PLI, FIR) call `ask`: nobody reads aiortc's own flag here."""
    _own(sender, "_send_keyframe")
    sender._send_keyframe = ask


def hook_feedback(sender: RTCRtpSender, feedback: Feedback) -> None:
    """Have the viewer's reports told to `feedback` too."""
    original = _own(sender, "_handle_rtcp_packet")

    async def handle(packet: Any) -> None:
        if isinstance(packet, RtcpRtpfbPacket) and packet.fmt == RTCP_RTPFB_NACK:
            feedback.lost(packet.lost)
        elif isinstance(packet, RtcpRrPacket):
            for report in packet.reports:
                if report.ssrc == sender._ssrc:
                    feedback.reported(report.fraction_lost / 256)
        elif isinstance(packet, RtcpPsfbPacket) and packet.fmt == RTCP_PSFB_APP:
            for bps in _remb(packet.fci):
                feedback.estimated(bps)
        await original(packet)

    sender._handle_rtcp_packet = handle


def limit_resends(sender: RTCRtpSender, allow: Callable[[int], bool]) -> None:
    """Send a lost packet again only if `allow` says so."""
    original = _own(sender, "_retransmit")

    async def retransmit(sequence_number: int) -> None:
        if allow(sequence_number):
            await original(sequence_number)

    sender._retransmit = retransmit


def pace(
    sender: RTCRtpSender,
    turn: Callable[[int, int], Awaitable[None]],
    send_time_id: int | None = None,
) -> None:
    """Have each new packet wait for its `turn(sequence_number, num_bytes)`, before SRTP.

    The sender waits with it, so that what cannot leave yet stays in the viewer's queue. Packets
    that are sent again do not wait: whoever waits for the answer to a request reads no others.
    The time of sending, in the header extension of that number, is put in as the packet leaves: a
    receiver would take a wait here for one on the way.
    """
    transport = sender.transport
    original = _own(transport, "_send_rtp")
    ssrc = _own(sender, "_ssrc").to_bytes(4, "big")

    async def send(data: bytes) -> None:
        if not is_rtcp(data):
            if data[8:12] == ssrc:
                await turn(int.from_bytes(data[2:4], "big"), len(data))
            if send_time_id is not None:
                data = with_send_time(data, send_time_id, time.time())
        await original(data)

    transport._send_rtp = send


def with_send_time(data: bytes, extension_id: int, now: float) -> bytes:
    """Return an RTP packet with this time in its abs-send-time extension, if it has one."""
    place = 12 + 4 * (data[0] & 0x0F)
    if not data[0] & 0x10 or data[place : place + 2] != b"\xbe\xde":
        return data
    end = place + 4 + 4 * int.from_bytes(data[place + 2 : place + 4], "big")
    place += 4
    while place < end:
        kind, length = data[place] >> 4, (data[place] & 0x0F) + 1
        if kind == extension_id and length == 3:
            moment = (round(now * 2**18) & 0xFFFFFF).to_bytes(3, "big")
            return data[: place + 1] + moment + data[place + 4 :]
        place += 1 + length if kind else 1  # 0 is padding
    return data


def widen_ciphers() -> None:
    """Let DTLS succeed with clients whose certificate is RSA."""
    original = _own(RTCCertificate, "_create_ssl_context")
    if hasattr(original, "original"):
        return

    def create(self: RTCCertificate, *args: Any, **options: Any) -> Any:
        context = original(self, *args, **options)
        context.set_cipher_list(CIPHERS)
        return context

    create.original = original  # type: ignore[attr-defined]
    RTCCertificate._create_ssl_context = create


def gather_with(gatherer: RTCIceGatherer, gather: Gather) -> None:
    """Have `gather(connection, component, addresses)` find this side's candidates."""
    connection = _own(gatherer, "_connection")
    _own(connection, "get_component_candidates")

    async def candidates(component: int, addresses: list[str], timeout: int = 5) -> list[Any]:
        return await gather(connection, component, addresses)

    connection.get_component_candidates = candidates


def keep_protocol(connection: Connection, protocol: StunProtocol) -> None:
    """Have a connection use a socket, and close it when it is closed."""
    _own(connection, "_protocols").append(protocol)


def send_time_id(transceiver: RTCRtpTransceiver) -> int | None:
    """Return the number of the abs-send-time extension, if that was negotiated."""
    extensions = _own(transceiver, "_headerExtensions")
    return next((one.id for one in extensions if one.uri == SEND_TIME), None)


def _remb(fci: bytes) -> list[float]:
    """Return the estimate of a message that may hold one."""
    try:
        bps, _ = unpack_remb_fci(fci)
    except ValueError:
        return []
    return [float(bps)]


def _own(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise RuntimeError(
            f"this version of aiortc or aioice has no {name}: install aiortc>=1.16,<1.17"
        ) from error
