"""PSNR, SSIM, trends and flicker against what is known of them otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from streamgen.distances import (
    EQUAL_DB,
    flicker,
    luma,
    mean_square,
    mean_square_i420,
    psnr_db,
    ssim,
    trend,
)
from streamgen.pixels import to_i420


def picture(seed: int, height: int = 24, width: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def slow_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """The definition, window by window: weighted means, variances and covariance of each place."""
    around = np.arange(-5, 6)
    weights = np.exp(-(around[:, None] ** 2 + around[None, :] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for y in range(5, a.shape[0] - 5):
        for x in range(5, a.shape[1] - 5):
            p, q = (plane[y - 5 : y + 6, x - 5 : x + 6] for plane in (a, b))
            mean_p, mean_q = (weights * p).sum(), (weights * q).sum()
            spread_p = (weights * (p - mean_p) ** 2).sum()
            spread_q = (weights * (q - mean_q) ** 2).sum()
            together = (weights * (p - mean_p) * (q - mean_q)).sum()
            values.append(
                (2 * mean_p * mean_q + c1)
                * (2 * together + c2)
                / ((mean_p**2 + mean_q**2 + c1) * (spread_p + spread_q + c2))
            )
    return float(np.mean(values))


def test_psnr_of_known_errors() -> None:
    """A difference of 1 everywhere is 20 log10(255) dB; of 16 a factor of 16 less."""
    flat = np.full((16, 16, 3), 100, np.uint8)
    assert psnr_db(mean_square(flat, flat + 1)) == pytest.approx(48.1308, abs=1e-4)
    assert psnr_db(mean_square(flat, flat + 16)) == pytest.approx(48.1308 - 20 * math.log10(16))
    assert psnr_db(mean_square(flat, flat)) == EQUAL_DB
    black, white = np.zeros((16, 16, 3), np.uint8), np.full((16, 16, 3), 255, np.uint8)
    assert mean_square(black, white) == mean_square(white, black) == 255**2  # no wrap-around
    assert psnr_db(255.0**2) == 0


@pytest.mark.parametrize("channels", [[0], [1], [2], [0, 1, 2]])
def test_in_i420_colours_are_as_far_apart_as_in_rgb(channels: list[int]) -> None:
    """In pictures of four pixels of a colour each, which lose no more than rounding."""
    shape = (3, 12, 16, 3)
    rng = np.random.default_rng(0)
    a = rng.integers(40, 200, shape)
    b = a.copy()
    b[..., channels] += rng.integers(-40, 40, (*shape[:3], len(channels)))
    a, b = (frames.repeat(2, axis=1).repeat(2, axis=2).astype(np.uint8) for frames in (a, b))
    planes = [to_i420(torch.from_numpy(x).permute(0, 3, 1, 2) / 255).numpy() for x in (a, b)]
    assert mean_square_i420(*planes) == pytest.approx(mean_square(a, b), rel=0.01)
    assert mean_square_i420(planes[0], planes[0]) == 0


def test_one_wrong_sample_is_told_from_none() -> None:
    a = picture(0, 128, 128)
    b = a.copy()
    b[5, 5, 1] ^= 1
    assert 90 < psnr_db(mean_square(a, b)) < EQUAL_DB


def test_luma_is_that_of_bt601() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    np.testing.assert_allclose(luma(colours), [[76.245, 149.685, 29.07, 255]])


@pytest.mark.parametrize("noise", [2, 20, 200])
def test_ssim_is_the_definition(noise: int) -> None:
    a = luma(picture(1))
    b = np.clip(a + np.random.default_rng(2).normal(0, noise, a.shape), 0, 255)
    assert ssim(a, b) == pytest.approx(slow_ssim(a, b), abs=1e-9)
    assert ssim(a, b) == pytest.approx(ssim(b, a))


def test_ssim_of_flat_pictures_is_that_of_their_means() -> None:
    """Without structure only luminance is left: (2ab + C1) / (a^2 + b^2 + C1)."""
    a, b, c1 = 100.0, 120.0, 2.55**2
    flat = np.full((16, 20), a), np.full((16, 20), b)
    assert ssim(*flat) == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1))
    assert ssim(flat[0], flat[0]) == 1


def test_ssim_of_a_negative_is_negative() -> None:
    a = luma(picture(3))
    assert ssim(a, 255 - a) < -0.5


@pytest.mark.parametrize("shapes", [((10, 40), (10, 40)), ((16, 16), (16, 17))])
def test_ssim_refuses_what_it_cannot_see(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="11x11"):
        ssim(np.zeros(shapes[0]), np.zeros(shapes[1]))


def test_a_trend_is_the_rise_of_the_best_line() -> None:
    assert trend([40.0, 39.0, 38.0, 37.0]) == pytest.approx(-3)
    assert trend([1.0, 5.0, 1.0]) == pytest.approx(0)
    assert trend([1.0]) is None


def test_flicker_is_how_much_more_changes_at_some_frames() -> None:
    steps = [0.0, 2.0, 2.0, 8.0, 2.0, 2.0, 8.0]
    assert flicker(steps, [3, 6], [1, 2, 4, 5]) == pytest.approx((8 + 1 / 6) / (2 + 1 / 6))
    assert flicker([5.0] * 9, [3, 6], [1, 2, 4, 5, 7, 8]) == 1
    assert flicker([0.0] * 9, [3, 6], [1, 2]) == 1  # a still is no flicker
    assert flicker(steps, [], [1, 2]) is None
