"""What is read of an offer, which codec is chosen, and what the whole answer says."""

from __future__ import annotations

import random

import pytest
from aiortc.sdp import SessionDescription, candidate_from_sdp

from tests.transport.offers import (
    TRANSPORT,
    VP8,
    VP9,
    audio,
    bundle_of,
    data,
    h264,
    offer,
    sections_of,
    video,
)
from transport.sdp_rules import (
    MAX_CANDIDATES,
    complete_answer,
    read_candidate,
    read_fragment,
    read_offer,
)
from transport.stream import StreamError
from transport.video import CODECS

CANDIDATE = "1 1 udp 2130706431 192.0.2.7 50000 typ host"
ANSWER = (
    "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n"
    "m=video 4000 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 127.0.0.1\r\na=sendonly\r\na=mid:0\r\n"
    "a=candidate:1 1 udp 1 127.0.0.1 4000 typ host\r\na=ice-ufrag:zzzz\r\n"
    "a=ice-pwd:0123456789012345678901\r\na=fingerprint:sha-256 AA\r\na=setup:active\r\n"
)
PLAIN = video("96 97", VP8)


@pytest.mark.parametrize(
    ("section", "codec", "payloads"),
    [
        (video("96 97 102", VP8 + h264()), "h264", "102"),
        (video("96 97", VP8), "vp8", "96 97"),
        (video("102", h264("42E01F")), "h264", "102"),
        (video("102", h264("42e033")), "h264", "102"),
        (video("102", h264("42001f")), "h264", "102"),
        (video("102", h264(None)), "h264", "102"),
        (video("102 104", h264("42001f") + h264("42e01f", payload=104)), "h264", "104"),
        (video("102 96 97", h264("640c1f") + VP8), "vp8", "96 97"),
    ],
)
def test_q03_codec(section: str, codec: str, payloads: str) -> None:
    """H.264 where it fits, VP8 otherwise, with the format of its retransmissions."""
    read = read_offer(offer(section), CODECS)
    assert read.codec == codec
    (line,) = [line for line in read.sdp.split("\r\n") if line.startswith("m=")]
    assert line == f"m=video 9 UDP/TLS/RTP/SAVPF {payloads}"


@pytest.mark.parametrize(
    "section",
    [
        video("102", h264("4d001f")),
        video("102", h264("640c1f")),
        video("102", h264("640032")),
        video("102", h264("zz")),
        video("102", h264("42e01f", mode=None)),
        video("102", h264("42e01f", mode=0)),
        video("98", VP9),
        video("98", ""),
        video("98", VP8),  # described, and not among the formats
    ],
)
def test_q03_no_common_codec(section: str) -> None:
    """The error says so and lists what there is."""
    with pytest.raises(StreamError, match=r"no common video codec.*H.264.*VP8") as raised:
        read_offer(offer(section), CODECS)
    assert raised.value.code == "unsupported"


def test_the_server_may_prefer_vp8() -> None:
    """The order is the server's, not the offer's."""
    both = offer(video("102 96 97", h264() + VP8))
    assert read_offer(both, ("vp8", "h264")).codec == "vp8"
    with pytest.raises(StreamError, match=r"the server supports VP8$"):
        read_offer(offer(video("102", h264())), ("vp8",))


@pytest.mark.parametrize("way", ["sendonly", "inactive"])
def test_q01_a_section_that_cannot_receive(way: str) -> None:
    """It is refused with a reason."""
    with pytest.raises(StreamError, match=f"video section is {way}: it must be recvonly"):
        read_offer(offer(video("96 97", VP8, way)), CODECS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no SDP"),
        ("hello", "no SDP"),
        ("{}", "no SDP"),
        ("v=0\r\n", "no video section"),
        (offer(audio("0")), "no video section"),
        (offer(PLAIN).replace("m=video 9 ", "m=video x "), "no media section"),
        (offer(PLAIN).replace("a=mid:0\r\n", ""), "no mid"),
        (offer(PLAIN).replace("a=rtcp-mux\r\n", ""), "rtcp-mux"),
        (offer(PLAIN).replace("a=ice-ufrag:abcd\r\n", ""), "ice-ufrag"),
        (offer(PLAIN).replace("a=ice-pwd:0123456789abcdefghijklmn", "a=ice-pwd:x"), "ice-pwd"),
        (offer(PLAIN).replace("a=fingerprint:sha-256 AB", "a=fingerprint:sha-1 AB"), "fingerprint"),
        (offer(PLAIN).replace("a=setup:actpass", "a=setup:holdconn"), "setup"),
        (offer(*[audio(str(i)) for i in range(17)]), "at most 16"),
        (offer(PLAIN).replace("v=0", "v=00"), "v=0"),
        (offer(PLAIN).replace("v=0", "v=1"), "v=0"),
        (offer(PLAIN).replace("\r\n", "\r"), "v=0"),
        (offer(PLAIN).replace("s=-", "s=\0"), "holds a character"),
        (offer(PLAIN).replace("a=mid:0", "a=mid:0\0"), "holds a character"),
        (offer(PLAIN).replace("s=-", "s=a\rb"), "holds a character"),
        (offer(PLAIN, PLAIN), "two media sections have the mid '0'"),
        (offer(PLAIN).replace("m=video 9 ", "m=video 0 "), "port 0, which disables it"),
        (offer(PLAIN).replace("m=video 9 ", "m=video 65536 "), "port above 65535"),
        (offer(PLAIN).replace("UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/XVPF"), "UDP/TLS/RTP/XVPF: it"),
        (offer(PLAIN).replace(":AB:AB\r", ":AB\r"), "sha-256 must have 32 bytes"),
        (offer(PLAIN).replace(":AB:AB\r", ":AB:AB:AB\r"), "sha-256 must have 32 bytes"),
        (offer(PLAIN).replace("sha-256", "sha-512"), "sha-512 must have 64 bytes"),
        (offer(PLAIN).replace(":AB:AB\r", ":AB:XY\r"), "sha-256 must have 32 bytes"),
    ],
)
def test_malformed_offers(text: str, reason: str) -> None:
    """Each has an error that says what is wrong."""
    with pytest.raises(StreamError, match=reason) as raised:
        read_offer(text, CODECS)
    assert raised.value.code == "invalid_request"


