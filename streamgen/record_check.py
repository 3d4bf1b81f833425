"""Whether a session's record, which may come from anybody, is one that an engine can go on with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from streamgen import limits
from streamgen.config import EngineConfig
from streamgen.messages import Control, Rewind, SetPrompt, Update
from streamgen.models.presets import Preset
from streamgen.record import ChunkRecord, SessionRecord
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig, checked_window, held_frames
from streamgen.text import CURVES, Text, TextBlend

MAX_COUNT: Final = 2**31 - 1
MAX_PTS_S: Final = 1e10
MAX_EVENT_ID_CHARACTERS: Final = 128
_WEIGHT_ERROR: Final = 1e-6


def check_record(record: SessionRecord, preset: Preset, engine: EngineConfig) -> None:
    """Raise ValueError or InvalidRequest, naming the value, unless all of it makes sense.

    Types are right already; `engine` has its effective values.
    """
    check_config(record.config, preset, engine)
    _check_text(record.text)
    _check_settings(record, preset)
    for name in ("revision", "epoch", "num_chunks", "num_model_chunks", "num_generated"):
        _check_count(f"session.{name}", getattr(record, name))
    _check_pts("session.pts_s", record.pts_s)
    wanted = record.config.num_frames
    if wanted is not None and record.num_generated >= wanted:
        raise ValueError(f"all its {wanted} frames are made: there is nothing to go on with")
    _check_chunks(record, preset)
    for control in _controls(record):
        check_control(control, preset)
    for entry in record.script:
        _check_script(entry)
    for logged in record.log:
        _check_count("session.log.chunk_index", logged.chunk_index)


def check_config(config: SessionConfig, preset: Preset, engine: EngineConfig) -> None:
    """Raise ValueError or InvalidRequest unless this engine can have such a session."""
    limits.check_size(config.width, config.height, preset.max_pixels)
    if (config.width, config.height) != engine.size:
        assert engine.size is not None
        raise ValueError(
            f"its size is {config.width}x{config.height}, this server makes "
            f"{engine.size[0]}x{engine.size[1]}"
        )
    _check_text(config.prompt)
    _check_settings(config, preset)
    limits.check_num_frames(config.num_frames)
    limits.check_priority(config.priority)
    frames = config.window.window_frames
    frames = config.window.max_frames if frames is None else frames
    held = held_frames(preset, engine)
    if frames is not None and frames > held:
        raise ValueError(f"its window of {frames} latent frames is above {held}, a session's share")
    checked_window(config.window, preset.chunks.chunk_frames)
    for entry in config.script:
        _check_script(entry)
        if entry.control is not None:
            check_control(entry.control, preset)


def _check_settings(part: SessionRecord | SessionConfig | ChunkRecord, preset: Preset) -> None:
    limits.check_seed(part.seed)
    limits.check_fps(part.fps)
    limits.check_steps(part.steps, preset.step_range, "steps")


def _check_chunks(record: SessionRecord, preset: Preset) -> None:
    before: ChunkRecord | None = None
    for place, chunk in enumerate(record.chunks):
        path = f"chunks[{place}]"
        shape = preset.latent_shape(record.config.width, record.config.height)
        if chunk.latents.shape[1:] != shape:
            raise ValueError(f"{path} has latents of shape {chunk.latents.shape[1:]}, not {shape}")
        _check_place(chunk, path, record, preset)
        _check_settings(chunk, preset)
        _check_text(chunk.text)
        _check_text(chunk.kv_text)
        if before is not None and not _follows(before, chunk):
            raise ValueError(f"{path}, number {chunk.index}, cannot follow number {before.index}")
        before = chunk


def _check_place(chunk: ChunkRecord, path: str, record: SessionRecord, preset: Preset) -> None:
    """Check where a chunk lies in the stream and in the model's history."""
    for name in ("index", "epoch", "draw", "first_latent", "revision", "first_frame_index"):
        _check_count(f"{path}.{name}", getattr(chunk, name))
    _check_pts(f"{path}.pts_s", chunk.pts_s)
    plan, draw = preset.chunks, chunk.draw
    if (chunk.first_latent, len(chunk.latents)) != (plan.first_frame(draw), plan.num_frames(draw)):
        raise ValueError(f"{path}: {len(chunk.latents)} latents from {chunk.first_latent} on are "
                         f"not the model's chunk {draw}")  # fmt: skip
    pixels = plan.first_pixel_frame(draw + 1) - plan.first_pixel_frame(draw)
    if not 1 <= chunk.num_frames <= pixels:
        raise ValueError(f"{path}.num_frames is {chunk.num_frames}, not 1 to {pixels}")
    is_past = (
        chunk.index < record.num_chunks
        and chunk.first_frame_index + chunk.num_frames <= record.num_generated
        and chunk.epoch <= record.epoch
        and (chunk.epoch < record.epoch or chunk.draw < record.num_model_chunks)
        and chunk.revision <= record.revision
    )
    if not is_past:
        raise ValueError(f"{path}, number {chunk.index}, is not before the session's next chunk")


