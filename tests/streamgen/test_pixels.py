"""Frames to pixels on the device, held against swscale's conversion on the host."""

from __future__ import annotations

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch
from av.video.reformatter import ColorRange, Colorspace
from torch import Tensor

from streamgen.pixels import frame_bytes, to_i420, to_pixels, to_rgb

Bytes = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 64, 32
NUM_LUMA, NUM_CHROMA = WIDTH * HEIGHT, WIDTH * HEIGHT // 4

# Each colour with its Y, Cb and Cr.
COLOURS = {
    (0, 0, 0): (16, 128, 128),
    (255, 255, 255): (235, 128, 128),
    (255, 0, 0): (81, 90, 240),
    (0, 255, 0): (145, 54, 34),
    (0, 0, 255): (41, 240, 110),
    (255, 255, 0): (210, 16, 146),
    (0, 255, 255): (170, 166, 16),
    (255, 0, 255): (106, 202, 222),
    (128, 128, 128): (126, 128, 128),
    (30, 200, 30): (127, 79, 65),
}
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)
on_each_device = pytest.mark.parametrize("device", ["cpu", CUDA])


def flat(colour: tuple[int, int, int]) -> Tensor:
    """Return a frame of one colour, `[1, 3, H, W]` in [0, 1]."""
    return (torch.tensor(colour) / 255).view(1, 3, 1, 1).expand(1, 3, HEIGHT, WIDTH)


def smooth(num_frames: int) -> Tensor:
    """Return frames of soft waves, unlike each other in time, colour and direction."""
    t, y, x = torch.meshgrid(*map(torch.arange, (num_frames, HEIGHT, WIDTH)), indexing="ij")
    waves = ((x + 3 * t) / 9, (x + y + 5 * t) / 11, (y - 2 * t) / 7)
    return torch.stack([0.5 + 0.5 * torch.sin(wave) for wave in waves], dim=1)


def planes(pixels: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """Return the three planes of one I420 picture, each as one row."""
    luma, blue, red = np.split(pixels.reshape(-1), [NUM_LUMA, NUM_LUMA + NUM_CHROMA])
    return luma, blue, red


def swscale(rgb: Bytes) -> Bytes:
    """Return what the host's conversion makes of uint8 RGB `[H, W, 3]`."""
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24").reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU601,
        dst_color_range=ColorRange.MPEG,
        threads=1,
    )
    return frame.to_ndarray().astype(np.uint8, copy=False)


@on_each_device
@pytest.mark.parametrize("colour", COLOURS)
def test_a_flat_colour_has_its_levels(colour: tuple[int, int, int], device: str) -> None:
    (pixels,) = to_i420(flat(colour).to(device)).cpu().numpy()
    for plane, level in zip(planes(pixels), COLOURS[colour], strict=True):
        assert (plane == level).all()
    assert np.abs(pixels.astype(int) - swscale(to_rgb(flat(colour))[0].numpy())).max() <= 1


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_smooth_frames_are_those_of_the_host(dtype: torch.dtype, device: str) -> None:
    frames = smooth(3).to(device, dtype)
    pixels = to_i420(frames).cpu().numpy()
    assert pixels.shape == (3, HEIGHT * 3 // 2, WIDTH)
    assert pixels[0].nbytes == frame_bytes("i420", WIDTH, HEIGHT)
    for mine, rgb in zip(pixels, to_rgb(frames).cpu().numpy(), strict=True):
        for plane, theirs in zip(planes(mine), planes(swscale(rgb)), strict=True):
            error = np.abs(plane.astype(int) - theirs)
            assert error.max() <= 2
            assert error.mean() < 0.5


@on_each_device
def test_levels_are_rounded_to_the_nearest(device: str) -> None:
    """A grey ramp finer than the levels: no step of it is off by more than a half."""
    grey = torch.linspace(0, 1, WIDTH * HEIGHT).view(1, 1, HEIGHT, WIDTH).to(device)
    luma, blue, red = planes(to_i420(grey.expand(1, 3, -1, -1)).cpu().numpy())
    exact = 16 + 219 * np.linspace(0, 1, WIDTH * HEIGHT)
    assert np.abs(luma - exact).max() < 0.501
    assert (blue == 128).all()
    assert (red == 128).all()


@on_each_device
def test_a_chroma_is_the_mean_of_four_pixels(device: str) -> None:
    """Of blue and red side by side, and one above the other; luma keeps each pixel's own."""
    blue, red = flat((0, 0, 255)), flat((255, 0, 0))
    is_blue = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    is_blue[: HEIGHT // 2, ::2] = is_blue[HEIGHT // 2 :: 2] = True
    pixels = to_i420(torch.where(is_blue, blue, red).to(device)).cpu().numpy()
    luma, *chroma = planes(pixels)
    assert (luma.reshape(HEIGHT, WIDTH) == np.where(is_blue.numpy(), 41, 81)).all()
    for plane, levels in zip(chroma, ((240, 90), (110, 240)), strict=True):
        assert np.abs(plane - np.mean(levels)).max() <= 0.5


@pytest.mark.parametrize(
    ("pixel_format", "rows"), [("rgb", (HEIGHT, WIDTH, 3)), ("i420", (48, 64))]
)
def test_no_frame_is_no_error(pixel_format: str, rows: tuple[int, ...]) -> None:
    """As when a decoder's memory is remade and the pixels are thrown away."""
    assert to_pixels(smooth(1)[:0], pixel_format).shape == (0, *rows)


def test_frames_are_left_as_they_were() -> None:
    """They may be part of a decoder's memory."""
    frames = smooth(1)
    before = frames.clone()
    for pixel_format in ("rgb", "i420"):
        to_pixels(frames, pixel_format)
        assert torch.equal(frames, before)
