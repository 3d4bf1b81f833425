"""Frames to payloads, in worker threads, once a session whatever the number of viewers."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from transport.fields import Prompt
from transport.pixels import size_of, to_rgb
from transport.stream import Chunk, StreamError
from transport.video import (
    CODECS,
    MIN_BITRATE,
    Codec,
    Engine,
    KeyRequests,
    Packet,
    VideoEncoder,
    default_bitrate,
    has_nvenc,
)

HEADER: Final = struct.Struct(">IIQ")  # frame index, chunk index, pts in microseconds
ENGINES: Final = ("auto", "nvenc", "x264", "vp8")  # what `--encoder` takes
IDLE_S: Final = 10.0  # a video encoder that nobody needs is kept so long


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What viewers are told of a chunk."""

    index: int
    first_frame_index: int
    num_frames: int
    pts_s: float
    fps: float
    prompt_revision: int
    seed: int
    started_event_ids: tuple[str, ...]
    active_event_ids: tuple[str, ...]
    completed_event_ids: tuple[str, ...]
    prompt: Prompt | None = None

    @property
    def last_frame_index(self) -> int:
        """The index of its last frame."""
        return self.first_frame_index + self.num_frames - 1

    def going_on(self) -> ChunkHeader:
        """Return what is told of a later frame: what begins and ends was told with the first."""
        return replace(self, started_event_ids=(), completed_event_ids=())


