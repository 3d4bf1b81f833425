"""Frames to payloads, in worker threads, once a session whatever the number of viewers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from transport.fields import Prompt
from transport.stream import Chunk, StreamError

PICTURE_FORMATS: Final = ("jpeg", "raw")
HEADER: Final = struct.Struct(">IIQ")  # frame index, chunk index, pts in microseconds


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What viewers are told of a chunk."""

    index: int
    first_frame_index: int
    num_frames: int
    pts_s: float
    prompt_revision: int
    seed: int
    started_event_ids: tuple[str, ...]
    active_event_ids: tuple[str, ...]
    completed_event_ids: tuple[str, ...]
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame ready to be sent; `payloads` holds a binary message for each format encoded."""

    index: int
    chunk: ChunkHeader
    pts_s: float
    payloads: Mapping[str, bytes]


class Encoder:
    """Worker threads that encode; one for the whole server."""

    def __init__(self, *, jpeg_quality: int = 80, num_threads: int = 2) -> None:
        self._jpeg_quality = jpeg_quality
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="encoder")

    async def encode(self, chunk: Chunk, formats: Collection[str]) -> AsyncIterator[Frame]:
        """Yield the chunk's frames, encoded in `formats`, each as soon as it is ready."""
        header = chunk_header(chunk)
        loop = asyncio.get_running_loop()
        for offset, picture in enumerate(chunk.frames):
            index = chunk.first_frame_index + offset
            pts_s = chunk.pts_s + offset / chunk.fps
            prefix = HEADER.pack(index, chunk.index, round(pts_s * 1e6))
            payloads = await loop.run_in_executor(
                self._threads, self._payloads, picture, prefix, frozenset(formats)
            )
            yield Frame(index, header, pts_s, payloads)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _payloads(
        self, picture: NDArray[np.uint8], prefix: bytes, formats: frozenset[str]
    ) -> dict[str, bytes]:
        payloads = {}
        if "jpeg" in formats:
            try:
                jpeg = simplejpeg.encode_jpeg(
                    picture, self._jpeg_quality, colorspace="RGB", colorsubsampling="420"
                )
            except (ValueError, RuntimeError) as error:
                raise StreamError("encoder_failed", f"JPEG: {error}") from error
            payloads["jpeg"] = prefix + jpeg
        if "raw" in formats:
            payloads["raw"] = prefix + picture.tobytes()
        return payloads


def chunk_header(chunk: Chunk) -> ChunkHeader:
    """Return what viewers are told of a chunk."""
    return ChunkHeader(
        chunk.index,
        chunk.first_frame_index,
        len(chunk.frames),
        chunk.pts_s,
        chunk.prompt_revision,
        chunk.seed,
        tuple(chunk.started_event_ids),
        tuple(chunk.active_event_ids),
        tuple(chunk.completed_event_ids),
        chunk.prompt,
    )