@pytest.mark.parametrize("end", ["\u2028", "\v", "\f", "\x1c", "\x85"])
def test_lines_end_where_sdp_says(end: str) -> None:
    """What else Python takes for the end of a line is part of it."""
    text = offer(PLAIN).replace("s=-", f"s=a{end}m=video x")
    assert read_offer(text, CODECS).codec == "vp8"
    assert read_offer(text.replace("\r\n", "\n"), CODECS).codec == "vp8"
    assert read_fragment(f"a=x:{end}a=candidate:{CANDIDATE}").candidates == []


@pytest.mark.parametrize("profile", ["UDP/TLS/RTP/SAVPF", "RTP/SAVPF", "RTP/AVP"])
def test_the_profile_is_answered_as_it_was_offered(profile: str) -> None:
    """RFC 9429 asks for that: some clients say `RTP/AVP` and mean what browsers mean."""
    text = offer(PLAIN).replace("UDP/TLS/RTP/SAVPF", profile)
    read = read_offer(text, CODECS)
    assert "m=video 9 UDP/TLS/RTP/SAVPF 96 97\r\n" in read.sdp
    assert f"m=video 4000 {profile} 96\r\n" in complete_answer(read, ANSWER)


def test_sections_that_are_disabled() -> None:
    """Port 0 says so, but not of one that has its port from the bundle."""
    off = video("96 97", VP8, mid="3").replace("m=video 9", "m=video 0")
    quiet = audio().replace("m=audio 9", "m=audio 0")
    answer = complete_answer(read_offer(offer(off, quiet, PLAIN), CODECS), ANSWER)
    told = [(one.mid, one.port, one.direction) for one in sections_of(answer)]
    assert told == [("3", 0, "inactive"), ("1", 0, "inactive"), ("0", 4000, "sendonly")]
    assert bundle_of(answer) == ["0"]
    follows = off.replace("a=mid:3", "a=bundle-only\na=mid:3")
    assert read_offer(offer(audio(), follows), CODECS).video.mid == "3"
    with pytest.raises(StreamError, match="port 0"):
        read_offer(offer(audio(), follows, bundle="1"), CODECS)


def test_damaged_offers_never_raise_anything_else() -> None:
    """Lines that are lost, doubled, cut or changed: an error or an offer that aiortc can read."""
    whole = offer(
        video("102 96 97", h264() + VP8, more=f"a=candidate:{CANDIDATE}\na=extmap:3 urn:x\n"),
        audio(),
        data("2"),
    )
    chance = random.Random(3)
    num_read = 0
    for _ in range(3000):
        lines = whole.split("\r\n")
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(lines))
            kind = chance.randrange(5)
            if kind == 0:
                lines.pop(place)
            elif kind == 1:
                lines.insert(place, chance.choice(lines))
            elif kind == 2:
                lines[place] = lines[place][: chance.randint(0, len(lines[place]))]
            elif kind == 3:
                lines[place] = lines[place].replace(
                    chance.choice("0123456789abc: "), chance.choice(["", "\x00", "é", "-1", "  "])
                )
            else:
                lines[place] = f"a={chance.choice(['fmtp', 'rtpmap', 'group', 'extmap'])}:"
            lines = lines or [""]
        try:
            read = read_offer("\r\n".join(lines), CODECS)
        except StreamError:
            continue
        SessionDescription.parse(read.sdp)
        complete_answer(read, ANSWER)
        num_read += 1
    assert num_read > 300