def _follows(before: ChunkRecord, chunk: ChunkRecord) -> bool:
    return (
        chunk.index > before.index
        and chunk.first_frame_index >= before.first_frame_index + before.num_frames
        and (chunk.epoch, chunk.draw) > (before.epoch, before.draw)
    )


def _check_text(text: Text) -> None:
    if isinstance(text, TextBlend):
        if text.curve not in CURVES or not 0 <= text.at <= 1:
            raise ValueError(f"a blend of prompts at {text.at} along {text.curve!a:.20}")
        _check_text(text.start)
        _check_text(text.end)
        return
    limits.check_prompt(text)
    total = sum(weight for _, weight in text.parts)
    if abs(total - 1) > _WEIGHT_ERROR:
        raise ValueError(f"the weights of a prompt have the sum {total}, not 1")


def _controls(record: SessionRecord) -> Iterator[Control]:
    yield from record.pending
    for chunk in record.chunks:
        yield from chunk.controls
    for source in (record.script, record.log):
        yield from (entry.control for entry in source if entry.control is not None)


def check_control(control: Control, preset: Preset) -> None:
    """Raise ValueError or InvalidRequest unless a session of the preset could accept it."""
    _check_event_id(control.event_id)
    if isinstance(control, SetPrompt):
        limits.check_prompt(control.prompt)
        limits.check_transition(
            control.transition or preset.transition, control.blend_chunks, control.blend_curve
        )
    elif isinstance(control, Rewind):
        _check_count("to_chunk", control.to_chunk)
    else:
        _check_update(control, preset)


def _check_update(update: Update, preset: Preset) -> None:
    if update.seed is not None:
        limits.check_seed(update.seed)
    if update.fps is not None:
        limits.check_fps(update.fps)
    if update.steps is not None:
        limits.check_steps(update.steps, preset.step_range, "steps")
    if update.reset not in (None, "cache", "all"):
        raise ValueError(f"reset {update.reset!a:.20} is not cache or all")


def _check_script(entry: ScriptEntry) -> None:
    if (entry.at_chunk is None) == (entry.at_s is None):
        raise ValueError("an entry of the script needs at_chunk or at_s")
    if entry.at_chunk is not None:
        _check_count("script.at_chunk", entry.at_chunk)
    if entry.at_s is not None:
        _check_pts("script.at_s", entry.at_s)


def _check_event_id(event_id: str | None) -> None:
    if event_id is None:
        return
    is_text = not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in event_id)
    if not event_id.strip() or len(event_id) > MAX_EVENT_ID_CHARACTERS or not is_text:
        raise ValueError(f"event_id {event_id!a:.40} is not text of 1 to 128 characters")


def _check_count(path: str, value: int) -> None:
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{path} is {value}, not from 0 to {MAX_COUNT}")


def _check_pts(path: str, value: float) -> None:
    if not math.isfinite(value) or not 0 <= value <= MAX_PTS_S:
        raise ValueError(f"{path} is {value}, not a time from 0 s up")
