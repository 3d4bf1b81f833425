"""Detectors that look at the pixels of a clip and name what they see.

They know the world's palette and its empty backdrops, nothing of prompts or
of the model. A clip whose pixels fit nothing well gets None instead of a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from streamgen.pocket.regions import close, components, grow, open_
from streamgen.pocket.scenery import backdrop
from streamgen.pocket.world import ATTRIBUTES, COLOURS, Scene, render

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

MAX_FRAMES: Final = 24  # frames of a clip that are looked at
_BACKDROP_LIMIT: Final = 14.0  # mean difference, 0..255, beyond which no known place is shown
_FILL_LIMIT: Final = 55.0  # distance in RGB beyond which a pixel has no colour of the palette
_SHAPE_LIMIT: Final = 0.82  # overlap with the best template below which a body has no known shape
_MOVED: Final = 3.0  # pixels that a resting body's centre stays within
_SKY: Final = 72  # rows above the near ground
_FALLING: Final = 0.0004  # share of the sky that rain or snow passes in front of, at the least
_GRID: Final = 40  # shapes are compared on a grid of this size


@dataclass(frozen=True, slots=True)
class Reading:
    """What the pixels of a clip show.

    `values` names every attribute of the world, None where nothing fits. `count` is the median
    number of bodies a frame, `presence` the share of frames with a body of about the right size,
    `centres` float32 [frames, 2] the x and y of the largest body, NaN where there is none.
    """

    values: dict[str, str | None]
    count: int
    presence: float
    centres: Floats


def _floats(array: npt.ArrayLike) -> Floats:
    return np.asarray(array, np.float32)


def _area(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


@cache
def _backdrops() -> tuple[list[tuple[str, str, str]], Floats]:
    names = list(product(ATTRIBUTES["place"], ATTRIBUTES["time"], ATTRIBUTES["weather"]))
    return names, np.stack([backdrop(*name) for name in names])


def _segment_distance(pixels: Floats, start: Floats, end: Floats) -> Floats:
    """Return the distance in RGB of pixels `[..., 3]` from the line between two colours."""
    along = end - start
    squared = np.maximum((along * along).sum(-1, keepdims=True), 1e-6)
    t = np.clip(((pixels - start) * along).sum(-1, keepdims=True) / squared, 0, 1)
    return _floats(np.sqrt(((pixels - start - t * along) ** 2).sum(-1)))


def _colour_distances(pixels: Floats) -> Floats:
    """Return the distances of pixels `[m, 3]` from the colours, lit or shaded, `[colours, m]`."""
    colours = np.array([COLOURS[name] for name in ATTRIBUTES["colour"]], np.float32)
    dark, light = np.clip(0.84 * colours - 18, 0, 255), np.clip(1.16 * colours + 18, 0, 255)
    return np.stack([_segment_distance(pixels, *ends) for ends in zip(dark, light, strict=True)])


def _fill(frames: Floats, scene: tuple[str, str, str]) -> Mask:
    """Return where bodies are, `[n, H, W]`.

    A pixel belongs to a body when a colour of the palette, in light or shade, explains it better
    than the backdrop does, in shadow, behind a drop or with a glint of the sea.
    """
    empty = backdrop(*scene)
    mask: Mask = np.abs(frames - empty).max(axis=-1) > 24
    pixels, behind = frames[mask], np.broadcast_to(empty, frames.shape)[mask]
    ends = [behind * np.float32(0.5)]
    if scene[2] != "clear":
        ends.append(np.full_like(behind, 235 if scene[2] == "snow" else 190))
    if scene[0] == "sea":
        ends.append(behind + 70)
    from_backdrop = np.min([_segment_distance(pixels, behind, end) for end in ends], axis=0)
    nearest = _colour_distances(pixels).min(axis=0)
    mask[mask] = (nearest < 0.85 * from_backdrop) & (nearest < _FILL_LIMIT)
    return mask


def _aligned(mask: Mask) -> Floats:
    """Return a body on a small grid, its centre in the middle, scaled to a fixed area."""
    y, x = np.nonzero(mask)
    scale = np.sqrt(len(x)) * 1.6 / _GRID
    grid = (np.arange(_GRID, dtype=np.float32) + 0.5 - _GRID / 2) * scale
    rows = np.clip(np.rint(y.mean() + grid).astype(int), 0, mask.shape[0] - 1)
    columns = np.clip(np.rint(x.mean() + grid).astype(int), 0, mask.shape[1] - 1)
    return _floats(mask[rows[:, None], columns[None, :]])


@lru_cache(maxsize=1)
def _templates() -> tuple[Floats, Floats]:
    """Return the aligned bodies of the shapes, and the area of each in pixels."""
    aligned, areas = [], []
    for shape in ATTRIBUTES["shape"]:
        frame = render(Scene("meadow", "night", "clear", shape, "red", "rests"), 1)
        mask = _fill(_floats(frame), ("meadow", "night", "clear"))
        body = max(components(open_(close(mask[0]))), key=_area)
        aligned.append(_aligned(body))
        areas.append(_area(body))
    return np.stack(aligned), np.array(areas, np.float32)


def _sample(clip: Bytes) -> Floats:
    step = max(1, -(-len(clip) // MAX_FRAMES))
    step += 1 - step % 2  # what falls repeats every four frames: an even step would see it stand
    return _floats(clip[::step])


def _read_backdrop(frames: Floats) -> tuple[tuple[str, str, str], float]:
    """Return the best fitting (place, time, weather) and its mean difference, clipped at 48."""
    names, backdrops = _backdrops()
    median = np.median(frames, axis=0)
    differences = np.minimum(np.abs(backdrops - median), 48).mean(axis=(1, 2, 3))
    best = int(differences.argmin())
    return names[best], float(differences[best])


def _falling(frames: Floats, scene: tuple[str, str, str], bodies: Mask) -> float:
    """Return the share of the sky's pixels that something pale passes in front of.

    Pale, and brighter than usual there and than the empty sky; the fringe of bodies is left out,
    for it flickers.
    """
    usual = np.maximum(np.median(frames, axis=0), backdrop(*scene))[:_SKY]
    sky = frames[:, :_SKY]
    passing = (sky - usual).min(axis=-1) > 18
    passing &= sky.max(axis=-1) - sky.min(axis=-1) < 70
    away = ~np.stack([grow(body, 8) for body in bodies])[:, :_SKY]
    return float((passing & away).sum() / max(1, away.sum()))


def _read_weather(frames: Floats, scene: tuple[str, str, str], bodies: Mask) -> str | None:
    """Return the weather, or None when the sky promises rain or snow and nothing falls."""
    if scene[2] == "clear" or _falling(frames, scene, bodies) > _FALLING:
        return scene[2]
    return None


def _read_motion(centres: Floats) -> str | None:
    """Return the motion from a track of centres; None when fewer than half of them are known."""
    known = centres[~np.isnan(centres[:, 0])]
    if len(known) < max(2, len(centres) // 2):
        return None
    spread = np.percentile(known, 95, axis=0) - np.percentile(known, 5, axis=0)
    if spread.max() < _MOVED:
        return "rests"
    return "drifts" if spread[0] > spread[1] else "bounces"


class _Bodies:
    """The bodies found in sampled frames: tracks, areas, and sums over each frame's largest."""

    def __init__(self, frames: Floats, scene: tuple[str, str, str]) -> None:
        mask = _fill(frames, scene)
        smallest = 0.2 * float(_templates()[1].min())
        self.mask = np.zeros(mask.shape, bool)
        self.centres = np.full((len(frames), 2), np.nan, np.float32)
        self.areas = np.zeros(len(frames), np.float32)
        self.counts = np.zeros(len(frames), np.int64)
        self.outline = np.zeros((_GRID, _GRID), np.float32)
        self.colour_distance = np.zeros(len(ATTRIBUTES["colour"]))
        for i, picture in enumerate(mask):
            found = components(open_(close(picture)))
            found = [body for body in found if _area(body) > smallest]
            self.counts[i] = len(found)
            if found:
                body = max(found, key=_area)
                y, x = np.nonzero(body)
                self.mask[i] = np.logical_or.reduce(found)
                self.centres[i] = x.mean(), y.mean()
                self.areas[i] = len(x)
                self.outline += _aligned(body)
                self.colour_distance += _colour_distances(frames[i][body]).mean(axis=1)

    def shape(self) -> tuple[str | None, float]:
        """Return the shape, or None when no template is near, and the usual area of the nearest."""
        templates, areas = _templates()
        mean = self.outline / max(1, int(np.count_nonzero(self.counts)))
        overlap = np.minimum(templates, mean).sum((1, 2)) / np.maximum(templates, mean).sum((1, 2))
        best = int(overlap.argmax())
        name = ATTRIBUTES["shape"][best] if overlap[best] > _SHAPE_LIMIT else None
        return name, float(areas[best])


