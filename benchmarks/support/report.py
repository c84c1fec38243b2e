"""Results of a benchmark: a table to read and a JSON file to keep, both with the machine's name.

Figures are taken in rounds, every peer once a round, so that other load on the machine affects all
of them. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from rich.console import Console
from rich.table import Table

_ALWAYS: Final = "-XX:+IgnoreUnrecognizedVMOptions"
OUTPUT_VARIABLE: Final = "SPARK_SSP_BENCH_OUTPUT"
OUTPUT: Final = Path(os.environ.get(OUTPUT_VARIABLE, "bench-output"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of the measurements. Figures without it mean nothing."""

    cores: int
    processor: str
    memory_gib: int
    python: str
    pyspark: str
    system: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), {self.memory_gib} GiB, {self.system}, "
            f"Python {self.python}, PySpark {self.pyspark}"
        )


def this_machine() -> Machine:
    """The machine that this runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        processor=_processor(),
        memory_gib=round(memory / 2**30),
        python=platform.python_version(),
        pyspark=version("pyspark"),
        system=f"{platform.system()} {platform.machine()}",
    )


def jvm_options() -> tuple[str, ...]:
    """Return the options of the JVM of this process's Spark, without those PySpark always passes;
    empty without Spark. Figures with other compilers or collectors are not comparable."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return ()
    beans = context._jvm.java.lang.management.ManagementFactory
    arguments = [str(one) for one in beans.getRuntimeMXBean().getInputArguments()]
    return tuple(one for one in arguments if one.startswith("-X") and one != _ALWAYS)


def spark_settings() -> dict[str, str]:
    """Return the explicit `spark.python.*` settings of this process's Spark."""
    context = SparkContext._active_spark_context
    settings = context.getConf().getAll() if context is not None else []
    return {name: value for name, value in sorted(settings) if name.startswith("spark.python.")}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Several measurements of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, digits: int = 0) -> str:
        """`12 (11-14)`: median, least and most."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """`ValueError` for nothing measured."""
    if not values:
        raise ValueError("nothing was measured")
    return Spread(values=tuple(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Round by round, ours over theirs."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which a share of `part` of the values is (nearest rank); `ValueError`
    without values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)]


@dataclass(slots=True, kw_only=True)
class Report:
    """One benchmark's findings. `command` reproduces it."""

    name: str
    command: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    """The same as numbers, for the JSON file."""
    jvm: tuple[str, ...] = field(default_factory=jvm_options)
    settings: dict[str, str] = field(default_factory=spark_settings)
    """Both as they are when the report is begun."""

    def add(self, *cells: str, **figures: Any) -> None:
        """A row, as text and as numbers."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)
        self.figures.append(figures)

    def publish(self, folder: Path = OUTPUT) -> Path:
        """Print the table, write the JSON file, and return where it is."""
        machine = this_machine()
        place = f"{machine}, JVM {' '.join(self.jvm)}" if self.jvm else str(machine)
        settings = "".join(f"\n{name}={value}" for name, value in self.settings.items())
        table = Table(title=f"{self.name}\n{place}{settings}\n{self.command}", title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        Console(width=160).print(table)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        document = {
            "benchmark": self.name,
            "command": self.command,
            "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": asdict(machine),
            "jvm": self.jvm,
            "settings": self.settings,
            "figures": self.figures,
        }
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return path
