"""Sends records by a producer of librdkafka, which is kept from task to task. A producer belongs to
the process that created it, and to one task at a time. After any error it is discarded with its
buffer, so that no record of a failed task is sent later."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from spark_ssp.common.errors import InvalidRequestError, SspError
from spark_ssp.kafka_source.client.client_config import ClientRole, create_client, secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    error_kind,
    kafka_error,
    to_error,
)
from spark_ssp.kafka_source.dedup.dedup_headers import Header
from spark_ssp.kafka_source.options.client_properties import ClientProperties

DELIVERY_TIMEOUT: Final = "delivery.timeout.ms"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"

_MAX_IDLE: Final = 4
"""Idle producers that a process may keep, each with a few threads and connections."""
_METADATA_TIMEOUT_S: Final = 2.0
_NEW_TOPIC_TIMEOUT_S: Final = 3.0
"""The longest wait for an unknown topic: brokers that create topics automatically take a moment."""
_RETRY_INTERVAL_S: Final = 0.25
_POLL_S: Final = 0.1
_BUFFER_POLL_S: Final = 0.005
"""The wait for space in the buffer, which no success ends: only failures are reported."""
_MAX_REFRESHED_TOPICS: Final = 16
"""With at most this number of topics, each task requests their partitions again: with more, the
requests would cost more than fresh partition counts are worth."""


class _Faults:
    """The faults that a client reports. They do not refer to it: a discarded client in a cycle
    keeps its login and its connections until the garbage collector runs."""

    def __init__(self) -> None:
        self.delivery: tuple[KafkaError, str] | None = None
        """The first record that was not delivered: the error and the destination."""
        self.access: KafkaError | None = None

    def on_delivery(self, fault: KafkaError | None, message: Message) -> None:
        """Take the report of a record."""
        if fault is not None and self.delivery is None:
            partition = message.partition()
            known = partition is not None and partition >= 0
            place = f"topic {message.topic()}" + (f", partition {partition}" if known else "")
            self.delivery = (fault, place)

    def on_error(self, fault: KafkaError) -> None:
        """Take an error of the client."""
        if error_kind(fault) is ErrorKind.ACCESS:
            self.access = fault


class RecordProducer:
    """Produces the records of one task at a time. Not thread-safe."""

    def __init__(
        self,
        properties: ClientProperties,
        *,
        transactional_id: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create a producer, which connects later. `transactional_id`: its records need a
        transaction, by `client`. Raises InvalidOptionsError if librdkafka refuses the
        properties."""
        self._secrets = secrets_of(properties)
        self._timeout_s = int(properties.config()[DELIVERY_TIMEOUT]) / 1_000
        self._monotonic = monotonic
        self._sleep = sleep
        self._faults = _Faults()
        self._checked: set[str] = set()
        own: dict[str, str] = {}
        if transactional_id is not None:
            # librdkafka refuses to try a record for longer than its transaction may last.
            limits = [
                int(properties.config()[name]) for name in (DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT)
            ]
            own = {"transactional.id": transactional_id, DELIVERY_TIMEOUT: str(min(limits))}
        self._producer = create_client(
            Producer,
            properties,
            role=ClientRole.PRODUCER,
            on_error=self._faults.on_error,
            # Reports of success would cost as much as producing.
            overrides={
                "delivery.report.only.error": True,
                "on_delivery": self._faults.on_delivery,
                **own,
            },
        )

    @property
    def client(self) -> Producer:
        """Return the client, for its transactions."""
        return self._producer

    def partition_count(self, topic: str) -> int:
        """Return the current number of partitions of a topic. Raises the errors of
        `check_topic`."""
        return self._fetch_partition_count(topic)

    def begin_task(self) -> None:
        """Prepare for a task: discard errors since the last one, and expect that topics may have
        been expanded."""
        self._producer.poll(0)
        self._faults.access = None
        if len(self._checked) <= _MAX_REFRESHED_TOPICS:
            self._checked.clear()

    def check_topic(self, topic: str) -> None:
        """Fail at once if the topic does not exist, instead of after all retries. Requests metadata
        once per task and topic, so that the keys of the task use the current number of
        partitions."""
        if topic not in self._checked:
            self._fetch_partition_count(topic)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
    ) -> None:
        """Queue one record; waits while the buffer is full. `partition` None: by the key. Raises
        the error of this record, or of an earlier one."""
        more: dict[str, Any] = {} if partition is None else {"partition": partition}
        if headers:
            more["headers"] = headers
        refreshed = was_empty = False
        while True:
            try:
                self._producer.produce(topic, value, key, **more)
                return
            except BufferError:
                if was_empty:
                    raise _too_large(topic, _record_bytes(key, value, headers)) from None
                # Records may have been acknowledged since the buffer was full.
                was_empty = len(self._producer) == 0
                self._producer.poll(0 if was_empty else _BUFFER_POLL_S)
                self._raise_delivery_failure()
            except KafkaException as exception:
                unknown = kafka_error(exception).code() == KafkaError._UNKNOWN_PARTITION
                if unknown and not refreshed:
                    # The partition may be new.
                    refreshed = True
                    self._fetch_partition_count(topic)
                    continue
                place = topic if partition is None else f"{topic}, partition {partition}"
                size = _record_bytes(key, value, headers)
                self._fail(kafka_error(exception), f"topic {place}", size)

    def poll(self) -> None:
        """Process delivery reports. Raises the error of a record that was not delivered."""
        self._producer.poll(0)
        self._raise_delivery_failure()

    def flush(self) -> None:
        """Wait until all records are written. Raises the error of a record that was not
        delivered."""
        while self._producer.flush(_POLL_S) > 0:
            self._raise_delivery_failure()
        self._raise_delivery_failure()

    def purge(self) -> None:
        """Discard the records that are not delivered yet; some of them may still be written."""
        self._producer.purge()
        self._producer.poll(0)

    def _fetch_partition_count(self, topic: str) -> int:
        started_s = self._monotonic()
        while True:
            waited = self._monotonic() - started_s
            try:
                found = self._producer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
                fault = found.error
                if fault is None and found.partitions:
                    self._checked.add(topic)
                    return len(found.partitions)
                if fault is None:
                    fault = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            except KafkaException as exception:
                fault = kafka_error(exception)
            kind = error_kind(fault)
            timeout_s = _NEW_TOPIC_TIMEOUT_S if kind is ErrorKind.MISSING else self._timeout_s
            if kind not in (ErrorKind.MISSING, ErrorKind.TRANSIENT) or waited >= timeout_s:
                self._fail(fault, f"topic {topic}")
            self._producer.poll(0)
            self._raise_access_error()
            self._sleep(_RETRY_INTERVAL_S)

    # --- Errors ----------------------------------------------------------------------------------

    def _raise_delivery_failure(self) -> None:
        self._raise_access_error()
        if self._faults.delivery is not None:
            fault, place = self._faults.delivery
            self._fail(fault, place)

    def _raise_access_error(self) -> None:
        """Raise the error of a login that the brokers refused: no retry helps, and a timeout would
        hide the reason."""
        if self._faults.access is not None:
            raise to_error(self._faults.access, subject="the brokers", secrets=self._secrets)

    def _fail(self, fault: KafkaError, subject: str, record_bytes: int | None = None) -> NoReturn:
        raise _delivery_error(fault, subject, record_bytes, self._secrets) from None


