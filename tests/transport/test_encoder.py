"""Chunks to payloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import simplejpeg

from tests.transport import bars
from tests.transport.painting import Shot, colour_of
from transport.encoder import HEADER, Encoder, Frame, Picture, Renditions
from transport.stream import Chunk, StreamError


@pytest.fixture
def renditions() -> Iterator[Renditions]:
    """Return a session's encoders, whose threads end with the test."""
    encoder = Encoder()
    yield Renditions(encoder)
    encoder.close()


def make_chunk(frames: np.ndarray) -> Chunk:
    """Return the fourth chunk of a stream at 16 frames a second."""
    return Chunk(
        index=3,
        first_frame_index=33,
        pts_s=33 / 16,
        fps=16,
        prompt_revision=5,
        seed=7,
        frames=frames,
        generation_s=0.5,
        release=lambda: None,
        started_event_ids=["e"],
    )


async def encode(renditions: Renditions, chunk: Chunk, *encodings: str) -> list[Frame]:
    """Return the chunk's frames."""
    return [await renditions.encode(one, encodings) for one in await renditions.take(chunk)]


async def test_each_format_is_one_binary_message(renditions: Renditions) -> None:
    """A header of 16 bytes, then the picture."""
    frames = np.empty((2, 32, 48, 3), np.uint8)
    frames[0], frames[1] = colour_of(5), colour_of(6)
    frames.setflags(write=False)
    encoded = await encode(renditions, make_chunk(frames), "jpeg", "raw")
    assert [frame.index for frame in encoded] == [33, 34]
    for number, frame in enumerate(encoded):
        for payload in frame.payloads.values():
            index, chunk_index, pts_us = HEADER.unpack(payload[: HEADER.size])
            assert (index, chunk_index) == (33 + number, 3)
            assert pts_us == round((33 + number) / 16 * 1e6)
        assert frame.payloads["raw"][16:] == frames[number].tobytes()
        jpeg = frame.payloads["jpeg"][16:]
        assert simplejpeg.decode_jpeg_header(jpeg)[2:] == ("YCbCr", "420")
        assert np.abs(simplejpeg.decode_jpeg(jpeg) - frames[number].astype(int)).max() <= 3
        assert frame.chunk.num_frames == 2
        assert frame.chunk.started_event_ids == ("e",)


@pytest.mark.parametrize("pixel_format", bars.PAINTED)
async def test_colours_come_out_as_they_were_painted(
    renditions: Renditions, pixel_format: str
) -> None:
    """In every encoding, whatever the host's pixels are."""
    frames = bars.PAINTED[pixel_format](Shot("bars", 0, 0, 128, 96, 0, 3))
    encoded = await encode(renditions, make_chunk(frames), "h264", "jpeg", "raw", "vp8")
    assert all(frame.size == (128, 96) for frame in encoded)
    seen = {
        "raw": [
            np.frombuffer(f.payloads["raw"][16:], np.uint8).reshape(96, 128, 3) for f in encoded
        ],
        "jpeg": [bars.decode_jpeg(frame.payloads["jpeg"][16:]) for frame in encoded],
        "h264": bars.decode("h264", [frame.packets["h264"] for frame in encoded]),
        "vp8": bars.decode("vp8", [frame.packets["vp8"] for frame in encoded]),
    }
    for pictures in seen.values():
        assert bars.numbers_of(pictures) == [0, 1, 2]
        assert max(map(bars.error_of, pictures)) <= bars.TOLERANCE
    if pixel_format == "rgb":
        assert (np.stack(seen["raw"]) == frames).all()


async def test_only_what_is_looked_at_is_encoded(renditions: Renditions) -> None:
    """A viewer without pictures costs nothing."""
    chunk = make_chunk(np.zeros((1, 16, 16, 3), np.uint8))
    assert [frame.payloads for frame in await encode(renditions, chunk)] == [{}]


