"""Creates the worker of a query from its options: its id, its lease agent and its lock, which
ensures that each worker has only one reader among the readers of one driver.

Spark makes a reader for each use of a DataFrame in a query, so a self-join has two. With leases
they would be two workers that divide the shards, and the join would miss most rows. Spark passes a
Python source neither the query nor its checkpoint. So readers of one driver that share a lease
table need different values of `workerId`; others are refused.

Each reader has a process, and Spark's driver is the parent of all of them. A reader locks a file;
the system frees the lock when the process ends, however it ends.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_ssp.checkpoint.agent.client import start_agent
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, LeaseClient
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.lease_store import Capacity, TableSettings
from spark_ssp.checkpoint.worker_identity import Query, worker_id
from spark_ssp.common.errors import AccessError, UnsupportedError
from spark_ssp.common.local_processes import FileLock
from spark_ssp.grouping.identifiers import WorkerId
from spark_ssp.kinesis_source.leases.drain import DrainSignal, new_token
from spark_ssp.kinesis_source.options.values import KinesisOptions, LeaseOptions

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""The time that the process of a stopped query may take to end before the next one is refused."""
_POLL_S: Final = 0.1


class ReaderLock:
    """The lock of one reader. It cannot be pickled."""

    def __init__(self, *key: str, folder: Path | None = None) -> None:
        """`key`: unique among the readers of the driver."""
        self._lock = FileLock(*key, suffix="lock", folder=folder)

    def acquire(self, *, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> bool:
        """Return whether the key was free, at the latest after `PATIENCE_S`.

        True with a warning if the folder cannot be used: then there is no check.
        """
        deadline = monotonic() + PATIENCE_S
        try:
            while not self._lock.acquire():
                if monotonic() >= deadline:
                    return False
                sleep(_POLL_S)
        except (AccessError, OSError) as error:
            _log.warning("a self-join of a DataFrame with leases cannot be detected: %s", error)
        return True

    def release(self) -> None:
        """Free the lock and remove its file."""
        self._lock.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWorker:
    """The id of the reader, the client of its lease agent, and its drain signal."""

    id: WorkerId
    options: LeaseOptions
    client: LeaseClient
    drain_signal: DrainSignal
    lock: ReaderLock | None = None

    def close(self) -> None:
        """Release the lock, so that another reader of this driver may be this worker."""
        if self.lock is not None:
            self.lock.release()


def lease_worker(
    options: KinesisOptions,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> LeaseWorker | None:
    """Return the worker of a query that has leases. The agent starts when its client is first used.

    Raises InvalidOptionsError if `processorIdGenerator` does not return an id, UnsupportedError if
    the driver has another reader for the same worker.
    """
    leases = options.leases
    if leases is None:
        return None
    name = "+".join(stream.name for stream in options.streams)
    worker = worker_id(
        leases.worker_id,
        leases.processor_id_generator,
        query=Query(application=leases.application, name=name),
    )
    lock = _lock(options, leases, driver=os.getppid())
    if not lock.acquire(monotonic=monotonic, sleep=sleep):
        raise _second_reader(leases)
    client = start_agent(_settings(options, leases, worker))
    return LeaseWorker(
        id=worker,
        options=leases,
        client=client,
        drain_signal=DrainSignal(new_token()),
        lock=lock,
    )


def _lock(options: KinesisOptions, leases: LeaseOptions, *, driver: int) -> ReaderLock:
    """Return the lock of the worker. Its key has no id from a generator, since each reader of a
    query gets a different one. It has the options that may name another account, whose table of the
    same name is another one; not the keys, which change."""
    table = leases.connection(options.connection)
    place = (table.region, options.connection.endpoint_url, table.endpoint_url)
    access = (table.role_arn, table.aws_profile, table.credentials_provider)
    worker = leases.worker_id or ""
    return ReaderLock(str(driver), repr(place), repr(access), leases.table, worker)


def _second_reader(leases: LeaseOptions) -> UnsupportedError:
    own = "without workerId" if leases.worker_id is None else f"with workerId {leases.worker_id}"
    return UnsupportedError(
        f"lease table {leases.table}",
        found=f"a second reader in this driver, also {own}: a query that uses its DataFrame twice, "
        "as in a self-join, or another query that is running",
        expected="one reader for each worker, since two would divide the shards",
        next_step="for a query that reads a stream twice, leave out applicationName, so that each "
        "side reads every shard; for queries that share the shards on purpose, give each its own "
        "workerId",
    )


def _settings(options: KinesisOptions, leases: LeaseOptions, worker: WorkerId) -> AgentSettings:
    capacity = leases.table_capacity
    return AgentSettings(
        application=leases.application,
        table=TableSettings(
            name=leases.table,
            capacity=None if capacity is None else Capacity(read=capacity[0], write=capacity[1]),
            tags=leases.table_tags,
        ),
        coordination=Settings(
            worker=worker,
            failover_ms=leases.failover_ms,
            max_leases=leases.max_leases,
            checkpoint_interval_ms=leases.checkpoint_interval_ms,
        ),
        connection=leases.connection(options.connection),
    )
