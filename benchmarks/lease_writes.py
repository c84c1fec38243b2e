"""What keeping leases costs, and how long a hand-over takes.

    python -m benchmarks.lease_writes [--leases 16] [--seconds 60] [--rounds 5] [--failover 10]

Calls to DynamoDB a minute while nothing is read, and while every trigger of one second commits
progress of every shard. Then the time from an event until another worker, which was there before,
holds every lease: its reader leaves, ends or is killed, or is killed together with its keeper; and
until a worker that joins holds its half. DynamoDB is moto's, on the same machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from checkpoint.coordination_state import Settings
from checkpoint.coworking import Report, Status
from checkpoint.keeper_client import KeeperClient
from checkpoint.keeper_settings import KeeperSettings
from checkpoint.lease import Lease, LeaseKey
from checkpoint.progress import Processed, StartAtTrimHorizon
from checkpoint.table_shape import TableSettings
from embedded_kinesis.dynamodb import DynamoDbServer
from ssp_common.connection import ConnectionOptions
from task_grouping.identifiers import SequenceNumber, ShardId, WorkerId

PERIOD_S: Final = 0.1
"""Between two triggers of a reader, while a hand-over is measured."""
OPERATIONS: Final = ("UpdateItem", "PutItem", "DeleteItem", "Scan", "GetItem")

_tables = count()
_processes = multiprocessing.get_context("spawn")


class CountingServer(DynamoDbServer):
    """Counts what it is asked, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        super().start()
        assert self._server is not None
        serving: Any = self._server._server
        app = serving.app

        def counting(
            environ: dict[str, Any], start_response: Callable[..., Any]
        ) -> Iterable[bytes]:
            self.counts[environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]] += 1
            answer: Iterable[bytes] = app(environ, start_response)
            return answer

        serving.app = counting


def leases_of(number: int) -> tuple[Lease, ...]:
    """Rows to create."""
    return tuple(
        Lease(shard=ShardId(f"shardId-{n:012d}"), counter=0, progress=StartAtTrimHorizon())
        for n in range(number)
    )


def settings_of(
    server: DynamoDbServer, table: str, worker: str, failover_ms: int
) -> KeeperSettings:
    """One of the workers of a table."""
    return KeeperSettings(
        application=table,
        table=TableSettings(name=table),
        coordination=Settings(worker=WorkerId(worker), failover_ms=failover_ms),
        connection=ConnectionOptions(
            region="us-east-1",
            endpoint_url=server.endpoint_url,
            aws_access_key_id="bench",
            aws_secret_access_key="bench",
        ),
    )


class Reader:
    """A reader that reads all it holds, and leaves out what is asked for."""

    def __init__(self, settings: KeeperSettings, create: tuple[Lease, ...]) -> None:
        self.client = KeeperClient(settings)
        self._create = create
        self._reading: frozenset[LeaseKey] = frozenset()
        self._number = 0

    def trigger(self, *, busy: bool = False, leave: bool = False) -> Status:
        """One exchange, and a second one when something is asked for."""
        self._number += 1
        done = Processed(sequence_number=SequenceNumber(str(self._number)))
        status = self.client.exchange(
            Report(
                create=self._create,
                reading=frozenset() if leave else self._reading,
                progress=dict.fromkeys(self._reading, done) if busy else {},
                leave=leave,
            )
        )
        self._reading = frozenset(status.held) - status.asked_for
        if status.asked_for:
            status = self.client.exchange(Report(reading=self._reading, leave=leave))
        return status

    def until(self, enough: Callable[[Status], bool]) -> None:
        """Trigger until it is."""
        while not enough(self.trigger()):
            time.sleep(PERIOD_S)


# --- Calls ---------------------------------------------------------------------------------------


