"""Targets of the benchmarks, and a check of several runs against them.

    python -m benchmarks.targets run-1 run-2 run-3

Each folder holds the JSON files of one run, under any name. The table, in Markdown, has the median
of the runs' medians, the least and the most of them. An aim holds if there are three runs or more,
each has measured it, and the median of each meets it. Ratios are of peers in the same round.
"""

from __future__ import annotations

import argparse
import json
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.support.report import ratio, spread

ENOUGH: Final = 3
"""Minimum number of runs for a verdict."""

Figures = Mapping[str, Any]
"""A row of a benchmark's report, as numbers."""

Run = Mapping[str, Sequence[Figures]]
"""The rows of one run, by benchmark."""

Measured = Sequence[float | None]
"""The median of each run, in order; None for one that lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Condition on a median."""

    words: str
    value: float
    meets: Callable[[float, float], bool]

    def met_by(self, median: float) -> bool:
        return self.meets(median, self.value)


def at_least(value: float) -> Limit:
    return Limit(words="at least", value=value, meets=operator.ge)


def at_most(value: float) -> Limit:
    return Limit(words="at most", value=value, meets=operator.le)


def below(value: float) -> Limit:
    return Limit(words="below", value=value, meets=operator.lt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A limit for one row of a benchmark: the one whose figures contain `row`."""

    subject: str
    benchmark: str
    row: Figures
    values: Callable[[Figures], Sequence[float]]
    """Those of the row's rounds, or the one of all."""
    limit: Limit
    unit: str = ""
    digits: int = 1

    @property
    def text(self) -> str:
        return f"{self.subject}: {self.limit.words} {self.limit.value:,g}{self.unit}"

    def measured(self, runs: Iterable[Run]) -> Measured:
        return [self._median(run) for run in runs]

    def _median(self, run: Run) -> float | None:
        """Of all rounds of the run, also where they are in several files."""
        rows = [row for row in run.get(self.benchmark, ()) if self.row.items() <= row.items()]
        values = [value for row in rows for value in self.values(row)]
        return statistics.median(values) if values else None

    def text_of(self, measured: Measured) -> str:
        """`12 (11-14)`: the medians' median, the least and the most; only one if there is one."""
        medians = [one for one in measured if one is not None]
        if not medians:
            return "-"
        if len(medians) == 1:
            return self._number(medians[0]) + self.unit
        return f"{spread(medians).text(self.digits)}{self.unit}"

    def verdict(self, measured: Measured) -> str:
        if len(measured) < ENOUGH:
            return "too few runs"
        short = sum(one is not None and not self.limit.met_by(one) for one in measured)
        missing = sum(one is None for one in measured)
        if short:
            return f"falls short in {short} of {len(measured)} runs"
        if missing:
            return f"missing in {missing} of {len(measured)} runs"
        return "holds"

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


# --- The aims ------------------------------------------------------------------------------------


def _times(theirs: str) -> Callable[[Figures], Sequence[float]]:
    """Return the ratio of their time to ours, round by round."""
    return lambda row: ratio(row["seconds"][theirs], row["seconds"]["ours"]).values


def _seconds_of_a_trigger(row: Figures) -> Sequence[float]:
    return [spread(row["triggers_ms"]).median / 1000]


def _percent_pure(row: Figures) -> Sequence[float]:
    return [100 * row["pure_ms"] / spread(row["triggers_ms"]).median]


def _kafka_bulk(size: int, partitions: int, times: float) -> Aim:
    return Aim(
        subject=f"Kafka in bulk, {size:,} bytes, {partitions} partitions, "
        "times as fast as Spark's source",
        benchmark="kafka.bulk",
        row={"size": size, "partitions": partitions},
        values=_times("spark"),
        limit=at_least(times),
    )


def _kafka_triggers(partitions: int, name: str, words: str, limit: Limit) -> Aim:
    return Aim(
        subject=f"Kafka in small batches, {words}, a trigger's time over that of Spark's source",
        benchmark="kafka.triggers",
        row={"partitions": partitions, "format": name},
        values=lambda row: row["part_of_spark_rounds"],
        limit=limit,
        digits=2,
    )


def _kinesis_bulk(shards: int, peer: str, words: str, times: float) -> Aim:
    return Aim(
        subject=f"Kinesis in bulk, {_counted(shards)}, times as fast as {words}",
        benchmark="kinesis.bulk",
        row={"shards": shards},
        values=_times(peer),
        limit=at_least(times),
    )


def _kinesis_idle_cpu(shards: int) -> Aim:
    return Aim(
        subject=f"Kinesis, {_counted(shards)}, idle, driver CPU of a trigger for each shard",
        benchmark="kinesis.triggers",
        row={"shards": shards, "mode": "idle"},
        values=lambda row: [row["driver_ms_per_shard"]],
        limit=below(2),
        unit=" ms",
        digits=2,
    )


def _thousand_shards(
    mode: str, words: str, values: Callable[[Figures], Sequence[float]], limit: Limit, unit: str
) -> Aim:
    return Aim(
        subject=f"Kinesis, {_counted(1_000)}, {mode}, {words}",
        benchmark="kinesis.triggers",
        row={"shards": 1_000, "mode": mode},
        values=values,
        limit=limit,
        unit=unit,
    )


def _counted(shards: int) -> str:
    return f"{shards:,} shard{'s' if shards > 1 else ''}"


_MODES: Final = ("idle", "busy")

AIMS: Final = (
    *(_kafka_bulk(200, partitions, 1.5) for partitions in (4, 16)),
    *(_kafka_bulk(size, partitions, 1.0) for size in (20, 1_000) for partitions in (4, 16)),
    _kafka_triggers(4, "ours", "4 partitions", at_most(1.2)),
    _kafka_triggers(64, "ours, 4 tasks", "64 partitions by 4 tasks", below(1.0)),
    *(_kinesis_bulk(n, "parse", "a bare loop that fetches and parses", 0.8) for n in (1, 16, 128)),
    *(_kinesis_bulk(n, "boto3", "boto3's parser", 4.0) for n in (1, 16, 128)),
    Aim(
        subject="Kinesis beside a reader that uses up GetRecords, pushed, share of the throughput "
        "alone",
        benchmark="kinesis.neighbour",
        row={"mode": "push"},
        values=lambda row: row["kept"],
        limit=at_least(0.8),
        digits=2,
    ),
    *(_kinesis_idle_cpu(shards) for shards in (1, 16, 128, 1_000)),
    *(
        _thousand_shards(mode, "a trigger", _seconds_of_a_trigger, below(5), " s")
        for mode in _MODES
    ),
    *(
        _thousand_shards(mode, "offsets and planning of a trigger", _percent_pure, below(10), " %")
        for mode in _MODES
    ),
)


# --- The command ---------------------------------------------------------------------------------


def table(runs: Sequence[Run], aims: Iterable[Aim] = AIMS) -> str:
    """In Markdown, a line for each aim."""
    lines = ["| target | measured: median of the runs' medians (least-most) | |"]
    lines.append("| --- | --- | --- |")
    for aim in aims:
        measured = aim.measured(runs)
        lines.append(f"| {aim.text} | {aim.text_of(measured)} | {aim.verdict(measured)} |")
    return "\n".join(lines)


def read_run(folder: Path) -> Run:
    """The rows of all JSON files in a folder; `ValueError` if there is none."""
    rows: dict[str, list[Figures]] = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        rows.setdefault(document["benchmark"], []).extend(document["figures"])
    if not rows:
        raise ValueError(f"no JSON files in {folder}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path, metavar="folder", help="of one run")
    folders = parser.parse_args().folders
    try:
        print(table([read_run(folder) for folder in folders]))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
