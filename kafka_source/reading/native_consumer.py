"""Reads records without creating Python objects: builds columns from librdkafka's memory.

The library returns an array of pointers to messages. One indexing by numpy reads the fields of all
of them; keys and values are then copied by one call of Arrow per batch. Only releasing a message is
a call for each. Three to five times as fast as `confluent_consumer`, which does the same by
confluent-kafka's consumer; a test compares the two. `librdkafka` reads headers
and times, which are after the public part of a message.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client import client_config
from spark_ssp.kafka_source.client.client_config import ClientRole, create_client, secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    LastError,
    error_kind,
    to_error,
)
from spark_ssp.kafka_source.model.topic import kafka_name, partition_of
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.login_tokens import TokenCallback
from spark_ssp.kafka_source.reading.arrow_batches import (
    RecordColumns,
    Runs,
    numeric_column,
    record_name,
    rows_within,
    split_runs,
)
from spark_ssp.kafka_source.reading.consumer_api import Event, PartitionEof, ReadError, RecordRun
from spark_ssp.kafka_source.reading.librdkafka import (
    CONSUMER,
    ERR,
    ERROR_CALLBACK,
    ERROR_TEXT,
    KEY,
    KEY_LENGTH,
    LOG_CALLBACK,
    OFFSET,
    PARTITION,
    TOKEN_CALLBACK,
    TOPIC,
    VALUE,
    VALUE_LENGTH,
    WIDTH,
    Library,
    MessageHeaders,
    MessageTimes,
    NameOf,
    Words,
    gather_column,
    read_fields,
)

_LOG_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's log levels, by syslog's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PolledBatch:
    """The messages of one poll: their addresses, and the words of each."""

    addresses: Words
    words: Words


class NativeConsumer:
    """A `PartitionConsumer` by librdkafka's memory. `settings` of librdkafka extend the client's
    properties."""

    def __init__(
        self,
        library: Library,
        client: ClientProperties,
        settings: Mapping[str, str],
    ) -> None:
        self._library = library
        self._secrets = secrets_of(client)
        self._last_error = LastError(self._secrets)
        self._times = MessageTimes(library)
        self._header_lists = MessageHeaders(library)
        # A reference for as long as the library calls them.
        self._callbacks: list[Any] = []
        self._handle = create_client(
            self._create_handle,
            client,
            role=ClientRole.CONSUMER,
            on_error=self._last_error.record,
            overrides=settings,
        )
        library.set_log_queue(self._handle, None)
        library.poll_set_consumer(self._handle)
        self._queue = library.queue_get_consumer(self._handle)
        self._topics: dict[int, StreamName] = {}
        self._batches: list[_PolledBatch] = []
        self._kept: list[Words] = []
        self._addresses: list[Words] = []
        self._sizes: list[Words] = []
        self._counts_headers = False
        self._runs: list[tuple[SystemStreamPartition, int]] = []
        self.buffered_rows = 0
        self.buffered_bytes = 0

    def assign(
        self, positions: Mapping[SystemStreamPartition, int], *, headers: bool = False
    ) -> None:
        self._clear()
        self._counts_headers = headers
        self._topics.clear()
        self._last_error.text = None
        with _PartitionList(self._library, positions) as places:
            self._check(self._library.assign(self._handle, places if positions else None))

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        self.unassign([ssp])
        with _PartitionList(self._library, {ssp: offset}) as places:
            self._check_error(self._library.incremental_assign(self._handle, places))

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        with _PartitionList(self._library, dict.fromkeys(ssps)) as places:
            self._check_error(self._library.incremental_unassign(self._handle, places))

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        if not self.buffered_rows:
            self._clear()
        consume = self._library.consume_batch_queue
        addresses = np.empty(limit, np.int64)
        # The first call takes the records that were fetched already, without waiting until there
        # are `limit`.
        count = consume(self._queue, 0, addresses.ctypes.data, limit)
        if count == 0:
            count = consume(self._queue, int(wait_s * 1000), addresses.ctypes.data, 1)
        if count <= 0:
            return []
        addresses = addresses[:count]
        batch = _PolledBatch(addresses=addresses, words=read_fields(addresses, WIDTH))
        self._batches.append(batch)
        return self._events(batch)

    def _events(self, batch: _PolledBatch) -> list[Event]:
        halves = batch.words.view(np.int32)
        faults, partitions = halves[:, ERR], halves[:, PARTITION]
        topics, offsets = batch.words[:, TOPIC], batch.words[:, OFFSET]
        changes = (topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])
        if faults.any():
            changes |= (faults[1:] != 0) | (faults[:-1] != 0)
        ends = [*(np.flatnonzero(changes) + 1).tolist(), len(topics)]
        events: list[Event] = []
        begin = 0
        for end in ends:
            topic, fault = int(topics[begin]), int(faults[begin])
            ssp = self._ssp(topic, int(partitions[begin]))
            if fault:
                events.append(self._event_of(batch, begin, ssp, fault))
            elif ssp is not None:
                run = cast("Sequence[int]", offsets[begin:end])
                events.append(RecordRun(ssp=ssp, begin=begin, offsets=run))
            begin = end
        return events

    def _ssp(self, topic: int, partition: int) -> SystemStreamPartition | None:
        if not topic or partition < 0:
            return None
        if topic not in self._topics:
            self._topics[topic] = StreamName(self._library.topic_name(topic).decode())
        return partition_of(self._topics[topic], partition)

    def _event_of(
        self, batch: _PolledBatch, place: int, ssp: SystemStreamPartition | None, code: int
    ) -> Event:
        words = batch.words[place]
        if code == KafkaError._PARTITION_EOF and ssp is not None:
            return PartitionEof(ssp=ssp, offset=int(words[OFFSET]))
        reason = ctypes.string_at(int(words[VALUE])) if words[VALUE] else None
        error = KafkaError(code, _text(reason))
        self._last_error.record(error)
        subject = "the brokers" if ssp is None else f"partition {kafka_name(ssp)}"
        return ReadError(
            ssp=ssp,
            kind=error_kind(error),
            error=to_error(error, subject=subject, secrets=self._secrets),
        )

    def keep(self, run: RecordRun, kept: slice) -> None:
        batch = self._batches[-1]
        begin, end = run.begin + kept.start, run.begin + kept.stop
        if begin == end:
            return
        words, addresses = batch.words[begin:end], batch.addresses[begin:end]
        runs = [(run.ssp, end - begin)]
        sizes = words[:, VALUE_LENGTH] + words[:, KEY_LENGTH]
        if self._counts_headers:
            sizes += self._header_lists.sizes(addresses, _name_of(words, runs))
        self._kept.append(words)
        self._addresses.append(addresses)
        self._sizes.append(sizes)
        self._runs += runs
        self.buffered_rows += end - begin
        self.buffered_bytes += int(sizes.sum())

    def take(self, most: int, columns: Collection[str]) -> RecordColumns:
        words = np.concatenate(self._kept)
        addresses = np.concatenate(self._addresses)
        sizes = np.concatenate(self._sizes)
        count = rows_within(sizes, most)
        rest, rest_addresses, rest_sizes = words[count:], addresses[count:], sizes[count:]
        words, addresses = words[:count], addresses[:count]
        runs, rest_runs = split_runs(self._runs, count)
        keys = values = times_ms = time_types = headers = None
        if "key" in columns:
            keys = gather_column(words[:, KEY], words[:, KEY_LENGTH])
        if "value" in columns:
            values = gather_column(words[:, VALUE], words[:, VALUE_LENGTH])
        if "timestamp" in columns or "timestampType" in columns:
            kinds, millis = self._times.of(addresses)
            times_ms = numeric_column(pa.int64(), millis)
            time_types = numeric_column(pa.int32(), kinds)
        if "headers" in columns:
            headers = self._header_lists.of(addresses, words, _name_of(words, runs))
        records = RecordColumns(
            runs=runs,
            offsets=numeric_column(pa.int64(), words[:, OFFSET]),
            keys=keys,
            values=values,
            times_ms=times_ms,
            time_types=time_types,
            headers=headers,
        )
        if len(rest):
            self._kept, self._addresses, self._sizes = [rest], [rest_addresses], [rest_sizes]
            self._runs = [*rest_runs]
            self.buffered_rows, self.buffered_bytes = len(rest), int(rest_sizes.sum())
        else:
            self._clear()
        return records

    def last_error(self) -> str | None:
        return self._last_error.text

    def close(self) -> None:
        self._clear()
        self._library.consumer_close(self._handle)
        self._library.queue_destroy(self._queue)
        self._library.destroy(self._handle)
        self._callbacks.clear()

    def _create_handle(self, config: dict[str, Any]) -> int:
        """Create the client from the configuration of confluent-kafka's `Consumer(config)`."""
        library, text = self._library, ctypes.create_string_buffer(ERROR_TEXT)
        logger, on_error = config.pop("logger"), config.pop("error_cb")
        token: TokenCallback | None = config.pop(client_config.TOKEN_CALLBACK, None)

        def error_callback(_rk: Any, code: int, reason: bytes | None, _opaque: Any) -> None:
            on_error(KafkaError(code, _text(reason)))

        def log_callback(_rk: Any, level: int, facility: bytes, line: bytes) -> None:
            logger.log(_LOG_LEVELS[level], "%s: %s", _text(facility), _text(line))

        self._callbacks = [ERROR_CALLBACK(error_callback), LOG_CALLBACK(log_callback)]
        conf = library.conf_new()
        library.conf_set_error_cb(conf, self._callbacks[0])
        library.conf_set_log_cb(conf, self._callbacks[1])
        if token is not None:
            self._callbacks.append(_token_callback(library, token))
            library.conf_set_token_cb(conf, self._callbacks[-1])
            library.conf_enable_sasl_queue(conf, 1)
        for name, value in {**config, "log.queue": "true"}.items():
            if library.conf_set(conf, name.encode(), value.encode(), text, ERROR_TEXT):
                library.conf_destroy(conf)
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, _text(text.value)))
        handle = library.new(CONSUMER, conf, text, ERROR_TEXT)
        if not handle:
            library.conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, _text(text.value)))
        if token is not None:
            # Tokens are refreshed even without polling, so that an idle consumer stays logged in.
            self._check_error(library.sasl_in_background(handle))
        return int(handle)

    def _check(self, code: int) -> None:
        if code:
            raise to_error(KafkaError(code), subject="the brokers", secrets=self._secrets)

    def _check_error(self, error: int | None) -> None:
        if error:
            code = self._library.error_code(error)
            self._library.error_destroy(error)
            self._check(code)

    def _clear(self) -> None:
        destroy = self._library.message_destroy
        for batch in self._batches:
            deque(map(destroy, batch.addresses.tolist()), maxlen=0)
        self._batches, self._kept, self._addresses, self._sizes, self._runs = [], [], [], [], []
        self.buffered_rows = self.buffered_bytes = 0


