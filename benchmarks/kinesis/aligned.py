"""Time and calls in which a query catches up with uneven shards under limits, aligned and not.

    python -m benchmarks.kinesis.aligned [--records 20000 200000 2000000] [--megabytes 16 64 256]
        [--shards 64] [--minutes 60] [--per-second 0.5 75] [--size 4000]

Planner without Spark, on simulated time, over a service with the limits of AWS; the reads of tasks
are calculated: so the figures do not depend on the machine. The rates of the shards lie between two
numbers of records a second, with even distances of their logarithms. The shards hold a backlog of
`--minutes`, take in more meanwhile, and triggers follow one another. Limits are
`maxRecordsPerTrigger` and, in MiB, `maxBytesPerTrigger`. Calls are GetRecords of the driver and of
tasks. Both runs end once no record is unread that is older than ten seconds; throughput counts the
records read until then.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.support.report import Report
from tests.support.simulation.uneven import BacklogRead, BacklogReader, spread_rates


def run(
    *,
    records: Sequence[int],
    megabytes: Sequence[int],
    shards: int,
    minutes: float,
    per_second: Sequence[float],
    size: int,
) -> Report:
    """Measure each limit, without alignment and with it."""
    lowest, highest = per_second
    report = Report(
        name="kinesis.aligned",
        command="python -m benchmarks.kinesis.aligned "
        f"--records {' '.join(map(str, records))} --megabytes {' '.join(map(str, megabytes))} "
        f"--shards {shards} --minutes {minutes:g} --per-second {lowest:g} {highest:g} "
        f"--size {size}",
        columns=(
            "limit",
            "alignBatches",
            "batches",
            "seconds",
            "calls of the driver",
            "of tasks",
            "throughput, times unaligned",
            "calls, times unaligned",
        ),
    )
    limits = {f"{count:,} records": {"maxRecordsPerTrigger": str(count)} for count in records}
    limits |= {f"{mib} MiB": {"maxBytesPerTrigger": str(mib << 20)} for mib in megabytes}
    rates = spread_rates(shards, lowest, highest)
    for name, limit in limits.items():
        unaligned: BacklogRead | None = None
        for aligned in ("false", "true"):
            found = BacklogReader(
                options={**limit, "alignBatches": aligned},
                rates=rates,
                backlog_s=round(60 * minutes),
                record_bytes=size,
            ).run()
            unaligned = unaligned or found
            _add(report, name, aligned, found, unaligned)
    return report


def _add(
    report: Report, name: str, aligned: str, found: BacklogRead, unaligned: BacklogRead
) -> None:
    throughput = found.per_second / unaligned.per_second
    calls = found.calls / unaligned.calls
    report.add(
        name,
        aligned,
        f"{found.batches:,}",
        f"{found.seconds:,.0f}",
        f"{found.driver_calls:,}",
        f"{found.task_calls:,}",
        f"{throughput:.2f}",
        f"{calls:.2f}",
        of=f"{name}, alignBatches {aligned}",
        batches=found.batches,
        seconds=found.seconds,
        driver_calls=found.driver_calls,
        task_calls=found.task_calls,
        throughput_times=throughput,
        calls_times=calls,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, nargs="*", default=[20_000, 200_000, 2_000_000])
    parser.add_argument("--megabytes", type=int, nargs="*", default=[16, 64, 256])
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--per-second", type=float, nargs=2, default=[0.5, 75])
    parser.add_argument("--size", type=int, default=4000)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
