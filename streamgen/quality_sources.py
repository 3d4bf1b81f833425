"""What `streamgen eval` compares: video files, files of latents, or what two sets of options make.

A video file has been through a codec: the distance of two of them contains its noise. Latents
and options have none.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt
import torch
from av.error import FFmpegError
from safetensors import SafetensorError, safe_open

from streamgen.command_options import LIVE_ONLY
from streamgen.config import EngineConfig, read_settings
from streamgen.decoder import StreamingDecoder
from streamgen.device import find_device
from streamgen.distances import Pixels
from streamgen.errors import ConfigError
from streamgen.generate import count_frames, for_one_session
from streamgen.library import Engine
from streamgen.limits import UNLIMITED
from streamgen.models.presets import Preset, build, find_preset
from streamgen.quality_compare import Clip, Layout
from streamgen.startup import resolve

LATENTS: Final = ".safetensors"
FPS: Final = re.compile(r"[1-9]\d?")  # of a model; more than 60 are never played


@dataclass(frozen=True, slots=True)
class LatentsFile:
    """Latents as `streamgen generate --latents` writes them, and what they were made from."""

    path: Path
    latents: npt.NDArray[np.float32]  # [n, C, h, w]
    made_from: Mapping[str, str]  # model, seed, fps, prompts

    @property
    def fps(self) -> float:
        """Return the frames a second they are to be played at."""
        return float(self.made_from["fps"])


@dataclass(frozen=True, slots=True)
class Take:
    """A video to be made: the same for both sides."""

    prompt: str
    seed: int

    @property
    def name(self) -> str:
        """Return what a table calls it."""
        return f"{self.prompt!r}, seed {self.seed}"


def is_options(source: str) -> bool:
    """Return whether a source names options, as in steps=2,dtype=bf16, and no file."""
    return "=" in source and not Path(source).exists()


def options_of(engine: EngineConfig, text: str, side: str) -> EngineConfig:
    """Return the engine's options with those of KEY=VALUE,... in their place.

    Raises ConfigError for an option that does not exist, a value it cannot have, one that is given
    twice or is a server's alone, and for another model.
    """
    flags: dict[str, object] = {}
    for entry in text.split(","):
        name, equals, value = entry.partition("=")
        key = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(
                f"--{side} {text}: expected a file, or KEY=VALUE,... as in steps=2,dtype=bf16",
                param=side,
            )
        if key in flags:
            raise ConfigError(f"--{side} {text}: {key} is given twice", param=side)
        if key in LIVE_ONLY:
            raise ConfigError(
                f"--{side} {text}: {key} is a server's, and changes no picture here", param=side
            )
        flags[key] = value.strip()
    if flags.get("model", engine.model) != engine.model:
        raise ConfigError(
            f"--{side} {text}: both sides are of one model, {engine.model}; --model names another",
            param=side,
        )
    try:
        settings = read_settings([EngineConfig], flags=flags)
    except ConfigError as error:
        raise ConfigError(f"--{side} {text}: {error.message}", param=side) from error
    changed: dict[str, Any] = dict(settings.values)
    sources = {**engine.sources, **settings.sources}
    return dataclasses.replace(engine, **changed, sources=sources)


def layout_of(preset: Preset, engine: EngineConfig) -> Layout:
    """Return where a model's chunks and windows begin under these options."""
    window = engine.window or preset.window_frames
    return Layout(preset.chunks, None if window == UNLIMITED else window)


# Files.


def open_video(path: Path, side: str) -> Clip:
    """Return the pictures of a video file. Raises ConfigError when it cannot be read."""
    try:
        container = av.open(str(path))
    except FFmpegError as error:
        raise ConfigError(f"--{side}: cannot read {path}: {error.strerror}", param=side) from error
    if not container.streams.video:
        container.close()
        raise ConfigError(f"--{side}: {path} has no pictures", param=side)
    stream = container.streams.video[0]
    rate, size = stream.average_rate or stream.guessed_rate, (stream.width, stream.height)

    def frames() -> Iterator[Pixels]:
        with container:
            try:
                for frame in container.decode(stream):
                    if (frame.width, frame.height) != size:
                        now = f"{frame.width}x{frame.height}"
                        raise ConfigError(
                            f"--{side}: {path} goes from {size[0]}x{size[1]} to {now} pixels",
                            param=side,
                        )
                    yield frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            except FFmpegError as error:
                message = f"--{side}: {path} breaks off: {error.strerror}"
                raise ConfigError(message, param=side) from error

    return Clip(str(path), size, float(rate or 0), frames())


