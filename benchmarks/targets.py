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


def _rates_over(rates: Mapping[str, Sequence[float]], theirs: str) -> Sequence[float]:
    """Return the ratio of our rate to theirs, round by round."""
    return ratio(rates["ours"], rates[theirs]).values


def _seconds_of_a_trigger(row: Figures) -> Sequence[float]:
    return [spread(row["triggers_ms"]).median / 1000]


def _seconds_of_latency(row: Figures) -> Sequence[float]:
    return [row["latency_ms_median"] / 1000]


def _pure_ms(row: Figures) -> Sequence[float]:
    return [row["pure_ms"]]


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


def _kafka_whole(size: int, partitions: int, times: float) -> Aim:
    return Aim(
        subject=f"Kafka, a whole query, {size:,} bytes, {partitions} partitions, "
        "times as fast as Spark's source",
        benchmark="kafka.bulk",
        row={"size": size, "partitions": partitions},
        values=lambda row: (
            ratio(row["seconds"]["whole_spark"], row["seconds"]["whole_ours"]).values
        ),
        limit=at_least(times),
        digits=2,
    )


def _start(source: str, words: str, figure: str, limit: Limit) -> Aim:
    return Aim(
        subject=f"{source}, from start() to the first planned batch{words}",
        benchmark="planning.start",
        row={"source": source},
        values=lambda row: row[figure],
        limit=limit,
        unit=" s",
        digits=2,
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


def _kinesis_backlog(words: str, figure: str, most: float) -> Aim:
    return Aim(
        subject="Kinesis, a backlog of 200,000 records in 4 shards that ended a minute ago, "
        f"{words}",
        benchmark="kinesis.backlog",
        row={"shards": 4, "records": 200_000, "silence_s": 60.0},
        values=lambda row: row[figure],
        limit=at_most(most),
    )


def _agent_ms_an_update(row: Figures) -> Sequence[float]:
    """The faster a busy query's triggers, the more progress they write."""
    calls = row["calls_a_minute"]
    updates = calls.get("UpdateItem", 0) + calls.get("statement", 0)
    return [row["agent_cpu_ms_a_second"] * 60 / updates]


def _leases(
    load: str, words: str, values: Callable[[Figures], Sequence[float]], most: float
) -> Aim:
    return Aim(
        subject=f"1,000 leases in one query, {load}, {words}",
        benchmark="leases.writes",
        row={"leases": 1_000, "failover_s": 10.0, "load": load},
        values=values,
        limit=at_most(most),
        unit=" ms",
        digits=1,
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


def _many_shards(
    shards: int,
    mode: str,
    words: str,
    values: Callable[[Figures], Sequence[float]],
    limit: Limit,
    unit: str,
) -> Aim:
    return Aim(
        subject=f"Kinesis, {_counted(shards)}, {mode}, {words}",
        benchmark="kinesis.triggers",
        row={"shards": shards, "mode": mode},
        values=values,
        limit=limit,
        unit=unit,
    )


def _counted(shards: int) -> str:
    return f"{shards:,} shard{'s' if shards > 1 else ''}"


AIMS: Final = (
    *(_kafka_bulk(200, partitions, 1.5) for partitions in (4, 16)),
    *(_kafka_bulk(size, partitions, 1.0) for size in (20, 1_000) for partitions in (4, 16)),
    _kafka_whole(200, 4, 1.6),
    *(
        aim
        for source in ("kafka-ssp", "kinesis-ssp")
        for aim in (
            _start(source, "", "planned_s", below(0.9)),
            _start(source, ", above a source without work", "above_floor_s", below(0.5)),
        )
    ),
    Aim(
        subject="Kafka, 1,000 partitions, offsets and lag in a progress report",
        benchmark="planning.offset_size",
        row={"of": "1,000 partitions"},
        values=lambda row: [row["reported_bytes"] / 1000],
        limit=below(40),
        unit=" KB",
    ),
    _kafka_triggers(4, "ours", "4 partitions", at_most(1.2)),
    _kafka_triggers(64, "ours, 4 tasks", "64 partitions by 4 tasks", below(1.0)),
    Aim(
        subject="Duplicates dropped from 120,000 rows, a query's time over that with Spark's "
        "dropDuplicatesWithinWatermark",
        benchmark="kafka.duplicates",
        row={"records": 120_000, "shuffle": 2, "peer": "ours"},
        values=lambda row: row["part_of_spark_rounds"],
        limit=at_most(1.5),
        digits=2,
    ),
    Aim(
        subject="Kafka sink with transactions, 4 tasks of 60,000 rows of 200 bytes, share of the "
        "throughput without",
        benchmark="kafka.exactly_once",
        row={"records": 60_000, "size": 200, "tasks": 4},
        values=lambda row: row["kept"],
        limit=at_least(0.8),
        digits=2,
    ),
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
    Aim(
        subject="Kinesis sink, 200 bytes, records per second of CPU, times boto3's client",
        benchmark="kinesis.sink",
        row={"size": 200},
        values=lambda row: _rates_over(row["records_per_cpu_second"], "boto3"),
        limit=at_least(8),
    ),
    Aim(
        subject="Kinesis sink, records throttled by a strict service",
        benchmark="kinesis.sink",
        row={"size": 200},
        values=lambda row: [100 * row["throttled"]],
        limit=below(2),
        unit=" %",
        digits=2,
    ),
    *(_kinesis_idle_cpu(shards) for shards in (1, 16, 128, 1_000)),
    _many_shards(1_000, "idle", "a trigger", _seconds_of_a_trigger, below(5), " s"),
    _many_shards(1_000, "busy", "a trigger", _seconds_of_a_trigger, below(1.5), " s"),
    _many_shards(1_000, "busy", "latency", _seconds_of_latency, below(2), " s"),
    _many_shards(10_000, "idle", "a trigger", _seconds_of_a_trigger, below(6), " s"),
    # In an idle trigger half of the shards are probed, so a share of its time would mean little.
    _many_shards(1_000, "idle", "offsets and planning of all", _pure_ms, below(65), " ms"),
    _many_shards(
        1_000, "busy", "offsets and planning of a trigger", _percent_pure, below(10), " %"
    ),
    _kinesis_backlog("batches", "batches", 2),
    _kinesis_backlog("GetRecords of the driver for a shard", "looks_per_shard", 12),
    *(
        aim
        for load, update_ms, exchange_ms in (("idle", 2.1, 40), ("busy", 2.2, 46))
        for aim in (
            _leases(load, "CPU of the lease agent for an update", _agent_ms_an_update, update_ms),
            _leases(load, "a trigger's exchange", lambda row: [row["exchange_ms"]], exchange_ms),
        )
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
