"""Pictures to H.264 or VP8, one encoder a session and codec, whatever the number of viewers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from numpy.typing import NDArray

from transport.pixels import size_of, to_frame
from transport.stream import StreamError

logger = logging.getLogger(__name__)

Codec = Literal["h264", "vp8"]
Engine = Literal["x264", "nvenc"]
CODECS: Final[tuple[Codec, ...]] = ("h264", "vp8")

MIN_BITRATE: Final = 100_000
BUFFER_S: Final = 0.2  # a keyframe is at most about so much of a second's bits
HEADROOM: Final = 1.6  # so far the rate may rise before the encoder is made anew
RETUNE_VP8: Final = 0.3  # libvpx is made anew for its rate to change, so small changes are let be
KEY_INTERVAL: Final = 3000  # frames; viewers ask for keyframes when they need one
# What Chromium shows for untagged H.264 is BT.709, while the conversion makes BT.601.
COLOUR: Final = "colorprim=smpte170m:transfer=smpte170m:colormatrix=smpte170m"


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded frame: H.264 as Annex B with its parameter sets before each IDR, or VP8."""

    data: bytes
    is_key: bool


def default_bitrate(width: int, height: int) -> int:
    """Return the most bits a second that pictures of this size are worth: 3 M at 832x480."""
    share: float = (width * height / (832 * 480)) ** 0.75
    return max(300_000, round(3e6 * share))


@lru_cache(maxsize=1)
def has_nvenc() -> bool:
    """Return whether NVENC opens here; A100, H100 and their like have none."""
    try:
        _open("h264", "nvenc", 256, 256, Fraction(30), 1_000_000, 1_000_000)
    except av.error.FFmpegError as error:
        logger.info("no NVENC: %s", error)
        return False
    return True


class VideoEncoder:
    """Encode a stream of pictures of one size. Not for two threads at a time.

    The rate follows `set_bitrate` without a keyframe, except when it rises by more than a half or
    falls below half of what the encoder was made for: then one for the new rate takes its place,
    as the size of a keyframe goes by it.
    """

    def __init__(
        self,
        codec: Codec,
        width: int,
        height: int,
        *,
        fps: float,
        bitrate: int,
        engine: Engine = "x264",
    ) -> None:
        self.codec = codec
        self.width = width + width % 2  # 4:2:0 has a colour for each two by two pixels
        self.height = height + height % 2
        self.fps = fps
        self.bitrate = max(MIN_BITRATE, bitrate)
        self._engine = engine
        self._reformatter = VideoReformatter()
        self._num_frames = 0
        self._context = self._opened(self.bitrate)

    def encode(self, picture: NDArray[np.uint8], force_key: bool = False) -> Packet:
        """Encode the next picture, RGB or I420; raise StreamError when that fails."""
        try:
            frame = self._converted(picture)
            if force_key:
                frame.pict_type = PictureType.I
            packets = self._context.encode(frame)
        except (av.error.FFmpegError, ValueError) as error:
            raise StreamError("encoder_failed", f"{self.codec}: {error}") from error
        if len(packets) != 1:
            raise StreamError("encoder_failed", f"{self.codec}: {len(packets)} packets of a frame")
        return Packet(bytes(packets[0]), bool(packets[0].is_keyframe))

    def set_bitrate(self, bitrate: int) -> None:
        """Use so many bits a second from the next frame on."""
        bitrate = max(MIN_BITRATE, bitrate)
        if self.codec == "vp8":
            if abs(bitrate - self.bitrate) > RETUNE_VP8 * self.bitrate:
                self._context, self.bitrate = self._opened(bitrate), bitrate
            return
        if bitrate > self._largest:
            self._context = self._opened(round(HEADROOM * bitrate))
        elif bitrate < self._largest / 2:
            self._context = self._opened(bitrate)  # the next keyframe has to be small
        self.bitrate = self._context.bit_rate = bitrate

    def _opened(self, largest: int) -> VideoCodecContext:
        self._largest = largest
        rate = Fraction(self.fps).limit_denominator(1001)
        try:
            return _open(
                self.codec, self._engine, self.width, self.height, rate, largest, self.bitrate
            )
        except av.error.FFmpegError as error:
            size = f"{self.width}x{self.height}"
            raise StreamError("encoder_failed", f"no {self.codec} of {size}: {error}") from error

    def _converted(self, picture: NDArray[np.uint8]) -> av.VideoFrame:
        """Return the picture as the encoder takes it, which copies what it keeps."""
        width, height = size_of(picture)
        missing = (self.width - width, self.height - height)
        if picture.ndim == 3:
            if any(missing):
                picture = np.pad(picture, ((0, missing[1]), (0, missing[0]), (0, 0)), mode="edge")
            frame = self._reformatter.reformat(
                to_frame(picture),
                format="yuv420p",
                dst_colorspace=Colorspace.ITU601,
                dst_color_range=ColorRange.MPEG,
                threads=1,  # the encoder has its own
            )
        elif any(missing):
            raise ValueError(f"I420 of {width}x{height}, not {self.width}x{self.height}")
        else:
            frame = to_frame(picture)
        frame.pts = self._num_frames
        frame.time_base = 1 / Fraction(self.fps).limit_denominator(1001)
        self._num_frames += 1
        return frame


