"""Each patch of aiortc and aioice: what it does, and that it fails when its name is gone."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from aiortc import RTCCertificate
from aiortc.rtcdtlstransport import SRTP_PROFILES
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_RTPFB_NACK,
    RtcpPsfbPacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    RtcpRtpfbPacket,
    pack_remb_fci,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import SSL

from transport import rtc_patches
from transport.rtc_patches import FIELDS, NAMES, check_names

SSRC = 0x01020304
CONNECT = "_RTCPeerConnection__connect"
STARTED = "_RTCRtpSender__rtp_started"


@pytest.mark.parametrize(("owner", "name"), NAMES)
def test_a_name_that_is_gone(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """The server does not start, and says what to install."""
    check_names()
    monkeypatch.delattr(owner, name)
    with pytest.raises(RuntimeError, match=rf"no {name}: install aiortc>=1.16,<1.17"):
        check_names()


@pytest.mark.parametrize(("owner", "name"), FIELDS)
def test_a_field_that_is_gone(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The same, for what is there only once something is made."""
    init = owner.__init__
    names = tuple("renamed" if one == name else one for one in init.__code__.co_names)
    assert names != init.__code__.co_names
    code = init.__code__.replace(co_names=names)
    changed = FunctionType(code, init.__globals__, closure=init.__closure__)
    monkeypatch.setattr(owner, "__init__", changed)
    with pytest.raises(RuntimeError, match=rf"no {name}: install aiortc>=1.16,<1.17"):
        check_names()


async def nothing(*args: Any) -> None:
    """Do nothing."""


def ignore(*args: Any) -> None:
    """Do nothing."""


def a_sender(**changes: Any) -> Any:
    """Return what the patches know of a sender."""
    parts = {
        "_ssrc": SSRC,
        "transport": SimpleNamespace(transport=SimpleNamespace()),
        "_run_rtp": nothing,
        STARTED: None,
        "_handle_rtcp_packet": nothing,
        "_retransmit": nothing,
        "_send_keyframe": ignore,
        CONNECT: nothing,
    }
    return SimpleNamespace(**{**parts, **changes})


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("_send_keyframe", lambda s: rtc_patches.hook_keyframes(s, ignore)),
        ("_handle_rtcp_packet", lambda s: rtc_patches.hook_feedback(s, Heard())),
        ("_retransmit", lambda s: rtc_patches.limit_resends(s, lambda number: True)),
        ("_run_rtp", lambda s: rtc_patches.send_with(SimpleNamespace(sender=s), nothing)),
        (STARTED, lambda s: rtc_patches.send_with(SimpleNamespace(sender=s), nothing)),
        ("_ssrc", lambda s: rtc_patches.Line(SimpleNamespace(sender=s))),
        ("_protocols", lambda s: rtc_patches.keep_protocol(s, s)),
        ("_connection", lambda s: rtc_patches.gather_with(s, nothing)),
        (CONNECT, rtc_patches.Connecting),
    ],
)
def test_each_patch_checks_its_name(name: str, patch: Callable[[Any], None]) -> None:
    """A patch that would have no effect is an error."""
    sender = a_sender()
    sender.__dict__.pop(name, None)
    with pytest.raises(RuntimeError, match=f"no {name}"):
        patch(sender)


