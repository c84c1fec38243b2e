"""Processor time of the lease agent for each lease and second, by the number of leases.

    python -m benchmarks.leases.agent [--leases 1000 10000] [--failover 10] [--seconds 60]

The agent's event loop runs in this process, in simulated time, so that other load on the machine
changes nothing: every 50 ms it applies the answers and sends the due calls. Its calls are
real, to a table in another process. `idle`: nothing is read; `busy`: every trigger of one second
commits progress of every shard. Threads and pipes are missing; the messages that they carry are
encoded and decoded.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.leases.table import counting_table
from benchmarks.leases.workers import lease_options, new_table, settings_of
from benchmarks.support.report import Report as Figures
from spark_ssp.checkpoint.agent.event_loop import (
    Job,
    LeaseAgent,
    Ports,
    ReportReceived,
    run_guarded,
)
from spark_ssp.checkpoint.agent.process import open_tables
from spark_ssp.checkpoint.coordination.protocol import (
    FrameDecoder,
    Report,
    Status,
    encode_frame,
    to_change,
)
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, Processed
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import SequenceNumber, WorkerId

WORKER: Final = WorkerId("anne")
STEP_MS: Final = 50
TRIGGER_MS: Final = 1_000
PATIENCE_MS: Final = 120_000
SEQUENCE_NUMBER: Final = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
"""One of the usual length."""


@dataclass(kw_only=True)
class Simulation:
    """An agent, its reader and the clock."""

    endpoint_url: str
    leases: int
    failover_ms: int
    now: int = 1_000
    used: float = 0.0
    """The agent's processor time, in seconds."""
    _jobs: list[Job] = field(default_factory=list)
    _answers: list[Status | SspError] = field(default_factory=list)
    _sent: Mapping[LeaseKey, Lease] | None = None
    _number: int = 0

    def __post_init__(self) -> None:
        settings = settings_of(self.endpoint_url, new_table(), WORKER, self.failover_ms)
        self._frames = FrameDecoder()
        self._reading: frozenset[LeaseKey] = frozenset()
        self._agent = LeaseAgent(
            settings,
            Ports(
                open=lambda: open_tables(settings),
                write=self._jobs.append,
                read=self._jobs.append,
                answer=self._answers.append,
                monotonic=lambda: self.now,
                wall=lambda: self.now // 1000,
                random=lambda: 0.5,
            ),
        )

    @contextmanager
    def _measured(self) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.used += time.process_time() - begun

    def run(self, milliseconds: int, *, busy: bool) -> None:
        """Let the time pass, with triggers."""
        end = self.now + milliseconds
        while self.now < end:
            if self.now % TRIGGER_MS == 0:
                self._trigger(busy=busy)
            with self._measured():
                jobs, self._jobs[:] = list(self._jobs), []
                for job in jobs:
                    self._agent.handle(run_guarded(job))
                self._agent.advance()
            self._receive()
            self.now += STEP_MS

    def start(self) -> None:
        """Claim all leases, which were this worker's before."""
        end = self.now + PATIENCE_MS
        while len(self._reading) < self.leases:
            if self.now > end:
                raise TimeoutError(f"{len(self._reading)} of {self.leases} leases")
            self.run(TRIGGER_MS, busy=False)

    def _trigger(self, *, busy: bool) -> None:
        self._number += busy
        done = Processed(sequence_number=SequenceNumber(str(SEQUENCE_NUMBER + self._number)))
        report = encode_frame(
            Report(
                reading=self._reading,
                progress=dict.fromkeys(self._reading, done) if self._number else {},
            )
        )
        with self._measured():
            for value in self._frames.feed(report):
                assert isinstance(value, Report)
                self._agent.handle(ReportReceived(report=value))

    def _receive(self) -> None:
        for status in self._answers:
            if isinstance(status, SspError):
                raise status
            with self._measured():
                encode_frame(status if self._sent is None else to_change(self._sent, status))
                self._sent = status.rows
            self._reading = frozenset(status.held)
        self._answers.clear()


def owned_rows(number: int) -> list[dict[str, Any]]:
    """Return the rows of leases that the worker has from an earlier process."""
    return [
        encode(replace(lease, owner=WORKER, ssp_owner=WORKER)) for lease in lease_options(number)
    ]


def run(*, leases: Sequence[int], failover: float, seconds: float) -> Figures:
    """Measure each number of leases; the times are in seconds."""
    report = Figures(
        name="leases.agent",
        command=f"python -m benchmarks.leases.agent --leases {' '.join(map(str, leases))}"
        f" --failover {failover:g} --seconds {seconds:g}",
        columns=(
            "leases",
            "",
            "calls a second",
            "writes a second",
            "CPU ms a second",
            "CPU us a lease and second",
        ),
    )
    logging.disable(logging.INFO)
    for number in leases:
        with counting_table(owned_rows(number)) as table:
            simulation = Simulation(
                endpoint_url=table.endpoint_url,
                leases=number,
                failover_ms=round(failover * 1000),
            )
            simulation.start()
            for load in ("idle", "busy"):
                busy = load == "busy"
                simulation.run(round(failover * 1000), busy=busy)
                simulation.used = 0.0
                table.counts()
                simulation.run(round(seconds * 1000), busy=busy)
                counts = table.counts()
                singles = counts.get("UpdateItem", 0)
                writes = singles + counts.get("statement", 0)
                calls = singles + counts.get("BatchExecuteStatement", 0)
                cpu_ms = 1000 * simulation.used / seconds
                report.add(
                    f"{number:,}",
                    load,
                    f"{calls / seconds:,.0f}",
                    f"{writes / seconds:,.0f}",
                    f"{cpu_ms:,.0f}",
                    f"{1000 * cpu_ms / number:,.1f}",
                    leases=number,
                    failover_s=failover,
                    load=load,
                    writes_a_second=writes / seconds,
                    agent_cpu_ms_a_second=cpu_ms,
                )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--leases", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--failover", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
