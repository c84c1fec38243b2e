"""Small batches and idle streams of Kinesis: time, calls and processor time by number of shards.

    python -m benchmarks.kinesis.triggers [--shards 1 16 128 1000] [--slots 4] [--seconds 20]
    python -m benchmarks.kinesis.triggers --shards 10000 --modes idle
    python -m benchmarks.kinesis.triggers --shards 16 --modes busy unaligned --interval 1

`idle`: nothing arrives, the fastest trigger; its time is mostly the wait until shards may be probed
again (`minFetchPeriod`, 400 ms). `bare`: the same with a source of a few lines of Python that waits
as long and has nothing, whose CPU is that of Spark's own exchange with a source. `busy`: 1,000
records/s of 200 B over all shards, a trigger every two seconds (`--interval`), so that none waits.
`unaligned`: the same with `alignBatches=false`. The modes take turns in an order drawn by lot, a
window of time in each round.

Calls are those of driver and tasks together. Driver CPU is that of the Python process that holds
the session (without the time of the measuring thread) and of the one on the driver that runs the
source's planner; JVM (driver and executors in one), the workers that run tasks, and the service are
measured separately; all in milliseconds of a trigger. `planning` is Spark's `latestOffset`. `pure
part`: offsets and planning without any call (`kinesis.planning`), as a part of the trigger's time.
Latency: from a record's arrival to the end of the batch that has it, at a trigger of one second.

The service is the embedded one, in a separate process on the same machine: it answers about 2,000
calls a second on one core, which bounds the time of a trigger with many shards, not the driver's
CPU. A plot is drawn beside the JSON file.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.kinesis.planning import parts
from benchmarks.kinesis.service import ServiceProcess, kinesis_service
from benchmarks.support.growth import log_lines
from benchmarks.support.processes import ROLES, Role, cpu_seconds, used_since
from benchmarks.support.report import OUTPUT, Report, Spread, quantile, spread
from benchmarks.support.sessions import checkpoint_in, run_on_spark
from benchmarks.support.sources import IdleSource

RATE: Final = 1_000
ALL_MODES: Final = ("idle", "busy", "unaligned", "bare")
_BUSY: Final = frozenset({"busy", "unaligned"})
"""The modes with records, and so with an interval: the others trigger without a pause."""
INTERVAL_S: Final = 2.0
MODES: Final = ("idle", "busy")
"""The modes that are measured for each number of shards."""
WARM_UP: Final = 3
"""Batches that do not count."""
_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measurements of one window of time; processor time in milliseconds of one trigger."""

    calls_per_second: float
    looks: float
    cpu_ms: dict[Role, float]
    service_cpu_ms: float

    @property
    def driver_ms(self) -> float:
        return self.cpu_ms["driver"] + self.cpu_ms["planner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Measurements of one query, idle or busy, over `shards` shards. Times in milliseconds."""

    shards: int
    mode: str
    triggers: Sequence[float]
    planning: Sequence[float]
    windows: Sequence[Window]
    latencies: Sequence[float] = ()

    def driver_per_shard(self) -> Spread:
        """Driver CPU, milliseconds of a trigger for each shard."""
        return spread([window.driver_ms / self.shards for window in self.windows])

    def part_of_one_core(self, milliseconds: float) -> float:
        """As a part of the trigger's time."""
        return milliseconds / quantile(self.triggers, 0.5)


# --- Measuring -----------------------------------------------------------------------------------


def last_batch(query: StreamingQuery) -> int:
    """The number of the last batch done; -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_for_batches(query: StreamingQuery, count: int) -> None:
    """Wait until `count` more batches are done; fail if the query does, or after five minutes."""
    target = last_batch(query) + count
    wait_until(lambda: last_batch(query) >= target, query, f"{count} batches")


def wait_until(
    reached: Callable[[], bool],
    query: StreamingQuery,
    what: str,
    *,
    within_s: float = _TIMEOUT_S,
    poll_s: float = 0.1,
) -> None:
    """Wait for a condition; fail if the query does, or after a time."""
    deadline = time.monotonic() + within_s
    while not reached():
        if (error := query.exception()) is not None:
            raise RuntimeError("the query failed") from error
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(poll_s)


def _wait_for_triggers(query: StreamingQuery, count: int) -> None:
    """Wait until `count` more triggers have reported progress, with a batch or without."""
    deadline = time.monotonic() + _TIMEOUT_S
    seen: set[str] = set()
    while len(seen) <= count:
        if not query.isActive:
            raise RuntimeError("the query failed") from query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {count} triggers within five minutes")
        # Its progress is large with many shards: to read it now would count as the driver's CPU.
        progress: Any = query._jsq.lastProgress()
        if progress is not None:
            seen.add(progress.timestamp())
        time.sleep(0.05)


def _report_count(query: StreamingQuery) -> int:
    """Return the number of triggers that have reported; Spark keeps the last thousand here."""
    recent: Any = query._jsq.recentProgress()
    return len(recent)


def _window(
    query: StreamingQuery, service: ServiceProcess, seconds: float
) -> tuple[Window, list[dict[str, Any]]]:
    """Of whole triggers: from the end of one to the end of another, `seconds` later or more."""
    _wait_for_triggers(query, 1)
    before = _report_count(query)
    calls, of_service = service.calls(), service.cpu_seconds()
    # Only this thread measures: its calls to the session are not part of a trigger.
    own, used = time.thread_time(), cpu_seconds()
    began = time.monotonic()
    time.sleep(seconds)
    _wait_for_triggers(query, 1)
    took = time.monotonic() - began
    own = time.thread_time() - own
    milliseconds = {role: 1000 * value for role, value in used_since(used).items()}
    milliseconds["driver"] = max(0.0, milliseconds["driver"] - 1000 * own)
    of_service = 1000 * (service.cpu_seconds() - of_service)
    asked = sum(service.calls().values()) - sum(calls.values())
    triggers = _report_count(query) - before
    if triggers < 1:
        raise AssertionError("spark.sql.streaming.numRecentProgressUpdates is too small for this")
    progress = [dict(entry) for entry in query.recentProgress[before : before + triggers]]
    window = Window(
        calls_per_second=asked / took,
        looks=asked / triggers,
        cpu_ms={role: milliseconds[role] / triggers for role in ROLES},
        service_cpu_ms=of_service / triggers,
    )
    return window, progress


def _durations(progress: Sequence[dict[str, Any]], key: str, *, with_rows: bool) -> list[float]:
    return [
        float(entry["durationMs"][key])
        for entry in progress
        if key in entry["durationMs"] and (entry["numInputRows"] > 0) == with_rows
    ]


def _stream(spark: SparkSession, service: ServiceProcess, options: dict[str, str]) -> DataFrame:
    settings = {**service.options(), **options}
    return spark.readStream.format("kinesis-ssp").options(**settings).load()


def _bare(spark: SparkSession) -> DataFrame:
    spark.dataSource.register(IdleSource)
    return spark.readStream.format(IdleSource.name()).load()


def measure(
    spark: SparkSession,
    folder: Path,
    *,
    shards: int,
    slots: int,
    seconds: float,
    rounds: int,
    rate: int,
    modes: Sequence[str],
    interval: float,
) -> list[Found]:
    """Measure a query of each of the modes, which take turns."""
    lot = random.Random(shards)
    windows: dict[str, list[Window]] = {mode: [] for mode in modes}
    progress: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    late: dict[str, list[float]] = {mode: [] for mode in modes}
    options = {mode: {"slots": str(slots)} for mode in modes}
    if "unaligned" in options:
        options["unaligned"]["alignBatches"] = "false"
    with kinesis_service(shards) as service:
        for _ in range(rounds):
            for mode in lot.sample(modes, len(modes)):
                service.produce(rate if mode in _BUSY else 0)
                bare = mode == "bare"
                stream = _bare(spark) if bare else _stream(spark, service, options[mode])
                query = (
                    stream.writeStream.format("noop")
                    .option("checkpointLocation", checkpoint_in(folder, f"{shards}-{mode}"))
                    .trigger(processingTime=f"{interval if mode in _BUSY else 0:g} seconds")
                    .start()
                )
                _wait_for_triggers(query, WARM_UP)
                window, entries = _window(query, service, seconds / rounds)
                query.stop()
                windows[mode].append(window)
                progress[mode] += entries
        service.produce(rate)
        for mode in (mode for mode in modes if mode in _BUSY):
            checkpoint = checkpoint_in(folder, f"{shards}-{mode}-late")
            late[mode] = latencies(spark, service, options[mode], checkpoint, seconds)
    return [
        Found(
            shards=shards,
            mode=mode,
            triggers=_durations(progress[mode], "triggerExecution", with_rows=mode in _BUSY),
            planning=_durations(progress[mode], "latestOffset", with_rows=mode in _BUSY),
            windows=windows[mode],
            latencies=late[mode],
        )
        for mode in modes
    ]


def latencies(
    spark: SparkSession,
    service: ServiceProcess,
    options: dict[str, str],
    checkpoint: str,
    seconds: float,
) -> list[float]:
    """Milliseconds from arrival to the end of the batch, for each record read."""
    found: list[float] = []

    def note(batch: DataFrame, batch_id: int) -> None:
        arrivals = batch.selectExpr("unix_millis(approximateArrivalTimestamp) as at").collect()
        now = time.time() * 1000
        if batch_id > WARM_UP:
            found.extend(now - row["at"] for row in arrivals)

    query = (
        _stream(spark, service, {**options, "startingPosition": "latest"})
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    wait_for_batches(query, WARM_UP + 2)
    time.sleep(seconds / 2)
    query.stop()
    return found


# --- Reporting -----------------------------------------------------------------------------------


def _two(values: Sequence[float]) -> str:
    """Median and 99th percentile."""
    return f"{quantile(values, 0.5):,.0f}, {quantile(values, 0.99):,.0f}" if values else "-"


def _add(report: Report, found: Found, pure_ms: float) -> None:
    windows = found.windows
    driver = found.driver_per_shard()
    jvm = spread([window.cpu_ms["jvm"] for window in windows])
    workers = spread([window.cpu_ms["workers"] for window in windows])
    service = spread([window.service_cpu_ms for window in windows])
    report.add(
        f"{found.shards:,} {found.mode}",
        _two(found.triggers),
        _two(found.planning),
        f"{pure_ms:,.1f} ({found.part_of_one_core(pure_ms):.1%})",
        spread([window.calls_per_second for window in windows]).text(),
        f"{spread([window.looks for window in windows]).median / found.shards:.2f}",
        driver.text(2),
        f"{spread([window.driver_ms for window in windows]).median:,.0f}",
        f"{jvm.median:,.0f}",
        f"{workers.median:,.0f}",
        f"{service.median:,.0f}",
        _two(found.latencies),
        shards=found.shards,
        mode=found.mode,
        triggers_ms=list(found.triggers),
        planning_ms=list(found.planning),
        pure_ms=pure_ms,
        calls_per_second=[window.calls_per_second for window in windows],
        calls_per_trigger=[window.looks for window in windows],
        cpu_ms_per_trigger=[window.cpu_ms for window in windows],
        service_cpu_ms_per_trigger=[window.service_cpu_ms for window in windows],
        driver_ms_per_shard=driver.median,
        latency_ms_median=quantile(found.latencies, 0.5) if found.latencies else None,
        latency_ms_p99=quantile(found.latencies, 0.99) if found.latencies else None,
    )


def _draw(found: Sequence[Found], path: Path) -> None:
    def line(mode: str, value: Any) -> list[tuple[float, float]]:
        return [(one.shards, value(one)) for one in found if one.mode == mode]

    def cpu(*roles: Role) -> Any:
        return lambda one: (
            spread([sum(window.cpu_ms[role] for role in roles) for window in one.windows]).median
        )

    panels = {
        "milliseconds of a trigger": {
            mode: line(mode, lambda one: quantile(one.triggers, 0.5)) for mode in ("idle", "busy")
        },
        "calls per second": {
            mode: line(mode, lambda one: spread([w.calls_per_second for w in one.windows]).median)
            for mode in ("idle", "busy")
        },
        "processor milliseconds of a trigger": {
            "driver, idle": line("idle", cpu("driver", "planner")),
            "driver, busy": line("busy", cpu("driver", "planner")),
            "JVM, busy": line("busy", cpu("jvm")),
            "workers, busy": line("busy", cpu("workers")),
        },
    }
    log_lines(path, title="Kinesis: small batches and idle", across="shards", panels=panels)


def run(
    spark: SparkSession,
    folder: Path,
    *,
    shards: list[int],
    slots: int,
    seconds: float,
    rounds: int,
    rate: int = RATE,
    modes: Sequence[str] = MODES,
    interval: float = INTERVAL_S,
    plot: Path = OUTPUT / "kinesis_triggers.png",
) -> Report:
    """Measure, and draw how it grows into `plot`. Leaves the session's settings as they were."""
    report = Report(
        name="kinesis.triggers",
        command="python -m benchmarks.kinesis.triggers "
        f"--shards {' '.join(str(count) for count in shards)} --slots {slots} "
        f"--seconds {seconds:g} --rounds {rounds} --modes {' '.join(modes)} "
        f"--interval {interval:g}",
        columns=(
            "shards",
            "trigger ms: median, p99",
            "planning ms",
            "pure part ms",
            "calls/s",
            "calls a shard and trigger",
            "driver CPU ms a shard and trigger",
            "driver CPU ms a trigger",
            "JVM",
            "workers",
            "service",
            "latency ms: median, p99",
        ),
    )
    setting = "spark.sql.streaming.noDataProgressEventInterval"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "0")  # Make each trigger report progress, also an idle one.
    every: list[Found] = []
    try:
        for count in shards:
            pure = {
                mode: parts(count, slots=slots, rounds=max(3, rounds), idle=mode == "idle").both
                for mode in modes
                if mode != "bare"
            }
            for found in measure(
                spark,
                folder,
                shards=count,
                slots=slots,
                seconds=seconds,
                rounds=rounds,
                rate=rate,
                modes=modes,
                interval=interval,
            ):
                _add(report, found, pure.get(found.mode, 0.0))
                every.append(found)
    finally:
        spark.conf.set(setting, before or "10s")
    _draw(every, plot)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 16, 128, 1_000])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=ALL_MODES, default=list(MODES))
    parser.add_argument(
        "--interval", type=float, default=INTERVAL_S, help="of a busy trigger, seconds"
    )
    run_on_spark(run, vars(parser.parse_args()))


if __name__ == "__main__":
    main()
