"""The options of each command, beside the engine's own (`EngineConfig`).

All of them share one namespace with the engine's, so that a key means the same in a file, in the
environment and on every command line. Nothing here imports torch: `--help` and a wrong flag are
answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamgen.config import choice, name, option, switch, whole
from streamgen.errors import ConfigError
from streamgen.expand_options import ExpandConfig, length_s

# Of the engine's options, those that mean nothing to a command that makes its own sessions.
SERVER_ONLY: Final = frozenset(
    {
        "max_sessions", "max_session_seconds", "max_queue", "history_seconds", "stall_timeout",
        "sample_quality", "gate", "pixel_format",
    }
)  # fmt: skip
LIVE_ONLY: Final = SERVER_ONLY | {"max_utilisation"}
# A plan opens no session: these are about how an engine runs, or for tests.
NOT_PLANNED: Final = SERVER_ONLY - {"max_session_seconds"} | {
    "attention_backend", "compile", "quantization",
    "deterministic", "load_format", "poison_freed_pages", "faults",
    "weights", "revision", "container", "lora", "decoder",
}  # fmt: skip
MOST_SESSIONS: Final = 10_000  # far beyond any device, and counted in no time
REPEATABLE: Final = frozenset({"prompt_at", "prompt", "ice_server", "lora"})


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
    if not counts or not 1 <= min(counts) <= max(counts) <= MOST_SESSIONS:
        raise ValueError(f"expected numbers of sessions from 1 to {MOST_SESSIONS:,}, as in 1,2,4")
    return counts


METRICS: Final = ("psnr", "ssim", "lpips")
FID: Final = (
    "FID is refused: it compares two crowds of pictures, so a candidate may pass it while each of "
    "its videos differs from the baseline's"
)


def prompts(value: object) -> tuple[str, ...]:
    """Parse one prompt or a list of them, as flags given several times are."""
    texts = value if isinstance(value, (list, tuple)) else [value]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError("expected a text")
    return tuple(texts)


def seeds(value: object) -> tuple[int, ...]:
    """Parse seeds, as in 0,1,2; their range is the engine's to check."""
    entries = value if isinstance(value, (list, tuple)) else str(value).split(",")
    try:
        return tuple(seed(entry) for entry in entries)
    except ValueError as error:
        raise ValueError("expected whole numbers, as in 0,1,2") from error


def metrics(value: object) -> tuple[str, ...]:
    """Parse names of metrics, as in psnr,ssim."""
    entries = value if isinstance(value, (list, tuple)) else str(value).split(",")
    names = tuple(str(entry).strip().lower() for entry in entries)
    if "fid" in names:
        raise ValueError(f"expected some of {', '.join(METRICS)}. {FID}")
    if not names or not set(names) <= set(METRICS):
        raise ValueError(f"expected some of {', '.join(METRICS)}")
    return names


def between(least: float, most: float) -> Callable[[object], float]:
    """Return a parser of numbers from `least`, which is above 0, to `most`."""

    def parse(value: object) -> float:
        try:
            number = length_s(value)
        except ValueError:
            number = 0.0
        if not least <= number <= most:
            raise ValueError(f"expected a number from {least:,} to {most:,}")
        return number

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig(ExpandConfig):
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
        None,
        session_counts,
        "sessions to run together; sessions: 1,2,4,8, transport: 12 for the engine; live: places, "
        "8, for as many as are admitted; capacity: sessions to offer, one number after the other",
    )
    seconds: float = option(
        10.0, length_s, "length of each session's video, or of a phase: transport 6, capacity 20"
    )
    json: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "file that gets machine, configuration and rows"
    )
    csv: Path | None = option(None, path, "file that gets the rows")  # noqa: RUF009
    browser: bool = option(False, switch, "transport: measure what Chromium shows, too")
    plot: Path | None = option(None, path, "PNG that gets a picture of the figures")  # noqa: RUF009
    calibration: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "what `plan --calibrate` measured, to predict from; default: as for plan"
    )

    def one_count(self, kind: str) -> int | None:
        """Return the number of sessions for a kind that takes one; ConfigError for several."""
        if self.sessions is None or len(self.sessions) == 1:
            return self.sessions and self.sessions[0]
        counts = ",".join(map(str, self.sessions))
        message = f"sessions {counts}: bench {kind} takes one number, as in --sessions 12"
        raise ConfigError(message, param="sessions")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Which two videos are compared, and how."""

    baseline: str | None = option(
        None, name, "video, latents, or KEY=VALUE,... in place of the engine's options; default: "
        "those options as they are",
    )  # fmt: skip
    candidate: str | None = option(None, name, "the same, for what is to be judged")
    prompt: tuple[str, ...] = option(
        (), prompts, "prompt that both options are run with; default: the model's suggestions"
    )
    seeds: tuple[int, ...] = option((0,), seeds, "seeds that each prompt is run with")
    seconds: float = option(5.0, length_s, "length of each video, with options")
    metrics: tuple[str, ...] = option(
        METRICS, metrics, "psnr and ssim are always measured, lpips when it is named and installed"
    )
    json: Path | None = option(None, path, "file that gets every figure")  # noqa: RUF009
    sheet: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "PNG that gets frames of each video: baseline, candidate, difference"
    )
    difference: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "PNG that gets the worst frame: baseline, candidate, difference"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What is accounted for, on what, and the exchanges that are made.

    `seconds`, `sessions` and `json` are the keys that a benchmark has, too.
    """

    gpu: str | None = option(
        None, name, "4090, h100, h200, b200, cpu (calibrated) or a JSON file; default: cpu, for a "
        "reference h100",
    )  # fmt: skip
    reference: str | None = option(
        None, choice("flux-1-dev", "flux-schnell", "wan-14b-720p"), "a published model instead"
    )
    frames: int | None = option(None, whole(1), "pixel frames of a reference's clip")
    execution: str = option(
        "typical", choice("eager", "typical", "compiled"), "how well kernels are run: eta"
    )
    eta: float | None = option(None, between(0.001, 1), "achieved / peak, instead of execution's")
    quantize: str = option("none", choice("none", "fp8", "int4"), "format of the DiT's weights")
    vae: str = option("own", choice("own", "tiny"), "the model's own decoder, or the tiny one")
    step_cache: str | None = option(
        None, choice("0.25", "0.4", "0.6"), "threshold below which a step is taken from a cache"
    )
    sparsity: float = option(1.0, between(1, 1000), "what sparse attention gains in attention")
    cards: int = option(1, whole(1, most=64), "cards that one request or session is split over")
    parallel: str = option(
        "ulysses", choice("ulysses", "tensor", "cfg", "pipefusion"), "how it is split"
    )
    sessions: tuple[int, ...] | None = option(
        None, session_counts, "sessions to weigh, as in 1,2,4"
    )
    qps: float | None = option(
        None, between(0.001, 1_000_000), "requests a second to find cards and cost for"
    )
    seconds: float = option(
        5.0, between(0.1, 86_400), "seconds of a request's video, with qps, of a causal model"
    )
    price: float | None = option(
        None, between(0.001, 1_000_000), "dollars an hour of a card, instead of the list's"
    )
    json: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "file that gets the account, - for the standard output"
    )
    plot: Path | None = option(None, path, "PNG that gets stacked bars")  # noqa: RUF009
    calibrate: bool = option(False, switch, "measure this machine with the bundled model first")
    calibration: Path | None = option(  # noqa: RUF009 - it returns a field
        None, path, "file of the measurements; default: streamgen/calibration.json in the cache"
    )