def read_latents(path: Path, side: str) -> LatentsFile:
    """Return a file of latents. Raises ConfigError when it is none."""
    try:
        with safe_open(path, "pt") as file:
            latents, made_from = file.get_tensor("latents"), file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"--{side}: cannot read {path}: {error}", param=side) from error
    if (wrong := _what_is_wrong(latents, made_from)) is not None:
        raise ConfigError(
            f"--{side}: {path} is not what `streamgen generate --latents` writes: {wrong}",
            param=side,
        )
    return LatentsFile(path, latents.float().numpy(), made_from)


def _what_is_wrong(latents: torch.Tensor, made_from: Mapping[str, str]) -> str | None:
    """Return why a tensor and what it says of itself are no video's latents; None if they are."""
    if missing := sorted({"model", "seed", "fps", "prompts"} - set(made_from)):
        return f"it does not say its {missing[0]}"
    if not FPS.fullmatch(made_from["fps"]):
        return f"its fps are {made_from['fps'][:20]!r}"
    if latents.ndim != 4 or not latents.numel() or not latents.is_floating_point():
        return f"it has {latents.dtype} of the shape {list(latents.shape)}"
    # Pixels of what is not finite are all alike: nothing could be told apart.
    return None if latents.isfinite().all() else "some of it is not finite"


def check_same_making(a: LatentsFile, b: LatentsFile) -> None:
    """Raise ConfigError for latents of other prompts or another seed: they need not be alike."""
    for key in ("prompts", "seed"):
        if a.made_from[key] != b.made_from[key]:
            raise ConfigError(
                f"{a.path} was made with {key} {a.made_from[key]} and {b.path} with "
                f"{b.made_from[key]}: only videos made from the same can be compared",
                param="candidate",
            )


def decode(file: LatentsFile, preset: Preset, engine: EngineConfig) -> Clip:
    """Return the pictures of latents, decoded in float32 by the model they are of.

    Raises ConfigError when they do not fit it.
    """
    channels = preset.dit.in_dim
    if file.latents.shape[1] != channels:
        raise ConfigError(
            f"{file.path} has {file.latents.shape[1]} channels, {preset.name} has {channels}",
            param="candidate",
        )
    device = find_device(engine.device)
    vae = build(preset, dummy=engine.load_format == "dummy").vae.to(device)
    height, width = (preset.spatial_factor * n for n in file.latents.shape[2:])

    def frames() -> Iterator[Pixels]:
        decoder = StreamingDecoder(vae, device, torch.float32, num_threads=None)
        try:
            stream, plan = decoder.open(), preset.chunks
            for chunk in range(plan.chunks_for_latents(len(file.latents))):
                first = plan.first_frame(chunk)
                latents = file.latents[first : first + plan.num_frames(chunk)]
                count = plan.pixel_frames(first + len(latents)) - plan.pixel_frames(first)
                yield from decoder.submit(stream, torch.from_numpy(latents), count).result()
        finally:
            decoder.close()

    return Clip(str(file.path), (width, height), file.fps, frames())


# Options.


class Maker:
    """An engine that makes takes under one set of options, each the same every time."""

    def __init__(self, engine: EngineConfig, seconds: float, side: str, preset: Preset) -> None:
        self._side = side
        self._preset = preset
        self._config = resolve(for_one_session(engine, seconds), preset)
        assert self._config.fps is not None
        self._num_frames = count_frames(seconds, self._config.fps)

    def empty(self) -> Clip:
        """Return a clip without pictures, of the size and rate that are made."""
        assert self._config.size is not None
        return Clip(self._side, self._config.size, float(self._config.fps or 0), iter(()))

    def make(self, takes: list[Take]) -> Iterator[Clip]:
        """Yield each take, read one after the other while the engine lives."""
        with Engine(self._config, preset=self._preset) as engine:
            engine.stream_engine.watch.is_traced = False  # nobody is shown these chunks
            for take in takes:
                session = engine.open(take.prompt, seed=take.seed, num_frames=self._num_frames)
                frames = (frame for chunk in session for frame in chunk.frames)
                yield dataclasses.replace(self.empty(), name=take.name, frames=frames)


def preset_of(file: LatentsFile, given: Preset | None) -> Preset:
    """Return the preset that latents are of. Raises ConfigError when there is none."""
    model = file.made_from["model"]
    return given if given is not None and given.name == model else find_preset(model)
