"""Figures drawn with matplotlib, which is installed only by who wants them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamgen.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES: Final = (11.0, 4.5)
DOTS: Final = 110  # an inch
# Okabe and Ito's colours, told apart by the colour-blind too.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def require_matplotlib(param: str) -> None:
    """Raise ConfigError when matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"--{param} needs matplotlib: pip install 'streamgen-video[plot]', or leave it out",
            param=param,
        )


def new_figure(
    title: str, panels: int, inches: tuple[float, float] = INCHES
) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels beside each other, drawn without a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, dpi=DOTS, layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = [figure.add_subplot(1, panels, i + 1) for i in range(panels)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)  # its methods are not typed
    canvas.print_png(path)
