"""`serve --gate`: what the lossy options of a server cost, told before it serves with them."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from streamgen import quality_report
from streamgen.config import EngineConfig
from streamgen.models.presets import Preset
from streamgen.quality_gate import AS_THEY_ARE, NO_SUGGESTIONS, gate
from streamgen.quality_report import Report
from streamgen.quality_sources import Take

SECONDS: Final = 3.0
PROMPTS: Final = 2
SEED: Final = 0
# Options that trade quality for time or room, and what they are when they trade nothing; None is
# the preset's own value.
LOSSLESS: Final[dict[str, Any]] = {
    "dtype": "fp32",
    "steps": None,
    "window": None,
    "sink": None,  # one for a longer window might not fit into the preset's
    "quantization": "none",
    "kv_cache_dtype": "auto",
    "decoder": None,
}


def lossless(engine: EngineConfig) -> EngineConfig:
    """Return the options with every lossy one undone, and every bit repeatable."""
    return dataclasses.replace(engine, **LOSSLESS, deterministic=True)


def gate_lines(engine: EngineConfig, preset: Preset) -> list[str]:
    """Compare what a server would make with what it would without lossy options; return the table.

    A few short videos are made either way, so the start takes as much longer. With `--dtype auto`
    the format is measured as it will be for serving. Raises StreamgenError when an engine cannot
    start.
    """
    # `deterministic` was decided by whoever serves: the gate runs as it is.
    served = dataclasses.replace(engine, sources={**engine.sources, "deterministic": "serve"})
    takes = [Take(prompt, SEED) for prompt in (preset.suggestions or NO_SUGGESTIONS)[:PROMPTS]]
    baseline = lossless(served)
    clips = gate(baseline, served, takes=takes, seconds=SECONDS, preset=preset)
    undone = ", ".join(f"{key} {value or 'of the preset'}" for key, value in LOSSLESS.items())
    facts = {"from": f"{AS_THEY_ARE}, but {undone}", "seconds": SECONDS}
    report = Report(facts, {"from": AS_THEY_ARE}, {}, tuple(clips), {})
    return quality_report.lines(report)
