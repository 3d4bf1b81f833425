"""What aiortc and aioice lack, put in through names they keep to themselves.

Everything that touches such a name is here, so that a new version of either is checked in one
place: `check_names` raises when one is gone, and so does each patch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from aioice.ice import Connection, StunProtocol
from aiortc import (
    RTCCertificate,
    RTCDtlsTransport,
    RTCIceGatherer,
    RTCIceTransport,
    RTCPeerConnection,
    RTCRtpSender,
    RTCRtpTransceiver,
)
from aiortc.clock import current_ntp_time
from aiortc.codecs import HEADER_EXTENSIONS
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcdtlstransport import State
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_RTPFB_NACK,
    RtcpPsfbPacket,
    RtcpRrPacket,
    RtcpRtpfbPacket,
    unpack_remb_fci,
)

logger = logging.getLogger(__name__)

# aiortc's own certificate is ECDSA, and it offers suites for that alone; GStreamer's is RSA.
CIPHERS: Final = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-SHA:"
    b"ECDHE-ECDSA-AES256-SHA:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-SHA"
)
NAMES: Final[tuple[tuple[type, str], ...]] = (
    (RTCRtpSender, "_handle_rtcp_packet"),
    (RTCRtpSender, "_retransmit"),
    (RTCRtpSender, "_run_rtp"),
    (RTCRtpSender, "_send_keyframe"),
    (RTCCertificate, "_create_ssl_context"),
    (Connection, "get_component_candidates"),
    (RTCPeerConnection, "_RTCPeerConnection__connect"),
)
FIELDS: Final[tuple[tuple[type, str], ...]] = (  # what these have once they are made
    (RTCRtpSender, "_ssrc"),
    (RTCRtpSender, "_enabled"),
    (RTCRtpSender, "_RTCRtpSender__rtp_started"),
    (RTCRtpSender, "_RTCRtpSender__rtp_exited"),
    (RTCRtpSender, "_RTCRtpSender__rtp_history"),
    (RTCRtpSender, "_RTCRtpSender__ntp_timestamp"),
    (RTCRtpSender, "_RTCRtpSender__rtp_timestamp"),
    (RTCRtpSender, "_RTCRtpSender__packet_count"),
    (RTCRtpSender, "_RTCRtpSender__octet_count"),
    (RTCDtlsTransport, "_state"),
    (RTCDtlsTransport, "_tx_srtp"),
    (RTCDtlsTransport, "_RTCDtlsTransport__tx_bytes"),
    (RTCDtlsTransport, "_RTCDtlsTransport__tx_packets"),
    (RTCIceTransport, "_send"),
    (RTCRtpTransceiver, "_headerExtensions"),
)
MID: Final = "urn:ietf:params:rtp-hdrext:sdes:mid"
SEND_TIME: Final = "http://www.webrtc.org/experiments/rtp-hdrext/abs-send-time"
PLAYOUT_DELAY: Final = "http://www.webrtc.org/experiments/rtp-hdrext/playout-delay"
CANCEL_AGAIN_S: Final = 0.1
Gather = Callable[..., Awaitable[list[Any]]]


class Feedback(Protocol):
    """Who is told what a viewer reports."""

    def lost(self, sequence_numbers: list[int]) -> None:
        """Be told which packets are missing."""

    def reported(self, share_lost: float, jitter: int) -> None:
        """Be told the share of packets lost since the last report, and the jitter in 1/90000 s."""

    def estimated(self, bps: float) -> None:
        """Be told what the receiver thinks the connection carries."""


def check_names() -> None:
    """Raise RuntimeError when the libraries have changed what is patched here."""
    for owner, name in NAMES:
        _own(owner, name)
    for owner, name in FIELDS:
        if name not in owner.__init__.__code__.co_names:  # type: ignore[misc]
            raise RuntimeError(_gone(name))


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
                    feedback.reported(report.fraction_lost / 256, report.jitter)
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


class History(Protocol):
    """The packets of late, as aiortc asks for them to send one again."""

    def get(self, slot: int) -> Any:
        """Return the newest RtpPacket whose number is this modulo RTP_HISTORY_SIZE, if any."""


class Line:
    """What a sending loop has of its sender: the way out, what was negotiated, what is counted."""

    def __init__(self, transceiver: RTCRtpTransceiver) -> None:
        self._sender = transceiver.sender
        self._dtls = self._sender.transport
        self._ice = self._dtls.transport
        self._num_bytes = 0  # since they were counted last
        parts = {
            RTCRtpSender: self._sender,
            RTCDtlsTransport: self._dtls,
            RTCIceTransport: self._ice,
            RTCRtpTransceiver: transceiver,
        }
        for owner, name in FIELDS:
            _own(parts[owner], name)
        self.ssrc: int = self._sender._ssrc
        values = {MID: transceiver.mid.encode(), SEND_TIME: bytes(3), PLAYOUT_DELAY: bytes(3)}
        found = {one.uri: one.id for one in transceiver._headerExtensions}
        # The number of each header extension and what it says; what changes is of 3 bytes.
        self.extensions = {uri: (found[uri], values[uri]) for uri in values if uri in found}

    @property
    def is_enabled(self) -> bool:
        """Whether anything is to be sent now."""
        return bool(self._sender._enabled)

    async def send(self, data: bytes) -> None:
        """Encrypt and send an RTP packet, at once; raise ConnectionError when there is no way."""
        if self._dtls._state is not State.CONNECTED:
            raise ConnectionError("the connection has ended")
        data = self._dtls._tx_srtp.protect(data)
        await self._ice._send(data)
        self._num_bytes += len(data)

    def begins(self, timestamp: int) -> None:
        """Have sender reports say that a frame of this time in 90 kHz begins to leave now."""
        self._sender._RTCRtpSender__ntp_timestamp = current_ntp_time()
        self._sender._RTCRtpSender__rtp_timestamp = timestamp

    def count(self, num_packets: int, num_octets: int) -> None:
        """Have reports and statistics count packets that left, and what they carried."""
        self._sender._RTCRtpSender__packet_count += num_packets
        self._sender._RTCRtpSender__octet_count += num_octets
        self._dtls._RTCDtlsTransport__tx_packets += num_packets
        self._dtls._RTCDtlsTransport__tx_bytes += self._num_bytes
        self._num_bytes = 0

    def remember(self, history: History) -> None:
        """Have lost packets be looked up here."""
        self._sender._RTCRtpSender__rtp_history = history


def send_with(transceiver: RTCRtpTransceiver, run: Callable[[Line, int], Awaitable[None]]) -> None:
    """Have `run(line, payload_type)` send in place of aiortc's own loop, until it is cancelled."""
    sender = transceiver.sender
    _own(sender, "_run_rtp")
    started, exited = (_own(sender, f"_RTCRtpSender__rtp_{name}") for name in ("started", "exited"))

    async def run_rtp(codec: Any) -> None:
        started.set()
        try:
            await run(Line(transceiver), codec.payloadType)
        except (asyncio.CancelledError, ConnectionError, MediaStreamError):
            logger.debug("a sender ends")  # as aiortc's does: these are how it is told to
        except Exception:
            logger.exception("a sender fails")
        finally:
            sender.track.stop()
            exited.set()  # whoever closes the connection waits for it

    sender._run_rtp = run_rtp


