"""Workers that share leases, for benchmarks: readers of all that they hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Final

from spark_ssp.checkpoint.agent.client import AgentClient
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report, Status
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, Processed, StartAtTrimHorizon
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import SequenceNumber, ShardId, WorkerId

PERIOD_S: Final = 0.1
"""Between two triggers of a reader that waits for something."""
PATIENCE_S: Final = 300

_tables = count()


def new_table() -> str:
    """A name that no table of this process has had."""
    return f"bench-{next(_tables)}"


def lease_options(number: int) -> tuple[Lease, ...]:
    """Rows to create."""
    return tuple(
        Lease(shard=ShardId(f"shardId-{n:012d}"), counter=0, progress=StartAtTrimHorizon())
        for n in range(number)
    )


def settings_of(endpoint_url: str, table: str, worker: str, failover_ms: int) -> AgentSettings:
    """One of the workers of a table."""
    return AgentSettings(
        application=table,
        table=TableSettings(name=table),
        coordination=Settings(worker=WorkerId(worker), failover_ms=failover_ms),
        connection=ConnectionOptions(
            region="us-east-1",
            endpoint_url=endpoint_url,
            aws_access_key_id="bench",
            aws_secret_access_key="bench",
        ),
    )


class Reader:
    """A reader that reads all leases it holds, and drops those that are requested from it."""

    def __init__(self, settings: AgentSettings, create: tuple[Lease, ...]) -> None:
        self.client = AgentClient(settings)
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
        self._create = tuple(row for row in self._create if row.key not in status.rows)
        self._reading = frozenset(status.held) - status.asked_for
        if status.asked_for:
            status = self.client.exchange(Report(reading=self._reading, leave=leave))
        return status

    def until(self, enough: Callable[[Status], bool]) -> None:
        """Trigger until it is; `TimeoutError` after five minutes."""
        deadline = time.monotonic() + PATIENCE_S
        while not enough(self.trigger()):
            if time.monotonic() > deadline:
                raise TimeoutError("the leases are not where they should be")
            time.sleep(PERIOD_S)
