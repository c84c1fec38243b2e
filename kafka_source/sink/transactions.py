"""Writes the rows of a task and their marker in one transaction, and records completed batches: the
I/O of exactly-once delivery, whose decisions are in `markers`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache, partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from spark_ssp.common.errors import ServiceUnavailableError, SspError, StreamNotFoundError
from spark_ssp.common.times import duration_text
from spark_ssp.kafka_source.client.admin_connection import run_in_thread
from spark_ssp.kafka_source.client.client_config import create_group_client, secrets_of
from spark_ssp.kafka_source.client.error_translation import (
    ErrorKind,
    error_kind,
    is_transient,
    kafka_error,
    to_error,
)
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.sink.columns import Rows
from spark_ssp.kafka_source.sink.markers import (
    Action,
    CompletedBatch,
    Marker,
    Refusal,
    RowDigest,
    Write,
    continues,
    decide,
    divided_anew,
    read_completed,
    read_marker,
    refused,
    rows_differ,
    tasks_left_out,
    write_completed,
    write_marker,
)
from spark_ssp.kafka_source.sink.producer import (
    DELIVERY_TIMEOUT,
    TRANSACTION_TIMEOUT,
    RecordProducer,
)

T = TypeVar("T")

_STEP_S: Final = 10.0
"""The time that one call may take before it is repeated."""
_GRACE_S: Final = 5.0
"""The time in which a call itself should end after that."""
_READERS: Final = 8
"""The markers that a driver reads at once."""
_POLL_S: Final = 0.005
_REPORT_S: Final = 0.2
"""The wait for the report of an error that has let a request time out."""
_NEW_TOPIC_S: Final = 3.0
_NEW_TOPIC_PAUSE_S: Final = 0.25
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0
_BACKOFF: Final = "reconnect.backoff.ms"
_BACKOFF_MS: Final = "20"
_UNSETTLED: Final = frozenset(
    {KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.UNSTABLE_OFFSET_COMMIT}
)
"""The answers of brokers that are still ending a transaction."""
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


@cache
def check_properties(properties: ClientProperties) -> None:
    """Raise InvalidOptionsError if librdkafka refuses the properties with transactions. Once per
    process: Spark asks twice for each batch, and the answer stays."""
    RecordProducer(properties, transactional_id="ssp/check")
    create_group_client(properties, "ssp/check").close()


def task_id(sink: str, task: int) -> str:
    """Return the transactional id of a task, and the group of its marker."""
    return f"ssp/{sink}/{task}"


def batches_id(sink: str) -> str:
    """Return the group of the completed batches."""
    return f"ssp/{sink}/batches"


class TransactionalTask:
    """One attempt of a task to write a batch. Not thread-safe.

    Use, in a `with` block: `begin`; `add` all rows, also if nothing is written; then `commit`. An
    error ends the transaction, and leaves the block as an SspError that explains the fate of
    the rows.
    """

    def __init__(
        self,
        properties: ClientProperties,
        write: Write,
        topic: str,
        run: str | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topic`: the one whose partition 0 the markers name. `run`: the run of the query, within
        which a client is kept; None: unknown, so none is."""
        self._write = write
        self._properties = properties
        self._place = topic
        self._run = run
        self._monotonic = monotonic
        self._limit_s = int(properties.config()[TRANSACTION_TIMEOUT]) / 1000
        self._client: _Client | None = None
        self._marker: Marker | None = None
        self._digest = RowDigest()
        self._began: float | None = None
        self.writes = False

    @property
    def producer(self) -> RecordProducer:
        """The producer of the rows, after `begin`."""
        return self._opened().producer

    def begin(self) -> None:
        """Fence all other attempts, and decide whether rows are written. Raises
        IncompatibleStateError if they might be written twice."""
        self.writes = self._continue() or self._decide() is Action.WRITE
        if not self.writes:
            _log.info("%s is committed already: its rows are compared, not written", self._write)

    def _continue(self) -> bool:
        """Take over the client of the batch before, if this process has it. It is fenced if another
        attempt was begun since, and then its commit fails: mostly in an earlier run, whose clients
        are not used."""
        kept = _take(self._properties, task_id(self._write.sink, self._write.task))
        if kept is None or kept.run != self._run or not continues(self._write, kept.marker()):
            return False
        kept.producer.begin_task()
        self._client = kept
        return True

    def _decide(self) -> Action:
        write, group = self._write, batches_id(self._write.sink)
        found, _ = _read_offset(self._properties, group, self._place)
        completed = None if found is None else read_completed(group, *found)
        self._client = _open(self._properties, task_id(write.sink, write.task), self._place)
        self._marker = self._client.marker()
        known = self._marker, completed
        decision, of_first = decide(write, *known), None
        if decision is Refusal.GAP:
            of_first = _read_marker(self._properties, write.sink, 0, self._place)
            decision = decide(write, *known, of_first)
        if isinstance(decision, Refusal):
            raise refused(write, decision, *known, of_first)
        return decision

    def add(self, rows: Rows) -> None:
        """Add rows to the comparison. If `writes`, they are to be sent by `producer`, in the
        transaction that this has begun."""
        self._digest.add(rows)
        if self.writes and rows.count:
            self._open()

    def commit(self) -> int:
        """Commit the rows with their marker, and return their number. Raises
        IncompatibleStateError if the rows that are committed already differ."""
        if self._marker is not None and not self.writes:
            if not self._digest.equals(self._marker):
                raise rows_differ(self._write, self._marker, self._digest)
            return self._digest.rows
        began = self._open()
        self.producer.flush()
        self._opened().commit(self._place, self._write.batch, write_marker(self._digest))
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
        client = self._client
        if error is None:
            if client is not None and self._run is not None:
                client.run = self._run
                _keep(self._properties, client)
            return
        fault = self._abort()
        if isinstance(error, KafkaException):
            fault = fault or kafka_error(error)
        # Records that are sent after the end of a transaction fail for another reason.
        if fault is not None and isinstance(error, KafkaException | SspError):
            raise self._error(fault) from None

    def _abort(self) -> KafkaError | None:
        """End the transaction without its rows, if it can be: the next attempt does otherwise.
        Return the error of a transaction that was ended already."""
        client = self._client
        if client is None or self._began is None:
            return None
        try:
            client.producer.purge()
            _bounded(lambda: client.transactions.abort_transaction(_STEP_S))
        except KafkaException as exception:
            fault = kafka_error(exception)
            return fault if fault.fatal() or fault.code() in _FENCED else None
        return None

    def _opened(self) -> _Client:
        assert self._client is not None, "begin() comes first"
        return self._client

    def _open(self) -> float:
        """Begin the transaction, and return its beginning. Its time begins with the first row, so
        that a task may wait for that one."""
        if self._began is None:
            self._opened().transactions.begin_transaction()
            self._began = self._monotonic()
        return self._began

    # --- Errors -----------------------------------------------------------------------------------

    def _error(self, fault: KafkaError) -> SspError:
        return transaction_error(
            self._write,
            fault,
            open_s=None if self._began is None else self._monotonic() - self._began,
            limit_s=self._limit_s,
            topic=self._place,
            secrets=secrets_of(self._properties),
        )


