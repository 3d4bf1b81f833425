"""Fragmented MP4: what leaves with each frame, its times, and who can read it."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from tests.transport import bars
from transport.mp4 import FragmentedMP4, codec_string, file_type, free_box, nal_units
from transport.video import Packet, VideoEncoder

WIDTH, HEIGHT, FPS = 128, 96, 16
CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf")


def encoded(number: int, *, fps: float = FPS, keys: tuple[int, ...] = (0,)) -> list[Packet]:
    """Return packets of numbered bars."""
    encoder = VideoEncoder("h264", WIDTH, HEIGHT, fps=fps, bitrate=1_000_000)
    pictures = [bars.paint_bars(WIDTH, HEIGHT, i) for i in range(number)]
    return [encoder.encode(picture, i in keys) for i, picture in enumerate(pictures)]


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield every box and its content; the content of one that holds boxes is theirs."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        assert 8 <= size <= len(data) - at, (kind, size)
        body = data[at + 8 : at + size]
        yield kind, body
        if kind in CONTAINERS:
            yield from boxes(body)
        at += size


def spans(data: bytes) -> list[tuple[int, int]]:
    """Return where each fragment begins and ends, in ticks."""
    begins = [struct.unpack(">4xQ", body)[0] for kind, body in boxes(data) if kind == b"tfdt"]
    lasts = [struct.unpack_from(">8xI", body)[0] for kind, body in boxes(data) if kind == b"tfhd"]
    return [(begin, begin + last) for begin, last in zip(begins, lasts, strict=True)]


def test_each_frame_leaves_at_once() -> None:
    """Whatever was written so far can be shown, to the last frame."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    data = b""
    for i, packet in enumerate(encoded(5)):
        data += stream.write(packet, i / FPS, 1 / FPS)
        pictures, _ = bars.decode_mp4(data)
        assert bars.numbers_of(pictures) == list(range(i + 1))


def test_the_header_comes_once_and_fragments_are_small() -> None:
    """Besides the frame there are 108 bytes."""
    packets = encoded(3)
    stream = FragmentedMP4(WIDTH, HEIGHT)
    parts = [stream.write(packet, i / FPS, 1 / FPS) for i, packet in enumerate(packets)]
    assert [kind for kind, _ in boxes(parts[0])][:2] == [b"ftyp", b"moov"]
    assert parts[0].startswith(file_type())
    assert next(kind for kind, _ in boxes(parts[1])) == b"moof"
    units = nal_units(packets[1].data)
    assert len(parts[1]) == 108 + sum(len(unit) + 4 for unit in units)


def test_q33_colours_come_out_as_they_were() -> None:
    """The tag in the stream and the one in the header both say BT.601."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    data = b"".join(stream.write(packet, i / FPS, 1 / FPS) for i, packet in enumerate(encoded(6)))
    pictures, _ = bars.decode_mp4(data)
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE
    entry = next(body for kind, body in boxes(data) if kind == b"stsd")
    assert b"colrnclx" + bytes((0, 6, 0, 6, 0, 6, 0)) in entry


@pytest.mark.parametrize("codec", ["h264", "vp8"])
def test_q33_colours_of_bare_packets(codec: str) -> None:
    """As WebCodecs and WebRTC show them."""
    encoder = VideoEncoder(codec, 320, 240, fps=FPS, bitrate=2_000_000)  # type: ignore[arg-type]
    numbers = [0, 1, 5461, 65535]
    packets = [encoder.encode(bars.paint_bars(320, 240, number)) for number in numbers]
    pictures = bars.decode(codec, packets)
    assert bars.numbers_of(pictures) == numbers
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE


def test_q33_untagged_video_would_be_caught() -> None:
    """The measure sees the fault that the tag is there for."""
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = 320, 240, "yuv420p"
    context.framerate, context.time_base = Fraction(FPS), Fraction(1, FPS)
    context.options = {"tune": "zerolatency"}
    frame = av.VideoFrame.from_ndarray(bars.paint_bars(320, 240, 1)).reformat(format="yuv420p")
    frame.pts = 0
    packets = [Packet(bytes(packet), True) for packet in context.encode(frame)]
    assert bars.error_of(bars.decode("h264", packets)[0]) > 10


def test_time_starts_at_zero_and_has_no_holes() -> None:
    """Frames come early and late on a clock that began long ago; the stream keeps pace with it."""
    rng = np.random.default_rng(1)
    times = 123_456.7 + np.arange(200) / FPS + rng.uniform(-0.05, 0.2, 200)
    times.sort()
    stream = FragmentedMP4(WIDTH, HEIGHT)
    packets = encoded(3)
    data = stream.write(packets[0], times[0], 1 / FPS)
    for at in times[1:]:
        data += stream.write(packets[1], at, 1 / FPS)
    found = spans(data)
    assert found[0][0] == 0
    assert all(end == begin for (_, end), (begin, _) in pairwise(found))
    ends = np.array([end for _, end in found]) / 90_000
    late = ends - (times - times[0] + 1 / FPS)
    assert np.abs(late).max() < 0.1
    assert all(end > begin for begin, end in found)


def test_a_steady_clock_gives_even_frames() -> None:
    """Also where a frame is no whole number of ticks."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    packet = encoded(1)[0]
    data = b"".join(stream.write(packet, 7.3 + i / 24.7, 1 / 24.7) for i in range(300))
    lengths = [end - begin for begin, end in spans(data)]
    assert set(lengths) <= {3643, 3644}
    assert spans(data)[-1][1] == round(300 / 24.7 * 90_000)


