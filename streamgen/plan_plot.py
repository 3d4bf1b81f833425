"""`plan --plot`: the three ledgers of each option as stacked bars, a colour for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamgen.plots import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEDGERS: Final = (("flops", "TFLOP", 1e-12), ("bytes", "GB moved", 1e-9), ("seconds", "s", 1.0))
WHOLE: Final = ("#333333", "D")  # colour and marker of what all stages take together


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a plan's document."""
    settings, card, options = document["settings"], document["card"], document["options"]
    eta = "calibrated" if card["is_measured"] else f"eta {card['eta']:g}"
    what = "a chunk" if "chunk_frames" in settings else "a request"
    title = f"{what} of {document['model']} {settings['size']} on {card['name']}, {eta}"
    figure, panels = new_figure(title, len(LEDGERS))
    for axes, (key, unit, scale) in zip(panels, LEDGERS, strict=True):
        _bars(axes, options, key, scale)
        axes.set_xlabel(unit, fontsize=9)
    _mark_wholes(panels[-1], options)
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


def _mark_wholes(axes: Axes, options: Sequence[Mapping[str, Any]]) -> None:
    """Mark the seconds from one to the next: less than the sum where a decode runs beside."""
    colour, marker = WHOLE
    seconds = [each["seconds"] for each in options]
    axes.plot(
        seconds,
        range(len(options)),
        marker,
        color=colour,
        label="from one to the next",
        markersize=5,
    )
