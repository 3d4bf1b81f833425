"""How cleanly a thing is drawn: a frame against the drawing of its scene that fits it best.

Attributes may be right where an outline is soft, or where a part of the thing is left in another
place. Neither has a mark of its own: a contact sheet is looked at, and these say which way it went.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streamgen.pocket.scenery import Floats
from streamgen.pocket.world import COLOURS, RADIUS, Scene, drawn_at

NEAR: Final = 6  # pixels around the thing in which its outline is compared
AWAY: Final = 1.3 * RADIUS  # pixels from its middle, beyond which nothing of it belongs
LEAST_COVER: Final = 0.12  # of the thing's colour that shows
GHOST: Final = 40  # pixels: a ghost that the eye finds
SMOOTH: Final = 7  # pixels, so that noise and what falls are no ghost
COARSE, FINER = 6.0, (2.0, 0.5)  # steps of the search, pixels
PLACES: Final = ((28, 101), (24, 67))  # where the world has its things, x and y


@dataclass(frozen=True, slots=True)
class Fit:
    """The drawing that fits a frame best, and what the frame shows beside it."""

    centre: tuple[float, float]  # of the thing, pixels x, y
    error: float  # mean distance of colours around the thing, levels of 255
    ghost: int  # pixels elsewhere that have the thing's colour in them


def fit(frame: npt.NDArray[np.uint8], scene: Scene, number: int) -> Fit:
    """Compare frame `number` of a session, uint8 `[128, 128, 3]`, with the scene's drawings."""
    (left, right), (top, bottom) = PLACES
    centre = _best(frame, scene, number, _grid(left, right, top, bottom, COARSE))
    for step in FINER:
        x, y = centre
        around = _grid(x - 2 * step, x + 2.5 * step, y - 2 * step, y + 2.5 * step, step)
        centre = _best(frame, scene, number, around)
    pictures, distance = drawn_at(scene, number, centre[None])
    drawing = pictures[0].astype(np.float32)
    off = np.abs(frame - drawing).mean(axis=-1)
    error = float(off[distance[0] < NEAR].mean())
    return Fit((float(centre[0]), float(centre[1])), error, _ghost(frame, drawing, scene, centre))


def _grid(left: float, right: float, top: float, bottom: float, step: float) -> Floats:
    x, y = np.meshgrid(np.arange(left, right, step), np.arange(top, bottom, step))
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)


def _best(frame: npt.NDArray[np.uint8], scene: Scene, number: int, centres: Floats) -> Floats:
    pictures, _ = drawn_at(scene, number, centres)
    off = np.abs(pictures.astype(np.float32) - frame).mean(axis=(1, 2, 3))
    best: Floats = centres[int(off.argmin())]
    return best


def _ghost(frame: npt.NDArray[np.uint8], drawing: Floats, scene: Scene, centre: Floats) -> int:
    """Return the pixels away from the thing that are off towards its colour, and no other way."""
    towards = np.array(COLOURS[scene.colour], np.float32) - drawing
    length = np.square(towards).sum(axis=-1)
    off = frame - drawing
    cover = (off * towards).sum(axis=-1) / np.maximum(length, 2500)
    other = np.sqrt(np.maximum(np.square(off).sum(axis=-1) - cover**2 * length, 0))
    is_ours = other < 0.8 * np.abs(cover) * np.sqrt(length) + 8
    shown = _smoothed(np.where(is_ours, cover, 0))
    rows, columns = np.indices(shown.shape)
    is_away = np.hypot(columns - centre[0], rows - centre[1]) > AWAY
    return int((is_away & (shown > LEAST_COVER)).sum())


def _smoothed(image: Floats) -> Floats:
    """Return the mean over squares of `SMOOTH` pixels."""
    padded = np.pad(image, SMOOTH // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (SMOOTH, SMOOTH))
    smoothed: Floats = windows.mean(axis=(2, 3))
    return smoothed