@pytest.mark.parametrize("jump_s", [30.0, -30.0, 1e6])
def test_pauses_are_left_out(jump_s: float) -> None:
    """After a pause, or a clock that went back, the next frame follows directly."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    packet = encoded(1)[0]
    times = [0.0, 0.1, 0.1 + jump_s, 0.2 + jump_s, 0.3 + jump_s]
    data = b"".join(stream.write(packet, at, 0.1) for at in times)
    assert spans(data) == [(9000 * i, 9000 * (i + 1)) for i in range(5)]


def test_a_frame_that_comes_again_takes_little_time() -> None:
    """As the last picture of a paused session does, for those who join; it is caught up with."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    packet = encoded(1)[0]
    data = b"".join(stream.write(packet, at, 0.1) for at in (0.0, 0.1, 0.1, 0.2, 0.3))
    assert [end for _, end in spans(data)] == [9000, 18000, 20250, 27000, 36000]


def test_an_encoder_that_is_made_anew_can_be_read_on() -> None:
    """Its parameter sets are not those of the header, so they go with its frames."""
    first, second = encoded(4), encoded(4, fps=25)
    old, new = (nal_units(packets[0].data)[0] for packets in (first, second))
    assert old != new
    stream = FragmentedMP4(WIDTH, HEIGHT)
    packets = first + second
    data = b"".join(stream.write(packet, i / FPS, 1 / FPS) for i, packet in enumerate(packets))
    pictures, times = bars.decode_mp4(data)
    assert bars.numbers_of(pictures) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert times == [i / FPS for i in range(8)]
    assert (data.count(old), data.count(new)) == (1, 1)


def test_boxes_without_content_are_skipped() -> None:
    """Signs of life between fragments change nothing."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    parts = [stream.write(packet, i / FPS, 1 / FPS) for i, packet in enumerate(encoded(4))]
    pictures, _ = bars.decode_mp4(free_box().join(parts))
    assert bars.numbers_of(pictures) == [0, 1, 2, 3]


def test_keyframes_can_be_sought(tmp_path: Path) -> None:
    """A player that seeks finds the keyframe before, and knows how long the file is."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    packets = encoded(64, keys=(0, 16, 32, 48))
    path = tmp_path / "a.mp4"
    path.write_bytes(b"".join(stream.write(p, i / FPS, 1 / FPS) for i, p in enumerate(packets)))
    with av.open(str(path)) as container:
        assert container.duration == 4_000_000
        container.seek(2_500_000)
        frame = next(container.decode(video=0))
        assert frame.time == 2.0
        assert bars.read_number(bars.to_rgb(frame)) == 32


def test_a_stream_begins_with_a_keyframe() -> None:
    """Nothing could be shown before one."""
    packets = encoded(2)
    stream = FragmentedMP4(WIDTH, HEIGHT)
    with pytest.raises(ValueError, match="begins with a keyframe"):
        stream.write(packets[1], 0.0, 1 / FPS)
    assert stream.write(packets[0], 5.0, 1 / FPS).startswith(file_type())


def test_the_codec_is_named_after_its_profile() -> None:
    """Constrained Baseline, at the level of the size."""
    packets = encoded(2)
    name = codec_string(packets[0])
    assert name.startswith("avc1.42C0")
    assert bytes.fromhex(name[5:]) == nal_units(packets[0].data)[0][1:4]
    with pytest.raises(ValueError, match="no SPS"):
        codec_string(packets[1])


def test_units_are_split_at_either_start_code() -> None:
    """Three or four bytes, with zeros behind, and nothing before the first one."""
    data = b"\0\0\0\1\x09\x10\0\0\1\x67\x42\0\0\0\0\1\x68\xce\0\0\0\1\x65\x01\0\0\3\x02"
    assert nal_units(data) == [b"\x09\x10", b"\x67\x42", b"\x68\xce", b"\x65\x01\0\0\3\x02"]
    assert nal_units(b"\x65\x01") == []
    assert nal_units(b"\0\0\1\0\0\1\x65") == [b"\x65"]


def test_delimiters_are_left_out() -> None:
    """They mean nothing where each unit has its length."""
    key = encoded(1)[0]
    stream = FragmentedMP4(WIDTH, HEIGHT)
    with_delimiter = Packet(b"\0\0\0\1\x09\xf0" + key.data, True)
    assert stream.write(with_delimiter, 0, 1) == FragmentedMP4(WIDTH, HEIGHT).write(key, 0, 1)


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")
def test_ffmpeg_reads_it(tmp_path: Path) -> None:
    """Without a warning, every frame, from a pipe."""
    stream = FragmentedMP4(WIDTH, HEIGHT)
    data = b"".join(stream.write(p, i / FPS, 1 / FPS) for i, p in enumerate(encoded(20)))
    command = ["ffmpeg", "-v", "warning", "-i", "-", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
    pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
    assert bars.numbers_of(list(pictures)) == list(range(20))
