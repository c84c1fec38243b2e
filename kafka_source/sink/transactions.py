"""Writes the rows of a task and their marker in one transaction, and records completed batches: the
I/O of exactly-once delivery, whose decisions are in `markers`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.times import duration_text
from spark_ssp.kafka_source.client.client_config import ClientRole, create_client, secrets_of
from spark_ssp.kafka_source.client.error_translation import is_transient, kafka_error, to_error
from spark_ssp.kafka_source.dedup.dedup_headers import Header
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.property_names import PRODUCER_ONLY
from spark_ssp.kafka_source.sink.markers import (
    Action,
    CompletedBatch,
    Marker,
    Refusal,
    RowDigest,
    Write,
    decide,
    read_completed,
    read_marker,
    refused,
    rows_differ,
    write_completed,
    write_marker,
)
from spark_ssp.kafka_source.sink.producer import DELIVERY_TIMEOUT, RecordProducer

T = TypeVar("T")

TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"

_STEP_S: Final = 10.0
"""The time that one call may take before it is repeated."""
_PAUSE_S: Final = 0.2
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)
"""The errors of a transaction that was ended by another attempt, or by the broker."""

_log = logging.getLogger(__name__)


def task_id(sink: str, task: int) -> str:
    """Return the transactional id of a task, and the group of its marker."""
    return f"ssp/{sink}/{task}"


def batches_id(sink: str) -> str:
    """Return the group of the completed batches."""
    return f"ssp/{sink}/batches"


class TransactionalTask:
    """One attempt of a task to write a batch. Not thread-safe.

    Use, in a `with` block: `begin`; `send` each row, also if nothing is written; then `commit`. An
    error ends the transaction, and leaves the block as an SspError that explains what became of the
    rows.
    """

    def __init__(
        self,
        properties: ClientProperties,
        write: Write,
        topic: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topic`: the one whose partition 0 the markers name. Raises the errors of
        `create_client`."""
        self._write = write
        self._id = task_id(write.sink, write.task)
        self._properties = properties
        self._place = topic
        self._monotonic = monotonic
        self._limit_s = int(properties.config()[TRANSACTION_TIMEOUT]) / 1000
        self.producer = RecordProducer(properties, transactional_id=self._id)
        self._transactions: Any = self.producer.client
        self._group: Any = None
        self._marker: Marker | None = None
        self._digest = RowDigest()
        self._began: float | None = None
        self.writes = False

    def begin(self) -> None:
        """Fence all other attempts, and decide whether rows are written. Raises
        IncompatibleStateError if they might be written twice."""
        self._call(self._transactions.init_transactions)
        completed = _read_completed(self._properties, self._write.sink, self._place)
        with _Offset(self._properties, self._id, self._place) as offset:
            self._group, found = offset.group(), offset.read()
        self._marker = None if found is None else read_marker(self._id, *found)
        decision = decide(self._write, self._marker, completed)
        if isinstance(decision, Refusal):
            raise refused(self._write, decision, self._marker, completed)
        self.writes = decision is Action.WRITE
        if not self.writes:
            _log.info("%s is committed already: its rows are compared, not written", self._write)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
    ) -> None:
        """Add a row to the transaction, as `RecordProducer.send`; or to the comparison."""
        self._digest.add(topic, key, value, partition, headers)
        if self.writes:
            if self._began is None:
                self._open()
            self.producer.send(topic, key, value, partition, headers)

    def commit(self) -> int:
        """Commit the rows with their marker, and return their number. Raises
        IncompatibleStateError if the rows that are committed already differ."""
        if self._marker is not None and not self.writes:
            if not self._digest.equals(self._marker):
                raise rows_differ(self._write, self._marker, self._digest)
            return self._digest.rows
        began = self._open()
        self.producer.flush()
        place = TopicPartition(
            self._place, 0, self._write.batch, metadata=write_marker(self._digest)
        )
        self._call(
            lambda timeout_s: self._transactions.send_offsets_to_transaction(
                [place], self._group, timeout_s
            )
        )
        self._call(self._transactions.commit_transaction)
        taken = self._monotonic() - began
        if taken > self._limit_s / 2:
            _log.warning(
                "the transaction of %s took %s, more than half of kafka.%s (%s), after which the "
                "brokers abort it: raise it, or limit the batch",
                *(self._write, _time(taken), TRANSACTION_TIMEOUT, _time(self._limit_s)),
            )
        return self._digest.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        self._abort()
        # Fencing fails whatever comes next; the records sent before fail for another reason.
        fatal = self.producer.fatal_error
        if fatal is not None:
            raise self._error(fatal) from None
        if isinstance(error, KafkaException):
            raise self._error(kafka_error(error)) from None

    def _abort(self) -> None:
        """End the transaction without its rows, if it can be: the next attempt does otherwise."""
        with suppress(KafkaException):
            self.producer.purge()
            if self._began is not None:
                self._transactions.abort_transaction(_STEP_S)

    def _open(self) -> float:
        """Begin the transaction, and return its beginning. Its time begins with the first row, so
        that a task may wait for that one."""
        if self._began is None:
            self._transactions.begin_transaction()
            self._began = self._monotonic()
        return self._began

    # --- Errors -----------------------------------------------------------------------------------

    def _call(self, call: Callable[[float], object]) -> None:
        """Call until it succeeds: after a timeout, librdkafka continues the same request."""
        _retried(self._properties, lambda: call(_STEP_S))

    def _error(self, fault: KafkaError) -> SspError:
        return transaction_error(
            self._write,
            fault,
            open_s=None if self._began is None else self._monotonic() - self._began,
            limit_s=self._limit_s,
            secrets=secrets_of(self._properties),
        )


