"""Time until another worker has taken the leases.

    python -m benchmarks.leases.hand_overs [--leases 16] [--rounds 5] [--failover 10]

Two workers share the leases, then something happens to the first: its reader leaves, ends or is
killed, or is killed together with its agent. The figures are the seconds from then until the second
holds every lease; and those from the start of the second until it held its half, before. DynamoDB
is moto's, on the same machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from benchmarks.leases.workers import PERIOD_S, Reader, lease_options, new_table, settings_of
from benchmarks.support.report import Report, spread
from spark_ssp.checkpoint.coordination.protocol import AgentSettings
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.testing.kinesis.server import DynamoDbServer

_processes = multiprocessing.get_context("spawn")


def read_for_ever(settings: AgentSettings, create: tuple[Lease, ...], pipe: Connection) -> None:
    """Run a reader until the pipe receives `leave` or `end`."""
    reader = Reader(settings, create)
    leave = False
    while True:
        status = reader.trigger(leave=leave)
        pipe.send((len(status.held), reader.client.pid))
        if pipe.poll(PERIOD_S):
            word = pipe.recv()
            if word == "end":
                return
            leave = word == "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """That process, from outside."""

    process: BaseProcess
    pipe: Connection

    def state(self) -> tuple[int, int]:
        """Return the latest report: the number of leases held, and the process id of the agent."""
        latest: tuple[int, int] = self.pipe.recv()
        while self.pipe.poll():
            latest = self.pipe.recv()
        return latest


def kill_both(other: Other, agent: int) -> None:
    """As when the machine is gone."""
    other.process.kill()
    os.kill(agent, signal.SIGKILL)


EVENTS: Final[dict[str, Callable[[Other, int], None]]] = {
    "it leaves (stop_gracefully)": lambda other, _: other.pipe.send("leave"),
    "its reader ends": lambda other, _: other.pipe.send("end"),
    "its reader is killed": lambda other, _: other.process.kill(),
    "reader and agent are killed": kill_both,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Seconds, of one round."""

    joined: float
    """From the start of a worker until it holds its half."""
    moved: float
    """From the event until the other holds everything."""


def hand_over(
    endpoint_url: str, leases: int, failover_ms: int, event: Callable[[Other, int], None]
) -> HandOver:
    """Two workers share, then something happens to the first."""
    table = new_table()
    ours, theirs = _processes.Pipe()
    first = _processes.Process(
        target=read_for_ever,
        args=(settings_of(endpoint_url, table, "anne", failover_ms), lease_options(leases), theirs),
    )
    first.start()
    theirs.close()
    second = Reader(settings_of(endpoint_url, table, "bert", failover_ms), ())
    try:
        other = Other(process=first, pipe=ours)
        while other.state()[0] < leases:
            pass
        began = time.monotonic()
        second.until(lambda status: len(status.held) == leases // 2)
        joined = time.monotonic() - began
        _, agent = other.state()
        began = time.monotonic()
        event(other, agent)
        second.until(lambda status: len(status.held) == leases)
        return HandOver(joined=joined, moved=time.monotonic() - began)
    finally:
        first.kill()
        first.join()
        second.client.close()


def run(
    *,
    leases: int,
    rounds: int,
    failover: float,
    events: Mapping[str, Callable[[Other, int], None]] = EVENTS,
) -> Report:
    """Measure each of `events`; the failover time is in seconds."""
    report = Report(
        name="leases.hand_overs",
        command=f"python -m benchmarks.leases.hand_overs --leases {leases} --rounds {rounds} "
        f"--failover {failover:g}",
        columns=("event", "the other holds all, s", "before: it joined, s"),
    )
    server = DynamoDbServer()
    server.start()
    try:
        for name, event in events.items():
            found = [
                hand_over(server.endpoint_url, leases, round(failover * 1000), event)
                for _ in range(rounds)
            ]
            moved = spread([one.moved for one in found])
            joined = spread([one.joined for one in found])
            report.add(
                name,
                moved.text(1),
                joined.text(1),
                event=name,
                leases=leases,
                failover_s=failover,
                moved_s=list(moved.values),
                joined_s=list(joined.values),
            )
    finally:
        server.stop()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--leases", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--failover", type=float, default=10)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
