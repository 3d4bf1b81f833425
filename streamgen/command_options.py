"""The options of each command, beside the engine's own (`EngineConfig`).

All of them share one namespace with the engine's, so that a key means the same in a file, in the
environment and on every command line. Nothing here imports torch: `--help` and a wrong flag are
answered at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamgen.config import option, seconds, whole


def length_s(value: object) -> float:
    """Parse a length in seconds: a positive number."""
    try:
        number = seconds(value)
    except ValueError:
        number = None
    if number is None:
        raise ValueError("expected a positive number of seconds")
    return number


def seed(value: object) -> int:
    """Parse a seed; its range is the engine's to check."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.removeprefix("-").isdigit():
        raise ValueError("expected a whole number")
    return int(text)


def path(value: object) -> Path:
    """Parse a path of a file to write."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("expected the path of a file")
    return Path(value)


@dataclass(frozen=True, slots=True)
class PromptAt:
    """A prompt that takes over at a moment of the video."""

    at_s: float
    text: str


def prompt_changes(value: object) -> tuple[PromptAt, ...]:
    """Parse one SECONDS:TEXT or a list of them, as flags given several times are."""
    entries = value if isinstance(value, (list, tuple)) else [value]
    return tuple(sorted((_prompt_at(entry) for entry in entries), key=lambda change: change.at_s))


def _prompt_at(entry: object) -> PromptAt:
    moment, colon, text = str(entry).partition(":")
    try:
        at_s = length_s(moment)
    except ValueError:
        colon = ""
    if not colon or not text.strip():
        raise ValueError("expected SECONDS:TEXT with SECONDS above 0, as in 2.5:a blue star")
    return PromptAt(at_s, text)


def session_counts(value: object) -> tuple[int, ...]:
    """Parse numbers of sessions, as in 1,2,4."""
    entries = value if isinstance(value, (list, tuple)) else str(value).split(",")
    try:
        counts = tuple(int(entry) for entry in entries)
    except (TypeError, ValueError):
        counts = ()
    if not counts or min(counts) < 1:
        raise ValueError("expected numbers of sessions from 1 up, as in 1,2,4")
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    """What one video is made from, beside the prompt."""

    seconds: float = option(5.0, length_s, "length; round(seconds * fps) frames are made")
    seed: int | None = option(None, seed, "0 to 4294967295; left out, one is chosen and told")
    prompt_at: tuple[PromptAt, ...] = option(
        (), prompt_changes, "SECONDS:TEXT, another prompt from the first chunk that begins then"
    )
    latents: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "safetensors file that gets the latents"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """What a replay does differently."""

    replay_steps: int | None = option(
        None, whole(1), "denoise passes a chunk, instead of those the session had"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is measured, and where the figures go."""

    sessions: tuple[int, ...] | None = option(
        None, session_counts, "sessions to run together; latency: 1, sessions: 1,2,4,8"
    )
    seconds: float = option(10.0, length_s, "length of each session's video")
    json: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "file that gets machine, configuration and rows"
    )
    csv: Path | None = option(None, path, "file that gets the rows")  # noqa: RUF009
