"""What an offer must hold, what of it is answered, and how. Does no I/O.

Only the video section that is served is handed on, with the one codec that was chosen; the other
sections are answered here. So nothing odd in them can spoil the answer, no data channel is opened,
and the codec is the server's choice and not the order of the offer.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from transport.sdp_section import Section, choose_codec
from transport.stream import StreamError
from transport.video import Codec

MAX_OFFER_BYTES: Final = 64 * 1024
MAX_SECTIONS: Final = 16
MAX_CANDIDATES: Final = 32  # of one viewer; each costs the server a few datagrams
MAX_PORT: Final = 65_535
MAX_PRIORITY: Final = 2**31 - 1  # RFC 8445, 5.1.2.1
UNUSED: Final = ipaddress.ip_network("240.0.0.0/4")  # and the broadcast address among it
TRANSPORT: Final = ("ice-ufrag", "ice-pwd", "ice-options", "fingerprint", "setup", "candidate")
_EXTENSION: Final = re.compile(r"a=extmap:[0-9]{1,3} [!-~]+")
_MEDIA: Final = re.compile(r"m=([a-z]+) ([0-9]{1,5}) ([A-Z/]+) ([!-~]+(?: [!-~]+)*)")
# RFC 9429, 5.1.2: whichever of these is offered is accepted and answered; DTLS is used anyway.
_PROFILE: Final = re.compile(r"RTP/S?AVPF?|(?:UDP/TLS|TCP/DTLS)/RTP/SAVPF?")
_TOKEN: Final = re.compile(r"[!-~]{1,64}")
_ICE_NAME: Final = re.compile(r"[A-Za-z0-9+/]{4,256}")
_ICE_PASSWORD: Final = re.compile(r"[A-Za-z0-9+/]{22,256}")
_FINGERPRINT: Final = re.compile(r"sha-(256|384|512) ([0-9A-F]{2}(?::[0-9A-F]{2})*)", re.IGNORECASE)
_LINE_END: Final = re.compile(r"\r?\n")  # and not what else Python takes for one
_CANDIDATE: Final = re.compile(
    r"([!-~]{1,32}) 1 udp ([0-9]{1,10}) ([0-9A-F.:]+) ([0-9]{1,5}) typ (host|srflx|relay)(?: .*)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True)
class Offer:
    """An offer that can be answered: with which codec, and what of it aiortc is given."""

    codec: Codec
    sdp: str
    sections: list[Section]
    video: Section
    bundle: list[str]
    ufrag: str
    num_candidates: int


def read_offer(text: str, codecs: tuple[Codec, ...]) -> Offer:
    """Return what is served of an offer, the first of `codecs` that it has.

    Raises StreamError, saying what is wrong, for one that cannot be answered.
    """
    session, sections = _split(text)
    bundle = _bundle(session)
    video = _video(sections, bundle)
    if bundle and video.mid in bundle:
        # All sections of the bundle share the connection that the first one describes.
        carrier = next((one for one in sections if one.mid == bundle[0]), video)
    else:
        bundle, carrier = [video.mid], video
    transport = _transport(session, carrier)
    choice = choose_codec(video, codecs)
    kept = [
        f"m=video 9 UDP/TLS/RTP/SAVPF {' '.join(choice.payloads)}",
        "c=IN IP4 0.0.0.0",
        *transport,
        f"a=mid:{video.mid}",
        "a=rtcp-mux",
        f"a={video.direction}",
        *choice.lines,
        *(line for line in video.lines if _EXTENSION.fullmatch(line)),
    ]
    head = ["v=0", "o=- 1 1 IN IP4 0.0.0.0", "s=-", "t=0 0", f"a=group:BUNDLE {video.mid}"]
    head += ["a=ice-lite"] if "a=ice-lite" in session else []
    num_candidates = sum(line.startswith("a=candidate:") for line in transport)
    ufrag = next(line[12:] for line in transport if line.startswith("a=ice-ufrag:"))
    sdp = "\r\n".join((*head, *kept)) + "\r\n"
    return Offer(choice.codec, sdp, sections, video, bundle, ufrag, num_candidates)


def complete_answer(offer: Offer, answer: str) -> str:
    """Return the answer to all sections, given the one to the video section alone.

    Sections that are not served are inactive; outside the bundle they are refused (port 0).
    """
    session, (served,) = _split(answer)
    audios = (one for one in offer.sections if one.kind == "audio" and _served(one, offer.bundle))
    mids = {offer.video.mid, *(one.mid for one in audios)}
    bundle = [mid for mid in offer.bundle if mid in mids]
    shared = [line for line in served.lines if line.startswith(tuple(f"a={x}:" for x in TRANSPORT))]
    lines = [line for line in session if not line.startswith("a=group:")]
    lines.append(f"a=group:BUNDLE {' '.join(bundle)}")
    for section in offer.sections:
        if section is offer.video:
            lines.append(f"m=video {served.port} {section.profile} {' '.join(served.formats)}")
            lines += served.lines
            continue
        port = 9 if section.mid in bundle else 0
        formats = " ".join(section.formats)
        lines.append(f"m={section.kind} {port} {section.profile} {formats}")
        lines += ["c=IN IP4 0.0.0.0", "a=inactive", f"a=mid:{section.mid}"]
        lines += [line for line in section.lines if line.startswith("a=rtpmap:")]
        if port:
            lines += ["a=rtcp-mux", *shared]
    return "\r\n".join(lines) + "\r\n"


@dataclass(frozen=True, slots=True)
class Trickle:
    """What a fragment brings: the name it is for, if given, and candidates that can be used."""

    ufrag: str | None
    candidates: list[str]


def read_fragment(text: str) -> Trickle:
    """Return what a `trickle-ice-sdpfrag` body holds; raise StreamError when it is none.

    Candidates that cannot be used are left out, as the standard asks.
    """
    ufrag, candidates = None, []
    for line in _LINE_END.split(text):
        if not re.match(r"[a-z]=", line) and line:
            raise _wrong(f"{line[:40]!r} is no line of an SDP fragment")
        if line.startswith("a=ice-ufrag:"):
            ufrag = line[12:].strip()
        elif line.startswith("a=candidate:") and (candidate := read_candidate(line[12:])):
            candidates.append(candidate)
    return Trickle(ufrag, candidates)


def read_candidate(text: str) -> str | None:
    """Return what is needed of a candidate; None if it is no address that UDP can be sent to.

    Names are not resolved: `.local` ones are a browser's own, and cost a second each. What follows
    the type, such as the related address, is left out: nothing is sent there.
    """
    match = _CANDIDATE.fullmatch(text.strip())
    if match is None:
        return None
    foundation, priority, host, port, kind = match.groups()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_multicast or address.is_unspecified or address in UNUSED:
        return None
    if not (1 <= int(port) <= MAX_PORT and 1 <= int(priority) <= MAX_PRIORITY):
        return None
    return f"{foundation} 1 udp {int(priority)} {address} {int(port)} typ {kind.lower()}"


def _split(text: str) -> tuple[list[str], list[Section]]:
    lines = [line.rstrip(" \t") for line in _LINE_END.split(text)]
    if lines[0] != "v=0":
        raise _wrong("the body is no SDP: its first line must be v=0")
    session: list[str] = []
    sections: list[Section] = []
    for line in filter(None, lines):
        if "\0" in line or "\r" in line:
            raise _wrong(f"{line[:60]!r} holds a character that no line of SDP may hold")
        if line.startswith("m="):
            sections.append(_section(line))
            if len(sections) > MAX_SECTIONS:
                raise _wrong(f"an offer has at most {MAX_SECTIONS} media sections")
        else:
            (sections[-1].lines if sections else session).append(line)
    return session, sections


def _section(line: str) -> Section:
    match = _MEDIA.fullmatch(line)
    if match is None:
        raise _wrong(f"{line[:60]!r} is no media section")
    kind, port, profile, formats = match.groups()
    if int(port) > MAX_PORT:
        raise _wrong(f"{line[:60]!r} has a port above {MAX_PORT}")
    return Section(kind, int(port), profile, formats.split(" "))


def _served(section: Section, bundle: list[str]) -> bool:
    """Return whether a section is meant to be used: port 0 disables one that stands alone."""
    return section.port > 0 or ("a=bundle-only" in section.lines and section.mid in bundle)


def _video(sections: list[Section], bundle: list[str]) -> Section:
    """Return the section that is served; raise StreamError when there is none."""
    mids = [one.mid for one in sections if one.mid]
    for mid in mids:
        if mids.count(mid) > 1:
            raise _wrong(f"two media sections have the mid {mid[:20]!r}")
    videos = [one for one in sections if one.kind == "video"]
    if not videos:
        raise _wrong("the offer has no video section: there is nothing else to be had")
    enabled = [one for one in videos if _served(one, bundle)]
    if not enabled:
        raise _wrong("the offer's video section has port 0, which disables it")
    for video in enabled:
        if video.direction in ("recvonly", "sendrecv"):
            _check_video(video)
            return video
    way = enabled[0].direction
    raise _wrong(f"the offer's video section is {way}: it must be recvonly, to receive")


def _check_video(video: Section) -> None:
    if not _PROFILE.fullmatch(video.profile):
        raise _wrong(f"the video section is {video.profile[:40]}: it must be UDP/TLS/RTP/SAVPF")
    if not _TOKEN.fullmatch(video.mid):
        raise _wrong("the video section has no mid")
    if "a=rtcp-mux" not in video.lines:
        raise _wrong("the video section must have rtcp-mux")


def _bundle(session: list[str]) -> list[str]:
    for line in session:
        if line.startswith("a=group:BUNDLE"):
            return line.split()[1:]
    return []


def _transport(session: list[str], carrier: Section) -> list[str]:
    """Return the lines that say how to connect, with the candidates that can be used."""
    both = Section("session", 0, "", [], [*carrier.lines, *session])
    ufrag = next(iter(both.attributes("ice-ufrag")), "")
    password = next(iter(both.attributes("ice-pwd")), "")
    if not _ICE_NAME.fullmatch(ufrag) or not _ICE_PASSWORD.fullmatch(password):
        raise _wrong("the offer needs ice-ufrag and ice-pwd")
    fingerprints = list(filter(_is_fingerprint, both.attributes("fingerprint")))
    if not fingerprints:
        raise _wrong("the offer needs a fingerprint of sha-256, sha-384 or sha-512")
    setup = next(iter(both.attributes("setup")), "actpass")
    if setup not in ("actpass", "active", "passive"):
        raise _wrong(f"setup is {setup[:20]!r}: it must be actpass, active or passive")
    read = map(read_candidate, carrier.attributes("candidate"))
    candidates = [one for one in read if one is not None][:MAX_CANDIDATES]
    # Without the end of candidates, so that a viewer whose own cannot be used may still be heard.
    return [
        f"a=ice-ufrag:{ufrag}",
        f"a=ice-pwd:{password}",
        *(f"a=fingerprint:{value}" for value in dict.fromkeys(fingerprints)),
        f"a=setup:{setup}",
        *(f"a=candidate:{value}" for value in candidates),
    ]


def _is_fingerprint(value: str) -> bool:
    """Return whether a fingerprint is of a kind that is checked; raise StreamError if malformed."""
    kind = value.partition(" ")[0].lower()
    if kind not in ("sha-256", "sha-384", "sha-512"):
        return False
    num_bytes = int(kind[4:]) // 8
    match = _FINGERPRINT.fullmatch(value)
    if match is None or len(match[2]) != 3 * num_bytes - 1:
        raise _wrong(f"a fingerprint of {kind} must have {num_bytes} bytes in hexadecimal")
    return True


def _wrong(message: str) -> StreamError:
    return StreamError("invalid_request", message, param="sdp")
