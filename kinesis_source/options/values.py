"""The options of the Kinesis source, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor imports it: it does not load the parser.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import ConsumerArn, StartingPosition, StreamRef

__all__ = [
    "ConnectionOptions",
    "ConsumerLifecycle",
    "FanOutOptions",
    "InvalidOptionsError",
    "KinesisOptions",
    "LeaseOptions",
    "LeaseRole",
    "QueryKind",
    "SlotAssignment",
]


class QueryKind(StrEnum):
    """The kind of query: `readStream` or `read`."""

    STREAM = "stream"
    BATCH = "batch"


class SlotAssignment(StrEnum):
    """The slot of a new shard: `FREE` takes a free one, `HASH_RANGE` keeps keys in place."""

    FREE = "free"
    HASH_RANGE = "hash-range"


class ConsumerLifecycle(StrEnum):
    """The party that registers and deregisters a consumer: `JOB`, the query; `SELF`, the user."""

    JOB = "job"
    SELF = "self"


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutOptions:
    """The options of enhanced fan-out: the consumer's name in every stream, or the ARN of a
    registered consumer for each stream."""

    consumer_name: str | None = None
    consumer_arns: tuple[tuple[StreamName, ConsumerArn], ...] = ()
    lifecycle: ConsumerLifecycle = ConsumerLifecycle.JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRole:
    """The role that is assumed for the lease table; `arn` None: none, the table is used with the
    credentials that a role would be assumed with."""

    arn: str | None
    external_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """The options for sharing shards with other workers. Times are in milliseconds.

    None means: `worker_id` and `processor_id_generator`, a random id; `max_leases`, no limit;
    `dynamodb_endpoint_url`, the one of AWS's configuration; `table_capacity` (for reads and
    writes), on demand; `role`, the role of the streams, if any.
    """

    application: str
    table: str
    worker_id: str | None = None
    processor_id_generator: str | None = None
    failover_ms: int = 10_000
    max_leases: int | None = None
    checkpoint_interval_ms: int = 5_000
    dynamodb_endpoint_url: str | None = None
    table_tags: tuple[tuple[str, str], ...] = ()
    table_capacity: tuple[int, int] | None = None
    max_outage_ms: int = 10_000
    role: LeaseRole | None = None

    def connection(self, streams: ConnectionOptions) -> ConnectionOptions:
        """Return the connection to DynamoDB. `streams`: that of the streams."""
        return table_connection(streams, self.dynamodb_endpoint_url, self.role)


def table_connection(
    streams: ConnectionOptions, endpoint_url: str | None, role: LeaseRole | None
) -> ConnectionOptions:
    """Return the connection to DynamoDB: that of the streams, with another endpoint, and another
    role if there is one."""
    connection = replace(streams, endpoint_url=endpoint_url)
    if role is None:
        return connection
    return replace(
        connection,
        role_arn=role.arn,
        role_external_id=role.external_id,
        role_option="leaseRoleArn",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisOptions:
    """All options of a query. Times are in milliseconds, sizes in bytes.

    `streams` is sorted by name, unique and not empty. None means: `slots`, the number of open
    shards at the start; the limits of records and bytes, no limit; `leases`, that every shard is
    read; `ending_position`, a streaming query.
    """

    streams: tuple[StreamRef, ...]
    starting_position: StartingPosition
    ending_position: StartingPosition | None = None
    max_records: int | None = None
    slots: int | None = None
    slot_assignment: SlotAssignment = SlotAssignment.FREE
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_bytes_per_shard: int = 256 << 20
    is_triggered_by_time: bool = False
    """The trigger is declared to be neither availableNow nor once."""
    shard_discovery_interval_ms: int = 10_000
    max_records_per_fetch: int = 10_000
    min_fetch_period_ms: int = 400
    drop_streams: tuple[StreamName, ...] = ()
    fail_on_data_loss: bool = True
    deaggregate: bool = True
    include_repeat_keys: bool = False
    max_bytes_in_flight: int = 64 * 1024 * 1024
    leases: LeaseOptions | None = None
    fan_out: FanOutOptions | None = None
    connection: ConnectionOptions
