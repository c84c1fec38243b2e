"""Checks of the services for `doctor`: identity, permissions by the cheapest reads, clocks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from spark_ssp.checkpoint.leases.lease import LeaseTableError
from spark_ssp.common import structs
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import DeniedCall, access_error, quoted, safe_text
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, RetrySettings, ServiceCalls
from spark_ssp.common.errors import InvalidOptionsError, ServiceUnavailableError, SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.values import is_loopback
from spark_ssp.common.times import duration_text, seconds_text
from spark_ssp.kafka_source.client.admin_client import connect as connect_kafka
from spark_ssp.kafka_source.model.topic import LogicalOffset, Subscribe, partition_of
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.topic_metadata import not_found_error
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.client.consumers import Consumer, ConsumerService, find_consumer
from spark_ssp.kinesis_source.model.shard import StreamRef, TrimHorizon
from spark_ssp.kinesis_source.options.values import ConsumerLifecycle, FanOutOptions, KinesisOptions
from spark_ssp.operations.inspection.lease_table import LeaseTable
from spark_ssp.operations.inspection.streams import StreamDetails, read_stream, try_subscription

_MOST_SKEW_MS: Final = 10_000
"""AWS refuses requests that are signed five minutes off."""


class Level(StrEnum):
    """The weight of a finding."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, or it cannot be checked from here."""
    WARNING = "warning"
    PROBLEM = "problem"
    """A query would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


def findings_of(check: str, error: SspError, level: Level = Level.PROBLEM) -> list[Finding]:
    """Return a finding for each problem of an error."""
    if isinstance(error, InvalidOptionsError):
        return [
            Finding(
                check,
                level,
                f"{problem.option}: {problem.found}; expected {problem.expected}",
                problem.next_step,
            )
            for problem in error.problems
        ]
    return [
        Finding(
            check,
            level,
            f"{error.subject}: {error.found}; expected {error.expected}",
            error.next_step,
        )
    ]


# --- AWS ------------------------------------------------------------------------------------------


def check_kinesis(options: KinesisOptions, now_ms: Callable[[], int]) -> Iterator[Finding]:
    """Yield the findings of a query's options. `now_ms` is this machine's clock."""
    connection = options.connection
    yield from _identity(connection)
    for stream in options.streams:
        yield from _reads(stream, connection)
        if options.fan_out is not None:
            yield from _consumers(stream, options.fan_out, connection)
    yield from _clock(connection, now_ms)
    if options.leases is not None:
        leases = options.leases
        yield from _lease_table(leases.application, leases.table, leases.connection(connection))


def _attempt(check: str, function: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield Finding(check, Level.OK, function())
    except SspError as error:
        yield from findings_of(check, error)


def _identity(connection: ConnectionOptions) -> Iterator[Finding]:
    if is_loopback(connection.endpoint_url) and connection.sts_endpoint_url is None:
        yield Finding("identity", Level.NOTE, "not asked: the endpoint is on this machine")
        return
    try:
        yield Finding("identity", Level.OK, caller_identity(connection))
    except ServiceUnavailableError as error:
        # A query calls STS only to assume a role.
        level = Level.WARNING if connection.role_arn is None else Level.PROBLEM
        yield from findings_of("identity", error, level)
    except SspError as error:
        yield from findings_of("identity", error)


def caller_identity(connection: ConnectionOptions) -> str:
    """Return the ARN that AWS resolves the credentials to. GetCallerIdentity needs no permission.

    Raises AccessError, ServiceUnavailableError.
    """
    client = create_client("sts", replace(connection, endpoint_url=connection.sts_endpoint_url))
    log = RetryLog(time.monotonic)
    retry = RetrySettings(max_attempts=2, max_backoff=1.0)
    retrier = Retrier(retry, log=log, sleep=time.sleep, random=random.random)
    try:
        response = _StsCalls(client, retrier, subject="credentials").ask("GetCallerIdentity", {})
    finally:
        client.close()
    return str(response["Arn"])


class _StsCalls(ServiceCalls):
    def _translated(self, error: Exception, operation: str) -> SspError:
        place = safe_text(self._client.meta.endpoint_url)
        access = access_error(
            error,
            DeniedCall(
                subject=self._subject,
                service="sts",
                operation=operation,
                resource="this account",
                place=place,
            ),
        )
        return access or ServiceUnavailableError(
            self._subject,
            found=f"{quoted(error)} on {operation}",
            expected=f"an answer from {place}",
            next_step="check the network; a VPC without internet needs an endpoint for STS, only "
            "for this check and for roleArn",
        )


def _reads(stream: StreamRef, connection: ConnectionOptions) -> Iterator[Finding]:
    """Try each call of a query that reads. A query makes no other calls to the stream."""
    try:
        service = connect(connection)
    except SspError as error:
        yield from findings_of("credentials", error)
        return
    name = stream.name
    found: dict[str, Any] = {}

    def describe() -> str:
        found["stream"] = service.describe(stream)
        return f"stream {name}, retention {duration_text(found['stream'].retention_ms)}"

    def list_shards() -> str:
        found["shards"] = service.list_shards(stream)
        count = sum(not shard.closed for shard in found["shards"])
        return f"stream {name}, {count} open shards"

    def iterate() -> str:
        shard = found["shards"][-1].shard_id
        found["iterator"] = (shard, service.open_iterator(stream, shard, TrimHorizon()))
        return f"stream {name}, {shard}"

    def read() -> str:
        shard, iterator = found["iterator"]
        service.get_records(stream, shard, iterator, limit=1)
        return f"stream {name}, {shard}"

    for action, call in (
        ("DescribeStreamSummary", describe),
        ("ListShards", list_shards),
        ("GetShardIterator", iterate),
        ("GetRecords", read),
    ):
        findings = list(_attempt(f"kinesis:{action}", call))
        yield from findings
        if any(finding.level is Level.PROBLEM for finding in findings):
            return


def _consumers(
    stream: StreamRef, fan_out: FanOutOptions, connection: ConnectionOptions
) -> Iterator[Finding]:
    """List the consumers of a stream, find that of the query as the query does, and try whether it
    may subscribe."""
    check = "kinesis:ListStreamConsumers"
    try:
        details = read_stream(stream, connection)
        yield _listed_consumers(check, details)
        check = "kinesis:DescribeStreamConsumer"
        service = ConsumerService(connect(connection))
        found = find_consumer(fan_out, service, structs.replace(stream, arn=details.arn))
    except SspError as error:
        yield from findings_of(check, error)
        return
    if found is None:
        yield _absent_consumer(stream, fan_out)
        return
    yield Finding(
        check, Level.OK, f"consumer {found.name} of stream {stream.name} is {found.status}"
    )
    yield from _subscription(stream, found, details, connection)


def _listed_consumers(check: str, stream: StreamDetails) -> Finding:
    """Consumers that ended queries have left are billed."""
    if stream.consumers is None:
        return Finding(check, Level.NOTE, "not permitted; a query does without it")
    listed = ", ".join(f"{each.name} ({each.status})" for each in stream.consumers) or "none"
    return Finding(
        check,
        Level.OK,
        f"consumers of stream {stream.name}: {listed}",
        "deregister those that nobody uses: each is billed by shard and hour"
        if stream.consumers
        else None,
    )


def _absent_consumer(stream: StreamRef, fan_out: FanOutOptions) -> Finding:
    arn = dict(fan_out.consumer_arns).get(stream.name)
    is_registered = arn is None and fan_out.lifecycle is ConsumerLifecycle.JOB
    return Finding(
        "consumer",
        Level.NOTE if is_registered else Level.PROBLEM,
        f"no consumer {arn or fan_out.consumer_name} of stream {stream.name}"
        + (": the query registers it" if is_registered else ""),
        "allow kinesis:RegisterStreamConsumer and kinesis:DeregisterStreamConsumer"
        if is_registered
        else "register it, or set consumerName with consumerLifecycle=job",
    )


def _subscription(
    stream: StreamRef, consumer: Consumer, details: StreamDetails, connection: ConnectionOptions
) -> Iterator[Finding]:
    check = "kinesis:SubscribeToShard"
    if not details.shards:  # the stream is being created
        yield Finding(check, Level.NOTE, "not tried: no shard is listed")
        return
    shard = details.shards[-1].shard_id
    try:
        is_tried = try_subscription(stream, shard, consumer.arn, connection)
    except SspError as error:
        # The query reads by GetRecords then.
        yield from findings_of(check, error, Level.WARNING)
        return
    yield Finding(
        check,
        Level.OK if is_tried else Level.NOTE,
        f"stream {stream.name}, {shard}"
        if is_tried
        else "not tried: this version of botocore has no DryRun",
    )


def _clock(connection: ConnectionOptions, now_ms: Callable[[], int]) -> Iterator[Finding]:
    try:
        skew = now_ms() - connect(connection).service_time()
    except SspError:
        return  # An earlier check has failed for the same reason.
    if abs(skew) <= _MOST_SKEW_MS:
        yield Finding("clock", Level.OK, f"within {duration_text(_MOST_SKEW_MS)} of the service")
        return
    word = "ahead of" if skew > 0 else "behind"
    yield Finding(
        "clock",
        Level.WARNING,
        f"this machine is {seconds_text(round(abs(skew) / 1000))} {word} the service; AWS "
        "refuses requests that are 5 min off",
        "synchronize the clock by NTP (chrony)",
    )


def _lease_table(application: str, table: str, connection: ConnectionOptions) -> Iterator[Finding]:
    try:
        leases = LeaseTable(application, table, connection)
        try:
            count = len(leases.read().rows.leases)
        finally:
            leases.close()
    except LeaseTableError:
        yield Finding(
            "dynamodb:Scan",
            Level.NOTE,
            f"no table {table}: the query creates it",
            "allow dynamodb:CreateTable, and TagResource with leaseTableTags",
        )
    except SspError as error:
        yield from findings_of("dynamodb:Scan", error)
        return
    else:
        yield Finding("dynamodb:Scan", Level.OK, f"table {table}, {count} leases")
    yield Finding(
        "lease writes",
        Level.NOTE,
        "not tried: this command does not write",
        "allow dynamodb:DescribeTable, PutItem, UpdateItem, DeleteItem and GetItem on the table, "
        "and PartiQLUpdate, by which 16 writes or more are made at once",
    )


# --- Kafka ----------------------------------------------------------------------------------------


def check_kafka(options: KafkaOptions) -> Iterator[Finding]:
    """Yield the findings of a query's options."""
    found: dict[str, Any] = {}

    def describe() -> str:
        service = connect_kafka(options)
        found["service"], found["topics"] = service, service.describe(options.selection)
        if isinstance(options.selection, Subscribe):
            missing = set(options.selection.topics) - found["topics"].keys()
            if missing:
                raise not_found_error(options.selection, missing)
        counts = [f"{name} ({one.partition_count})" for name, one in found["topics"].items()]
        return f"topics and partitions: {', '.join(sorted(counts)) or 'none'}"

    def offsets() -> str:
        partitions = [
            partition_of(name, number)
            for name, topic in found["topics"].items()
            for number in range(topic.partition_count)
        ]
        ends = found["service"].list_offsets(partitions, LogicalOffset.LATEST)
        known = sum(end is not None for end in ends.values())
        return f"ends of {known} of {len(partitions)} partitions"

    for check, call in (("brokers, Describe", describe), ("ListOffsets", offsets)):
        findings = list(_attempt(check, call))
        yield from findings
        if any(finding.level is Level.PROBLEM for finding in findings):
            return
    yield Finding("Read", Level.NOTE, "not tried: reading needs the permission Read on the topics")
