"""What every kind of `streamgen bench` writes: JSON, CSV and a picture, in one form.

The form is docs/bench.schema.json. Each row stands for itself: it says the device, torch, threads
and commit that it was measured with.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from streamgen.command_options import BenchConfig
from streamgen.plots import require_matplotlib
from streamgen.video_file import check_output

FORM: Final = 1  # of the JSON file; another number when a reader has to change
ROW_FACTS: Final = ("device", "torch", "threads", "commit")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The figures of one kind, what they were measured on, and what speaks against them.

    `more` has what is of no row; its keys are the document's.
    """

    kind: str
    machine: Mapping[str, Any]
    config: Mapping[str, Any]
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return what the JSON file holds."""
        facts = {key: self.machine[key] for key in ROW_FACTS}
        return {
            "form": FORM,
            "kind": self.kind,
            "machine": dict(self.machine),
            "config": dict(self.config),
            "notes": list(self.notes),
            "doubts": list(self.doubts),
            **self.more,
            "rows": [{**row, **facts} for row in self.rows],
        }


def check_files(options: BenchConfig) -> None:
    """Raise ConfigError for a file that cannot be written, before minutes are spent."""
    for path, suffix, param in (
        (options.json, ".json", "json"),
        (options.csv, ".csv", "csv"),
        (options.plot, ".png", "plot"),
    ):
        if path is not None:
            check_output(path, (suffix,), param)
    if options.plot is not None:
        require_matplotlib("plot")


def write(report: BenchReport, options: BenchConfig) -> None:
    """Write the files that were asked for."""
    document = report.document()
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    if options.csv is not None:
        rows = [flat(row) for row in document["rows"]]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    if options.plot is not None:
        from streamgen.bench_plots import draw

        draw(document, options.plot)


def flat(row: Mapping[str, Any]) -> Row:
    """Return a row for a table: a column for each entry of a mapping, none for a list."""
    columns: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            columns |= {f"{key}_{name}": entry for name, entry in value.items()}
        elif not isinstance(value, (list, tuple)):
            columns[key] = value
    return columns


def percentiles(name: str, seconds: Sequence[float], *percents: int) -> dict[str, float | None]:
    """Return NAME_p50 and the like in ms, None where nothing was measured."""
    wanted = percents or (50, 95, 99)
    if not seconds:
        return {f"{name}_p{percent}": None for percent in wanted}
    values = 1000 * np.percentile(seconds, wanted)
    return {f"{name}_p{p}": float(value) for p, value in zip(wanted, values, strict=True)}


def facts_line(name: str, facts: Mapping[str, Any]) -> str:
    """Return facts as a line of text."""
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items())


def figure_lines(row: Mapping[str, Any]) -> list[str]:
    """Return a row's figures, one a line."""
    return [f"  {name:<28} {_short(value)}" for name, value in flat(row).items()]


def _short(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
