"""How near one video is to another: PSNR, SSIM, drift and flicker. Pixels in, figures out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

PEAK: Final = 255.0
# What equal pictures are given, so that means and trends stay finite. One sample of a 128x128
# picture that is off by one is 95 dB.
EQUAL_DB: Final = 100.0
LUMA: Final = np.array([0.299, 0.587, 0.114])  # of R, G, B in BT.601
WINDOW_PIXELS, SIGMA = 11, 1.5  # of the Gaussian that SSIM looks through
STABILISERS: Final = ((0.01 * PEAK) ** 2, (0.03 * PEAK) ** 2)
# The mean squared difference of two samples that only rounding to whole levels makes unlike.
ROUNDING: Final = 1 / 6

Pixels = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.float64]


def mean_square(a: Pixels, b: Pixels) -> float:
    """Return the mean squared difference of pictures `[..., h, w, 3]` over all samples."""
    difference = a.astype(np.float64) - b
    return float(np.mean(difference * difference))


def mean_square_i420(a: Pixels, b: Pixels) -> float:
    """Return the mean squared difference of I420 pictures `[n, h * 3/2, w]` once they are RGB.

    That of their planes would be smaller: an error in luma is one in all three colours.
    """
    num, rows, width = a.shape
    size = rows * 2 // 3 * width
    red_share, green_share, blue_share = LUMA.tolist()
    difference = (a.astype(np.float32) - b).reshape(num, -1)
    luma, blue, red = np.split(difference, [size, size * 5 // 4], axis=1)
    luma = luma.reshape(num, rows // 3, 2, width // 2, 2) * (PEAK / 219)
    of_four = (num, rows // 3, 1, width // 2, 1)  # pixels that have one chroma
    blue = luma + blue.reshape(of_four) * (PEAK / 112 * (1 - blue_share))
    red = luma + red.reshape(of_four) * (PEAK / 112 * (1 - red_share))
    green = (luma - red_share * red - blue_share * blue) / green_share
    return float(np.mean(red * red + green * green + blue * blue)) / 3


def psnr_db(mse: float) -> float:
    """Return the PSNR of a mean squared error in dB, at most `EQUAL_DB`."""
    if mse <= 0:
        return EQUAL_DB
    return min(EQUAL_DB, 10 * math.log10(PEAK * PEAK / mse))


def luma(picture: Pixels) -> Plane:
    """Return the brightness of a picture `[h, w, 3]` as `[h, w]`, 0 to 255."""
    plane: Plane = picture @ LUMA
    return plane


def ssim(a: Plane, b: Plane) -> float:
    """Return the structural similarity of two planes `[h, w]`, 1 when they are equal.

    Mean of the map where the 11x11 Gaussian window of sigma 1.5 lies inside the picture; K1 0.01,
    K2 0.03. Raises ValueError for planes smaller than the window. Wang, Bovik, Sheikh, Simoncelli:
    Image quality assessment: from error visibility to structural similarity, 2004.
    """
    if a.shape != b.shape or min(a.shape) < WINDOW_PIXELS:
        raise ValueError(f"planes of {a.shape} and {b.shape}: expected equal ones of 11x11 or more")
    c1, c2 = STABILISERS
    mean_a, mean_b = _blur(a), _blur(b)
    variance_a = _blur(a * a) - mean_a * mean_a
    variance_b = _blur(b * b) - mean_b * mean_b
    covariance = _blur(a * b) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    total = (mean_a * mean_a + mean_b * mean_b + c1) * (variance_a + variance_b + c2)
    return float(np.mean(alike / total))


def trend(values: Sequence[float]) -> float | None:
    """Return how much the line that fits best rises from the first value to the last.

    None for fewer than two values.
    """
    if len(values) < 2:
        return None
    slope = np.polyfit(np.arange(len(values)), np.asarray(values), 1)[0]
    return float(slope * (len(values) - 1))


def flicker(steps: Sequence[float], at: Sequence[int], others: Sequence[int]) -> float | None:
    """Return how much more the picture changes at some frames than at others: 1 is no flicker.

    `steps[i]` is the mean squared difference of luma between frame i - 1 and frame i. The mean over
    the frames `at` is divided by the mean over `others`, each with what rounding alone makes added.
    None when either is empty.
    """
    if not at or not others:
        return None
    mean_at, mean_others = (float(np.mean([steps[i] for i in frames])) for frames in (at, others))
    return (mean_at + ROUNDING) / (mean_others + ROUNDING)


def _blur(plane: Plane) -> Plane:
    """Return the Gaussian mean around each pixel that has a whole window, row by row, then down."""
    across = sum(w * part for w, part in zip(_weights(), _shifted(plane.T), strict=True))
    assert isinstance(across, np.ndarray)
    down: Plane = sum(w * part for w, part in zip(_weights(), _shifted(across.T), strict=True))
    return down


def _shifted(plane: Plane) -> Iterator[Plane]:
    """Yield the rows under each place of the window."""
    rows = len(plane) - WINDOW_PIXELS + 1
    return (plane[i : i + rows] for i in range(WINDOW_PIXELS))


def _weights() -> Plane:
    distance = np.arange(WINDOW_PIXELS) - WINDOW_PIXELS // 2
    weights = np.exp(-(distance**2) / (2 * SIGMA**2))
    return np.asarray(weights / weights.sum())
