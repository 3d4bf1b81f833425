"""`streamgen replay`: make a session again from the file that its server wrote."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from streamgen import limits
from streamgen.command_options import ReplayConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.generate import MAX_SECONDS, Progress, as_options
from streamgen.library import Engine
from streamgen.messages import Update
from streamgen.models.presets import Preset, find_preset
from streamgen.replay_file import Replay, from_lines
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig
from streamgen.startup import resolve
from streamgen.video_file import CONTAINERS, VideoFile, check_output


def run(
    file: Path,
    output: Path,
    engine: EngineConfig,
    options: ReplayConfig,
    *,
    preset: Preset | None = None,
) -> int:
    """Make the video and return 0.

    The same engine options give the same latents to the last bit; other `steps` another quality of
    the same course of events. Raises StreamgenError for a file or options that cannot be used.
    """
    check_output(output, tuple(CONTAINERS), "output")
    preset = preset or find_preset(engine.model)
    replay = _read(file, preset, engine)
    config = _changed(replay.config, preset, options)
    seconds = replay.num_frames / config.fps
    if seconds > MAX_SECONDS:
        raise ConfigError(f"{seconds:.0f} s are too long for a file", param="replay")
    # All of it can be gone back to, however long the server remembered: no frame is over a second.
    history_seconds = replay.num_frames + 1.0
    engine = dataclasses.replace(
        engine, max_sessions=1, deterministic=True, history_seconds=history_seconds
    )
    written = as_options(engine)
    written["size"] = f"{config.width}x{config.height}"
    with (
        Engine(engine.model, preset=preset, **written) as maker,
        maker.open_config(config) as session,
        VideoFile(output, config.width, config.height, config.fps) as video,
        Progress(replay.num_frames, sys.stderr) as progress,
    ):
        num_left = replay.num_frames
        while num_left:
            frames = next(session).frames[:num_left]
            video.add(frames)
            num_left -= len(frames)
            progress.show(replay.num_frames - num_left)
    print(f"{output}: {replay.num_frames} frames, seed {config.seed}")
    return 0


def _read(file: Path, preset: Preset, engine: EngineConfig) -> Replay:
    try:
        blob = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", param="replay") from error
    return from_lines(blob, preset, resolve(engine, preset))


def _changed(config: SessionConfig, preset: Preset, options: ReplayConfig) -> SessionConfig:
    """Return the session's settings without pauses, and with other steps if they are asked for."""
    steps = config.steps
    if options.replay_steps is not None:
        steps = limits.check_steps(options.replay_steps, preset.step_range, "replay_steps")
    script = [_unpaused(entry, options.replay_steps is not None) for entry in config.script]
    return dataclasses.replace(
        config, steps=steps, num_frames=None, script=tuple(e for e in script if e is not None)
    )


def _unpaused(entry: ScriptEntry, own_steps: bool) -> ScriptEntry | None:
    """Return an entry without what a file has no use for; None when nothing is left of it."""
    control = entry.control
    if not isinstance(control, Update):
        return entry
    control = dataclasses.replace(control, paused=None)
    if own_steps:
        control = dataclasses.replace(control, steps=None)
    if control == Update(event_id=control.event_id):
        return None
    return dataclasses.replace(entry, control=control)
