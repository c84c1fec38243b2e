"""Plots of measurements, without a display and without global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

Points = Sequence[tuple[float, float]]


def log_lines(
    path: Path,
    *,
    title: str,
    across: str,
    panels: Mapping[str, Mapping[str, Points]],
) -> Path:
    """A PNG with a panel for each quantity, side by side: its lines by name, both axes by powers
    of ten. Points that are not above 0 are left out, since such axes have no place for them."""
    figure = Figure(figsize=(5.5 * len(panels), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for place, (quantity, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), place)
        ticks: set[float] = set()
        for name, points in lines.items():
            shown = [point for point in points if min(point) > 0]
            axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", label=name)
            ticks |= {x for x, _ in shown}
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sorted(ticks), [f"{tick:,.0f}" for tick in sorted(ticks)], minor=False)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(across)
        axes.set_ylabel(quantity)
        axes.grid(visible=True, which="major", alpha=0.3)
        if lines:
            axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
