"""Offers as clients write them, and what is read off answers."""

from __future__ import annotations

from dataclasses import dataclass

FINGERPRINT = "sha-256 " + ":".join(["AB"] * 32)
TRANSPORT = (
    "a=ice-ufrag:abcd\na=ice-pwd:0123456789abcdefghijklmn\n"
    f"a=fingerprint:{FINGERPRINT}\na=setup:actpass\n"
)
VP8 = "a=rtpmap:96 VP8/90000\na=rtcp-fb:96 nack\na=rtpmap:97 rtx/90000\na=fmtp:97 apt=96\n"
VP9 = "a=rtpmap:98 VP9/90000\n"
OPUS = "a=rtpmap:111 opus/48000/2\n"


def h264(profile: str | None = "42e01f", mode: int | None = 1, payload: int = 102) -> str:
    """Return the lines of one H.264 format."""
    parts = [f"profile-level-id={profile}"] if profile is not None else []
    parts += [f"packetization-mode={mode}"] if mode is not None else []
    settings = f"a=fmtp:{payload} {';'.join(parts)}\n" if parts else ""
    return f"a=rtpmap:{payload} H264/90000\n{settings}"


def video(
    formats: str, codecs: str, direction: str = "recvonly", mid: str = "0", more: str = ""
) -> str:
    """Return a video section."""
    way = f"a={direction}\n" if direction else ""
    return (
        f"m=video 9 UDP/TLS/RTP/SAVPF {formats}\nc=IN IP4 0.0.0.0\na=mid:{mid}\na=rtcp-mux\n"
        f"{way}{TRANSPORT}{codecs}{more}"
    )


def audio(mid: str = "1") -> str:
    """Return an audio section that receives."""
    return (
        f"m=audio 9 UDP/TLS/RTP/SAVPF 111\nc=IN IP4 0.0.0.0\na=mid:{mid}\na=rtcp-mux\n"
        f"a=recvonly\n{TRANSPORT}{OPUS}"
    )


def data(mid: str = "1") -> str:
    """Return the section of a data channel."""
    return (
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\nc=IN IP4 0.0.0.0\n"
        f"a=mid:{mid}\n{TRANSPORT}a=sctp-port:5000\na=max-message-size:262144\n"
    )


def offer(*sections: str, bundle: str = "") -> str:
    """Return an offer; all sections are bundled unless `bundle` says which."""
    mids = [line[6:] for section in sections for line in section.split("\n") if "a=mid:" in line]
    group = f"a=group:BUNDLE {bundle or ' '.join(mids)}\n"
    head = f"v=0\no=- 1 1 IN IP4 127.0.0.1\ns=-\nt=0 0\n{group}"
    return (head + "".join(sections)).replace("\n", "\r\n")


@dataclass(frozen=True)
class Answered:
    """One section of an answer."""

    kind: str
    port: int
    mid: str
    direction: str
    lines: list[str]


def sections_of(answer: str) -> list[Answered]:
    """Return the sections of an answer."""
    found = []
    for text in answer.split("\r\nm=")[1:]:
        lines = text.rstrip("\r\n").split("\r\n")
        kind, port = lines[0].split(" ")[:2]
        mid = next(line[6:] for line in lines if line.startswith("a=mid:"))
        ways = ("sendonly", "recvonly", "sendrecv", "inactive")
        way = next(way for way in ways if f"a={way}" in lines)
        found.append(Answered(kind, int(port), mid, way, lines))
    return found


def bundle_of(answer: str) -> list[str]:
    """Return the names of the bundled sections."""
    line = next(line for line in answer.split("\r\n") if line.startswith("a=group:BUNDLE"))
    return line.split()[1:]
