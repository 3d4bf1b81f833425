"""The settings one session really runs with."""

from __future__ import annotations

from dataclasses import dataclass

from kvcache import WindowConfig, WindowError
from streamgen import limits
from streamgen.config import EngineConfig
from streamgen.errors import InvalidRequest, Unsupported
from streamgen.models.presets import Preset
from streamgen.score import ScriptEntry, check_score
from streamgen.text import TextMix


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Effective values of one session, all checked."""

    prompt: TextMix
    seed: int
    width: int
    height: int
    fps: int
    steps: int
    window: WindowConfig
    num_frames: int | None
    priority: str = "live"
    script: tuple[ScriptEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What somebody asks for; None leaves a value to the engine.

    Types are as loose as what arrives over a wire: `resolve` is the one place where they are
    checked, for the library, the command line and the server alike.
    """

    prompt: object
    seed: object = None
    width: object = None
    height: object = None
    fps: object = None
    steps: object = None
    window: object = None
    sink: object = None
    num_frames: object = None
    priority: object = None
    score: object = None  # list of {at_s or at_chunk, prompt, transition, chunks, curve}

    def resolve(self, preset: Preset, engine: EngineConfig) -> SessionConfig:
        """Return the effective values for an engine whose options are resolved.

        Raises InvalidRequest for what can never be, Unsupported for what this engine does not do.
        """
        assert engine.size is not None
        assert engine.steps is not None
        width, height = self._size(preset, engine.size)
        window = engine.window if self.window is None else limits.check_window(self.window)
        num_frames = limits.check_num_frames(self.num_frames)
        if num_frames is None and window == engine.window == limits.UNLIMITED:
            num_frames = _longest(engine)  # what the cache was sized for is where the video ends
        return SessionConfig(
            prompt=limits.check_prompt(self.prompt),
            seed=limits.check_seed(self.seed),
            width=width,
            height=height,
            fps=limits.check_fps(engine.fps if self.fps is None else self.fps),
            steps=limits.check_steps(
                engine.steps if self.steps is None else self.steps, preset.step_range
            ),
            window=self._window(preset, engine, window, num_frames),
            num_frames=num_frames,
            priority=limits.check_priority(self.priority),
            script=check_score(self.score, preset.transition),
        )

    def _size(self, preset: Preset, served: tuple[int, int]) -> tuple[int, int]:
        asked = (
            served[0] if self.width is None else self.width,
            served[1] if self.height is None else self.height,
        )
        size = limits.check_size(*asked, preset.max_pixels)
        if size != served:
            raise Unsupported(
                f"size {size[0]}x{size[1]}: this engine makes {served[0]}x{served[1]}; "
                f"start one with --size {size[0]}x{size[1]}",
                param="size",
            )
        return size

    def _window(
        self, preset: Preset, engine: EngineConfig, window: int | None, num_frames: int | None
    ) -> WindowConfig:
        assert window is not None
        assert engine.sink is not None
        sink = engine.sink if self.sink is None else limits.check_sink(self.sink)
        held = held_frames(preset, engine)
        if window == limits.UNLIMITED:
            return _unlimited(preset, num_frames, held, sink)
        if window > held:
            raise InvalidRequest(
                f"window {window} > {held}, the latent frames that a session's share of the cache "
                f"holds; start the engine with --window {window}",
                param="window",
            )
        return checked_window(
            WindowConfig(window, sink, rotary=preset.rotary), preset.chunks.chunk_frames
        )


def checked_window(window: WindowConfig, chunk_frames: int) -> WindowConfig:
    """Return the window if chunks fit in it, or raise InvalidRequest with the arithmetic."""
    try:
        window.validate(chunk_frames)
    except WindowError as error:
        raise InvalidRequest(str(error), param="window") from error
    return window


def held_frames(preset: Preset, engine: EngineConfig) -> int:
    """Return the latent frames in one session's share of the cache.

    Raises InvalidRequest for an unlimited window without a longest life to bound it.
    """
    assert engine.window is not None
    if engine.window != limits.UNLIMITED:
        return engine.window
    return _latents_of(preset, _longest(engine))


def _longest(engine: EngineConfig) -> int:
    """Return the most pixel frames a session of an engine without a window can have."""
    assert engine.fps is not None
    if engine.max_session_seconds is None:
        raise InvalidRequest(
            "window none keeps every frame, so the cache needs an end: "
            "give --max-session-seconds too",
            param="window",
        )
    return max(1, round(engine.max_session_seconds * engine.fps))


def _unlimited(preset: Preset, num_frames: int | None, held: int, sink: int) -> WindowConfig:
    """Return a window that keeps everything, if the whole video fits in a session's share."""
    needed = None if num_frames is None else _latents_of(preset, num_frames)
    if needed is None or needed > held:
        length = "endless" if needed is None else f"{num_frames} frames = {needed} latent frames"
        raise InvalidRequest(
            f"window none keeps every frame: the video is {length}, a session's share of the "
            f"cache holds {held} latent frames; give num_frames that fit, or a window",
            param="window",
        )
    return checked_window(
        WindowConfig(None, sink, needed, preset.rotary), preset.chunks.chunk_frames
    )


def _latents_of(preset: Preset, pixel_frames: int) -> int:
    """Return the latent frames of the whole chunks that hold this many pixel frames."""
    chunks = preset.chunks.chunks_for_pixels(pixel_frames)
    return preset.chunks.first_frame(chunks)
