"""`streamgen eval`: whether a candidate is as good as its baseline, by their pixels.

A lossy option is an exchange of quality for time; this tells what it costs. The verdict is that of
the worst chunk: above 35 dB a difference is invisible, between 30 and 35 it is visible on close
look, below 30 the candidate is rejected, and the command ends with status 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from streamgen import machine, quality_report
from streamgen.command_options import EvalConfig
from streamgen.config import EngineConfig
from streamgen.distances import Pixels
from streamgen.errors import ConfigError, Unsupported
from streamgen.models.presets import Preset, find_preset
from streamgen.perceptual import Lpips
from streamgen.quality_compare import (
    Clip,
    ClipScore,
    Layout,
    Perceptual,
    check_alike,
    compare,
)
from streamgen.quality_report import Report
from streamgen.quality_sources import (
    LATENTS,
    Maker,
    Take,
    check_same_making,
    decode,
    is_options,
    layout_of,
    open_video,
    options_of,
    preset_of,
    read_latents,
)
from streamgen.startup import num_cores
from streamgen.video_file import check_output

PASSED, FAILED = 0, 1
AS_THEY_ARE: Final = "the options as they are"
NO_SUGGESTIONS: Final = ("a red ball bounces on the grass",)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The clips of both sides, in pairs, and where their chunks begin."""

    baseline: str
    candidate: str
    layout: Layout
    facts: Mapping[str, Any]
    pairs: Iterator[tuple[Clip, Clip]]


def run(engine: EngineConfig, options: EvalConfig, *, preset: Preset | None = None) -> int:
    """Compare, print the table, write the files; return 1 when the candidate is rejected, else 0.

    Raises ConfigError for what cannot be read or compared.
    """
    _check_files(options)
    perceptual, missing = _perceptual(options)
    pairs = _pairs(engine, options, preset)
    clips = tuple(compare(a, b, pairs.layout, perceptual) for a, b in pairs.pairs)
    report = Report(
        {"from": pairs.baseline, **pairs.facts},
        {"from": pairs.candidate},
        _machine(),
        clips,
        missing,
    )
    print("\n".join(quality_report.lines(report)))
    quality_report.write(report, options.json, options.sheet, options.difference)
    return FAILED if report.verdict == "reject" else PASSED


def gate(
    baseline: EngineConfig,
    candidate: EngineConfig,
    *,
    takes: list[Take],
    seconds: float,
    preset: Preset,
    perceptual: Perceptual | None = None,
) -> list[ClipScore]:
    """Make takes under both sets of options, one engine after the other, and compare them.

    Raises ConfigError when the two make videos of different size or rate.
    """
    layout = layout_of(preset, baseline)
    pairs = _made(baseline, candidate, takes, seconds, preset)
    return [compare(a, b, layout, perceptual) for a, b in pairs]


def _check_files(options: EvalConfig) -> None:
    for path, suffix, param in (
        (options.json, ".json", "json"),
        (options.sheet, ".png", "sheet"),
        (options.difference, ".png", "difference"),
    ):
        if path is not None:
            check_output(path, (suffix,), param)


def _perceptual(options: EvalConfig) -> tuple[Perceptual | None, dict[str, str]]:
    """Return LPIPS if it is wanted and to be had, and why it is missing otherwise."""
    if "lpips" not in options.metrics:
        return None, {}
    try:
        return Lpips(), {}
    except Unsupported as error:
        return None, {"lpips": error.message}


def _pairs(engine: EngineConfig, options: EvalConfig, preset: Preset | None) -> Pairs:
    """Return what is to be compared. Raises ConfigError for sides of different kinds."""
    baseline, candidate = options.baseline, options.candidate
    if candidate is None:
        raise ConfigError(
            "--candidate is missing: a video, latents, or options as in steps=2,dtype=bf16",
            param="candidate",
        )
    of_options = [side is None or is_options(side) for side in (baseline, candidate)]
    if all(of_options):
        return _of_options(engine, options, preset or find_preset(engine.model))
    if any(of_options):
        raise ConfigError(
            f"--baseline {baseline or AS_THEY_ARE} and --candidate {candidate}: compare two files, "
            "or two sets of options",
            param="baseline",
        )
    assert baseline is not None
    for key in ("prompt", "seeds", "seconds"):
        if getattr(options, key) != getattr(EvalConfig(), key):
            raise ConfigError(f"{key} is of options, not of files that are there", param=key)
    return _of_files(engine, Path(baseline), Path(candidate), preset)


def _of_files(
    engine: EngineConfig, baseline: Path, candidate: Path, preset: Preset | None
) -> Pairs:
    are_latents = [path.suffix == LATENTS for path in (baseline, candidate)]
    if all(are_latents):
        a, b = read_latents(baseline, "baseline"), read_latents(candidate, "candidate")
        check_same_making(a, b)
        presets = [preset_of(file, preset) for file in (a, b)]
        clips = decode(a, presets[0], engine), decode(b, presets[1], engine)
        layout, facts = layout_of(presets[0], engine), {"decoded": "in float32"}
    elif any(are_latents):
        raise ConfigError(
            f"{baseline} and {candidate}: compare two videos or two files of latents, as a codec's "
            "noise would count otherwise",
            param="candidate",
        )
    else:
        clips = open_video(baseline, "baseline"), open_video(candidate, "candidate")
        chosen = preset or find_preset(engine.model)
        layout, facts = layout_of(chosen, engine), {"chunks": f"those of {chosen.name}"}
    named = dataclasses.replace(clips[1], name=candidate.name)
    return Pairs(str(baseline), str(candidate), layout, facts, iter([(clips[0], named)]))


def _of_options(engine: EngineConfig, options: EvalConfig, preset: Preset) -> Pairs:
    assert options.candidate is not None
    sides = [
        options_of(engine, text, side) if text is not None else engine
        for side, text in (("baseline", options.baseline), ("candidate", options.candidate))
    ]
    prompts = options.prompt or preset.suggestions or NO_SUGGESTIONS
    takes = [Take(prompt, seed) for prompt in prompts for seed in options.seeds]
    return Pairs(
        options.baseline or AS_THEY_ARE,
        options.candidate,
        layout_of(preset, sides[0]),
        {"model": preset.name, "seconds": options.seconds},
        _made(sides[0], sides[1], takes, options.seconds, preset),
    )


def _made(
    baseline: EngineConfig,
    candidate: EngineConfig,
    takes: list[Take],
    seconds: float,
    preset: Preset,
) -> Iterator[tuple[Clip, Clip]]:
    """Yield the takes of both sides; the baseline's are kept until the candidate's are made."""
    makers = [
        Maker(config, seconds, side, preset)
        for side, config in (("baseline", baseline), ("candidate", candidate))
    ]
    check_alike(makers[0].empty(), makers[1].empty())
    kept: list[tuple[Clip, list[Pixels]]] = []
    for clip in makers[0].make(takes):
        kept.append((clip, list(clip.frames)))
    for (clip, frames), made in zip(kept, makers[1].make(takes), strict=True):
        yield dataclasses.replace(clip, frames=iter(frames)), made


def _machine() -> dict[str, Any]:
    return {
        "cpu": machine.cpu_name(),
        "cores": num_cores(),
        "torch": torch.__version__,
        "commit": machine.commit(),
    }
