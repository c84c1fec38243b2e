"""This query as a worker: its id, and the keeper of its leases, from the options."""

from __future__ import annotations

from dataclasses import dataclass, replace

from checkpoint.coordination_state import Settings
from checkpoint.coworking import LeaseClient
from checkpoint.keeper_client import start_keeper
from checkpoint.keeper_settings import KeeperSettings
from checkpoint.table_shape import Capacity, TableSettings
from checkpoint.worker_identity import Query, worker_id
from kinesis_source.drain_marks import DrainMarks, new_token
from kinesis_source.options import KinesisOptions, LeaseOptions
from task_grouping.identifiers import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWorker:
    """Who reads, who keeps the leases, and where it is asked to give them back."""

    id: WorkerId
    client: LeaseClient
    marks: DrainMarks


def lease_worker(options: KinesisOptions) -> LeaseWorker | None:
    """The worker of a query that has leases. Nothing is started before its client is first used.

    Raises InvalidOptionsError when `processorIdGenerator` does not give an id.
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
    client = start_keeper(_settings(options, leases, worker))
    return LeaseWorker(id=worker, client=client, marks=DrainMarks(new_token()))


def _settings(options: KinesisOptions, leases: LeaseOptions, worker: WorkerId) -> KeeperSettings:
    capacity = leases.table_capacity
    return KeeperSettings(
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
        connection=replace(options.connection, endpoint_url=leases.dynamodb_endpoint_url),
    )