def test_q05_candidates() -> None:
    """Names, TCP and other components are left out, the rest is capped; no end is told."""
    many = "".join(f"a=candidate:1 1 udp 1 192.0.2.{i % 250} {i} typ host\n" for i in range(1, 500))
    local = "a=candidate:2 1 udp 1 0a1b2c3d-1111-2222-3333-444455556666.local 5000 typ host\n"
    tcp = "a=candidate:3 1 tcp 1 192.0.2.1 9 typ host tcptype active\n"
    more = local + tcp + many + "a=end-of-candidates\n"
    read = read_offer(offer(video("96 97", VP8, more=more)), CODECS)
    assert read.num_candidates == MAX_CANDIDATES
    for absent in (".local", "tcptype", "end-of-candidates"):
        assert absent not in read.sdp


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        CANDIDATE.replace("1 1 udp", "1 2 udp"),
        CANDIDATE.replace("192.0.2.7", "example.org"),
        CANDIDATE.replace("192.0.2.7", "0.0.0.0"),
        CANDIDATE.replace("192.0.2.7", "224.0.0.1"),
        CANDIDATE.replace("192.0.2.7", "255.255.255.255"),
        CANDIDATE.replace("192.0.2.7", "fe80::1%eth0"),
        CANDIDATE.replace("host", "prflx"),
        CANDIDATE.replace("host", "ho\u017ft"),
        CANDIDATE.replace(" 50000 ", " 0 "),
        CANDIDATE.replace(" 50000 ", " 65536 "),
        CANDIDATE.replace(" 50000 ", " 70000 "),
        CANDIDATE.replace(" 50000 ", " \u0665000 "),
        "1 1 udp 9999999999 192.0.2.7 5000 typ host",
        "1 1 udp 0 192.0.2.7 5000 typ host",
    ],
)
def test_candidates_that_cannot_be_used(wrong: str) -> None:
    """They are left out, of offers and of fragments."""
    assert read_candidate(wrong) is None
    assert read_fragment(f"a=candidate:{wrong}\r\n").candidates == []
    read = read_offer(offer(video("96 97", VP8, more=f"a=candidate:{wrong}\n")), CODECS)
    assert read.num_candidates == 0


@pytest.mark.parametrize(
    "tail",
    ["", " raddr 0.0.0.0 rport 9", " raddr x rport y", " rport \u00b2", " rport", " generation 0"],
)
def test_what_follows_a_candidate_is_left_out(tail: str) -> None:
    """Whatever it is, aiortc can read what is left."""
    text = "1 1 UDP 9999 192.0.2.7 05000 TYP srflx" + tail
    read = read_candidate(text)
    assert read == "1 1 udp 9999 192.0.2.7 5000 typ srflx"
    candidate = candidate_from_sdp(read)
    assert (candidate.ip, candidate.port, candidate.relatedPort) == ("192.0.2.7", 5000, None)


def test_the_first_section_of_a_bundle_says_how_to_connect() -> None:
    """Also when that is audio, and when it is the session."""
    other = audio().replace("abcd", "efgh")
    read = read_offer(offer(other, PLAIN, bundle="1 0"), CODECS)
    assert read.ufrag == "efgh"
    assert read_offer(offer(other, PLAIN, bundle="1"), CODECS).ufrag == "abcd"
    session = offer(PLAIN).replace(TRANSPORT.replace("\n", "\r\n"), "")
    session = session.replace("t=0 0\r\n", "t=0 0\r\n" + TRANSPORT.replace("\n", "\r\n"))
    assert read_offer(session, CODECS).ufrag == "abcd"


def test_sections_that_are_not_served() -> None:
    """In the bundle audio is inactive; data channels and other video are refused; order is kept."""
    read = read_offer(offer(audio(), PLAIN, data("2"), video("96 97", VP8, mid="3")), CODECS)
    answer = complete_answer(read, ANSWER)
    told = [(one.kind, one.port, one.mid, one.direction) for one in sections_of(answer)]
    assert told == [
        ("audio", 9, "1", "inactive"),
        ("video", 4000, "0", "sendonly"),
        ("application", 0, "2", "inactive"),
        ("video", 0, "3", "inactive"),
    ]
    assert bundle_of(answer) == ["1", "0"]
    assert "a=ice-ufrag:zzzz" in sections_of(answer)[0].lines
    alone = complete_answer(read_offer(offer(audio(), PLAIN, bundle="1"), CODECS), ANSWER)
    assert [one.port for one in sections_of(alone)] == [0, 4000]
    assert bundle_of(alone) == ["0"]


def test_fragments() -> None:
    """Usable candidates and the name; what is no fragment is refused."""
    text = (
        f"a=ice-ufrag:abcd\r\nm=video 9 RTP/AVP 0\r\na=mid:0\r\na=candidate:{CANDIDATE}\r\n"
        "a=candidate:2 1 udp 1 x.local 5000 typ host\r\na=end-of-candidates\r\n"
    )
    read = read_fragment(text)
    assert (read.ufrag, read.candidates) == ("abcd", [CANDIDATE])
    assert read_fragment("").candidates == []
    with pytest.raises(StreamError, match="no line of an SDP fragment"):
        read_fragment('{"candidate": null}')