def calls_a_minute(
    server: CountingServer, leases: int, failover_ms: int, seconds: float, *, busy: bool
) -> dict[str, float]:
    """By operation, with all leases held by one worker."""
    settings = settings_of(server, f"bench-{next(_tables)}", "anne", failover_ms)
    reader = Reader(settings, leases_of(leases))
    reader.until(lambda status: len(status.held) == leases)
    server.counts.clear()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        reader.trigger(busy=busy)
        time.sleep(1.0)
    minutes = (time.monotonic() - began) / 60
    counts = dict(server.counts)
    reader.client.close()
    return {name: calls / minutes for name, calls in counts.items()}


# --- Hand-overs ----------------------------------------------------------------------------------


def read_for_ever(settings: KeeperSettings, create: tuple[Lease, ...], pipe: Connection) -> None:
    """A reader as a process. It is told `leave` or `end` by its pipe."""
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
        """How many leases it holds, and its keeper's process: what it has said last."""
        said: tuple[int, int] = self.pipe.recv()
        while self.pipe.poll():
            said = self.pipe.recv()
        return said


def kill_both(other: Other, keeper: int) -> None:
    """As when the machine is gone."""
    other.process.kill()
    os.kill(keeper, signal.SIGKILL)


EVENTS: Final[dict[str, Callable[[Other, int], None]]] = {
    "it leaves (stop_gracefully)": lambda other, _: other.pipe.send("leave"),
    "its reader ends": lambda other, _: other.pipe.send("end"),
    "its reader is killed": lambda other, _: other.process.kill(),
    "reader and keeper are killed": kill_both,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Seconds, of one round."""

    joined: float
    """From the start of a worker until it holds its half."""
    moved: float
    """From the event until the other holds everything."""


def hand_over(
    server: DynamoDbServer, leases: int, failover_ms: int, event: Callable[[Other, int], None]
) -> HandOver:
    """Two workers share, then something happens to the first."""
    table = f"bench-{next(_tables)}"
    ours, theirs = _processes.Pipe()
    first = _processes.Process(
        target=read_for_ever,
        args=(settings_of(server, table, "anne", failover_ms), leases_of(leases), theirs),
    )
    first.start()
    theirs.close()
    other = Other(process=first, pipe=ours)
    while other.state()[0] < leases:
        pass
    second = Reader(settings_of(server, table, "bert", failover_ms), ())
    began = time.monotonic()
    second.until(lambda status: len(status.held) == leases // 2)
    joined = time.monotonic() - began
    _, keeper = other.state()
    began = time.monotonic()
    event(other, keeper)
    second.until(lambda status: len(status.held) == leases)
    moved = time.monotonic() - began
    first.kill()
    first.join()
    second.client.close()
    return HandOver(joined=joined, moved=moved)


def spread(values: list[float]) -> str:
    """Median and range of seconds."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--leases", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--failover", type=float, default=10)
    arguments = parser.parse_args()
    failover_ms = round(arguments.failover * 1000)
    console = Console()
    server = CountingServer()
    server.start()
    calls = Table(title=f"calls a minute, {arguments.leases} leases held by one worker")
    for column in ("", *OPERATIONS):
        calls.add_column(column, justify="right")
    for name, busy in (("idle", False), ("busy", True)):
        found = calls_a_minute(server, arguments.leases, failover_ms, arguments.seconds, busy=busy)
        calls.add_row(name, *(f"{found.get(operation, 0):.0f}" for operation in OPERATIONS))
    console.print(calls)
    times = Table(title=f"seconds, failover time {arguments.failover:g} s: median (range)")
    for column in ("what happens to a worker", "the other holds all", "before: it joined"):
        times.add_column(column)
    for name, event in EVENTS.items():
        rounds = [
            hand_over(server, arguments.leases, failover_ms, event) for _ in range(arguments.rounds)
        ]
        times.add_row(
            name,
            spread([one.moved for one in rounds]),
            spread([one.joined for one in rounds]),
        )
    console.print(times)
    server.stop()


if __name__ == "__main__":
    main()
