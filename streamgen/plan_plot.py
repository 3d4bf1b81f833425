"""`plan --plot`: the three ledgers of each option as stacked bars, a colour for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamgen.plots import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Each ledger in the largest of its units of which there is one at least.
LEDGERS: Final = {
    "flops": (("TFLOP", 1e-12), ("GFLOP", 1e-9)),
    "bytes": (("GB moved", 1e-9), ("MB moved", 1e-6)),
    "seconds": (("s", 1.0), ("ms", 1e3)),
}
WHOLE: Final = ("#333333", "D")  # colour and marker of what all stages take together


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a plan's document."""
    settings, card, options = document["settings"], document["card"], document["options"]
    eta = "calibrated" if card["is_measured"] else f"eta {card['eta']:g}"
    is_causal = "chunk_frames" in settings
    what = "a chunk" if is_causal else "a request"
    title = f"{what} of {document['model']} {settings['size']} on {card['name']}, {eta}"
    figure, panels = new_figure(title, len(LEDGERS))
    scale = 1.0
    for axes, (key, units) in zip(panels, LEDGERS.items(), strict=True):
        most = max(sum(stage[key] for stage in each["stages"]) for each in options)
        unit, scale = next((u for u in units if most * u[1] >= 1), units[-1])
        _bars(axes, options, key, scale)
        axes.set_xlabel(unit, fontsize=9)
    _mark_wholes(panels[-1], options, scale, "from one to the next" if is_causal else "in all")
    for axes in panels[1:]:
        axes.set_yticklabels([])
    panels[-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, path)


def _bars(axes: Axes, options: Sequence[Mapping[str, Any]], key: str, scale: float) -> None:
    names = list(dict.fromkeys(stage["name"] for each in options for stage in each["stages"]))
    left = [0.0] * len(options)
    for name, colour in zip(names, COLOURS, strict=False):
        widths = [
            scale * sum(stage[key] for stage in each["stages"] if stage["name"] == name)
            for each in options
        ]
        axes.barh(
            [each["name"] for each in options], widths, 0.65, left=left, color=colour, label=name
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()


def _mark_wholes(
    axes: Axes, options: Sequence[Mapping[str, Any]], scale: float, label: str
) -> None:
    """Mark the seconds from one to the next: less than the sum where a decode runs beside."""
    colour, marker = WHOLE
    seconds = [scale * each["seconds"] for each in options]
    axes.plot(
        seconds,
        range(len(options)),
        marker,
        color=colour,
        label=label,
        markersize=5,
    )