def transaction_error(
    write: Write,
    fault: KafkaError,
    *,
    open_s: float | None,
    limit_s: float,
    secrets: Sequence[str],
) -> SspError:
    """Return the error of a transaction that failed. `open_s`: the time since its first row."""
    if fault.code() in _FENCED and open_s is not None and open_s >= limit_s:
        return ServiceUnavailableError(
            str(write),
            found=f"a transaction open for {_time(open_s)}, which the brokers have aborted",
            expected=f"a task that ends within kafka.{TRANSACTION_TIMEOUT} ({_time(limit_s)})",
            next_step=f"raise kafka.{TRANSACTION_TIMEOUT} (and the brokers' transaction.max."
            "timeout.ms), or limit the batch",
        )
    return _transaction_error(str(write), fault, secrets)


def _transaction_error(subject: str, fault: KafkaError, secrets: Sequence[str]) -> SspError:
    plain = to_error(fault, subject=subject, secrets=secrets)
    if fault.code() not in _FENCED:
        return plain
    return ServiceUnavailableError(
        subject,
        found=f"a transaction that another attempt has ended: {plain.found}",
        expected="one attempt at a time",
        next_step="nothing, if Spark runs it again, as after a speculative or lost task; else look "
        "for a second query with this checkpoint or transactionName",
    )


def _time(seconds: float) -> str:
    return duration_text(round(seconds * 1000))


def _retried(properties: ClientProperties, call: Callable[[], T]) -> T:
    """Call until it succeeds, at most for kafka.delivery.timeout.ms. Raises KafkaException."""

    def is_retriable(error: BaseException) -> bool:
        fault = kafka_error(error) if isinstance(error, KafkaException) else None
        return fault is not None and (fault.retriable() or is_transient(fault))

    return Retrying(
        retry=retry_if_exception(is_retriable),
        wait=wait_fixed(_PAUSE_S),
        stop=stop_after_delay(int(properties.config()[DELIVERY_TIMEOUT]) / 1000),
        reraise=True,
    )(call)


# --- Markers --------------------------------------------------------------------------------------


class _Offset:
    """The committed offset of partition 0 of a topic in a group, by a consumer that reads no
    records. Its methods raise KafkaException."""

    def __init__(self, properties: ClientProperties, group: str, topic: str) -> None:
        self._topic = topic
        self._properties = properties
        public = tuple(entry for entry in properties.public if entry[0] not in PRODUCER_ONLY)
        self._consumer: Any = create_client(
            Consumer,
            replace(properties, public=public),
            role=ClientRole.CONSUMER,
            # Wait for transactions that have ended and are not applied yet.
            overrides={"group.id": group, "isolation.level": "read_committed"},
        )

    def __enter__(self) -> _Offset:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def group(self) -> Any:
        """Return the group, as a transaction takes it."""
        return self._consumer.consumer_group_metadata()

    def read(self) -> tuple[int, str | None] | None:
        """Return the offset and its metadata; None if there is none."""

        def once() -> TopicPartition:
            (found,) = self._consumer.committed([TopicPartition(self._topic, 0)], _STEP_S)
            return _checked(found)

        found = _retried(self._properties, once)
        return None if found.offset < 0 else (found.offset, found.metadata)


def _checked(found: TopicPartition) -> TopicPartition:
    if found.error is not None:
        raise KafkaException(found.error)
    return found


def _read_completed(properties: ClientProperties, sink: str, topic: str) -> CompletedBatch | None:
    group = batches_id(sink)
    with _Offset(properties, group, topic) as offset:
        found = offset.read()
    return None if found is None else read_completed(group, *found)


def record_completed(
    properties: ClientProperties, sink: str, topic: str, completed: CompletedBatch
) -> None:
    """Record that all tasks of a batch have committed, unless a later one is recorded. In a
    transaction, so that a driver that was replaced records nothing any more. Raises SspError."""
    group = batches_id(sink)
    subject = f"batch {completed.batch} of sink {sink}"
    producer = RecordProducer(properties, transactional_id=group)
    client: Any = producer.client
    try:
        _retried(properties, lambda: client.init_transactions(_STEP_S))
        with _Offset(properties, group, topic) as offset:
            found, members = offset.read(), offset.group()
        before = None if found is None else read_completed(group, *found)
        if before is not None and before.batch >= completed.batch:
            return
        client.begin_transaction()
        place = TopicPartition(topic, 0, completed.batch, metadata=write_completed(completed.tasks))
        _retried(properties, lambda: client.send_offsets_to_transaction([place], members, _STEP_S))
        _retried(properties, lambda: client.commit_transaction(_STEP_S))
    except KafkaException as exception:
        fault = producer.fatal_error or kafka_error(exception)
        raise _transaction_error(subject, fault, secrets_of(properties)) from None
