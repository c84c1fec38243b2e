"""Reads streams: their shards, settings and consumers, and how far positions are behind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, ServiceCalls, retry_settings
from spark_ssp.common.errors import (
    AccessError,
    InvalidRequestError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import (
    InvalidPositionError,
    KinesisService,
    ShardNotFoundError,
)
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.client.error_translation import ApiCall, translate
from spark_ssp.kinesis_source.model.deaggregation import last_sub
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    ConsumerArn,
    EpochMillis,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardIterator,
    StreamDescription,
    StreamRef,
    is_behind,
)

_JUST_SUBSCRIBED: Final = ("ResourceInUseException", "LimitExceededException")
"""The errors of SubscribeToShard if the consumer has just subscribed to the shard."""
T = TypeVar("T")
_THREADS: Final = 16
_FAILURES: Final = 3
"""Shards of one stream that may fail: no other of it is asked for after that."""
_EMPTY_PAGES: Final = 20
"""Empty pages that are followed: the service returns some at gaps."""


References = Mapping[StreamName, StreamRef]
"""Streams by the name that offsets and lease tables have: one of another account needs its ARN. A
stream that is not in it is requested by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStream:
    """A stream and its shards, those that are closed and not yet expired included."""

    description: StreamDescription
    shards: tuple[Shard, ...]


def list_streams(
    names: Iterable[StreamName], connection: ConnectionOptions, references: References
) -> dict[StreamName, ListedStream]:
    """Describe and list streams. Needs kinesis:DescribeStreamSummary and kinesis:ListShards."""
    service = connect(connection)
    found = {}
    for name in names:
        stream = _reference(name, references)
        found[name] = ListedStream(
            description=service.describe(stream), shards=service.list_shards(stream)
        )
    return found


def _reference(name: StreamName, references: References) -> StreamRef:
    return references.get(name, StreamRef(name=name))


