"""A picture's pixels: uint8 RGB [H, W, 3], or I420 [H * 3/2, W], which video encoders take.

I420 has all luma first, then both chroma planes of half the width and height: BT.601 in its limited
range. Its width is even and its height a multiple of four.
"""

from __future__ import annotations

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace
from numpy.typing import NDArray


def size_of(pixels: NDArray[np.uint8]) -> tuple[int, int]:
    """Return width and height."""
    height, width = pixels.shape[:2]
    return (width, height) if pixels.ndim == 3 else (width, height * 2 // 3)


def to_frame(pixels: NDArray[np.uint8]) -> av.VideoFrame:
    """Return a frame over the memory of these pixels; ValueError for what are none."""
    pixels = np.ascontiguousarray(pixels)
    if pixels.ndim == 3:
        return av.VideoFrame.from_numpy_buffer(pixels, format="rgb24")
    if pixels.shape[0] % 6:  # the library would leave rows out
        raise ValueError(f"I420 of {pixels.shape[0]} rows: expected a multiple of 6")
    return av.VideoFrame.from_numpy_buffer(pixels, format="yuv420p")


def to_rgb(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the pixels as RGB."""
    if pixels.ndim == 3:
        return pixels
    frame = to_frame(pixels).reformat(
        format="rgb24",
        src_colorspace=Colorspace.ITU601,
        src_color_range=ColorRange.MPEG,
        threads=1,
    )
    return frame.to_ndarray().astype(np.uint8, copy=False)
