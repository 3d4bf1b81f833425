"""Colour bars that carry a frame number, and what viewers make of them, decoder by decoder.

The bars fill the upper three quarters. Below them 16 black or white cells spell the number, its
highest bit first. Pictures should be at least 64 by 48 pixels.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import av
import numpy as np
import simplejpeg
from av.video.codeccontext import VideoCodecContext
from numpy.typing import NDArray

from tests.transport.painting import Shot
from transport.video import Packet

Picture = NDArray[np.uint8]

# Television's bars at three quarters of full strength, and (30, 200, 30): untagged H.264 would be
# shown as BT.709, and this green as (16, 174, 29).
BARS = np.array(
    [
        (191, 191, 191),
        (191, 191, 0),
        (0, 191, 191),
        (30, 200, 30),
        (191, 0, 191),
        (191, 0, 0),
        (0, 0, 191),
        (20, 20, 20),
    ],
    np.uint8,
)
NUM_BITS = 16
TOLERANCE = 3.0  # of 255
TAGS_OF_601 = (5, 6)  # bt470bg and smpte170m in a stream's colour description
TO_601 = (
    np.array(((65.481, 128.553, 24.966), (-37.797, -74.203, 112), (112, -93.786, -18.214))) / 255
)
LUMA = {601: (0.299, 0.114), 709: (0.2126, 0.0722)}  # weights of red and blue


def paint_bars(width: int, height: int, number: int) -> Picture:
    """Return a picture with the bars and the number, uint8 RGB [H, W, 3]."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = BARS[np.arange(width) * len(BARS) // width]
    bits = number >> np.arange(NUM_BITS - 1, -1, -1) & 1
    cells = bits[np.arange(width) * NUM_BITS // width]
    picture[height * 3 // 4 :] = np.where(cells, 235, 16)[None, :, None]
    return picture


def paint_bar_shot(shot: Shot) -> Picture:
    """Paint the frames of a chunk for FakeHost, numbered as in their scene."""
    numbers = range(shot.first_frame, shot.first_frame + shot.num_frames)
    return np.stack([paint_bars(shot.width, shot.height, number) for number in numbers])


def paint_i420_shot(shot: Shot) -> Picture:
    """Paint the same frames as I420, [n, H * 3/2, W]."""
    return np.stack([to_i420(picture) for picture in paint_bar_shot(shot)])


def to_i420(picture: Picture) -> Picture:
    """Return a picture as I420, by BT.601 and written out here, [H * 3/2, W]."""
    levels = picture @ TO_601.T + (16, 128, 128)
    height, width, _ = picture.shape
    chroma = levels[..., 1:].reshape(height // 2, 2, width // 2, 2, 2).mean(axis=(1, 3))
    flat = np.concatenate([levels[..., 0].ravel(), chroma[..., 0].ravel(), chroma[..., 1].ravel()])
    return np.rint(flat).astype(np.uint8).reshape(height * 3 // 2, width)


PAINTED = {"rgb": paint_bar_shot, "i420": paint_i420_shot}


def paint_noise_shot(shot: Shot) -> Picture:
    """Paint noise, which no encoder makes small."""
    rng = np.random.default_rng(shot.first_frame)
    size = (shot.num_frames, shot.height, shot.width, 3)
    return rng.integers(0, 256, size, np.uint8)


def read_bars(picture: Picture) -> NDArray[np.float64]:
    """Return the colour of each bar, the mean of its middle, [8, 3]."""
    height, width, _ = picture.shape
    bars = np.array_split(picture[height // 8 : height * 5 // 8], len(BARS), axis=1)
    quarter = width // len(BARS) // 4
    return np.array([bar[:, quarter:-quarter].mean(axis=(0, 1)) for bar in bars])


def read_number(picture: Picture) -> int:
    """Return the number that a picture carries."""
    height, width, _ = picture.shape
    row = picture[height * 13 // 16 : height * 15 // 16].mean(axis=(0, 2))
    centres = (np.arange(NUM_BITS) * 2 + 1) * width // (NUM_BITS * 2)
    bits = row[centres] > 128
    return int(bits @ (1 << np.arange(NUM_BITS - 1, -1, -1)))


def error_of(picture: Picture) -> float:
    """Return how far the worst bar is from its colour, of 255."""
    return float(np.abs(read_bars(picture) - BARS).max())


def to_rgb(frame: av.VideoFrame) -> Picture:
    """Convert as browsers do: by the stream's tag, and as BT.709 when it has none.

    Written out here because the library would take BT.601 for what has no tag.
    """
    assert frame.format.name == "yuv420p", frame.format.name
    return _converted(frame, 601 if frame.colorspace in TAGS_OF_601 else 709)


def vp8_to_rgb(frame: av.VideoFrame) -> Picture:
    """Convert as VP8 has it, always BT.601."""
    return _converted(frame, 601)


def decode_jpeg(jpeg: bytes) -> Picture:
    """Return a JPEG's pixels."""
    pixels: Picture = simplejpeg.decode_jpeg(jpeg)
    return pixels


def decode(codec: str, packets: Iterable[Packet]) -> list[Picture]:
    """Return the pictures of "h264" or "vp8" packets, as WebCodecs shows them."""
    context = av.CodecContext.create(codec, "r")
    assert isinstance(context, VideoCodecContext)
    context.thread_count = 1  # more would hold pictures back
    convert = vp8_to_rgb if codec == "vp8" else to_rgb
    frames = [frame for packet in packets for frame in context.decode(av.Packet(packet.data))]
    return [convert(frame) for frame in (*frames, *context.decode(None))]


def decode_mp4(data: bytes) -> tuple[list[Picture], list[float]]:
    """Return the pictures of an MP4 and when each is shown, in seconds."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(video=0))
    times = [frame.time for frame in frames]
    return [to_rgb(frame) for frame in frames], [time for time in times if time is not None]


def numbers_of(pictures: Sequence[Picture]) -> list[int]:
    """Return the numbers that pictures carry."""
    return [read_number(picture) for picture in pictures]


def _converted(frame: av.VideoFrame, matrix: int) -> Picture:
    y, u, v = (_plane(plane) for plane in frame.planes)
    luma = (y - 16) * (255 / 219)
    height, width = y.shape
    blue, red = (
        np.repeat(np.repeat(plane - 128, 2, 0), 2, 1)[:height, :width] * (255 / 112)
        for plane in (u, v)
    )
    red_weight, blue_weight = LUMA[matrix]
    r = luma + (1 - red_weight) * red
    b = luma + (1 - blue_weight) * blue
    g = (luma - red_weight * r - blue_weight * b) / (1 - red_weight - blue_weight)
    return np.clip(np.rint(np.stack((r, g, b), -1)), 0, 255).astype(np.uint8)


def _plane(plane: av.video.plane.VideoPlane) -> NDArray[np.float64]:
    pixels = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return pixels[:, : plane.width].astype(np.float64)