def transaction_error(
    write: Write,
    fault: KafkaError,
    *,
    open_s: float | None,
    limit_s: float,
    topic: str,
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
    plain = to_error(fault, subject=str(write), secrets=secrets)
    if error_kind(fault) is ErrorKind.MISSING:
        return StreamNotFoundError(
            f"topic {topic} (option topic, or markerTopic), or a topic of the rows",
            found=plain.found,
            expected="existing topics: the sink creates none",
            next_step="create it, or correct the option or column topic",
        )
    if fault.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return type(plain)(
            str(write),
            found=plain.found,
            expected=f"kafka.{TRANSACTION_TIMEOUT} within the brokers' transaction.max.timeout.ms",
            next_step="lower the one, or raise the other",
        )
    if fault.code() not in _FENCED:
        return plain
    return ServiceUnavailableError(
        str(write),
        found=f"a transaction that another attempt has ended: {plain.found}",
        expected="one attempt at a time",
        next_step="nothing, if Spark runs it again, as after a speculative or lost task; else look "
        "for a second query with this checkpoint or transactionName",
    )


def _missing_topic(topic: str, found: str) -> StreamNotFoundError:
    return StreamNotFoundError(
        f"topic {topic} (option topic, or markerTopic)",
        found=found,
        expected="an existing topic, which the markers of exactly-once delivery name",
        next_step="create it, or correct the option",
    )


def _time(seconds: float) -> str:
    return duration_text(round(seconds * 1000))


def _retried(properties: ClientProperties, call: Callable[[], T]) -> T:
    """Call until it succeeds, at most for kafka.delivery.timeout.ms. Raises KafkaException."""

    def is_retriable(error: BaseException) -> bool:
        if not isinstance(error, KafkaException):
            return False
        fault = kafka_error(error)
        if fault.fatal() or fault.txn_requires_abort():
            return False
        return fault.retriable() or is_transient(fault) or fault.code() in _UNSETTLED

    return Retrying(
        retry=retry_if_exception(is_retriable),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        stop=stop_after_delay(int(properties.config()[DELIVERY_TIMEOUT]) / 1000),
        reraise=True,
    )(call)


def _bounded(call: Callable[[], T]) -> T:
    """Call in a thread, and give up after some time: librdkafka may wait for ever for a coordinator
    that has moved (librdkafka issue 5456). Raises KafkaException."""
    future = run_in_thread(call)
    try:
        return future.result(_STEP_S + _GRACE_S)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


# --- Clients ------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Client:
    """A client with a transactional id, which is also the group of its marker. `committed`: the
    offset and metadata of the marker, as read when the id was initialized, or as committed by this
    client since. Its methods raise KafkaException."""

    id: str
    properties: ClientProperties
    producer: RecordProducer
    group: Any
    committed: Committed | None = None
    run: str | None = None
    """The run of the query in which it is kept."""

    @property
    def transactions(self) -> Any:
        return self.producer.client

    def marker(self) -> Marker | None:
        """Return the marker of a task. Raises IncompatibleStateError for another one."""
        return None if self.committed is None else read_marker(self.id, *self.committed)

    def commit(self, topic: str, batch: int, metadata: str) -> None:
        """Commit the transaction with a marker."""
        place = TopicPartition(topic, 0, batch, metadata=metadata)
        try:
            _bounded(
                lambda: self.transactions.send_offsets_to_transaction([place], self.group, _STEP_S)
            )
            # After a timeout, librdkafka continues the same request.
            _retried(
                self.properties,
                lambda: _bounded(lambda: self.transactions.commit_transaction(_STEP_S)),
            )
        except KafkaException as exception:
            if kafka_error(exception).code() == KafkaError._TIMED_OUT:
                # A thread may still be in a call: to destroy the client would wait for it.
                _abandoned.append(self)
            raise
        self.committed = batch, metadata


def _open(properties: ClientProperties, transactional_id: str, topic: str) -> _Client:
    """Return a client that has ended all other transactions of its id."""
    producer = RecordProducer(
        _with_early_connections(properties), transactional_id=transactional_id
    )
    # Without a connection, librdkafka begins to initialize an id by a pause of 500 ms. The first
    # answer may come by the connection to a bootstrap server, which then ends. The topic exists:
    # otherwise, a producer's request may create it.
    for _ in range(2):
        producer.partition_count(topic)
    _retried(properties, lambda: _bounded(lambda: producer.client.init_transactions(_STEP_S)))
    found, group = _read_offset(properties, transactional_id, topic)
    return _Client(
        id=transactional_id,
        properties=properties,
        producer=producer,
        group=group,
        committed=found,
    )


def _with_early_connections(properties: ClientProperties) -> ClientProperties:
    """Return the properties for a client of one task, whose requests wait for connections.

    A client connects to a bootstrap server first, and then to a broker, after a pause of half of
    `reconnect.backoff.ms`, but at least 11 ms. Not for other clients: while a login is slow, each
    such pause lets librdkafka begin another connection to a bootstrap server.
    """
    if _BACKOFF in dict(properties.public):
        return properties
    return replace(properties, public=(*properties.public, (_BACKOFF, _BACKOFF_MS)))


Committed = tuple[int, str | None]
"""An offset and its metadata."""


def _read_offset(
    properties: ClientProperties, group: str, topic: str
) -> tuple[Committed | None, Any]:
    """Return the committed offset of partition 0 of a topic after all transactions that have ended,
    None if there is none, and the group as a transaction takes it. Raises KafkaException."""

    def read(consumer: Any) -> tuple[Committed | None, Any]:
        found = _committed(consumer, topic)
        known = None if found.offset < 0 else (found.offset, found.metadata)
        return known, consumer.consumer_group_metadata()

    return _by_consumer(properties, group, read)


def _read_marker(properties: ClientProperties, sink: str, task: int, topic: str) -> Marker | None:
    """Return the marker of a task. Raises KafkaException or IncompatibleStateError."""
    group = task_id(sink, task)
    committed, _ = _read_offset(properties, group, topic)
    return None if committed is None else read_marker(group, *committed)


def _by_consumer(
    properties: ClientProperties,
    group: str,
    call: Callable[[Any], T],
    *,
    answers: list[KafkaError | None] | None = None,
) -> T:
    """Call with a consumer that reads no records, until that succeeds. Raises KafkaException.
    `answers`, if it commits: those to its commits. One that fails is closed before the next begins,
    if that does not take too long: until then it may send its commit again.

    Not with an admin client: its request for offsets may end the process while their coordinator
    moves (librdkafka issues 3663 and 4605). Each attempt has its own consumer, which asks any
    broker for the coordinator: one waits for a broker that is frozen.
    """
    early = _with_early_connections(properties)

    def on_commit(error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        assert answers is not None
        answers.append(error or places[0].error)

    def once() -> T:
        is_unsettled = False
        refusals: list[KafkaError] = []

        def on_error(fault: KafkaError) -> None:
            if error_kind(fault) in (ErrorKind.ACCESS, ErrorKind.GROUP_ACCESS):
                refusals.append(fault)

        consumer: Any = create_group_client(
            early, group, on_error=on_error, on_commit=None if answers is None else on_commit
        )
        try:
            return call(consumer)
        except KafkaException:
            is_unsettled = answers is not None
            # A refused login or group is reported, while the request only times out.
            message = consumer.poll(_REPORT_S)
            if message is not None and message.error() is not None:
                on_error(message.error())
            if refusals:
                raise KafkaException(refusals[-1]) from None
            raise
        finally:
            closed = run_in_thread(consumer.close)
            if is_unsettled:
                wait([closed], _STEP_S)

    return _retried(properties, once)


def _committed(consumer: Any, topic: str) -> TopicPartition:
    """Raises StreamNotFoundError if the topic does not exist."""
    _require_topic(consumer, topic)
    found: TopicPartition
    (found,) = consumer.committed([TopicPartition(topic, 0)], _STEP_S)
    return _checked(found)


def _commit(consumer: Any, place: TopicPartition, answers: list[KafkaError | None]) -> None:
    """Commit an offset by a consumer with these `answers`. Raises KafkaException.

    In this thread: a client that another thread polls or closes may not return from a commit.
    """
    answers.clear()
    until = time.monotonic() + _STEP_S
    consumer.commit(offsets=[place], asynchronous=True)
    while not answers:
        if time.monotonic() >= until:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        consumer.poll(_POLL_S)
    if answers[0] is not None:
        raise KafkaException(answers[0])


def _require_topic(consumer: Any, topic: str) -> None:
    """Raise StreamNotFoundError unless the topic exists: a new one may not be known to all brokers
    yet. A consumer's request, unlike a producer's, creates none."""
    attempts = round(_NEW_TOPIC_S / _NEW_TOPIC_PAUSE_S)
    for attempt in range(attempts):
        fault = consumer.list_topics(topic, timeout=_STEP_S).topics[topic].error
        if fault is None:
            return
        if error_kind(fault) is not ErrorKind.MISSING:
            raise KafkaException(fault)
        if attempt < attempts - 1:
            time.sleep(_NEW_TOPIC_PAUSE_S)
    raise _missing_topic(topic, "no such topic")


def _checked(found: TopicPartition) -> TopicPartition:
    if found.error is not None:
        raise KafkaException(found.error)
    return found


_MAX_KEPT: Final = 4
"""Idle clients that a process may keep."""
_clients: dict[tuple[int, str, ClientProperties], _Client] = {}
"""Oldest first. Those of the process that this one was forked from are never used."""
_abandoned: Final[list[_Client]] = []


def _take(properties: ClientProperties, transactional_id: str) -> _Client | None:
    return _clients.pop((os.getpid(), transactional_id, properties), None)


def _keep(properties: ClientProperties, client: _Client) -> None:
    _clients[os.getpid(), client.id, properties] = client
    own = [key for key in _clients if key[0] == os.getpid()]
    for key in own[: max(0, len(own) - _MAX_KEPT)]:
        del _clients[key]


# --- The record of the driver ---------------------------------------------------------------------


def record_completed(
    properties: ClientProperties, sink: str, topic: str, completed: CompletedBatch
) -> None:
    """Record that all tasks of a batch have committed, unless a later one is recorded. Raises
    SspError; IncompatibleStateError, after the record, if an earlier attempt had more tasks and
    some of those have committed: their rows are there twice."""
    group = batches_id(sink)
    place = TopicPartition(topic, 0, completed.batch, metadata=write_completed(completed.tasks))
    look = _Surplus(properties, sink, topic, completed)
    answers: list[KafkaError | None] = []

    def record(consumer: Any) -> None:
        before = _committed(consumer, topic)
        if before.offset >= completed.batch:
            return
        # First, so that a driver that dies before the error does it again.
        last = None if before.offset < 0 else read_completed(group, before.offset, before.metadata)
        if surplus := look.tasks(last):
            _log.warning("%s", divided_anew(sink, completed, surplus))
        _commit(consumer, place, answers)

    try:
        _by_consumer(properties, group, record, answers=answers)
    except KafkaException as exception:
        # The record may be written all the same, and then nobody looks again.
        if not look.found:
            subject = f"batch {completed.batch} of sink {sink}"
            secrets = secrets_of(properties)
            raise to_error(kafka_error(exception), subject=subject, secrets=secrets) from None
    if look.found:
        raise divided_anew(sink, completed, look.found)


class _Surplus:
    """Looks for the tasks that a batch does not have, and that have committed rows of it all the
    same, in an earlier attempt. Begins with one that is always looked for, while the record is
    read. Its methods raise KafkaException."""

    def __init__(
        self, properties: ClientProperties, sink: str, topic: str, completed: CompletedBatch
    ) -> None:
        self.found: list[int] | None = None
        """The tasks, in order, once `tasks` has returned them."""
        self._completed = completed
        self._read = partial(_read_marker, properties, sink, topic=topic)
        self._next = run_in_thread(partial(self._rows, completed.tasks))

    def tasks(self, before: CompletedBatch | None) -> list[int]:
        """Return the tasks. `before`: the batch before. Looks once, if the record is repeated."""
        if self.found is None:
            looked = tasks_left_out(self._completed, before)
            with ThreadPoolExecutor(_READERS) as pool:
                rows = [self._next.result(), *pool.map(self._rows, looked[1:])]
            while rows[-1] is not None:
                rows.append(self._rows(self._completed.tasks + len(rows)))
            self.found = [task for task, some in enumerate(rows, self._completed.tasks) if some]
        return self.found

    def _rows(self, task: int) -> int | None:
        """Return the number of rows of a task in the batch, None if it has not committed it."""
        marker = self._read(task)
        if marker is None or marker.batch != self._completed.batch:
            return None
        return marker.rows
