"""The procedural world that `pocket` learns: one thing, somewhere, in some weather, moving.

A `Scene` names six attributes; `render` draws any run of frames of it, and of a timeline of scenes
that flow into each other. Everything that a caption does not name is fixed (skies, hills, stars,
the rain's texture) or drawn from the scene's seed (place and phase of the object, phase of the
weather): little entropy, so that a small model can learn to draw all of it well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

FPS: Final = 16
SIZE: Final = 128  # pixels, both ways
TRANSITION_FRAMES: Final = 12  # a new scene takes over within one chunk
HORIZON: Final = 80  # row where ground begins
FLOOR: Final = 88  # row that resting things stand on
RADIUS: Final = 24.0  # pixels
BOUNCE_PERIOD: Final = 24  # frames
DRIFT_PERIOD: Final = 96  # frames

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
OUTLINE: Final = (24, 22, 34)

_rows, _columns = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)


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
        weight = np.clip((frames - first_frame + 1) / TRANSITION_FRAMES, 0, 1)
        if weight.any():
            layers = layers.blended(_Layers.of(scene, frames), weight.astype(np.float32))
    return layers.draw(), layers.distance < 0


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
    def of(cls, scene: Scene, frames: Floats) -> _Layers:
        rng = np.random.default_rng(scene.seed)
        slot, phase, veil_phase = rng.integers(3), rng.random(), rng.integers(16)
        centre = _path(scene.motion, int(slot), float(phase), frames)
        count = len(frames)
        backdrop = np.broadcast_to(
            _backdrop(scene.place, scene.time, scene.weather), (count, SIZE, SIZE, 3)
        )
        if scene.place == "sea":
            backdrop = backdrop + _waves(scene.time, frames)
        height = FLOOR - RADIUS - centre[:, 1]
        x = _columns[None] - centre[:, 0, None, None]
        y = _rows[None] - centre[:, 1, None, None]
        return cls(
            backdrop=backdrop,
            veil=_veil(scene.weather, frames + float(veil_phase)),
            veil_colour=np.full((count, 3), 235 if scene.weather == "snow" else 190, np.float32),
            centre=centre,
            shadow=(0.42 - 0.30 * np.clip(height / 40, 0, 1)).astype(np.float32),
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
        below = ((_columns - x) / (0.85 * RADIUS)) ** 2 + ((_rows - FLOOR - 1) / 5.0) ** 2
        shade = np.clip(1.6 - 1.6 * below, 0, 1) * self.shadow[:, None, None]
        image = self.backdrop * (1 - shade[..., None])
        # Light falls from the upper left: a linear gradient across the body and a round glint.
        glow = np.clip(-((_columns - x) + (_rows - y)) / (2.2 * RADIUS), -1, 1)[..., None]
        body = self.colour[:, None, None, :] * (1 + 0.16 * glow) + 18 * glow
        inside = np.clip(0.5 - (self.distance + 3.0), 0, 1)[..., None]
        body = np.array(OUTLINE, np.float32) * (1 - inside) + body * inside
        cover = np.clip(0.5 - self.distance, 0, 1)[..., None]
        image = image * (1 - cover) + body * cover
        veil = self.veil[..., None]
        image = image * (1 - veil) + self.veil_colour[:, None, None, :] * veil
        return np.clip(image + 0.5, 0, 255).astype(np.uint8)


def _path(motion: str, slot: int, phase: float, frames: Floats) -> Floats:
    """Return the object's centre `[n, 2]`; it keeps to one of three places or sweeps across."""
    x = np.full(len(frames), 40.0 + 24.0 * slot, np.float32)
    y = np.full(len(frames), FLOOR - RADIUS, np.float32)
    if motion == "bounces":
        y -= 34.0 * np.abs(np.sin(np.pi * (frames / BOUNCE_PERIOD + phase)))
    elif motion == "drifts":
        x = 64.0 + 34.0 * np.sin(2 * np.pi * (frames / DRIFT_PERIOD + phase))
        y = np.full(len(frames), 50.0, np.float32)
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
    distance = ((along - outer) * edge_y - across * edge_x) / length
    return distance.astype(np.float32)


