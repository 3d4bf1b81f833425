"""`streamgen generate`: one video from prompts, as a file."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from streamgen.command_options import GenerateConfig
from streamgen.config import NOT_OPTIONS, EngineConfig
from streamgen.errors import ConfigError, InvalidRequest
from streamgen.limits import check_prompt
from streamgen.video_file import CONTAINERS, VideoFile, check_output, partial_path

if TYPE_CHECKING:
    from streamgen.library import EngineSession
    from streamgen.models.presets import Preset
    from streamgen.session_config import SessionConfig
    from streamgen.step import ChunkPlan

BAR_WIDTH: Final = 30
MAX_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Change:
    """The text that a chunk, and all after it, are made under."""

    first_frame: int  # of the chunk
    text: str


def run(
    prompt: str,
    output: Path,
    engine: EngineConfig,
    options: GenerateConfig,
    *,
    preset: Preset | None = None,
) -> int:
    """Make the video and return 0.

    It has exactly round(seconds * fps) frames. A prompt of `prompt_at` shows from the first chunk
    that begins at its moment or later. Same model, seed and prompts give the same pixels. Prompts
    that are expanded are told. Whatever is wrong in the request is raised, as StreamgenError,
    before the model is loaded.
    """
    _check_words_and_files(prompt, output, options)
    from streamgen.library import Engine  # torch takes seconds: first what needs none
    from streamgen.models.presets import find_preset
    from streamgen.session_config import SessionRequest
    from streamgen.startup import resolve

    preset = preset or find_preset(engine.model)
    engine = for_one_session(engine, options.seconds)
    effective = resolve(engine, preset)
    assert effective.fps is not None
    num_frames = count_frames(options.seconds, effective.fps)
    request = SessionRequest(prompt=prompt, seed=options.seed, num_frames=num_frames)
    made = request.resolve(preset, effective)
    changes = plan_changes(options, preset.chunks, made.fps, num_frames)
    prompt, changes = asyncio.run(_expanded(prompt, changes, options, made.fps))
    made = dataclasses.replace(made, prompt=check_prompt(prompt))
    with (
        Engine(engine.model, preset=preset, **as_options(engine)) as maker,
        maker.open(prompt, seed=made.seed, num_frames=num_frames) as session,
        VideoFile(output, made.width, made.height, made.fps) as video,
    ):
        latents = _generate(session, num_frames, changes, video, keep=options.latents is not None)
    if options.latents is not None:
        _save_latents(options.latents, latents, preset.name, made, changes)
    length = f"{num_frames} frames, {num_frames / made.fps:g} s at {made.fps} fps"
    print(f"{output}: {length}, {made.width}x{made.height}, seed {made.seed}")
    return 0


def count_frames(seconds: float, fps: int) -> int:
    """Return round(seconds * fps), the frames of a video of this length.

    Raises InvalidRequest when that is none, or more than a day of them.
    """
    if seconds > MAX_SECONDS:
        raise InvalidRequest(
            f"{seconds:g} s are more than a file holds, {MAX_SECONDS} s (a day); use serve",
            param="seconds",
        )
    num_frames = round(seconds * fps)
    if num_frames < 1:
        raise InvalidRequest(f"{seconds:g} s at {fps} fps are no frame", param="seconds")
    return num_frames


def plan_changes(
    options: GenerateConfig, chunks: ChunkPlan, fps: int, num_frames: int
) -> list[Change]:
    """Return the changes of prompt in order, each with the first frame it shows on.

    Of several that fall to one chunk the latest counts. Raises ConfigError for one that no chunk of
    the video is left for.
    """
    num_chunks = chunks.chunks_for_pixels(num_frames)
    starts = [chunks.first_pixel_frame(index) for index in range(num_chunks)]
    changes: dict[int, Change] = {}
    for change in options.prompt_at:
        moment = round(change.at_s * fps, 6)  # 1.1 s at 30 fps is frame 33, not just after it
        start = next((start for start in starts if start >= moment), None)
        if start is None:
            raise ConfigError(
                f"--prompt-at {change.at_s:g}: the last chunk of the video begins at "
                f"{starts[-1] / fps:.3g} s, so this prompt would never show",
                param="prompt_at",
            )
        changes[start] = Change(start, change.text)
    return list(changes.values())


async def _expanded(
    prompt: str, changes: list[Change], options: GenerateConfig, fps: int
) -> tuple[str, list[Change]]:
    """Return what is shown for the prompts, and tell it where that is not what was written.

    Raises ExpansionFailed.
    """
    from streamgen.expand import expander_of

    expander = expander_of(options)
    if expander is None:
        return prompt, changes
    texts = (prompt, *(change.text for change in changes))
    prompt, *captions = await asyncio.gather(*(expander.expand(text) for text in texts))
    print(f"prompt: {prompt}")
    expanded = []
    for change, caption in zip(changes, captions, strict=True):
        print(f"prompt from {change.first_frame / fps:.3g} s on: {caption}")
        expanded.append(dataclasses.replace(change, text=caption))
    return prompt, expanded


def _check_words_and_files(prompt: str, output: Path, options: GenerateConfig) -> None:
    options.check_expansion()
    check_output(output, tuple(CONTAINERS), "output")
    if options.latents is not None:
        check_output(options.latents, (".safetensors",), "latents")
    for text in (prompt, *(change.text for change in options.prompt_at)):
        check_prompt(text)


def for_one_session(engine: EngineConfig, seconds: float) -> EngineConfig:
    """Return the options for a run of so many seconds that can be repeated to the last bit.

    `auto` would measure which number format is faster, and may find another one the next time.
    """
    chosen = engine.sources.get("deterministic", "default") != "default"
    return dataclasses.replace(
        engine,
        max_sessions=1,
        max_session_seconds=seconds,
        gate=False,
        sample_quality=None,
        deterministic=engine.deterministic if chosen else True,
    )


def as_options(engine: EngineConfig) -> dict[str, object]:
    """Return the options as one would write them."""
    names = {f.name for f in dataclasses.fields(engine)} - NOT_OPTIONS - {"model"}
    written = {key: getattr(engine, key) for key in names if getattr(engine, key) is not None}
    if engine.size is not None:
        written["size"] = f"{engine.size[0]}x{engine.size[1]}"
    return written


def _generate(
    session: EngineSession,
    num_frames: int,
    changes: Sequence[Change],
    video: VideoFile,
    *,
    keep: bool,
) -> list[npt.NDArray[np.float32]]:
    """Make all chunks, and return their latents `[n, C, h, w]` if they are to be kept."""
    due = {change.first_frame: change.text for change in changes}
    latents: list[npt.NDArray[np.float32]] = []
    with Progress(num_frames, sys.stderr) as progress:
        for chunk in session:
            video.add(chunk.frames)
            if keep:
                latents.append(chunk.latents)
            next_frame = chunk.first_frame_index + len(chunk.frames)
            if next_frame in due:
                session.set_prompt(due.pop(next_frame))
            progress.show(next_frame)
    assert not due, f"{due} began with no chunk"
    return latents


def _save_latents(
    path: Path,
    latents: list[npt.NDArray[np.float32]],
    model: str,
    made: SessionConfig,
    changes: Sequence[Change],
) -> None:
    """Write the latents of all chunks, and in the file's metadata what they were made from."""
    prompts = [(0, str(made.prompt)), *((change.first_frame, change.text) for change in changes)]
    metadata = {
        "model": model,
        "seed": str(made.seed),
        "fps": str(made.fps),
        "prompts": json.dumps(prompts),
    }
    partial = partial_path(path)
    try:
        # `save_file` would make a file that only its owner may read.
        partial.write_bytes(save({"latents": np.concatenate(latents)}, metadata))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@dataclass(slots=True)
class Progress:
    """A bar on a terminal, redrawn in place. Elsewhere, in a log say, nothing is written."""

    num_frames: int
    out: TextIO
    started_at: float = field(default_factory=time.monotonic)

    def show(self, done: int) -> None:
        """Draw how many frames are done."""
        if not self.out.isatty():
            return
        filled = BAR_WIDTH * done // self.num_frames
        rate = done / max(time.monotonic() - self.started_at, 1e-9)
        bar = "#" * filled + "-" * (BAR_WIDTH - filled)
        self.out.write(f"\r[{bar}] {done}/{self.num_frames} frames  {rate:.1f} fps ")
        self.out.flush()

    def __enter__(self) -> Progress:
        """Draw an empty bar."""
        self.show(0)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the bar's line."""
        if self.out.isatty():
            self.out.write("\n")