async def test_it_happens_in_a_worker_thread(
    renditions: Renditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop stays free."""
    names = []

    def encode_jpeg(*args: object, **kwargs: object) -> bytes:
        names.append(threading.current_thread().name)
        return b""

    monkeypatch.setattr(simplejpeg, "encode_jpeg", encode_jpeg)
    chunk = make_chunk(np.zeros((1, 16, 16, 3), np.uint8))
    assert len(await encode(renditions, chunk, "jpeg")) == 1
    assert names[0].startswith("encoder")


async def test_a_failure_has_its_own_code(renditions: Renditions) -> None:
    """A picture that cannot be encoded ends the session with `encoder_failed`."""
    chunk = make_chunk(np.zeros((1, 16, 16, 5), np.uint8))
    with pytest.raises(StreamError) as caught:
        await encode(renditions, chunk, "jpeg")
    assert caught.value.code == "encoder_failed"


async def pictures(renditions: Renditions) -> list[Picture]:
    """Return 4 pictures of one chunk."""
    rng = np.random.default_rng(0)
    return await renditions.take(make_chunk(rng.integers(0, 256, (4, 32, 48, 3), np.uint8)))


async def test_what_is_missing_is_added_to_a_frame(renditions: Renditions) -> None:
    """What it has already is not made again: a video encoder would take it for the next picture."""
    one, *_ = await pictures(renditions)
    video = await renditions.encode(one, {"h264"})
    both = await renditions.encode(one, {"h264", "jpeg"}, video)
    assert both.packets["h264"] is video.packets["h264"]
    assert both.encodings == {"h264", "jpeg"}
    assert await renditions.encode(one, {"jpeg"}, both) is both
    assert (both.size, both.index) == ((48, 32), 33)


async def test_a_keyframe_is_made_when_it_is_asked_for(renditions: Renditions) -> None:
    """But not twice within 0.3 s."""
    frames = await pictures(renditions)
    keys = []
    for picture in frames:
        renditions.ask_key("h264")
        keys.append((await renditions.encode(picture, {"h264"})).packets["h264"].is_key)
    assert keys == [True, False, False, False]
    assert renditions.ask_key("h264") > 0


async def test_a_frame_that_is_not_sent_leaves_no_gap(renditions: Renditions) -> None:
    """What would refer to it is a keyframe, at once."""
    one, two, three, _ = await pictures(renditions)
    await renditions.encode(one, {"h264", "jpeg"})
    unsent = renditions.break_chain(await renditions.encode(two, {"h264", "jpeg"}))
    assert unsent.encodings == {"jpeg"}
    assert (await renditions.encode(three, {"h264"})).packets["h264"].is_key


async def test_after_a_second_without_it_video_begins_anew() -> None:
    now, encoder = [0.0], Encoder()
    renditions = Renditions(encoder, lambda: now[0])
    one, two, three, four = await pictures(renditions)
    await renditions.encode(one, {"h264"})
    now[0] = 0.5
    assert not (await renditions.encode(two, {"h264"})).packets["h264"].is_key
    now[0] = 2.0
    assert (await renditions.encode(three, {"h264"})).packets["h264"].is_key
    now[0] = 20.0  # nobody needs it: it is let go
    await renditions.encode(four, {"jpeg"})
    assert renditions._video == {}
    encoder.close()


async def test_the_rate_is_the_least_of_what_is_set_and_what_a_connection_carries() -> None:
    encoder = Encoder(bitrate=2_000_000)
    renditions = Renditions(encoder)
    assert renditions.bitrate_for(832, 480) == 2_000_000
    renditions.set_bitrate(700_000.4)
    assert renditions.bitrate_for(832, 480) == 700_000
    renditions.set_bitrate(5e6)
    assert renditions.bitrate_for(832, 480) == 2_000_000
    renditions.set_bitrate(10)
    assert renditions.bitrate_for(832, 480) == 100_000
    renditions.set_bitrate(None)
    assert renditions.bitrate_for(832, 480) == 2_000_000
    encoder.close()