def _record_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    parts = [key, value, *(part for name, content in headers for part in (name.encode(), content))]
    return sum(len(part or b"") for part in parts)


def _too_large(topic: str, record_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"topic {topic}",
        found=f"a record of {record_bytes} bytes, more than the empty buffer can hold",
        expected="a buffer larger than the largest record",
        next_step="raise kafka.buffer.memory",
    )


def _delivery_error(
    fault: KafkaError, subject: str, record_bytes: int | None, secrets: Sequence[str]
) -> SspError:
    """Return the error of a record, with its destination and size but never its content."""
    plain = to_error(fault, subject=subject, secrets=secrets)
    if fault.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        record = "a record" if record_bytes is None else f"a record of {record_bytes} bytes"
        return InvalidRequestError(
            subject,
            found=f"{record}, which is too large: {plain.found}",
            expected="records within kafka.max.request.size and the topic's max.message.bytes",
            next_step="raise kafka.max.request.size (1048576 unless set) and the topic's "
            "max.message.bytes above the largest record; if they are already, set kafka.batch.size "
            "to at most max.message.bytes",
        )
    if fault.code() == KafkaError._MSG_TIMED_OUT:
        return type(plain)(
            subject,
            found=f"a record that was not delivered in time: {plain.found}",
            expected="an acknowledgement within kafka.delivery.timeout.ms",
            next_step="check the brokers and the network, and kafka.bootstrap.servers; or raise "
            "kafka.delivery.timeout.ms",
        )
    if fault.code() == KafkaError._UNKNOWN_PARTITION:
        return type(plain)(
            subject,
            found=f"an unknown partition: {plain.found}",
            expected="the number of a partition of the topic",
            next_step="correct the column partition, or leave it out to choose by the key",
        )
    if error_kind(fault) is ErrorKind.MISSING:
        return type(plain)(
            subject,
            found=plain.found,
            expected="an existing topic: the sink creates none",
            next_step="create it, or correct the option or column topic",
        )
    return plain


# --- Kept from task to task -----------------------------------------------------------------------

_producers: dict[tuple[int, ClientProperties], RecordProducer] = {}
"""Oldest first."""


def acquire_producer(properties: ClientProperties) -> RecordProducer:
    """Return a producer with these properties, created by this process, until it is released.
    Producers of the process that this one was forked from are never used. Raises
    InvalidOptionsError if librdkafka refuses the properties."""
    producer = _producers.pop((os.getpid(), properties), None) or RecordProducer(properties)
    producer.begin_task()
    return producer


def release_producer(properties: ClientProperties, producer: RecordProducer) -> None:
    """Keep a flushed producer for the next task."""
    process = os.getpid()
    _producers[process, properties] = producer
    own = [key for key in _producers if key[0] == process]
    for key in own[: max(0, len(own) - _MAX_IDLE)]:
        del _producers[key]