def _heart(x: Floats, y: Floats) -> Floats:
    # Two quarter circles on a square that stands on its corner, in units where the tip is (0, 0).
    scale = 1.78 * RADIUS
    u, v = np.abs(x) / scale, 0.54 - y / scale
    lobe = np.hypot(u - 0.25, v - 0.75) - np.sqrt(2) / 4
    along = 0.5 * np.maximum(u + v, 0)
    flank = np.minimum(np.hypot(u, v - 1), np.hypot(u - along, v - along)) * np.sign(u - v)
    return (np.where(u + v > 1, lobe, flank) * scale).astype(np.float32)


_SHAPES: Final = {"ball": _ball, "box": _box, "star": _star, "heart": _heart}


@cache
def _backdrop(place: str, time: str, weather: str) -> Floats:
    """Return sky, lights and ground `[H, W, 3]`, the same for every scene of these three."""
    top, bottom = (np.array(c, np.float32) for c in SKIES[time])
    depth = np.clip(_rows / HORIZON, 0, 1)[..., None]
    image = top * (1 - depth) + bottom * depth
    image = _lights(image, time)
    if weather != "clear":
        grey = image.mean(axis=2, keepdims=True)
        tone = np.array((0.82, 0.88, 0.96) if weather == "rain" else (1.0, 1.02, 1.06), np.float32)
        strength = 0.85 if weather == "rain" else 0.7
        image = image * (1 - strength) + grey * tone * strength
        image = _clouds(image, time, weather)
    ground = np.array(GROUNDS[place], np.float32) * np.array(LIGHT[time], np.float32)
    if weather == "rain":
        ground = ground * 0.86
    for row, shade in _ridges(place):
        slope = np.clip((_rows - row) / 60, 0, 1)[..., None]
        cover = np.clip(_rows - row + 0.5, 0, 1)[..., None]
        image = image * (1 - cover) + ground * (shade - 0.22 * slope) * cover
    return image.astype(np.float32)


def _lights(image: Floats, time: str) -> Floats:
    def disc(x: float, y: float, radius: float) -> Floats:
        return np.clip(radius + 0.5 - np.hypot(_columns - x, _rows - y), 0, 1)[..., None]

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
        edge = np.hypot((_columns - x) / rx, (_rows - y) / ry)
        cover = np.clip((1 - edge) * 8, 0, 1)[..., None]
        image = image * (1 - cover) + base * cover
    return image


def _ridges(place: str) -> tuple[tuple[Floats, float], ...]:
    """Return `(row of the edge per column, shade)` of each fold of ground, far to near."""
    x = _columns
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


def _waves(time: str, frames: Floats) -> Floats:
    """Return the sea's moving glints `[n, H, W, 3]`, added to the backdrop; period 48 frames."""
    turn = (2 * np.pi * frames / 48)[:, None, None]
    crest = np.sin(_columns / 128 * 2 * np.pi * 4 + turn + _rows * 0.9) * np.sin(_rows * 0.52)
    glint = np.clip(crest - 0.35, 0, 1) * np.clip((_rows - HORIZON) / 8, 0, 1)
    return (glint[..., None] * 70 * np.array(LIGHT[time], np.float32)).astype(np.float32)


@cache
def _texture(weather: str) -> Floats:
    """Return the tile `[H, W]` that falls as rain or snow; it wraps in both directions."""
    rng = np.random.default_rng(7)
    tile = np.zeros((SIZE, SIZE), np.float32)
    # One drop a cell of a 4 x 4 grid, jittered: even cover without clumps.
    for cell_y in range(4):
        for cell_x in range(4):
            x = cell_x * 32 + rng.uniform(4, 28)
            y = cell_y * 32 + rng.uniform(4, 28)
            dx = (_columns - x + 64) % 128 - 64
            dy = (_rows - y + 64) % 128 - 64
            if weather == "rain":
                distance = np.hypot(dx + 0.2 * dy, np.maximum(np.abs(dy) - 6, 0)) - 1.1
            else:
                distance = np.hypot(dx, dy) - 2.4
            tile = np.maximum(tile, np.clip(0.5 - distance, 0, 1))
    return tile


def _veil(weather: str, frames: Floats) -> Floats:
    """Return the opacity `[n, H, W]` of what falls: rain 8 pixels a frame, snow 2."""
    if weather == "clear":
        return np.zeros((len(frames), SIZE, SIZE), np.float32)
    speed, opacity = (8, 0.6) if weather == "rain" else (2, 0.9)
    tile = _texture(weather)
    return np.stack([np.roll(tile, int(f) * speed, axis=0) for f in frames]) * np.float32(opacity)
