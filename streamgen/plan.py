"""`streamgen plan`: what a video costs on a device, before anything is made on it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Final

from streamgen import plan_report
from streamgen.account_cards import CARDS, Card
from streamgen.account_options import refuse_dead_options
from streamgen.command_options import PlanConfig
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.plan_causal import plan_causal
from streamgen.plan_reference import plan_reference
from streamgen.plots import require_matplotlib

STANDARD_OUTPUT: Final = Path("-")
# Options of sessions, which a request that is made once and at once has not.
CAUSAL_ONLY: Final = (
    "model", "fps", "window", "sink", "dtype", "max_session_seconds", "max_utilisation", "fused",
    "text_device", "kv_cache_dtype", "offload_layers",
)  # fmt: skip


def run(engine: EngineConfig, options: PlanConfig) -> int:
    """Print the account, write the file and return 0.

    Raises ConfigError, InvalidRequest or Unsupported for what cannot be planned.
    """
    _check(engine, options)
    _check_files(options)
    if options.calibrate:
        from streamgen import calibrate

        path = options.calibration or calibrate.calibration_file()
        facts = calibrate.calibrate(engine, path)
        if options.json != STANDARD_OUTPUT:
            print(plan_report.calibration_line(facts, path), flush=True)
    card = find_card(options)
    if options.reference is not None:
        document = plan_reference(card, engine, options)
        lines = plan_report.reference_lines(document)
    else:
        document = plan_causal(card, engine, options)
        lines = plan_report.causal_lines(document)
    document["doubts"] = _doubts(options)
    if options.plot is not None:
        from streamgen import plan_plot

        plan_plot.draw(document, options.plot)
    if options.json == STANDARD_OUTPUT:
        print(json.dumps(document, indent=2, allow_nan=False))
        return 0
    print("\n".join([*lines, *(["", *document["doubts"]] if document["doubts"] else [])]))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 0


def find_card(options: PlanConfig) -> Card:
    """Return the card that is asked for. Raises ConfigError when nothing is known of it."""
    name = "cpu" if _is_this_machine(options) else options.gpu or "h100"
    card = CARDS.get(name)
    if card is None:
        from streamgen.calibrate import calibration_file, read_card

        path = Path(name)
        if name == "cpu":
            path = options.calibration or calibration_file()
            if not path.exists():
                raise ConfigError(
                    f"nothing is known of this machine ({path} is not there): run `streamgen plan "
                    "--calibrate` once, or name a card with --gpu",
                    param="gpu",
                )
        elif not path.exists():
            names = ", ".join([*CARDS, "cpu"])
            raise ConfigError(f"gpu {name!r} is neither {names} nor a file of facts", param="gpu")
        card = read_card(path)
    return card if options.price is None else dataclasses.replace(card, price=options.price)


def _doubts(options: PlanConfig) -> list[str]:
    """Return what speaks against the figures of this machine."""
    if not _is_this_machine(options):
        return []
    from streamgen.calibrate import calibration_doubts, calibration_file

    return calibration_doubts(options.calibration or calibration_file())


def _check_files(options: PlanConfig) -> None:
    """Raise ConfigError for a file that cannot be written, before anything is measured."""
    if options.plot is not None:
        require_matplotlib("plot")
    file = None if options.json == STANDARD_OUTPUT else options.json
    for path, suffix, param in ((options.plot, ".png", "plot"), (file, ".json", "json")):
        if path is not None:
            from streamgen.video_file import check_output

            check_output(path, (suffix,), param)


def _check(engine: EngineConfig, options: PlanConfig) -> None:
    """Raise ConfigError for options that contradict each other, Unsupported for dead ones."""
    if options.calibration is not None and not options.calibrate and not _is_this_machine(options):
        raise ConfigError(
            "calibration is read for --gpu cpu alone; a card of your own is --gpu FILE",
            param="calibration",
        )
    if options.reference is None:
        refuse_dead_options(True, options.step_cache, options.parallel)
        if options.frames is not None:
            raise ConfigError("frames is of a --reference; a session has no end", param="frames")
        return
    for key in CAUSAL_ONLY:
        if engine.sources.get(key, "default") != "default":
            raise ConfigError(
                f"{key} is of sessions; the reference {options.reference} makes a request at once",
                param=key,
            )
    for key in ("sessions", "vae", "seconds"):
        if getattr(options, key) != getattr(PlanConfig(), key):
            raise ConfigError(f"{key} is of causal models, not of {options.reference}", param=key)


def _is_this_machine(options: PlanConfig) -> bool:
    return options.gpu == "cpu" or (options.gpu is None and options.reference is None)