def describe_streams(
    names: Iterable[StreamName], connection: ConnectionOptions, references: References
) -> dict[StreamName, StreamDescription]:
    """Describe those of the streams that exist. Needs kinesis:DescribeStreamSummary."""
    service = connect(connection)
    found = {}
    for name in names:
        with suppress(StreamNotFoundError):
            found[name] = service.describe(_reference(name, references))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer that is registered for enhanced fan-out."""

    name: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDetails:
    """A stream, as DescribeStreamSummary and ListStreamConsumers return it."""

    name: str
    arn: str
    status: str
    mode: str
    """PROVISIONED or ON_DEMAND."""
    distribution: str
    """USER_PARTITION_KEY, or AUTO: the service chooses the shard of a record."""
    retention_hours: int
    created_ms: EpochMillis
    encryption: str
    consumers: tuple[Consumer, ...] | None
    """None if they may not be listed."""
    shards: tuple[Shard, ...]


def read_stream(stream: StreamRef, connection: ConnectionOptions) -> StreamDetails:
    """Describe a stream and list its shards and consumers. Needs kinesis:DescribeStreamSummary,
    kinesis:ListShards and, for the consumers, kinesis:ListStreamConsumers."""
    calls = _StreamCalls(stream, connection)
    by_name = {"StreamName": stream.name} if stream.arn is None else {"StreamARN": stream.arn}
    summary = calls.ask("DescribeStreamSummary", by_name)["StreamDescriptionSummary"]
    try:
        consumers = _consumers(calls, summary["StreamARN"])
    except (AccessError, InvalidRequestError):
        consumers = None
    created = summary["StreamCreationTimestamp"].timestamp()
    return StreamDetails(
        name=summary["StreamName"],
        arn=summary["StreamARN"],
        status=summary["StreamStatus"],
        mode=summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED"),
        distribution=summary.get("RecordDistributionStrategy", "USER_PARTITION_KEY"),
        retention_hours=summary["RetentionPeriodHours"],
        created_ms=EpochMillis(round(created * 1000)),
        encryption=summary.get("EncryptionType", "NONE"),
        consumers=consumers,
        shards=connect(connection).list_shards(stream),
    )


def _consumers(calls: _StreamCalls, arn: str) -> tuple[Consumer, ...]:
    found: list[Consumer] = []
    request: dict[str, Any] = {"StreamARN": arn}
    while True:
        response = calls.ask("ListStreamConsumers", request)
        found += [
            Consumer(name=entry["ConsumerName"], status=entry["ConsumerStatus"])
            for entry in response["Consumers"]
        ]
        if not response.get("NextToken"):
            return tuple(sorted(found, key=lambda consumer: consumer.name))
        request = {"StreamARN": arn, "NextToken": response["NextToken"]}


def try_subscription(
    stream: StreamRef, shard: ShardId, consumer: ConsumerArn, connection: ConnectionOptions
) -> bool:
    """Try whether the consumer may subscribe to the shard: by `DryRun`, which ends no subscription
    of a query. Return False if this version of botocore lacks it. Raises SspError if it may not."""
    request = {
        "ConsumerARN": consumer,
        "ShardId": shard,
        "StartingPosition": {"Type": "LATEST"},
    }
    calls = _StreamCalls(stream, connection)
    return calls.dry_run("SubscribeToShard", request, permitted=_JUST_SUBSCRIBED)


class _StreamCalls(ServiceCalls):
    def __init__(self, stream: StreamRef, connection: ConnectionOptions) -> None:
        retry, log = retry_settings(connection), RetryLog(time.monotonic)
        super().__init__(
            create_client("kinesis", connection),
            Retrier(retry, log=log, sleep=time.sleep, random=random.random),
            subject=f"stream {stream.name}",
        )
        self._stream = stream
        self._role_arn = connection.role_arn

    def _translated(self, error: Exception, operation: str) -> SspError:
        call = ApiCall(
            operation=operation,
            stream=self._stream.name,
            region=self._client.meta.region_name,
            endpoint=self._client.meta.endpoint_url,
            role_arn=self._role_arn,
        )
        return translate(error, call, attempts=self._retrier.max_attempts)


# --- Lag ------------------------------------------------------------------------------------------


def lags_of(
    positions: Mapping[ShardKey, Position],
    connection: ConnectionOptions,
    references: References,
) -> dict[ShardKey, int | None]:
    """Return the lag of each position in milliseconds; None for a shard that has expired, and for a
    position of another stream. Raises SspError if one could not be measured."""
    lags, errors = try_lags(positions, connection, references)
    for error in errors:
        raise error
    return lags


def try_lags(
    positions: Mapping[ShardKey, Position],
    connection: ConnectionOptions,
    references: References,
) -> tuple[dict[ShardKey, int | None], list[SspError]]:
    """Return the lags, as `lags_of` does, and one error of each stream of which a shard could not
    be measured: such a shard has None too."""
    service = connect(connection)

    def measure(key: ShardKey) -> int | None:
        return _lag(service, _reference(key.stream, references), key.shard, positions[key])

    found, errors = _ask_each(positions, measure)
    return {key: found.get(key) for key in positions}, errors


def _ask_each(
    keys: Iterable[ShardKey], ask: Callable[[ShardKey], T]
) -> tuple[dict[ShardKey, T], list[SspError]]:
    """Ask for shards. Return the answers, and one error of each stream that has any; then some of
    its shards are not asked for, as each would take all its retries."""
    wanted = list(keys)
    errors: dict[StreamName, list[SspError]] = {key.stream: [] for key in wanted}

    def one(key: ShardKey) -> dict[ShardKey, T]:
        failed = errors[key.stream]
        if len(failed) < _FAILURES:
            try:
                return {key: ask(key)}
            except SspError as error:
                failed.append(error)
        return {}

    found: dict[ShardKey, T] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for answer in threads.map(one, wanted):
            found |= answer
    first = [min(failed, key=lambda error: error.subject) for failed in errors.values() if failed]
    return found, first


def first_records(
    positions: Mapping[ShardKey, Position],
    connection: ConnectionOptions,
    references: References,
) -> tuple[dict[ShardKey, SequenceNumber | None], list[SspError]]:
    """Return the first record at each position or after it; None without one. Left out are shards
    that have expired, positions of another stream, and shards that could not be read: the errors
    are as those of `try_lags`."""
    service = connect(connection)

    def first(key: ShardKey) -> Sequence[SequenceNumber | None]:
        with suppress(InvalidPositionError, ShardNotFoundError):
            stream = _reference(key.stream, references)
            return [_first(service, stream, key.shard, positions[key])]
        return []

    found, errors = _ask_each(positions, first)
    return {key: records[0] for key, records in found.items() if records}, errors


def _first(
    service: KinesisService, stream: StreamRef, shard: ShardId, position: Position
) -> SequenceNumber | None:
    iterator: ShardIterator | None = service.open_iterator(stream, shard, position, inclusive=True)
    for _ in range(_EMPTY_PAGES):
        if iterator is None:
            break
        page = service.get_records(stream, shard, iterator, limit=1)
        if page.sequence_numbers:
            return page.sequence_numbers[0]
        iterator = page.next_iterator if page.millis_behind_latest else None
    return None


def _lag(
    service: KinesisService, stream: StreamRef, shard: ShardId, position: Position
) -> int | None:
    if isinstance(position, ShardEnd):
        return 0
    try:
        # With the position's own record: of an aggregate, user records may be unread.
        iterator = service.open_iterator(stream, shard, position, inclusive=True)
        for _ in range(_EMPTY_PAGES):
            page = service.get_records(stream, shard, iterator, limit=2)
            rows = zip(page.sequence_numbers, page.arrival_ms, page.data, strict=True)
            for number, arrival_ms, data in rows:
                last = AfterRecord(sequence_number=number, sub=last_sub(data))
                if not isinstance(position, AfterRecord) or is_behind(position, last):
                    return max(0, page.service_time - arrival_ms)
            if page.millis_behind_latest == 0 or page.next_iterator is None:
                return 0
            iterator = page.next_iterator
    except (InvalidPositionError, ShardNotFoundError):
        return None
    return page.millis_behind_latest
