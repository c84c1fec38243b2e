"""Growth of the time of pure functions with the size of their input.

Each is measured at a quarter, at half and at the whole of a size. The growth is the slope through
these points on logarithmic axes: 1 is linear, 2 square. Times are of this process's CPU, so that
other load on the machine matters less.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.support.report import Report, Spread, spread

Work = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """Milliseconds of CPU at each size, smallest first, and of the bare loop at the whole size."""

    sizes: tuple[int, ...]
    milliseconds: tuple[Spread, ...]
    bare: Spread

    @property
    def exponent(self) -> float:
        """The slope, by least squares."""
        across = [math.log(size) for size in self.sizes]
        up = [math.log(spread.median) for spread in self.milliseconds]
        middle, height = sum(across) / len(across), sum(up) / len(up)
        rise = sum((x - middle) * (y - height) for x, y in zip(across, up, strict=True))
        return rise / sum((x - middle) ** 2 for x in across)

    @property
    def times_bare(self) -> float:
        return self.milliseconds[-1].median / self.bare.median


def sizes_up_to(size: int) -> tuple[int, ...]:
    """A quarter, half and all of it."""
    return (size // 4, size // 2, size)


def cpu_ms(work: Work, rounds: int) -> Spread:
    """Return milliseconds of CPU of `work`, after one run that is not counted. The garbage
    collector is off, as in `timeit`: its cost depends on everything in the process."""
    work()
    found: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            began = time.process_time_ns()
            work()
            found.append((time.process_time_ns() - began) / 1e6)
    finally:
        if collecting:
            gc.enable()
    return spread(found)


def grown(
    steps_at: Callable[[int], Mapping[str, Work]],
    bare_at: Callable[[int], Work],
    *,
    size: int,
    rounds: int,
) -> dict[str, Grown]:
    """Each step of `steps_at(n)`, by its name, at the three sizes; beside the bare loop."""
    sizes = sizes_up_to(size)
    found: dict[str, list[Spread]] = {}
    for n in sizes:
        for name, work in steps_at(n).items():
            found.setdefault(name, []).append(cpu_ms(work, rounds))
    bare = cpu_ms(bare_at(size), rounds)
    return {
        name: Grown(sizes=sizes, milliseconds=tuple(took), bare=bare)
        for name, took in found.items()
    }


def columns(what: str, bare: str) -> tuple[str, ...]:
    """Of a report that `add_grown` fills."""
    return (what, "size", "ms at a quarter", "at half", "at all", "growth", f"times {bare}")


def add_grown(report: Report, subject: str, found: Mapping[str, Grown]) -> None:
    """A row for each step."""
    for name, one in found.items():
        report.add(
            f"{subject}: {name}",
            f"{one.sizes[-1]:,}",
            *(took.text(1) for took in one.milliseconds),
            f"{one.exponent:.2f}",
            f"{one.times_bare:.1f}",
            subject=subject,
            step=name,
            sizes=list(one.sizes),
            milliseconds=[took.median for took in one.milliseconds],
            bare_ms=one.bare.median,
            growth=one.exponent,
            times_bare=one.times_bare,
        )


def draw(report: Report, path: Path) -> Path:
    """The figures of `add_grown` as a picture: milliseconds by size, a panel for each subject."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for figures in report.figures:
        lines = panels.setdefault(f"{figures['subject']}: CPU ms", {})
        lines[figures["step"]] = [
            (float(size), took)
            for size, took in zip(figures["sizes"], figures["milliseconds"], strict=True)
        ]
    return log_lines(path, title=report.name, across="size", panels=panels)


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