class Connecting:
    """The tasks in which a connection connects, which aiortc starts and forgets.

    They go on when it is closed, and would then ask for consent, or send, for ever.
    """

    def __init__(self, connection: RTCPeerConnection) -> None:
        original = _own(connection, "_RTCPeerConnection__connect")
        self._tasks: set[asyncio.Task[None]] = set()

        def connect() -> asyncio.Task[None]:
            task = asyncio.get_running_loop().create_task(original())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        connection._RTCPeerConnection__connect = connect

    async def stop(self) -> None:
        """Cancel them and wait until they are over; the connection can be closed then."""
        while waiting := {task for task in self._tasks if not task.done()}:
            for task in waiting:
                task.cancel()
            # aiortc uses `wait_for`, which before Python 3.12 can lose a cancellation.
            await asyncio.wait(waiting, timeout=CANCEL_AGAIN_S)


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


def agree_to_delays() -> None:
    """Let viewers be told how long they may keep frames, if they know how."""
    if all(one.uri != PLAYOUT_DELAY for one in HEADER_EXTENSIONS["video"]):
        ours = RTCRtpHeaderExtensionParameters(id=4, uri=PLAYOUT_DELAY)  # viewers' number counts
        HEADER_EXTENSIONS["video"].append(ours)


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
        raise RuntimeError(_gone(name)) from error


def _gone(name: str) -> str:
    return f"this version of aiortc or aioice has no {name}: install aiortc>=1.16,<1.17"
