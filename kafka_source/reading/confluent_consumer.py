"""Reads by confluent-kafka's consumer: one Python object for each record, columns by `map`."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import add
from typing import cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.client_config import ClientRole, create_client, secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    LastError,
    error_kind,
    kafka_error,
    to_error,
)
from spark_ssp.kafka_source.model.topic import kafka_name, partition_of
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.reading.arrow_batches import (
    Headers,
    RecordColumns,
    Runs,
    binary_column,
    header_bytes,
    headers_column,
    numeric_column,
    record_name,
    rows_within,
    split_runs,
    unreadable_headers,
)
from spark_ssp.kafka_source.reading.consumer_api import Event, PartitionEof, ReadError, RecordRun


class ConfluentConsumer:
    """A `PartitionConsumer` by confluent-kafka. `settings` of librdkafka extend the client's
    properties."""

    def __init__(self, client: ClientProperties, settings: Mapping[str, str]) -> None:
        self._secrets = secrets_of(client)
        self._last_error = LastError(self._secrets)
        self._consumer: Consumer = create_client(
            Consumer,
            client,
            role=ClientRole.CONSUMER,
            on_error=self._last_error.record,
            overrides=settings,
        )
        self._polled: list[Message] = []
        self._kept: list[Message] = []
        self._sizes: list[int] = []
        self._counts_headers = False
        self._runs: list[tuple[SystemStreamPartition, int]] = []
        self._buffered_bytes = 0

    @property
    def buffered_rows(self) -> int:
        return len(self._kept)

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    def assign(
        self, positions: Mapping[SystemStreamPartition, int], *, headers: bool = False
    ) -> None:
        self._clear()
        self._counts_headers = headers
        self._polled, self._last_error.text = [], None
        with self._translated():
            if positions:
                self._consumer.assign(
                    [_topic_partition(ssp, offset) for ssp, offset in positions.items()]
                )
            else:
                self._consumer.unassign()

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        with self._translated():
            self._consumer.incremental_unassign([_topic_partition(ssp)])
            self._consumer.incremental_assign([_topic_partition(ssp, offset)])

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        with self._translated():
            self._consumer.incremental_unassign([_topic_partition(ssp) for ssp in ssps])

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        # The first call takes the records that were fetched already, without waiting until there
        # are `limit`.
        with self._translated():
            messages = self._consumer.consume(limit, 0) or self._consumer.consume(1, wait_s)
        self._polled = messages
        if not any(map(Message.error, messages)):
            return self._events_of(messages, 0)
        events: list[Event] = []
        begin = 0
        for place, message in enumerate(messages):
            if (error := message.error()) is not None:
                events += self._events_of(messages[begin:place], begin)
                events.append(self._event_of(message, error))
                begin = place + 1
        return [*events, *self._events_of(messages[begin:], begin)]

    def _events_of(self, messages: list[Message], begin: int) -> list[Event]:
        if not messages:
            return []
        offsets = _offsets(messages)
        # A record without an error has both.
        topics = cast("list[str]", list(map(Message.topic, messages)))
        partitions = cast("list[int]", list(map(Message.partition, messages)))
        events: list[Event] = []
        place = 0
        one = partitions.count(partitions[0]) == len(partitions) == topics.count(topics[0])
        pairs = zip(topics, partitions, strict=True)
        lengths = (
            [((topics[0], partitions[0]), len(messages))]
            if one
            else [(pair, len(list(group))) for pair, group in groupby(pairs)]
        )
        for (topic, partition), length in lengths:
            ssp = partition_of(StreamName(topic), partition)
            events.append(
                RecordRun(ssp=ssp, begin=begin + place, offsets=offsets[place : place + length])
            )
            place += length
        return events

    def _event_of(self, message: Message, error: KafkaError) -> Event:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        ssp = None
        if topic is not None and partition is not None and partition >= 0:
            ssp = partition_of(StreamName(topic), partition)
            if error.code() == KafkaError._PARTITION_EOF and offset is not None:
                return PartitionEof(ssp=ssp, offset=offset)
        subject = "the brokers" if ssp is None else f"partition {kafka_name(ssp)}"
        self._last_error.record(error)
        return ReadError(
            ssp=ssp,
            kind=error_kind(error),
            error=to_error(error, subject=subject, secrets=self._secrets),
        )

    def keep(self, run: RecordRun, kept: slice) -> None:
        begin, end = run.begin + kept.start, run.begin + kept.stop
        if begin == end:
            return
        messages = self._polled
        if begin > 0 or end < len(messages):
            messages = messages[begin:end]
        runs = [(run.ssp, len(messages))]
        sizes = list(map(_size, messages))
        if self._counts_headers:
            # The library keeps the headers that it has decoded.
            sizes = list(map(add, sizes, map(header_bytes, _headers(messages, runs))))
        self._kept += messages
        self._sizes += sizes
        self._buffered_bytes += sum(sizes)
        self._runs += runs

    def take(self, most: int, columns: Collection[str]) -> RecordColumns:
        count = rows_within(np.array(self._sizes, np.int64), most)
        messages, rest = self._kept[:count], self._kept[count:]
        runs, rest_runs = split_runs(self._runs, count)
        keys = values = times_ms = time_types = headers = None
        if "key" in columns:
            keys = binary_column(list(_keys(messages)))
        if "value" in columns:
            values = binary_column(list(map(Message.value, messages)))
        if "timestamp" in columns or "timestampType" in columns:
            times = list(map(Message.timestamp, messages))
            # librdkafka's kinds are 0 for none, 1 and 2; Spark's, as Java's, are one less.
            time_types = numeric_column(pa.int32(), array("i", [kind - 1 for kind, _ in times]))
            millis = array("q", [millis if kind else -1 for kind, millis in times])
            times_ms = numeric_column(pa.int64(), millis)
        if "headers" in columns:
            headers = headers_column(_headers(messages, runs))
        records = RecordColumns(
            runs=runs,
            offsets=numeric_column(pa.int64(), _offsets(messages)),
            keys=keys,
            values=values,
            times_ms=times_ms,
            time_types=time_types,
            headers=headers,
        )
        self._kept, self._sizes, self._runs = rest, self._sizes[count:], [*rest_runs]
        self._buffered_bytes = sum(self._sizes)
        return records

    def last_error(self) -> str | None:
        return self._last_error.text

    def close(self) -> None:
        self._clear()
        self._polled = []
        self._consumer.close()
        # It references the callback for the tokens of its login.
        del self._consumer

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as exception:
            error = kafka_error(exception)
            # Without the cause: its text may quote a secret.
            raise to_error(error, subject="the brokers", secrets=self._secrets) from None

    def _clear(self) -> None:
        self._kept, self._sizes, self._runs, self._buffered_bytes = [], [], [], 0


def _size(message: Message) -> int:
    # The length of a message is that of its value.
    return len(message) + len(message.key() or b"")


def _headers(messages: Sequence[Message], runs: Runs) -> list[Headers | None]:
    values: list[Headers | None] = []
    try:
        # The library does not report its failure. A call by `map` is always checked for an error, a
        # direct call by the interpreter is not.
        for headers in map(Message.headers, messages):
            # Its type also covers the headers that producers may pass.
            values.append(cast("Headers | None", headers))  # noqa: PERF401
    except SystemError:
        row = len(values)
        offset = cast("int", messages[row].offset())
        raise unreadable_headers(record_name(runs, row, offset)) from None
    return values


def _keys(messages: list[Message]) -> Iterable[bytes | None]:
    # The library's types also cover the keys that producers may pass.
    return cast("Iterable[bytes | None]", map(Message.key, messages))


def _offsets(messages: list[Message]) -> array[int]:
    return array("q", cast("Iterable[int]", map(Message.offset, messages)))


def _topic_partition(ssp: SystemStreamPartition, offset: int | None = None) -> TopicPartition:
    if offset is None:
        return TopicPartition(ssp.stream, ssp.partition)
    return TopicPartition(ssp.stream, ssp.partition, offset)
