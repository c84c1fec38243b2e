"""Cost of holding leases: calls to DynamoDB, and processor time.

    python -m benchmarks.leases.writes [--leases 16 1000 10000] [--failover 10 10 10] [--seconds 60]

One worker holds all leases of a table (`benchmarks/leases/table.py`). `idle`: nothing is read;
`busy`: every trigger of one second commits progress of every shard. The agent is a separate
process: its CPU is given per second, and per lease and second, and its memory at the end. An
exchange is a trigger's report and the agent's answer: its time, and the CPU of the reader's
process, in which the table does not run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import psutil

from benchmarks.leases.table import Server, counting_table
from benchmarks.leases.workers import Reader, lease_options, new_table, settings_of
from benchmarks.support.report import Report, Spread, spread
from spark_ssp.checkpoint.coordination.protocol import Status

OPERATIONS: Final = ("UpdateItem", "BatchExecuteStatement", "Scan")
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one worker over a while."""

    calls_a_minute: dict[str, float]
    agent_ms_a_second: float
    agent_mib: float
    exchange_ms: Spread
    reader_ms: Spread
    """CPU of an exchange in the reader's process."""


def cost_of(reader: Reader, server: Server, seconds: float, *, busy: bool) -> Cost:
    """Let the worker run for `seconds` more, with a trigger in each of them."""
    agent = psutil.Process(reader.client.pid)
    took: list[float] = []
    used: list[float] = []
    server.counts()
    before, began = agent.cpu_times(), time.monotonic()
    while not took or time.monotonic() - began < seconds:
        begun, cpu = time.perf_counter(), time.process_time()
        reader.trigger(busy=busy)
        used.append(1000 * (time.process_time() - cpu))
        took.append(1000 * (time.perf_counter() - begun))
        time.sleep(1.0)
    passed = time.monotonic() - began
    after = agent.cpu_times()
    return Cost(
        calls_a_minute={name: calls * 60 / passed for name, calls in server.counts().items()},
        agent_ms_a_second=1000 * (after.user + after.system - before.user - before.system) / passed,
        agent_mib=agent.memory_info().rss / _MIB,
        exchange_ms=spread(took),
        reader_ms=spread(used),
    )


def run(*, leases: Sequence[int], failover: Sequence[float], seconds: float) -> Report:
    """Measure each number of leases with its failover time, in seconds."""
    report = Report(
        name="leases.writes",
        command="python -m benchmarks.leases.writes"
        f" --leases {' '.join(str(number) for number in leases)}"
        f" --failover {' '.join(f'{one:g}' for one in failover)} --seconds {seconds:g}",
        columns=(
            "leases, failover time",
            "",
            *(f"{name} a minute" for name in OPERATIONS),
            "agent: CPU ms a second",
            "agent: CPU us a lease and second",
            "agent: MiB",
            "exchange: ms",
            "exchange: reader's CPU ms",
        ),
    )
    for number, failover_s in zip(leases, failover, strict=True):
        with counting_table() as server:
            settings = settings_of(
                server.endpoint_url, new_table(), "anne", round(failover_s * 1000)
            )
            reader = Reader(settings, lease_options(number))
            try:
                reader.until(partial(_has, number))
                for name, busy in (("idle", False), ("busy", True)):
                    cost = cost_of(reader, server, seconds, busy=busy)
                    _add(report, number, failover_s, name, cost)
            finally:
                reader.client.close()
    return report


def _has(leases: int, status: Status) -> bool:
    return len(status.held) == leases


def _add(report: Report, leases: int, failover_s: float, name: str, cost: Cost) -> None:
    report.add(
        f"{leases:,}, {failover_s:g} s",
        name,
        *(f"{cost.calls_a_minute.get(operation, 0):,.0f}" for operation in OPERATIONS),
        f"{cost.agent_ms_a_second:,.0f}",
        f"{1000 * cost.agent_ms_a_second / leases:,.1f}",
        f"{cost.agent_mib:,.0f}",
        cost.exchange_ms.text(0),
        cost.reader_ms.text(1),
        leases=leases,
        failover_s=failover_s,
        load=name,
        calls_a_minute=cost.calls_a_minute,
        agent_cpu_ms_a_second=cost.agent_ms_a_second,
        agent_mib=cost.agent_mib,
        exchange_ms=cost.exchange_ms.median,
        reader_cpu_ms=cost.reader_ms.median,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--leases", type=int, nargs="+", default=[16, 1_000, 10_000])
    parser.add_argument("--failover", type=float, nargs="+", default=[10, 10, 10])
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    if len(arguments.leases) != len(arguments.failover):
        parser.error("as many failover times as numbers of leases are wanted")
    run(**vars(arguments)).publish()


if __name__ == "__main__":
    main()
