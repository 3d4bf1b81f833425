"""A whole session as lines of JSON, from which it can be made again from its first chunk on.

The first line says the format, the model, the settings it began with, how far it came and how many
lines follow; each of those what was done to it, `control`, before which chunk. A `control` of null
says that K/V were made again there, from kept latents: what is made again is close to what was, so
a replay does it too.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from streamgen.config import EngineConfig
from streamgen.errors import InvalidRequest, StreamgenError
from streamgen.models.presets import Preset
from streamgen.record import LogEntry, SessionRecord
from streamgen.record_check import check_config
from streamgen.score import ScriptEntry
from streamgen.session_config import SessionConfig
from streamgen.snapshot import plain_log
from streamgen.strict_json import decode, encode, loads

FORMAT: Final = 2  # 1 did not say how many lines follow
MAX_LINES: Final = 100_000
_FIRST: Final = {"format", "model", "config", "num_frames", "num_events"}


@dataclass(frozen=True, slots=True)
class Replay:
    """What to make again: a session whose script is all that was done to it, and so many frames."""

    config: SessionConfig
    num_frames: int


def to_lines(record: SessionRecord, model: str) -> bytes:
    """Write a session of the model of this name."""
    config = dataclasses.replace(record.config, script=())  # what it did is in the log
    first = {
        "format": FORMAT,
        "model": model,
        "config": encode(config),
        "num_frames": record.num_generated,
        "num_events": len(record.log),
    }
    lines = [first, *(encode(entry) for entry in plain_log(record.log))]
    return b"".join(json.dumps(line, allow_nan=False).encode() + b"\n" for line in lines)


def from_lines(blob: bytes, preset: Preset, engine: EngineConfig) -> Replay:
    """Read a session that this preset under these options, which are resolved, can make again.

    Raises InvalidRequest, and nothing else, for any other bytes, naming the line.
    """
    try:
        return _read(blob, preset, engine)
    except (ValueError, StreamgenError) as error:
        raise InvalidRequest(
            f"the replay cannot be used: {error}; give a file that this model's server wrote",
            param="replay",
        ) from error


def _read(blob: bytes, preset: Preset, engine: EngineConfig) -> Replay:
    lines = blob.splitlines()
    if not 0 < len(lines) <= MAX_LINES:
        raise ValueError(f"it has {len(lines)} lines, not 1 to {MAX_LINES}")
    first = _line(lines[0], 1)
    if first.keys() != _FIRST or first["format"] != FORMAT:
        raise ValueError(f"line 1 must hold {', '.join(sorted(_FIRST))}, format being {FORMAT}")
    if first["model"] != preset.name:
        raise ValueError(f"it is of the model {first['model']!a:.60}, this one is {preset.name}")
    num_frames = first["num_frames"]
    if type(num_frames) is not int or not 0 < num_frames < 2**31:
        raise ValueError(f"line 1: num_frames is {num_frames!a:.20}, not a number from 1 up")
    log = [
        decode(LogEntry, _line(line, number), f"line {number}")
        for number, line in enumerate(lines[1:], start=2)
    ]
    config = decode(SessionConfig, first["config"], "line 1: config")
    script = tuple(ScriptEntry(entry.control, at_chunk=entry.chunk_index) for entry in log)
    config = dataclasses.replace(config, script=script)
    check_config(config, preset, engine)
    if [entry.chunk_index for entry in log] != sorted(entry.chunk_index for entry in log):
        raise ValueError("its lines are not in the order of their chunks")
    if len(log) != first["num_events"]:
        told = first["num_events"]
        raise ValueError(f"{len(log)} lines follow the first one, not {told!a:.20}: it was cut off")
    return Replay(config, num_frames)


def _line(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not an object")
    return value