def _name_of(words: Words, runs: Runs) -> NameOf:
    """Return the names of records with these fields."""
    return lambda row: record_name(runs, row, int(words[row, OFFSET]))


def _token_callback(library: Library, fetch: TokenCallback) -> Any:
    def refresh(rk: int, config: bytes | None, _opaque: Any) -> None:
        text = ctypes.create_string_buffer(ERROR_TEXT)
        found = fetch(_text(config))
        if found is None:
            library.set_token_failure(rk, b"no token")
            return
        token, expires = found
        millis = int(expires * 1000)
        if library.set_token(rk, token.encode(), millis, b"", None, 0, text, ERROR_TEXT):
            library.set_token_failure(rk, text.value)

    return TOKEN_CALLBACK(refresh)


class _PartitionList:
    """A context manager for a partition list of the library."""

    def __init__(
        self, library: Library, positions: Mapping[SystemStreamPartition, int | None]
    ) -> None:
        self._library = library
        self._list = library.list_new(len(positions))
        for ssp, offset in positions.items():
            topic = ssp.stream.encode()
            library.list_add(self._list, topic, ssp.partition)
            if offset is not None:
                library.list_set_offset(self._list, topic, ssp.partition, offset)

    def __enter__(self) -> int:
        return int(self._list)

    def __exit__(self, *_: object) -> None:
        self._library.list_destroy(self._list)


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