@dataclass(frozen=True, slots=True)
class Picture:
    """One frame before it is encoded, uint8 RGB [H, W, 3] or I420 [H * 3/2, W]."""

    index: int
    chunk: ChunkHeader
    pts_s: float
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame ready to be sent, in each encoding that somebody wants.

    `payloads` are whole messages of "jpeg" and "raw"; `packets` are of "h264" and "vp8".
    """

    index: int
    chunk: ChunkHeader
    pts_s: float
    payloads: Mapping[str, bytes]
    packets: Mapping[str, Packet] = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)  # width and height in pixels

    @property
    def encodings(self) -> frozenset[str]:
        """The encodings that are here."""
        return frozenset((*self.payloads, *self.packets))


class Encoder:
    """Worker threads that encode, and how; one for the whole server."""

    def __init__(
        self,
        *,
        jpeg_quality: int = 80,
        num_threads: int = 2,
        kind: str = "auto",
        bitrate: int | None = None,
    ) -> None:
        self.jpeg_quality = jpeg_quality
        self.kind = kind
        self.bitrate = bitrate
        self.threads = ThreadPoolExecutor(num_threads, thread_name_prefix="encoder")

    def engine(self) -> Engine:
        """Return what encodes H.264. The first call may take a moment, to see what there is."""
        if self.kind == "nvenc" or (self.kind == "auto" and has_nvenc()):
            return "nvenc"
        return "x264"

    def close(self) -> None:
        """Let the threads end."""
        self.threads.shutdown(wait=False, cancel_futures=True)


class Renditions:
    """The encoders of one session. Its frames are encoded one after another."""

    def __init__(self, encoder: Encoder, clock: Callable[[], float] = time.monotonic) -> None:
        self._encoder = encoder
        self._clock = clock
        self._video: dict[Codec, VideoEncoder] = {}
        self._used_at: dict[Codec, float] = {}
        self._keys = {codec: KeyRequests() for codec in CODECS}
        self._broken = set(CODECS)  # their next frame has to be a keyframe, whoever asked
        self._bitrate: int | None = None
        self.encoded_s = 0.0  # seconds of all that was encoded, waits for a thread not counted

    async def take(self, chunk: Chunk) -> list[Picture]:
        """Copy a chunk's pictures, so that it can be released."""
        loop = asyncio.get_running_loop()
        pixels = await loop.run_in_executor(self._encoder.threads, np.array, chunk.frames)
        header = chunk_header(chunk)
        return [
            Picture(chunk.first_frame_index + i, header, chunk.pts_s + i / chunk.fps, picture)
            for i, picture in enumerate(pixels)
        ]

    async def encode(
        self, picture: Picture, encodings: Collection[str], frame: Frame | None = None
    ) -> Frame:
        """Return the picture in these encodings, of which `frame` may have some already.

        Raises StreamError when one fails.
        """
        frame = frame or Frame(
            picture.index, picture.chunk, picture.pts_s, {}, {}, size_of(picture.pixels)
        )
        missing = frozenset(encodings) - frame.encodings
        if not missing:
            return frame
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._encoder.threads, self._encoded, picture, missing, frame
        )

    def ask_key(self, codec: Codec) -> float:
        """Make a keyframe as somebody needs one; return the seconds until that is allowed.

        Those are the more the more often it is asked.
        """
        self._keys[codec].ask()
        return self._keys[codec].wait_s(self._clock())

    def break_chain(self, frame: Frame) -> Frame:
        """Return a frame that is not sent now without its packets: the next are keyframes."""
        self._broken.update(codec for codec in CODECS if codec in frame.packets)
        return replace(frame, packets={})

    def set_bitrate(self, bitrate: float | None) -> None:
        """Use at most so many bits a second, None for as many as the size is worth."""
        self._bitrate = None if bitrate is None else round(bitrate)

    def bitrate_for(self, width: int, height: int) -> int:
        """Return the bits a second in use for pictures of this size."""
        most = self._encoder.bitrate or default_bitrate(width, height)
        return max(MIN_BITRATE, most if self._bitrate is None else min(most, self._bitrate))

    def _encoded(self, picture: Picture, encodings: frozenset[str], frame: Frame) -> Frame:
        began = time.perf_counter()
        payloads = {**frame.payloads}
        if "jpeg" in encodings or "raw" in encodings:
            prefix = HEADER.pack(picture.index, picture.chunk.index, round(picture.pts_s * 1e6))
            rgb = to_rgb(picture.pixels)
            if "jpeg" in encodings:
                payloads["jpeg"] = prefix + encode_jpeg(rgb, self._encoder.jpeg_quality)
            if "raw" in encodings:
                payloads["raw"] = prefix + rgb.tobytes()
        packets = {**frame.packets}
        for codec in CODECS:
            if codec in encodings:
                packets[codec] = self._packet(codec, picture)
            elif self._clock() - self._used_at.get(codec, self._clock()) > IDLE_S:
                self._video.pop(codec, None)
        self.encoded_s += time.perf_counter() - began
        return replace(frame, payloads=payloads, packets=packets)

    def _packet(self, codec: Codec, picture: Picture) -> Packet:
        now = self._clock()
        width, height = size_of(picture.pixels)
        video = self._video.get(codec)
        if video is None or video.fps != picture.chunk.fps:
            video = self._video[codec] = VideoEncoder(
                codec,
                width,
                height,
                fps=picture.chunk.fps,
                bitrate=self.bitrate_for(width, height),
                engine=self._encoder.engine(),
            )
        if (bitrate := self.bitrate_for(width, height)) != video.bitrate:
            video.set_bitrate(bitrate)
        gap = now - self._used_at.get(codec, now) > 1.0  # viewers that are here now saw no frame
        forced = self._keys[codec].grant(now) or codec in self._broken or gap
        packet = video.encode(picture.pixels, forced)
        self._used_at[codec] = now
        self._broken.discard(codec)
        if packet.is_key:
            self._keys[codec].made(now)
        return packet


def encode_jpeg(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """Return a JPEG of uint8 RGB [H, W, 3]; raise StreamError when that fails."""
    try:
        return bytes(
            simplejpeg.encode_jpeg(pixels, quality, colorspace="RGB", colorsubsampling="420")
        )
    except (ValueError, RuntimeError) as error:
        raise StreamError("encoder_failed", f"JPEG: {error}") from error


def chunk_header(chunk: Chunk) -> ChunkHeader:
    """Return what viewers are told of a chunk."""
    return ChunkHeader(
        chunk.index,
        chunk.first_frame_index,
        len(chunk.frames),
        chunk.pts_s,
        chunk.fps,
        chunk.prompt_revision,
        chunk.seed,
        tuple(chunk.started_event_ids),
        tuple(chunk.active_event_ids),
        tuple(chunk.completed_event_ids),
        chunk.prompt,
    )
