"""Decoded frames as they leave the device: RGB, or I420, which is half the bytes.

I420 is what video encoders take: all luma, then both chroma planes of half the width and height.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

RED, GREEN, BLUE = 0.299, 0.587, 0.114  # what each is of luma


def to_pixels(frames: Tensor, pixel_format: str) -> Tensor:
    """Return frames `[n, 3, H, W]` in [0, 1] as uint8 pixels, "rgb" or "i420"."""
    return {"rgb": to_rgb, "i420": to_i420}[pixel_format](frames)


def to_rgb(frames: Tensor) -> Tensor:
    """Return frames `[n, 3, H, W]` in [0, 1] as uint8 `[n, H, W, 3]`."""
    levels = frames.to(torch.float32, copy=True).mul_(255).round_()
    return levels.to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def to_i420(frames: Tensor) -> Tensor:
    """Return frames `[n, 3, H, W]` in [0, 1] as uint8 `[n, H * 3/2, W]`; both sides are even.

    Chroma is the mean of two by two pixels. Source of the levels: ITU-R BT.601-7, section 2.5.
    """
    height, width = frames.shape[2:]
    assert height % 2 == width % 2 == 0, frames.shape
    red, green, blue = frames.to(torch.float32).unbind(1)
    luma = RED * red + GREEN * green + BLUE * blue
    planes = (
        16 + 219 * luma,
        128 + 112 / (1 - BLUE) * avg_pool2d((blue - luma)[:, None], 2),
        128 + 112 / (1 - RED) * avg_pool2d((red - luma)[:, None], 2),
    )
    levels = torch.cat([plane.flatten(1) for plane in planes], dim=1).round_()
    return levels.to(torch.uint8).view(len(frames), height * 3 // 2, width)


def frame_bytes(pixel_format: str, width: int, height: int) -> int:
    """Return the bytes of one frame."""
    return width * height * 3 // {"rgb": 1, "i420": 2}[pixel_format]
