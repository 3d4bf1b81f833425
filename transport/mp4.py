"""H.264 packets to fragmented MP4 (ISO 14496-12 and -15), a fragment for each frame.

The boxes are written here because a fragment has to leave with its frame: FFmpeg's muxer holds each
frame back until the next one comes, a whole frame interval, and takes 0.4 ms for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from transport.video import Packet

TIMESCALE: Final = 90_000  # ticks a second
MAX_GAP_S: Final = 1.0  # a longer silence (a pause) is left out of the stream's time
SPS: Final = 7
PPS: Final = 8
DELIMITER: Final = 9
HIGH: Final = 100  # profile_idc
TRACK: Final = 1
SYNC_SAMPLE: Final = 0x02000000  # depends on no other
OTHER_SAMPLE: Final = 0x01010000  # depends on another, is no sync sample
MATRIX: Final = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
BT601: Final = struct.pack(">4s3HB", b"nclx", 6, 6, 6, 0)  # smpte170m three times, studio range


class FragmentedMP4:
    """One stream of fragments, whose time starts at 0 with its first packet and has no holes.

    Each frame begins where the one before it ended: players stop at a hole. A frame that comes late
    is therefore given the time that was missing, and the stream keeps pace with the clock. After
    a silence of more than a second the next frame follows directly.
    """

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._parameter_sets: frozenset[bytes] = frozenset()  # that are in the header
        self._num_fragments = 0
        self._ends_at = 0
        self._origin_s = 0.0  # what the caller's clock says at tick 0

    def write(self, packet: Packet, pts_s: float, duration_s: float) -> bytes:
        """Return what to send of a packet, before the first one the header too.

        `pts_s` is on any steady clock, `duration_s` the time until the next frame is expected.
        Raises ValueError unless the first packet is a keyframe with its parameter sets.
        """
        units = nal_units(packet.data)
        header = b""
        if self._num_fragments == 0:
            header = self._begin(units)
            self._origin_s = pts_s
        starts_at = self._ends_at
        self._ends_at += self._duration(pts_s, duration_s)
        self._num_fragments += 1
        # Parameter sets that are not those of the header (of a new encoder) stay in the stream.
        kept = [u for u in units if u[0] & 31 != DELIMITER and u not in self._parameter_sets]
        size = sum(len(unit) + 4 for unit in kept)
        fragment = _moof(
            self._num_fragments, starts_at, self._ends_at - starts_at, size, packet.is_key
        )
        parts = [header, fragment, struct.pack(">I4s", size + 8, b"mdat")]
        for unit in kept:
            parts += (struct.pack(">I", len(unit)), unit)
        return b"".join(parts)

    def _begin(self, units: Sequence[bytes]) -> bytes:
        sps, pps = _parameter_sets(units)
        self._parameter_sets = frozenset((sps, pps))
        return _header(*self._size, sps, pps)

    def _duration(self, pts_s: float, duration_s: float) -> int:
        expected = max(1, round(duration_s * TIMESCALE))
        wanted = round((pts_s + duration_s - self._origin_s) * TIMESCALE) - self._ends_at
        if abs(wanted - expected) > MAX_GAP_S * TIMESCALE:
            self._origin_s = pts_s - self._ends_at / TIMESCALE
            return expected
        return max(wanted, expected // 4, 1)


def codec_string(packet: Packet) -> str:
    """Return the name of a keyframe's codec for Media Source and WebCodecs, as "avc1.42E01F".

    Raises ValueError when the packet has no parameter sets.
    """
    sps, _ = _parameter_sets(nal_units(packet.data))
    return f"avc1.{sps[1:4].hex().upper()}"


def nal_units(data: bytes) -> list[bytes]:
    """Split an Annex B access unit into its NAL units, without start codes."""
    units = []
    start = data.find(b"\0\0\1")
    while start >= 0:
        start += 3
        end = data.find(b"\0\0\1", start)
        # No unit ends with a zero byte: one before a start code belongs to the start code.
        unit = data[start : None if end < 0 else end].rstrip(b"\0")
        if unit:
            units.append(unit)
        start = end
    return units


def free_box(num_bytes: int = 8) -> bytes:
    """Return a box of so many bytes, at least 8, which readers skip."""
    return _box(b"free", bytes(num_bytes - 8))


def file_type() -> bytes:
    """Return the box that every stream of this module begins with."""
    return _box(b"ftyp", struct.pack(">4sI", b"iso6", 1), b"iso6isomavc1mp41")


def _parameter_sets(units: Sequence[bytes]) -> tuple[bytes, bytes]:
    sps = next((unit for unit in units if unit[0] & 31 == SPS), b"")
    pps = next((unit for unit in units if unit[0] & 31 == PPS), b"")
    if len(sps) < 4 or not pps:
        raise ValueError("the packet has no SPS and PPS; a stream begins with a keyframe's")
    return sps, pps


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", len(body) + 8, kind) + body


def _full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(kind, struct.pack(">I", version << 24 | flags), *parts)


def _moof(number: int, starts_at: int, duration: int, size: int, is_key: bool) -> bytes:
    """Write a fragment of one sample, whose data follow directly."""
    flags = SYNC_SAMPLE if is_key else OTHER_SAMPLE
    # Offsets count from the fragment; duration, size and flags of the one sample are defaults.
    defaults = struct.pack(">IIII", TRACK, duration, size, flags)
    traf = (
        _full(b"tfhd", 0, 0x020038, defaults),
        _full(b"tfdt", 1, 0, struct.pack(">Q", starts_at)),
    )
    mfhd = _full(b"mfhd", 0, 0, struct.pack(">I", number))
    trun_size = 20
    moof_size = 8 + len(mfhd) + 8 + sum(map(len, traf)) + trun_size
    trun = _full(b"trun", 0, 0x000001, struct.pack(">Ii", 1, moof_size + 8))
    return _box(b"moof", mfhd, _box(b"traf", *traf, trun))


def _header(width: int, height: int, sps: bytes, pps: bytes) -> bytes:
    mvhd = struct.pack(">5I2H8x", 0, 0, TIMESCALE, 0, 0x10000, 0x100, 0)
    trex = struct.pack(">5I", TRACK, 1, 0, 0, 0)
    moov = _box(
        b"moov",
        _full(b"mvhd", 0, 0, mvhd, MATRIX, bytes(24), struct.pack(">I", TRACK + 1)),
        _track(width, height, sps, pps),
        _box(b"mvex", _full(b"trex", 0, 0, trex)),
    )
    return file_type() + moov


def _track(width: int, height: int, sps: bytes, pps: bytes) -> bytes:
    tkhd = struct.pack(">5I8x4H", 0, 0, TRACK, 0, 0, 0, 0, 0, 0)
    size = struct.pack(">2I", width << 16, height << 16)
    undetermined = 0x55C4  # the language
    tables = (
        _full(b"stsd", 0, 0, struct.pack(">I", 1), _sample_entry(width, height, sps, pps)),
        _full(b"stts", 0, 0, bytes(4)),
        _full(b"stsc", 0, 0, bytes(4)),
        _full(b"stsz", 0, 0, bytes(8)),
        _full(b"stco", 0, 0, bytes(4)),
    )
    here = _full(b"dref", 0, 0, struct.pack(">I", 1), _full(b"url ", 0, 1))
    media = (
        _full(b"mdhd", 0, 0, struct.pack(">4I2H", 0, 0, TIMESCALE, 0, undetermined, 0)),
        _full(b"hdlr", 0, 0, bytes(4), b"vide", bytes(12), b"video\0"),
        _box(
            b"minf",
            _full(b"vmhd", 0, 1, bytes(8)),
            _box(b"dinf", here),
            _box(b"stbl", *tables),
        ),
    )
    return _box(b"trak", _full(b"tkhd", 0, 7, tkhd, MATRIX, size), _box(b"mdia", *media))


def _sample_entry(width: int, height: int, sps: bytes, pps: bytes) -> bytes:
    dpi = 72 << 16
    entry = struct.pack(">6xH16x2HIIIH32xHh", 1, width, height, dpi, dpi, 0, 1, 24, -1)
    avcc = bytes((1, *sps[1:4], 0xFF, 0xE1)) + struct.pack(">H", len(sps)) + sps
    avcc += struct.pack(">BH", 1, len(pps)) + pps
    if sps[1] >= HIGH:  # 4:2:0 of 8 bits, and no extension
        avcc += bytes((0xFD, 0xF8, 0xF8, 0))
    return _box(b"avc1", entry, _box(b"avcC", avcc), _box(b"colr", BT601))
