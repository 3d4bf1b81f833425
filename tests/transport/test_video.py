"""Video encoders: what their packets hold, and how they follow a bitrate."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transport import bars
from transport.mp4 import nal_units
from transport.stream import StreamError
from transport.video import CODECS, Codec, KeyRequests, VideoEncoder, default_bitrate

SPS, PPS, IDR, SLICE = 7, 8, 5, 1


def encoder(codec: Codec, bitrate: int = 1_000_000) -> VideoEncoder:
    """Return an encoder of small pictures."""
    return VideoEncoder(codec, 128, 96, fps=16, bitrate=bitrate)


def noise(number: int) -> np.ndarray:
    """Return a picture that costs many bits."""
    coarse = np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)
    return coarse.repeat(4, axis=0).repeat(4, axis=1)


def test_h264_has_its_parameter_sets_before_each_idr() -> None:
    """And nothing else, so that a viewer can begin at any of them."""
    one = encoder("h264")
    packets = [one.encode(bars.paint_bars(128, 96, i), i == 3) for i in range(5)]
    assert [packet.is_key for packet in packets] == [True, False, False, True, False]
    kinds = [[unit[0] & 31 for unit in nal_units(packet.data)] for packet in packets]
    for packet, units in zip(packets, kinds, strict=True):
        assert [k for k in units if k in (SPS, PPS)] == [SPS, PPS] or not packet.is_key
        assert (IDR if packet.is_key else SLICE) in units


@pytest.mark.parametrize("codec", CODECS)
def test_no_frame_waits_for_another(codec: Codec) -> None:
    one = encoder(codec)
    for number in range(4):
        assert one.encode(bars.paint_bars(128, 96, number)).data


@pytest.mark.parametrize("codec", CODECS)
def test_i420_is_taken_as_it_is_and_its_memory_may_be_used_again(codec: Codec) -> None:
    one, memory, packets = encoder(codec), np.empty((144, 128), np.uint8), []
    for number in range(4):
        memory[:] = painted = bars.to_i420(bars.paint_bars(128, 96, number))
        packets.append(one.encode(memory))
        assert (memory == painted).all()
        memory[:] = 0
    pictures = bars.decode(codec, packets)
    assert bars.numbers_of(pictures) == [0, 1, 2, 3]
    assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [(127, 96), (128, 95), (65, 49)])
def test_odd_sides_are_padded(codec: Codec, size: tuple[int, int]) -> None:
    width, height = size
    one = VideoEncoder(codec, width, height, fps=16, bitrate=1_000_000)
    assert one.encode(bars.paint_bars(width, height, 1)).is_key
    assert (one.width, one.height) == (width + width % 2, height + height % 2)


def test_a_rate_is_followed_without_keyframes() -> None:
    """Down to half and up to half more; the size of the frames follows."""
    one = encoder("h264", 1_000_000)
    one.encode(noise(0))
    one.set_bitrate(800_000)
    high = [one.encode(noise(i)) for i in range(1, 40)]
    one.set_bitrate(600_000)
    low = [one.encode(noise(i)) for i in range(40, 80)]
    assert not any(packet.is_key for packet in (*high, *low))
    sizes = [sum(len(packet.data) for packet in part[20:]) for part in (high, low)]
    assert sizes[1] < 0.9 * sizes[0]


def test_far_below_a_new_encoder_makes_a_smaller_keyframe() -> None:
    """One sized for the old rate would not get through."""
    one = encoder("h264", 3_000_000)
    before = one.encode(noise(0))
    one.set_bitrate(150_000)
    after = one.encode(noise(1))
    assert before.is_key
    assert after.is_key
    assert len(after.data) < len(before.data) / 2
    one.set_bitrate(160_000)
    assert one.encode(noise(2)).is_key  # the headroom for what follows
    one.set_bitrate(250_000)
    assert not one.encode(noise(3)).is_key


def test_a_rate_that_rises_is_used() -> None:
    """Step by step, as a connection is found to carry more."""
    one, sizes = encoder("h264", 200_000), []
    for step, bitrate in enumerate((200_000, 300_000, 420_000, 600_000)):
        one.set_bitrate(bitrate)
        packets = [one.encode(noise(60 * step + i)) for i in range(60)]
        sizes.append(sum(len(packet.data) for packet in packets[30:]) * 8 * 16 / 30)
    for bitrate, measured in zip((200_000, 300_000, 420_000, 600_000), sizes, strict=True):
        assert 0.8 * bitrate < measured < 1.2 * bitrate, sizes


def test_vp8_is_made_anew_only_for_large_changes() -> None:
    one = encoder("vp8")
    one.encode(noise(0))
    one.set_bitrate(900_000)
    assert not one.encode(noise(1)).is_key
    one.set_bitrate(500_000)
    assert one.encode(noise(2)).is_key


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((96, 128, 3)),
        np.zeros((97, 128, 3), np.uint8),
        np.zeros((144, 128)),
        np.zeros((96, 128), np.uint8),  # as I420 it is 64 rows high
        np.zeros((147, 128), np.uint8),
    ],
)
def test_what_cannot_be_encoded_has_its_own_code(picture: np.ndarray) -> None:
    with pytest.raises(StreamError) as caught:
        encoder("h264").encode(picture)
    assert caught.value.code == "encoder_failed"


def test_an_impossible_size_is_said() -> None:
    with pytest.raises(StreamError, match="200000x2"):
        VideoEncoder("h264", 200_000, 2, fps=16, bitrate=1_000_000)


def test_the_rate_goes_by_the_size() -> None:
    assert default_bitrate(832, 480) == 3_000_000
    assert 2_000_000 < default_bitrate(512, 512) < 2_400_000
    assert default_bitrate(128, 128) == 300_000


def test_keyframes_are_granted_the_more_rarely_the_more_often_they_are_asked_for() -> None:
    keys, granted = KeyRequests(), []
    for step in range(1000):  # ten seconds of a viewer that never stops asking
        keys.ask()
        if keys.grant(step / 100):
            granted.append(step / 100)
    assert granted == pytest.approx([0, 0.3, 0.9, *np.arange(1.9, 10)], abs=0.15)
    assert keys.wait_s(granted[-1] + 0.4) == pytest.approx(0.6)
    keys.ask()
    assert keys.grant(100.0)
    assert not keys.grant(100.4)  # nobody asked
    keys.ask()
    assert keys.grant(100.4)