def read(clip: Bytes) -> Reading:
    """Name what a clip shows, uint8 [n, H, W, 3]; at least 24 frames for a sure motion."""
    frames = _sample(clip)
    scene, difference = _read_backdrop(frames)
    bodies = _Bodies(frames, scene)
    values: dict[str, str | None] = dict.fromkeys(ATTRIBUTES)
    if difference < _BACKDROP_LIMIT:
        values["place"], values["time"] = scene[0], scene[1]
        values["weather"] = _read_weather(frames, scene, bodies.mask)
    shape, area = bodies.shape()
    if 2 * np.count_nonzero(bodies.counts) >= len(frames):
        values["shape"] = shape
        values["colour"] = ATTRIBUTES["colour"][int(bodies.colour_distance.argmin())]
        values["motion"] = _read_motion(bodies.centres)
    usual = (bodies.areas > 0.5 * area) & (bodies.areas < 1.6 * area)
    count = int(np.median(bodies.counts))
    return Reading(values, count, float(usual.mean()), bodies.centres)


def saturation(clip: Bytes) -> float:
    """Return the mean difference between a pixel's largest and smallest channel, 0..255."""
    return float((clip.max(axis=-1).astype(np.int16) - clip.min(axis=-1)).mean())


def sharpness(clip: Bytes) -> float:
    """Return the mean of the largest 5 % of brightness steps between neighbours, 0..255."""
    grey = clip.astype(np.float32).mean(axis=-1)
    steps = np.concatenate([np.abs(np.diff(grey, axis=axis)).reshape(-1) for axis in (1, 2)])
    count = max(1, len(steps) // 20)
    return float(np.partition(steps, -count)[-count:].mean())
