"""Time that a query with a limit takes to catch up with a full shard, and the share of it used.

    python -m benchmarks.kinesis.catch_up [--limits 1 1.25 1.5 2 5 10] [--seconds 1200]

Planner and reader without Spark, on simulated time, over the embedded service with the limits of
AWS: so the figures do not depend on the machine. One shard takes in 1 MB a second of 1,000-byte
records and holds an hour of them. Limits are `maxBytesPerTrigger` in MB; the trigger never waits.
The last rows are without a limit, and of records that arrive 500 at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.support.report import Report
from tests.support.simulation.catch_up import MEGABYTE, Arrivals, catch_up, in_clumps, steady

PER_SECOND = 1000


def run(*, limits: Sequence[float], seconds: float) -> Report:
    """Measure each limit, and none."""
    report = Report(
        name="kinesis.catch_up",
        command="python -m benchmarks.kinesis.catch_up "
        f"--limits {' '.join(f'{limit:g}' for limit in limits)} --seconds {seconds:g}",
        columns=("limit", "MB/s", "share of calls", "batches of MB", "largest MB"),
    )
    for limit in limits:
        _add(report, f"{limit:g} MB", limit, steady(PER_SECOND), seconds)
    _add(report, "none", None, steady(PER_SECOND), seconds)
    for limit in limits:
        _add(report, f"{limit:g} MB, in clumps", limit, in_clumps(PER_SECOND, 500), seconds)
    return report


def _add(
    report: Report, name: str, limit: float | None, arrivals: Arrivals, seconds: float
) -> None:
    options = {} if limit is None else {"maxBytesPerTrigger": str(round(limit * MEGABYTE))}
    found = catch_up(options, arrivals=arrivals, seconds=seconds)
    mean = found.size / len(found.batches) / MEGABYTE
    largest = max(found.batches) / MEGABYTE
    report.add(
        name,
        f"{found.megabytes_per_second:.2f}",
        f"{found.share_of_calls:.1%}",
        f"{mean:.2f}",
        f"{largest:.2f}",
        of=name,
        megabytes_per_second=found.megabytes_per_second,
        share_of_calls=found.share_of_calls,
        largest=largest,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--limits", type=float, nargs="+", default=[1, 1.25, 1.5, 2, 5, 10])
    parser.add_argument("--seconds", type=float, default=1200)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
