"""Chunks to payloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import simplejpeg

from tests.transport.painting import colour_of
from transport.encoder import HEADER, Encoder
from transport.stream import Chunk, StreamError


@pytest.fixture
def encoder() -> Iterator[Encoder]:
    """Return an encoder whose threads end with the test."""
    encoder = Encoder()
    yield encoder
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


async def test_each_format_is_one_binary_message(encoder: Encoder) -> None:
    """A header of 16 bytes, then the picture."""
    frames = np.empty((2, 32, 48, 3), np.uint8)
    frames[0], frames[1] = colour_of(5), colour_of(6)
    frames.setflags(write=False)
    encoded = [frame async for frame in encoder.encode(make_chunk(frames), {"jpeg", "raw"})]
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


async def test_only_what_is_looked_at_is_encoded(encoder: Encoder) -> None:
    """A viewer without pictures costs nothing."""
    chunk = make_chunk(np.zeros((1, 16, 16, 3), np.uint8))
    assert [frame.payloads async for frame in encoder.encode(chunk, {"none"})] == [{}]


async def test_it_happens_in_a_worker_thread(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop stays free."""
    names = []

    def encode_jpeg(*args: object, **kwargs: object) -> bytes:
        names.append(threading.current_thread().name)
        return b""

    monkeypatch.setattr(simplejpeg, "encode_jpeg", encode_jpeg)
    chunk = make_chunk(np.zeros((1, 16, 16, 3), np.uint8))
    assert len([frame async for frame in encoder.encode(chunk, {"jpeg"})]) == 1
    assert names[0].startswith("encoder")


async def test_a_failure_has_its_own_code(encoder: Encoder) -> None:
    """A picture that cannot be encoded ends the session with `encoder_failed`."""
    chunk = make_chunk(np.zeros((1, 16, 16, 5), np.uint8))
    with pytest.raises(StreamError) as caught:
        [frame async for frame in encoder.encode(chunk, {"jpeg"})]
    assert caught.value.code == "encoder_failed"
