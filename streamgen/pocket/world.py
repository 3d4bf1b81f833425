"""The procedural world that `pocket` learns: one thing, somewhere, in some weather, moving.

A `Scene` names six attributes; `render` draws any run of frames of it, and of a timeline of scenes
that flow into each other. Everything that a caption does not name is fixed (skies, hills, stars,
the rain) or drawn from the scene's seed (place and phase of the object): little entropy, so that a
small model can learn to draw all of it well.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streamgen.pocket.scenery import (
    COLUMNS,
    ROWS,
    SIZE,
    Floats,
    backdrop,
    unit,
    veil,
    waves,
)

FPS: Final = 16
TRANSITION_FRAMES: Final = 12  # a new scene takes over within one chunk
FLOOR: Final = 88  # row that resting things stand on
RADIUS: Final = 24.0  # pixels
BOUNCE_PERIOD: Final = 24  # frames
BOUNCE_HEIGHT: Final = 24.0  # pixels
DRIFT_PERIOD: Final = 96  # frames
NUM_STARTS: Final = 9  # ways to begin: three places times three phases of a bounce
PHASES: Final = 3
# Where on its way a thing that drifts is, in eighths of the period: in the place of its start.
DRIFTS: Final = (5, 6, 7, 0, 4, 0, 1, 2, 3)

ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {
    "place": ("meadow", "sea", "desert", "snowfield"),
    "time": ("day", "sunset", "night"),
    "weather": ("clear", "rain", "snow"),
    "shape": ("ball", "star", "box", "heart"),
    "colour": ("red", "orange", "yellow", "green", "blue", "purple"),
    "motion": ("bounces", "drifts", "rests"),
}

COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (222, 40, 44),
    "orange": (246, 134, 24),
    "yellow": (250, 220, 50),
    "green": (40, 176, 76),
    "blue": (44, 98, 226),
    "purple": (152, 66, 200),
}
OUTLINE: Final = (24, 22, 34)


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene of the world; `seed` settles what the six attributes leave open.

    Each attribute is a value of `ATTRIBUTES[name]`.
    """

    place: str
    time: str
    weather: str
    shape: str
    colour: str
    motion: str
    seed: int = 0

    def labels(self) -> dict[str, str]:
        """Return the attributes by name, in the order of `ATTRIBUTES`."""
        return {name: getattr(self, name) for name in ATTRIBUTES}


def random_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene with independent, uniform attributes and a fresh seed."""
    values = {name: str(rng.choice(options)) for name, options in ATTRIBUTES.items()}
    return Scene(**values, seed=int(rng.integers(2**31)))


def start_of(seed: int) -> int:
    """Return which of the `NUM_STARTS` ways to begin a seed settles."""
    return zlib.crc32(seed.to_bytes(8, "little")) % NUM_STARTS  # the same with every numpy


def render(
    timeline: Scene | list[tuple[int, Scene]], num_frames: int, start_frame: int = 0
) -> npt.NDArray[np.uint8]:
    """Draw frames `start_frame ..` of a scene, or of `(first frame, scene)` entries in order.

    Returns uint8 `[num_frames, 128, 128, 3]`. After an entry's first frame its scene takes over
    during `TRANSITION_FRAMES`. The first entry rules from the beginning.
    """
    return render_with_object(timeline, num_frames, start_frame)[0]


def render_with_object(
    timeline: Scene | list[tuple[int, Scene]], num_frames: int, start_frame: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Draw frames as `render` does; return also which pixels are the object's `[n, 128, 128]`."""
    entries = [(0, timeline)] if isinstance(timeline, Scene) else timeline
    frames = np.arange(start_frame, start_frame + num_frames, dtype=np.float32)
    layers = _Layers.of(entries[0][1], frames)
    for first_frame, scene in entries[1:]:
        weight = unit((frames - first_frame + 1) / TRANSITION_FRAMES)
        if weight.any():
            layers = layers.blended(_Layers.of(scene, frames), weight.astype(np.float32))
    return layers.draw(), layers.distance < 0