def _open(
    codec: Codec,
    engine: Engine,
    width: int,
    height: int,
    fps: Fraction,
    largest: int,
    bitrate: int,
) -> VideoCodecContext:
    name = "libvpx" if codec == "vp8" else {"x264": "libx264", "nvenc": "h264_nvenc"}[engine]
    context = av.CodecContext.create(name, "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.framerate, context.time_base = fps, 1 / fps
    context.bit_rate = largest  # x264 follows changes only of what began as a constant rate
    context.gop_size = KEY_INTERVAL
    context.thread_count = 1
    context.options = {
        "maxrate": str(largest),
        "bufsize": str(round(BUFFER_S * largest)),
        **{"libx264": _x264, "h264_nvenc": _nvenc, "libvpx": _libvpx}[name](),
    }
    context.open()
    context.bit_rate = min(bitrate, largest)
    return context


def _x264() -> dict[str, str]:
    return {
        "preset": "superfast",
        "tune": "zerolatency",
        "profile": "baseline",
        "forced-idr": "1",
        "x264-params": f"scenecut=0:{COLOUR}",
    }


def _nvenc() -> dict[str, str]:
    return {
        "preset": "p3",
        "tune": "ull",
        "profile": "baseline",
        "rc": "cbr",
        "zerolatency": "1",
        "delay": "0",
        "forced-idr": "1",
        "color_primaries": "smpte170m",
        "color_trc": "smpte170m",
        "colorspace": "smpte170m",
    }


def _libvpx() -> dict[str, str]:
    return {
        "deadline": "realtime",
        "cpu-used": "-8",
        "lag-in-frames": "0",
        "error-resilient": "default",
        "auto-alt-ref": "0",
    }


FIRST_GAP_S: Final = 0.3
LONGEST_GAP_S: Final = 1.0


class KeyRequests:
    """Grant keyframes that viewers ask for, the more rarely the more often they ask."""

    def __init__(self) -> None:
        self._wanted = False
        self._granted_at: float | None = None
        self._gap_s = FIRST_GAP_S

    def ask(self) -> None:
        """Note that a viewer needs a keyframe."""
        self._wanted = True

    def grant(self, now: float) -> bool:
        """Return whether the next frame should be one, and take it as made."""
        if not self._wanted:
            return False
        if self._granted_at is not None:
            since_s = now - self._granted_at
            if since_s < self._gap_s:
                return False
            often = since_s < 2 * self._gap_s
            self._gap_s = min(2 * self._gap_s, LONGEST_GAP_S) if often else FIRST_GAP_S
        self.made(now)
        return True

    def wait_s(self, now: float) -> float:
        """Return the seconds until one would be granted."""
        return 0.0 if self._granted_at is None else max(0.0, self._granted_at + self._gap_s - now)

    def made(self, now: float) -> None:
        """Note that the next frame is a keyframe, for whatever reason."""
        self._wanted, self._granted_at = False, now
