"""What stands behind the object of a scene: sky, lights, ground, water, and what falls.

All of it is fixed for a place, a time and a weather; only the water and what falls move.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

SIZE: Final = 128  # pixels, both ways
HORIZON: Final = 80  # row where ground begins
VEIL_PERIOD: Final = 4  # frames after which what falls looks the same: one latent frame

SKIES: Final[dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]]] = {
    "day": ((92, 170, 240), (198, 228, 250)),
    "sunset": ((84, 58, 132), (252, 158, 88)),
    "night": ((10, 14, 46), (40, 50, 104)),
}
GROUNDS: Final[dict[str, tuple[int, int, int]]] = {
    "meadow": (92, 178, 72),
    "sea": (36, 116, 186),
    "desert": (230, 192, 112),
    "snowfield": (238, 243, 252),
}
LIGHT: Final[dict[str, tuple[float, float, float]]] = {
    "day": (1.0, 1.0, 1.0),
    "sunset": (0.94, 0.72, 0.68),
    "night": (0.38, 0.42, 0.58),
}

ROWS, COLUMNS = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)


def unit(x: Floats) -> Floats:
    """Clip to 0..1."""
    clipped: Floats = np.clip(x, 0, 1)
    return clipped


@cache
def backdrop(place: str, time: str, weather: str) -> Floats:
    """Return sky, lights and ground `[H, W, 3]`, the same for every scene of these three."""
    top, bottom = (np.array(c, np.float32) for c in SKIES[time])
    depth = unit(ROWS / HORIZON)[..., None]
    image: Floats = top * (1 - depth) + bottom * depth
    image = _lights(image, time)
    if weather != "clear":
        grey = image.mean(axis=2, keepdims=True)
        tone = np.array((0.82, 0.88, 0.96) if weather == "rain" else (1.0, 1.02, 1.06), np.float32)
        strength = 0.85 if weather == "rain" else 0.7
        image = image * (1 - strength) + grey * tone * strength
        image = _clouds(image, time, weather)
    ground: Floats = np.array(GROUNDS[place], np.float32) * np.array(LIGHT[time], np.float32)
    if weather == "rain":
        ground = ground * 0.86
    for row, shade in _ridges(place):
        slope = unit((ROWS - row) / 60)[..., None]
        cover = unit(ROWS - row + 0.5)[..., None]
        image = image * (1 - cover) + ground * (shade - 0.22 * slope) * cover
    return image


def _lights(image: Floats, time: str) -> Floats:
    def disc(x: float, y: float, radius: float) -> Floats:
        return unit(radius + 0.5 - np.hypot(COLUMNS - x, ROWS - y))[..., None]

    def over(cover: Floats, colour: tuple[int, int, int]) -> Floats:
        return image * (1 - cover) + np.array(colour, np.float32) * cover

    if time == "day":
        image = over(0.25 * disc(108, 20, 16), (255, 250, 200))
        return over(disc(108, 20, 11), (255, 240, 130))
    if time == "sunset":
        image = over(0.3 * disc(22, 70, 24), (255, 210, 120))
        return over(disc(22, 70, 16), (255, 190, 80))
    for x, y in ((58, 12), (84, 30), (104, 14), (118, 44), (14, 50), (70, 42), (42, 34), (96, 60)):
        image = over(disc(x, y, 1.3), (225, 228, 255))
    crescent = disc(20, 20, 11) * (1 - disc(25, 17, 9.5))
    return over(crescent, (246, 240, 205))


def _clouds(image: Floats, time: str, weather: str) -> Floats:
    base = np.array((112, 120, 136) if weather == "rain" else (226, 230, 240), np.float32)
    base = base * (np.array(LIGHT[time], np.float32) * 0.8 + 0.2)
    for x, y, rx, ry in ((20, 4, 34, 15), (66, 0, 36, 17), (112, 5, 32, 15)):
        edge = np.hypot((COLUMNS - x) / rx, (ROWS - y) / ry)
        cover = unit((1 - edge) * 8)[..., None]
        image = image * (1 - cover) + base * cover
    return image


def _ridges(place: str) -> tuple[tuple[Floats, float], ...]:
    """Return `(row of the edge per column, shade)` of each fold of ground, far to near."""
    x = COLUMNS
    if place == "meadow":
        far = HORIZON - 5 - 6 * np.sin(x / 20 + 0.6)
        return (far, 0.86), (HORIZON + 6 + 4 * np.sin(x / 26 + 2.4), 1.06)
    if place == "desert":
        far = HORIZON - 4 - 8 * np.abs(np.sin(x / 34 + 0.2))
        return (far, 0.88), (HORIZON + 7 - 5 * np.abs(np.sin(x / 46 + 1.9)), 1.04)
    if place == "snowfield":
        peaks = np.minimum(np.abs(x - 28) * 0.8, np.abs(x - 92) * 0.62)
        return (HORIZON - 26 + np.minimum(peaks, 26), 0.74), (np.full_like(x, HORIZON + 2), 1.0)
    return ((np.full_like(x, HORIZON), 1.0),)


def waves(time: str, frames: Floats) -> Floats:
    """Return the sea's moving glints `[n, H, W, 3]`, added to the backdrop; period 48 frames."""
    turn = (2 * np.pi * frames / 48)[:, None, None]
    crest = np.sin(COLUMNS / 128 * 2 * np.pi * 4 + turn + ROWS * 0.9) * np.sin(ROWS * 0.52)
    glint = unit(crest - 0.35) * unit((ROWS - HORIZON) / 8)
    return np.float32(70) * glint[..., None] * np.array(LIGHT[time], np.float32)