def drawn_at(scene: Scene, number: int, centres: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Draw frame `number` of a scene with its thing at other places, `[n, 2]` in pixels x, y.

    Returns the pictures uint8 `[n, 128, 128, 3]`, and how far each pixel is from the thing's edge,
    negative inside, `[n, 128, 128]`.
    """
    layers = _Layers.of(scene, np.full(len(centres), number, np.float32), centres)
    return layers.draw(), layers.distance


@dataclass(slots=True)
class _Layers:
    """What a run of frames is drawn from; every field blends linearly into another scene's."""

    backdrop: Floats  # [n or 1, H, W, 3] 0..255
    veil: Floats  # [n, H, W] opacity of rain or snow
    veil_colour: Floats  # [n, 3]
    centre: Floats  # [n, 2] x, y
    shadow: Floats  # [n] opacity
    colour: Floats  # [n, 3]
    distance: Floats  # [n, H, W] signed distance to the object's edge, pixels

    @classmethod
    def of(cls, scene: Scene, frames: Floats, centre: Floats | None = None) -> _Layers:
        if centre is None:
            centre = _path(scene.motion, start_of(scene.seed), frames)
        count = len(frames)
        behind: Floats = np.broadcast_to(
            backdrop(scene.place, scene.time, scene.weather), (count, SIZE, SIZE, 3)
        )
        if scene.place == "sea":
            behind = behind + waves(scene.time, frames)
        height = FLOOR - RADIUS - centre[:, 1]
        x = COLUMNS[None] - centre[:, 0, None, None]
        y = ROWS[None] - centre[:, 1, None, None]
        return cls(
            backdrop=behind,
            veil=veil(scene.weather, frames),
            veil_colour=np.full((count, 3), 235 if scene.weather == "snow" else 190, np.float32),
            centre=centre,
            shadow=(0.42 - 0.30 * unit(height / 40)).astype(np.float32),
            colour=np.tile(np.array(COLOURS[scene.colour], np.float32), (count, 1)),
            distance=_SHAPES[scene.shape](x, y),
        )

    def blended(self, other: _Layers, weight: Floats) -> _Layers:
        mixed = []
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            w = weight.reshape((-1,) + (1,) * (mine.ndim - 1))
            mixed.append(mine * (1 - w) + theirs * w)
        return _Layers(*mixed)

    def draw(self) -> npt.NDArray[np.uint8]:
        x, y = self.centre[:, 0, None, None], self.centre[:, 1, None, None]
        below = ((COLUMNS - x) / (0.85 * RADIUS)) ** 2 + ((ROWS - FLOOR - 1) / 5.0) ** 2
        shade = unit(1.6 - 1.6 * below) * self.shadow[:, None, None]
        image = self.backdrop * (1 - shade[..., None])
        # Light falls from the upper left: a linear gradient across the body and a round glint.
        glow = np.clip(-((COLUMNS - x) + (ROWS - y)) / (2.2 * RADIUS), -1, 1)[..., None]
        body = self.colour[:, None, None, :] * (1 + 0.16 * glow) + 18 * glow
        inside = unit(0.5 - (self.distance + 3.0))[..., None]
        body = np.array(OUTLINE, np.float32) * (1 - inside) + body * inside
        cover = unit(0.5 - self.distance)[..., None]
        image = image * (1 - cover) + body * cover
        veil = self.veil[..., None]
        image = image * (1 - veil) + self.veil_colour[:, None, None, :] * veil
        pixels: npt.NDArray[np.uint8] = np.clip(image + 0.5, 0, 255).astype(np.uint8)
        return pixels


def _path(motion: str, start: int, frames: Floats) -> Floats:
    """Return the object's centre `[n, 2]`; it keeps to one of three places or sweeps across.

    Phases are whole latent frames apart, so that one always holds the same part of a motion.
    """
    place, phase = divmod(start, PHASES)
    x: Floats = np.full(len(frames), 40.0 + 24.0 * place)
    y: Floats = np.full(len(frames), FLOOR - RADIUS)
    if motion == "bounces":
        turn = frames / BOUNCE_PERIOD + phase / PHASES
        y = y - BOUNCE_HEIGHT * np.abs(np.sin(np.pi * turn))
    elif motion == "drifts":
        x = 64.0 + 34.0 * np.sin(2 * np.pi * (frames / DRIFT_PERIOD + DRIFTS[start] / 8))
        y = np.full(len(frames), 50.0)
    return np.stack([x, y], axis=1).astype(np.float32)


def _ball(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 0.92 * RADIUS


def _box(x: Floats, y: Floats) -> Floats:
    side, corner = 0.86 * RADIUS, 4.0
    dx, dy = np.abs(x) - side + corner, np.abs(y) - side + corner
    outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
    return outside + np.minimum(np.maximum(dx, dy), 0) - corner


def _star(x: Floats, y: Floats) -> Floats:
    # Fold the plane into one of ten wedges; the edge there is the line from tip to notch.
    outer, inner, wedge = 1.16 * RADIUS, 0.56 * RADIUS, np.pi / 5
    angle = np.arctan2(x, -y)
    angle = np.abs((angle + wedge) % (2 * wedge) - wedge)
    radius = np.hypot(x, y)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    edge_x, edge_y = inner * np.cos(wedge) - outer, inner * np.sin(wedge)
    length = np.hypot(edge_x, edge_y)
    distance: Floats = ((along - outer) * edge_y - across * edge_x) / length
    return distance


def _heart(x: Floats, y: Floats) -> Floats:
    # Two quarter circles on a square that stands on its corner, in units where the tip is (0, 0).
    scale = 1.78 * RADIUS
    u, v = np.abs(x) / scale, 0.54 - y / scale
    lobe = np.hypot(u - 0.25, v - 0.75) - np.sqrt(2) / 4
    along = 0.5 * np.maximum(u + v, 0)
    flank = np.minimum(np.hypot(u, v - 1), np.hypot(u - along, v - along)) * np.sign(u - v)
    distance: Floats = np.where(u + v > 1, lobe, flank) * np.float32(scale)
    return distance


_SHAPES: Final = {"ball": _ball, "box": _box, "star": _star, "heart": _heart}
