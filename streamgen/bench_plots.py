"""`bench --plot`: the figures of each kind as a picture of two panels, or three."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamgen.plots import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGES: Final = ("text", "dit", "vae", "encode")
PERCENTS: Final = (50, 95, 99)
TALL: Final = (16.0, 8.0)

Rows = Sequence[Mapping[str, Any]]


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a benchmark's document."""
    kind, machine, config = document["kind"], document["machine"], document["config"]
    what = config.get("model", config.get("engine", ""))
    threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    title = (
        f"streamgen bench {kind}: {what} on {machine['cpu']}, {threads}, torch {machine['torch']}"
    )
    panels = PANELS[kind]
    figure, places = new_figure(title, len(panels), TALL if kind == "transport" else (11.0, 4.5))
    for panel, axes in zip(panels, places, strict=True):
        panel(axes, document["rows"])
    save(figure, path)


def _rates(axes: Axes, rows: Rows) -> None:
    """Draw frames a second against sessions, together and one after another."""
    sessions = [row["sessions"] for row in rows]
    axes.plot(sessions, _values(rows, "fps_total"), "o-", color=COLOURS[0], label="together")
    axes.plot(
        sessions, _values(rows, "fps_serial"), "s--", color=COLOURS[1], label="one after another"
    )
    axes.set_ylim(bottom=0)
    axes.set_xticks(sessions)
    _label(axes, "sessions", "frames a second")


def _shares(axes: Axes, rows: Rows) -> None:
    """Draw which stage takes how much of the time, a bar for each number of sessions."""
    names = [str(row["sessions"]) for row in rows]
    below = [0.0] * len(rows)
    for stage, colour in zip(STAGES, COLOURS, strict=False):
        values = [100 * row["share"][stage] for row in rows]
        axes.bar(names, values, 0.6, bottom=below, color=colour, label=stage)
        below = [a + b for a, b in zip(below, values, strict=True)]
    _label(axes, "sessions", "% of the time at work")


def _latencies(axes: Axes, rows: Rows) -> None:
    """Draw what somebody waits for, and beside it what the account predicted."""
    row = rows[0]
    names = {
        "first frame": "ttff_ms", "chunk": "chunk_ms", "a chunk every": "every_ms",
        "control to frame": "control_to_frame_ms",
    }  # fmt: skip
    for place, percent in enumerate(PERCENTS):
        heights = [row.get(f"{name}_p{percent}") or 0.0 for name in names.values()]
        at = [i + 0.25 * (place - 1) for i in range(len(names))]
        axes.bar(at, heights, 0.25, color=COLOURS[place], label=f"p{percent}")
    for i, name in enumerate(names.values()):
        predicted = row.get(f"predicted_{name}")
        if predicted is not None:
            label = "predicted" if name == "chunk_ms" else ""
            axes.hlines(predicted, i - 0.45, i + 0.45, color=COLOURS[5], label=label)
    axes.set_xticks(range(len(names)), list(names))
    _label(axes, "", "ms")


def _attainment(axes: Axes, rows: Rows) -> None:
    """Draw how many chunks came in time, and how much of the time playout went on."""
    offered = [row["offered"] for row in rows]
    for i, (key, label) in enumerate(
        (("deadline_attainment", "chunks in time"), ("continuous_play", "time playing on"),
         ("placed_share", "got a place"))
    ):  # fmt: skip
        values = [100 * row[key] if row[key] is not None else float("nan") for row in rows]
        axes.plot(offered, values, "os^"[i] + "-", color=COLOURS[i], label=label)
    axes.axhline(99, color=COLOURS[5], linestyle=":", label="99 %")
    axes.set_ylim(top=102)
    axes.set_xticks(offered)
    _label(axes, "sessions offered (arrivals a second x length)", "%")


def _waits(axes: Axes, rows: Rows) -> None:
    """Draw how long people wait for the first frame, and how many sessions play."""
    offered = [row["offered"] for row in rows]
    for i, percent in enumerate((50, 95)):
        values = [row[f"ttff_ms_p{percent}"] or float("nan") for row in rows]
        label = f"first frame, p{percent}"
        axes.plot(offered, values, "os"[i] + "-", color=COLOURS[i], label=label)
    axes.set_xticks(offered)
    _label(axes, "sessions offered (arrivals a second x length)", "ms")
    other = axes.twinx()
    other.plot(offered, _values(rows, "sessions_mean"), "^--", color=COLOURS[2], label="playing")
    other.set_ylabel("sessions playing, mean", fontsize=9, color=COLOURS[2])
    other.set_ylim(bottom=0)
    other.tick_params(labelsize=8)


def _busy(axes: Axes, rows: Rows) -> None:
    """Draw the share of time in passes, predicted and measured, without and with recaches."""
    names = [_with_recaches(row) for row in rows]
    for i, key in enumerate(("busy_predicted", "busy_measured")):
        at = [place + 0.4 * i - 0.2 for place in range(len(rows))]
        axes.bar(at, [100 * row[key] for row in rows], 0.4, color=COLOURS[i], label=key[5:])
    axes.set_xticks(range(len(names)), names)
    _label(axes, "", "% of the time in passes")


def _chunk_times(axes: Axes, rows: Rows) -> None:
    """Draw how long chunks took, and how many were late."""
    for place, percent in enumerate(PERCENTS):
        at = [i + 0.25 * (place - 1) for i in range(len(rows))]
        heights = [row[f"chunk_ms_p{percent}"] or 0.0 for row in rows]
        axes.bar(at, heights, 0.25, color=COLOURS[place], label=f"p{percent}")
    names = [f"{_with_recaches(row)}\n{row['underruns']} of {row['chunks']} late" for row in rows]
    axes.set_xticks(range(len(names)), names)
    _label(axes, "", "ms a chunk")


def _figures(axes: Axes, rows: Rows, unit: str) -> None:
    """Draw all figures of a unit as bars, and the marks they should stay under."""
    chosen = [row for row in rows if row["unit"] == unit and row["value"] is not None][::-1]
    names = [_short(row["figure"]) for row in chosen]
    axes.barh(names, _values(chosen, "value"), 0.6, color=COLOURS[0])
    for i, row in enumerate(chosen):
        if row["mark"] is not None:
            axes.vlines(row["mark"], i - 0.4, i + 0.4, color=COLOURS[5])
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel(unit, fontsize=9)
    axes.set_xscale("linear" if unit == "%" else "symlog")


def _in_ms(axes: Axes, rows: Rows) -> None:
    _figures(axes, rows, "ms")


def _in_percent(axes: Axes, rows: Rows) -> None:
    _figures(axes, rows, "%")


def _in_times(axes: Axes, rows: Rows) -> None:
    _figures(axes, rows, "x")
    axes.set_xlabel("times", fontsize=9)


def _values(rows: Rows, key: str) -> list[float]:
    return [row[key] for row in rows]


def _with_recaches(row: Mapping[str, Any]) -> str:
    return "with recaches" if row["recaches"] else "as admitted"


def _short(name: str) -> str:
    return name if len(name) <= 56 else f"{name[:55]}…"


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.legend(fontsize=8, frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


Panel = Callable[["Axes", Rows], None]
PANELS: Final[dict[str, tuple[Panel, ...]]] = {
    "latency": (_latencies, _shares),
    "sessions": (_rates, _shares),
    "capacity": (_attainment, _waits),
    "live": (_busy, _chunk_times),
    "transport": (_in_ms, _in_percent, _in_times),
}