class Heard:
    """Notes what a viewer reports."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def lost(self, sequence_numbers: list[int]) -> None:
        """Note."""
        self.all.append(list(sequence_numbers))

    def reported(self, share_lost: float, jitter: int) -> None:
        """Note."""
        self.all.append((share_lost, jitter))

    def estimated(self, bps: float) -> None:
        """Note."""
        self.all.append(bps)


async def test_feedback() -> None:
    """Reports are told, and aiortc still gets them."""
    passed: list[Any] = []

    async def original(packet: Any) -> None:
        passed.append(packet)

    sender, heard = a_sender(_handle_rtcp_packet=original), Heard()
    rtc_patches.hook_feedback(sender, heard)
    nack = RtcpRtpfbPacket(fmt=RTCP_RTPFB_NACK, ssrc=1, media_ssrc=SSRC)
    nack.lost = [7, 9]
    remb = RtcpPsfbPacket(
        fmt=RTCP_PSFB_APP, ssrc=1, media_ssrc=0, fci=pack_remb_fci(1_000_000, [SSRC])
    )
    strange = RtcpPsfbPacket(fmt=RTCP_PSFB_APP, ssrc=1, media_ssrc=0, fci=b"none")
    reports = [report(SSRC, 64), report(SSRC + 1, 255)]
    for packet in (nack, remb, strange, RtcpRrPacket(ssrc=1, reports=reports)):
        await sender._handle_rtcp_packet(packet)
    assert heard.all == [[7, 9], pytest.approx(1e6, rel=0.01), (0.25, 450)]
    assert len(passed) == 4


def report(ssrc: int, fraction_lost: int) -> RtcpReceiverInfo:
    """Return a report of one stream."""
    return RtcpReceiverInfo(
        ssrc=ssrc, fraction_lost=fraction_lost, packets_lost=1, highest_sequence=1, jitter=450,
        lsr=0, dlsr=0,
    )  # fmt: skip


async def test_keyframes_and_resends() -> None:
    """A request calls the hook; only what is allowed is sent again."""
    asked: list[int] = []
    sent: list[int] = []

    async def retransmit(number: int) -> None:
        sent.append(number)

    sender = a_sender(_retransmit=retransmit)
    rtc_patches.hook_keyframes(sender, lambda: asked.append(1))
    rtc_patches.limit_resends(sender, lambda number: number % 2 == 0)
    sender._send_keyframe()
    for number in range(4):
        await sender._retransmit(number)
    assert (asked, sent) == ([1], [0, 2])


def rsa_context() -> SSL.Context:
    """Return the DTLS server of a client that has an RSA certificate, as GStreamer 1.22 has."""
    key = rsa.generate_private_key(65_537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "viewer")])
    begin = datetime.datetime(2020, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=20_000))
        .sign(key, hashes.SHA256())
    )
    context = SSL.Context(SSL.DTLS_METHOD)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    context.set_cipher_list(b"ECDHE-RSA-AES128-GCM-SHA256")
    return context


def shake_hands() -> None:
    """Connect aiortc's DTLS with that of such a client; raise SSL.Error when it fails."""
    ours = SSL.Connection(
        RTCCertificate.generateCertificate()._create_ssl_context(srtp_profiles=SRTP_PROFILES)
    )
    theirs = SSL.Connection(rsa_context())
    ours.set_connect_state()
    theirs.set_accept_state()
    done: set[int] = set()
    for _ in range(20):
        for number, (side, other) in enumerate(((ours, theirs), (theirs, ours))):
            try:
                side.do_handshake()
                done.add(number)
            except SSL.WantReadError:
                pass
            try:
                while True:
                    other.bio_write(side.bio_read(4096))
            except SSL.WantReadError:
                pass
        if len(done) == 2:
            return
    raise TimeoutError("the handshake does not end")


def test_rsa_ciphers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the patch there is no shared cipher; it is put in once."""
    stock = RTCCertificate._create_ssl_context
    while hasattr(stock, "original"):
        stock = stock.original
    monkeypatch.setattr(RTCCertificate, "_create_ssl_context", stock)
    with pytest.raises(SSL.Error):
        shake_hands()
    rtc_patches.widen_ciphers()
    patched = RTCCertificate._create_ssl_context
    shake_hands()
    rtc_patches.widen_ciphers()
    assert RTCCertificate._create_ssl_context is patched


async def test_tasks_that_connect_are_stopped() -> None:
    """One that has not begun does not begin; one that loses a cancellation gets another."""
    began: list[int] = []

    async def connect() -> None:
        began.append(1)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    connection = SimpleNamespace(**{CONNECT: connect})
    connecting = rtc_patches.Connecting(connection)
    await connecting.stop()
    task = asyncio.ensure_future(getattr(connection, CONNECT)())
    await connecting.stop()
    assert (task.cancelled(), began) == (True, [])
    task = asyncio.ensure_future(getattr(connection, CONNECT)())
    await asyncio.sleep(0)
    await connecting.stop()
    assert (task.cancelled(), began) == (True, [1])
