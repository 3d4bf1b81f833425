"""`streamgen bench latency`: what one viewer waits for, beside what the account predicted.

First a session makes its video as fast as it can. Then one is played in real time: a simulated
viewer shows its frames by the clock, and changes the prompt now and then.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Final

from streamgen import account_causal, account_memory
from streamgen.account_causal import Load
from streamgen.bench import Bench
from streamgen.bench_playout import Audience, played_figures
from streamgen.bench_report import BenchReport, Row, facts_line, figure_lines, write
from streamgen.calibrate import calibration_doubts, calibration_file
from streamgen.command_options import BenchConfig, PlanConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.messages import SetPrompt
from streamgen.models.presets import PRESETS, Preset, find_preset
from streamgen.plan import find_card
from streamgen.plan_causal import causal_load
from streamgen.session_config import SessionRequest

OPENINGS: Final = 8  # sessions opened for the time to the first frame alone
CONTROL_EVERY_S: Final = (1.0, 2.0)  # from one change of prompt to the next, at random
SETTLE_S: Final = 2.0
SEED: Final = 0
NOTES: Final = (
    "chunk_ms: from when a chunk may begin to its frames; every_ms: from one chunk to the next, "
    "windows full, as fast as it goes",
    "gap_ms, control_to_frame_ms, underruns: of a viewer that plays in real time on this machine; "
    "no network",
    "ttff_ms: from opening to the first JPEG, text never seen before",
)


def run(engine: EngineConfig, options: BenchConfig, *, preset: Preset | None = None) -> int:
    """Measure, print, write the files and return 0.

    Raises ConfigError for more than one session, or for a calibration that is not to be read.
    """
    if options.sessions not in (None, (1,)):
        raise ConfigError("sessions: bench latency is of one session alone", param="sessions")
    preset = preset or find_preset(engine.model)
    load, basis = find_load(engine, options, preset)
    alone = dataclasses.replace(engine, max_sessions=1, max_utilisation=None, max_queue=0)
    with Bench(alone, options.seconds, preset) as bench:
        row = bench.measure(1, OPENINGS)
    row |= play(alone, options.seconds, preset)
    row["resident_bytes"] = bench.resident_bytes or None
    row |= predicted(load, row)
    notes = (*NOTES, basis)
    doubts: list[str] = []
    if load is not None:
        doubts = calibration_doubts(options.calibration or calibration_file())
    print(facts_line("machine", bench.machine))
    print(facts_line("config", bench.config))
    print("\n".join([*notes, "", *figure_lines(row), "", *comparison(row), *doubts]), flush=True)
    report = BenchReport("latency", bench.machine, bench.config, [row], notes, tuple(doubts))
    write(report, options)
    return 0


def play(engine: EngineConfig, seconds: float, preset: Preset) -> Row:
    """Return what a viewer sees who watches for so long and changes the prompt now and then."""
    source, audience = random.Random(SEED), Audience(engine, preset)
    try:
        session = audience.open(SessionRequest(prompt="a red ball bounces on the grass", seed=0))
        audience.run(SETTLE_S)
        audience.forget()
        since = audience.now()
        due = [since + source.uniform(*CONTROL_EVERY_S)]

        def change(now: float) -> None:
            if now >= due[-1]:
                prompt = f"a blue star drifts over the sea, take {len(due)}"
                audience.ask(session.id, SetPrompt(prompt, "cut", event_id=f"event-{len(due)}"))
                due.append(now + source.uniform(*CONTROL_EVERY_S))

        audience.run(seconds, change)
        figures = played_figures(audience.watched(), since, audience.now())
    finally:
        audience.close()
    seen = ("deadline_attainment", "underruns", "continuous_play")
    prefixes = ("gap_ms", "control_to_frame_ms")
    return {k: v for k, v in figures.items() if k in seen or k.startswith(prefixes)}


def find_load(
    engine: EngineConfig, options: BenchConfig, preset: Preset
) -> tuple[Load | None, str]:
    """Return what the account predicts from, and its name; None and the reason where it cannot.

    Raises ConfigError when a calibration was named and cannot be used.
    """
    if PRESETS.get(preset.name) is not preset:
        return None, f"not predicted: {preset.name} is no model of the account"
    try:
        card = find_card(PlanConfig(gpu="cpu", calibration=options.calibration))
        return causal_load(card, engine, PlanConfig()), f"predicted from {card.name}, calibrated"
    except ConfigError as error:
        if options.calibration is not None:
            raise
        return None, f"not predicted: {error.message}"


def predicted(load: Load | None, row: Row) -> Row:
    """Return what the account says of a row's figures, and how far off it is: 0.1 is 10 % more."""
    names = ("every_ms", "chunk_ms", "resident_bytes")
    values: dict[str, float | None] = dict.fromkeys(names)
    if load is not None:
        values = {
            "every_ms": 1000 * account_causal.chunk_s(load),
            "chunk_ms": 1000 * account_causal.latency_s(load),
            "resident_bytes": account_memory.memory(load, 1).total,
        }
    result: Row = {}
    for name, value in values.items():
        measured = row.get(f"{name}_p50", row.get(name))
        result[f"predicted_{name}"] = value
        result[f"error_{name}"] = value / measured - 1 if value and measured else None
    return result


def comparison(row: Row) -> list[str]:
    """Return predictions beside measurements, a line each; none where nothing was predicted."""
    if row["predicted_every_ms"] is None:
        return []
    lines = [f"{'':<24} {'measured':>10} {'predicted':>10} {'error':>7}"]
    for label, name, scale in (
        ("a chunk every, ms", "every_ms", 1.0),
        ("begin to frames, ms", "chunk_ms", 1.0),
        ("resident, MB", "resident_bytes", 1e-6),
    ):
        measured: Any = row.get(f"{name}_p50", row.get(name))
        error = row[f"error_{name}"]
        if error is not None:
            lines.append(
                f"{label:<24} {scale * measured:>10.1f} "
                f"{scale * row[f'predicted_{name}']:>10.1f} {error:>+7.1%}"
            )
    return lines