@dataclass(frozen=True, slots=True)
class Fall:
    """What falls in a weather: streams of equal drops, each the next one's follower.

    Within `VEIL_PERIOD` frames every drop takes the place of the one before it, so that a latent
    frame of a weather is the same wherever it stands in a clip.
    """

    stride: tuple[int, int]  # x and y to the next drop of a stream, pixels
    spacing: float  # pixels between streams
    length: float  # pixels, along the stream
    radius: tuple[float, float]  # pixels, least and largest
    opacity: float


FALLS: Final[dict[str, Fall]] = {
    "rain": Fall(stride=(-8, 32), spacing=16, length=12, radius=(1.3, 1.3), opacity=0.75),
    "snow": Fall(stride=(8, 20), spacing=26, length=0, radius=(2.4, 3.6), opacity=0.95),
}


@cache
def _veil_frame(weather: str, phase: int) -> Floats:
    """Return the opacity `[H, W]` of what falls, `phase` frames into its period."""
    fall, rng = FALLS[weather], np.random.default_rng(7)
    step_x, step_y = fall.stride
    cover = np.zeros((SIZE, SIZE), np.float32)
    reach = abs(step_x) * SIZE / step_y  # sideways way of a stream from top to bottom
    for stream in range(int(-reach / fall.spacing) - 1, int((SIZE + reach) / fall.spacing) + 1):
        radius, jitter, offset = rng.uniform(*fall.radius), rng.uniform(-0.3, 0.3), rng.random()
        for drop in range(-2, SIZE // step_y + 2):
            way = drop + offset + phase / VEIL_PERIOD
            x = COLUMNS - ((stream + jitter) * fall.spacing + way * step_x)
            y = ROWS - way * step_y
            along = np.clip(y, -fall.length / 2, fall.length / 2)
            distance = np.hypot(x - along * step_x / step_y, y - along) - radius
            cover = np.maximum(cover, unit(0.5 - distance))
    return cover * np.float32(fall.opacity)


def veil(weather: str, frames: Floats) -> Floats:
    """Return the opacity `[n, H, W]` of what falls; it repeats every `VEIL_PERIOD` frames."""
    if weather == "clear":
        return np.zeros((len(frames), SIZE, SIZE), np.float32)
    return np.stack([_veil_frame(weather, int(frame) % VEIL_PERIOD) for frame in frames])
