"""One media section of an offer, and which of its codecs is sent. Does no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from transport.stream import StreamError
from transport.video import Codec

SUPPORTED: Final = {
    "h264": "H.264 (constrained baseline, packetization-mode=1)",
    "vp8": "VP8",
}
# Levels that a decoder may name; what is sent fits any of them that carries the picture.
LEVELS: Final = (10, 11, 12, 13, 20, 21, 22, 30, 31, 32, 40, 41, 42, 50, 51, 52)
PAYLOADS: Final = range(35, 128)  # that an offer may give a codec a number from


@dataclass
class Section:
    """One `m=` section: its lines without the first."""

    kind: str
    port: int
    profile: str
    formats: list[str]
    lines: list[str] = field(default_factory=list)

    def attributes(self, name: str) -> list[str]:
        """Return the values of an attribute, in order."""
        return [line[len(name) + 3 :] for line in self.lines if line.startswith(f"a={name}:")]

    @property
    def mid(self) -> str:
        """The section's name."""
        return next(iter(self.attributes("mid")), "")

    @property
    def direction(self) -> str:
        """The way media flow, for who offers."""
        ways = ("sendrecv", "recvonly", "sendonly", "inactive")
        return next((way for way in ways if f"a={way}" in self.lines), "sendrecv")


@dataclass(frozen=True, slots=True)
class Choice:
    """The codec that is sent: its payload type, that of its retransmissions, and their lines."""

    codec: Codec
    payloads: list[str]
    lines: list[str]


def choose_codec(video: Section, codecs: tuple[Codec, ...]) -> Choice:
    """Return the first of `codecs` that the section has; raise StreamError when it has none."""
    names: dict[str, str] = {}
    for value in video.attributes("rtpmap"):
        payload, _, name = value.partition(" ")
        if payload in video.formats and payload.isdecimal() and int(payload) in PAYLOADS:
            names[payload] = name.strip().lower()
    for codec in codecs:
        fitting = {
            payload: rank
            for payload, name in names.items()
            if name == f"{codec}/90000"
            and (rank := _rank(codec, _parameters(video, payload))) is not None
        }
        if fitting:
            return _choice(video, codec, min(fitting, key=fitting.__getitem__), names)
    offered = ", ".join(sorted({name.split("/")[0] for name in names.values()})) or "none"
    raise StreamError(
        "unsupported",
        f"no common video codec: the offer has {offered[:80]}; "
        f"the server supports {' and '.join(SUPPORTED[codec] for codec in codecs)}",
        param="sdp",
    )


def _choice(video: Section, codec: Codec, payload: str, names: dict[str, str]) -> Choice:
    lines = [f"a=rtpmap:{payload} {codec.upper()}/90000"]
    if codec == "h264":
        profile = _parameters(video, payload).get("profile-level-id", "42e01f")
        lines.append(
            f"a=fmtp:{payload} level-asymmetry-allowed=1;packetization-mode=1;"
            f"profile-level-id={profile}"
        )
    for value in video.attributes("rtcp-fb"):
        whom, _, feedback = value.partition(" ")
        if whom in (payload, "*") and feedback in ("nack", "nack pli", "ccm fir", "goog-remb"):
            lines.append(f"a=rtcp-fb:{payload} {feedback}")
    for other, name in names.items():
        if name == "rtx/90000" and _parameters(video, other).get("apt") == payload:
            lines += [f"a=rtpmap:{other} rtx/90000", f"a=fmtp:{other} apt={payload}"]
            return Choice(codec, [payload, other], lines)
    return Choice(codec, [payload], lines)


def _rank(codec: Codec, parameters: dict[str, str]) -> int | None:
    """Return how well a codec fits, the least the best, None when it does not."""
    if codec == "vp8":
        return 0
    profile = parameters.get("profile-level-id", "42e01f").lower()
    if parameters.get("packetization-mode") != "1" or not re.fullmatch("[0-9a-f]{6}", profile):
        return None
    idc, constraints, level = (int(profile[i : i + 2], 16) for i in (0, 2, 4))
    if idc != 0x42 or constraints & 0x0F or level not in LEVELS:
        return None
    return 0 if constraints & 0x40 else 1


def _parameters(video: Section, payload: str) -> dict[str, str]:
    for value in video.attributes("fmtp"):
        whom, _, text = value.partition(" ")
        if whom == payload:
            pairs = (part.strip().partition("=") for part in text.split(";"))
            return {name.lower(): setting.strip() for name, _, setting in pairs}
    return {}
