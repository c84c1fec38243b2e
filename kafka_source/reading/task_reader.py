"""Reads the ranges of one task as Arrow record batches, in a Spark task: the partitions of one
generation concurrently, and the generations one after another."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from spark_ssp.common.columns import Column
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.times import duration_text, seconds_text
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.admin_connection import run_in_thread
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.client.error_translation import LIMIT_STEP, ErrorKind
from spark_ssp.kafka_source.model.ranges import PartitionRange, TaskRange
from spark_ssp.kafka_source.model.topic import (
    Assign,
    IsolationLevel,
    LogicalOffset,
    Subscribe,
    TopicId,
    kafka_name,
)
from spark_ssp.kafka_source.options.client_properties import GROUP_ID, ClientProperties
from spark_ssp.kafka_source.options.property_names import NO_LIMIT, RECEIVE_BYTES
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.data_loss import report_data_loss
from spark_ssp.kafka_source.reading.arrow_batches import all_columns, record_batch
from spark_ssp.kafka_source.reading.consumer_api import (
    Event,
    PartitionConsumer,
    PartitionEof,
    ReadError,
    RecordRun,
)
from spark_ssp.kafka_source.reading.pool import (
    PROCESS_POOL,
    ConsumerKey,
    ConsumerPool,
    choose_profile,
)
from spark_ssp.kafka_source.reading.progress import (
    CONFIRM_INTERVAL_S,
    CONFIRMATIONS,
    PartitionStatus,
    RangeProgress,
    StallReason,
    diagnose,
    is_recreated,
    split_generations,
    to_data_loss,
)


def read_task(
    range_: TaskRange,
    options: KafkaOptions,
    group_id: str,
    *,
    columns: Sequence[Column] | None = None,
    pool: ConsumerPool = PROCESS_POOL,
    topics: TopicIdChecker | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of `range_` as batches of these columns, by default all of the options. The
    rows of a partition keep their order, and partitions of an older generation precede those of a
    newer one.

    Reading again returns the same rows, possibly in other batches. `group_id` is the consumer group
    unless `kafka.group.id` is set. Nothing starts before the first `next`.

    Raises DataLossError for lost records unless that is tolerated, ServiceUnavailableError if no
    partition advanced for `pollTimeout`, and permanent errors of brokers at once.
    """
    if not range_.partitions:
        return
    columns = columns or all_columns(
        include_headers=options.include_headers, include_task=options.include_task
    )
    topics = topics or checker_of_process(os.getpid())
    properties = options.client.config()
    ranges = _check_topic_ids(range_.partitions, options, topics)
    key = ConsumerKey(
        client=options.client,
        group_id=properties.get(GROUP_ID, group_id),
        profile=choose_profile(ranges, pool.record_bytes, properties),
    )
    ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
    with pool.acquire(key, ids) as consumer:
        for generation in split_generations(ranges):
            reader = GenerationReader(
                task=range_,
                options=options,
                columns=columns,
                progress=RangeProgress(generation),
                consumer=consumer,
                service=partial(topics.service, options),
                monotonic=time.monotonic,
                sleep=time.sleep,
                record_bytes=_largest(pool.record_bytes, generation),
            )
            yield from reader.read()
            if reader.record_bytes is not None:
                streams = (one.ssp.stream for one in generation)
                pool.record_bytes.update(dict.fromkeys(streams, reader.record_bytes))


def _largest(
    record_bytes: Mapping[StreamName, float], ranges: Iterable[PartitionRange]
) -> float | None:
    """Return the largest known record size of these ranges, or None if any is unknown."""
    sizes = [record_bytes.get(one.ssp.stream) for one in ranges]
    known = [size for size in sizes if size is not None]
    return max(known, default=None) if len(known) == len(sizes) else None


def _check_topic_ids(
    ranges: tuple[PartitionRange, ...],
    options: KafkaOptions,
    topics: TopicIdChecker,
) -> tuple[PartitionRange, ...]:
    """Return the ranges whose topics were not created again since planning. Another id is requested
    again, with pauses: an outdated broker still returns that of the previous topic."""
    for attempt in range(CONFIRMATIONS):
        if attempt:
            topics.sleep(CONFIRM_INTERVAL_S)
        found = topics.unconfirmed(ranges, options)
        lost = [one for one in ranges if is_recreated(one, found.get(one.ssp.stream))]
        if not lost:
            return ranges
    losses = [
        to_data_loss(
            one,
            one.start,
            StallReason.RECREATED,
            PartitionStatus(topic=found[one.ssp.stream], earliest=None, end=None),
        )
        for one in lost
    ]
    report_data_loss(losses, fail=options.fail_on_data_loss)
    return tuple(one for one in ranges if one not in lost)


# --- Topic ids ------------------------------------------------------------------------------------

VALID_S: Final = 60.0
"""The time for which an answer is valid. The driver checks before each batch as well."""

MAX_SERVICES: Final = 8
"""The services kept by a process. The connection of another one is closed once no task uses it."""

_Key = tuple[ClientProperties, StreamName, TopicId]


@dataclass(slots=True)
class TopicIdChecker:
    """Checks that topics still have their planned ids, and caches the confirmed ones. Thread-safe.

    A batch may be planned long before it is read: a query that was stopped within a batch reads it
    after its restart, and by then the topic may have been deleted and created again, with records
    at the same offsets. So every worker process checks a topic before it reads it for the first
    time, and again after a while.
    """

    connect: Callable[[KafkaOptions], KafkaService] = connect
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _valid_until: dict[_Key, float] = field(default_factory=dict)
    _services: OrderedDict[ClientProperties, KafkaService] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def service(self, options: KafkaOptions) -> KafkaService:
        """Return the brokers' service, with a cached connection."""
        with self._lock:
            if options.client not in self._services:
                # A check asks where logs end: with read_committed, an open transaction would look
                # like a truncated log.
                uncommitted = replace(options, isolation_level=IsolationLevel.READ_UNCOMMITTED)
                self._services[options.client] = self.connect(uncommitted)
                if len(self._services) > MAX_SERVICES:
                    self._services.popitem(last=False)
            self._services.move_to_end(options.client)
            return self._services[options.client]

    def unconfirmed(
        self, ranges: Collection[PartitionRange], options: KafkaOptions
    ) -> Mapping[StreamName, TopicDescription]:
        """Return the existing topics of `ranges`, except those that were confirmed recently or have
        no known id. Raises ServiceUnavailableError if brokers do not answer for `pollTimeout`."""
        now = self.monotonic()
        ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
        with self._lock:
            unconfirmed = [
                topic
                for topic, topic_id in sorted(ids.items())
                if self._valid_until.get((options.client, topic, topic_id), -math.inf) < now
            ]
        if not unconfirmed:
            return {}
        found = self._describe(Subscribe(topics=tuple(unconfirmed)), options)
        now = self.monotonic()
        with self._lock:
            for key in [key for key, until in self._valid_until.items() if until < now]:
                del self._valid_until[key]
            for topic in unconfirmed:
                if topic in found and found[topic].topic_id == ids[topic]:
                    self._valid_until[(options.client, topic, ids[topic])] = now + VALID_S
        return found

    def _describe(
        self, topics: Subscribe, options: KafkaOptions
    ) -> Mapping[StreamName, TopicDescription]:
        """Describe topics, and wait for brokers that are away at least as long as a task that is
        reading does: a service that no broker has answered yet makes only one attempt."""
        began = self.monotonic()
        while True:
            try:
                return self.service(options).describe(topics)
            except ServiceUnavailableError as error:
                waited_s = self.monotonic() - began
                if waited_s * 1000 >= options.poll_timeout_ms:
                    raise ServiceUnavailableError(
                        error.subject,
                        found=f"{error.found}; tried for {seconds_text(waited_s)}",
                        expected=error.expected,
                        next_step=f"{error.next_step}; raise pollTimeout to wait longer",
                    ) from None
                self.sleep(CONFIRM_INTERVAL_S)


_checkers: dict[int, TopicIdChecker] = {}


def checker_of_process(process: int) -> TopicIdChecker:
    """Return the checker of a process, by its id: a forked child starts with a new one."""
    return _checkers.setdefault(process, TopicIdChecker())


# --- The partitions of one generation -------------------------------------------------------------

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
"""A batch is passed to Spark once it has this many bytes."""

_POLL_ROWS: Final = 10_000
POLL_BYTES: Final = 8 << 20
"""Approximate bytes taken from the client at once, and the most bytes of one Arrow batch, unless
one record is larger."""

_FIRST_ROWS: Final = 64
"""Rows of the first poll, while the size of a record is unknown."""

_WAIT_S: Final = 0.2
_CHECK_AFTER_S: Final = 2.0
"""The time without progress after which the brokers are asked for the status of the partitions."""
_LAST_CHECK_S: Final = 10.0

_NOT_IN_LOG: Final = frozenset({ErrorKind.OUT_OF_RANGE, ErrorKind.MISSING, ErrorKind.TRUNCATED})

_Statuses = Mapping[SystemStreamPartition, PartitionStatus]


@dataclass(frozen=True, slots=True)
class _Doubt:
    """The checks in a row that found a partition deleted, or its log at an end before the position.
    A broker that was paused answers so for a while if it does not know the new leader."""

    checks: int = 0
    end: int | None = None
    has_grown: bool = False
    """True if the end moved forward between two of them: the broker accepts records, unlike one
    that is behind."""
    is_reported: bool = False
    """True if the loss was reported already."""

    def after(self, end: int | None) -> _Doubt:
        """Return the doubt after one more check, which found the log at this end."""
        grows = self.end is not None and end is not None and end > self.end
        return replace(self, checks=self.checks + 1, end=end, has_grown=self.has_grown or grows)

    @property
    def is_confirmed(self) -> bool:
        return self.checks >= CONFIRMATIONS


@dataclass(slots=True, kw_only=True)
class GenerationReader:
    """Reads one generation of a task's partitions. `service` connects to the brokers; it is called
    only if there is no progress."""

    task: TaskRange
    options: KafkaOptions
    columns: Sequence[Column]
    progress: RangeProgress
    consumer: PartitionConsumer
    service: Callable[[], KafkaService]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    record_bytes: float | None = None
    """Recent bytes per record, including headers if they are read."""
    _stopped: set[SystemStreamPartition] = field(default_factory=set)
    """Partitions that the consumer no longer reads: their position is not in the log."""
    _truncated: set[SystemStreamPartition] = field(default_factory=set)
    """Partitions whose log was truncated before the position."""
    _doubts: defaultdict[SystemStreamPartition, _Doubt] = field(
        default_factory=lambda: defaultdict(_Doubt)
    )
    _check: Future[_Statuses] | None = None
    _check_at: float = 0.0

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read the ranges once, as `task_reader.read_task` does."""
        progress, consumer = self.progress, self.consumer
        consumer.assign(progress.positions, headers="headers" in self._names)
        assigned = set(progress.positions)
        deadline = self._reset_deadline()
        while not progress.done:
            advances = progress.advances
            for event in consumer.poll(self._limit(), _WAIT_S):
                self._handle(event)
            self._check_stall()
            if progress.advances > advances:
                deadline = self._reset_deadline()
            elif self.monotonic() > deadline:
                self._on_timeout()
                deadline = self._reset_deadline()
            if progress.positions and (finished := assigned - progress.positions.keys()):
                # Before a batch is passed to Spark, which may take long: fetches would continue.
                consumer.unassign(sorted(finished))
                assigned -= finished
            if self._is_batch_full():
                yield from self._batches()
                deadline = self._reset_deadline()
        yield from self._batches()

    def _reset_deadline(self) -> float:
        """Restart the timeout, and return its end."""
        now = self.monotonic()
        self._check_at = now + _CHECK_AFTER_S
        return now + self.options.poll_timeout_ms / 1000

    def _limit(self) -> int:
        """Return the number of records to poll: at most those that remain, and those that fit into
        memory."""
        positions = self.progress.positions
        remaining = sum(self.progress.range_of(ssp).end - at for ssp, at in positions.items())
        self._update_record_bytes()
        size = self.record_bytes
        most = _FIRST_ROWS if size is None else min(_POLL_ROWS, max(1, int(POLL_BYTES / size)))
        return min(most, remaining + len(positions))

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self.columns]

    def _update_record_bytes(self) -> None:
        """Update the size of a record from the buffered records, before they become a batch."""
        rows = self.consumer.buffered_rows
        if rows:
            self.record_bytes = max(1.0, self.consumer.buffered_bytes / rows)

    def _is_batch_full(self) -> bool:
        """Return whether the buffered records make a batch."""
        consumer = self.consumer
        return consumer.buffered_rows >= BATCH_ROWS or consumer.buffered_bytes >= BATCH_BYTES

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Return all buffered records, in several batches if a poll took more than `POLL_BYTES`
        because records have grown."""
        while self.consumer.buffered_rows:
            self._update_record_bytes()
            records = self.consumer.take(POLL_BYTES, self._names)
            yield record_batch(records, self.columns, self.task)

    def _handle(self, event: Event) -> None:
        match event:
            case RecordRun():
                self.consumer.keep(event, self.progress.select(event.ssp, event.offsets))
            case PartitionEof():
                self.progress.reach_end_of_log(event.ssp, event.offset)
            case ReadError():
                self._handle_error(event)

    # --- Stalls and errors ------------------------------------------------------------------------

    def _handle_error(self, error: ReadError) -> None:
        ssp = error.ssp
        if error.kind in (ErrorKind.TRANSIENT, ErrorKind.GROUP_ACCESS):
            return
        if ssp is not None and self.progress.position(ssp) is None:
            return
        if ssp is not None and error.kind in _NOT_IN_LOG:
            self._stopped.add(ssp)
            if error.kind is ErrorKind.TRUNCATED:
                self._truncated.add(ssp)
            if not self._doubts[ssp].checks:
                self._check_at = self.monotonic()
            return
        raise error.error

    def _check_stall(self) -> None:
        """Start a check of the brokers if it is time, and apply the result of one that is done."""
        if self._check is None:
            if self.progress.positions and self.monotonic() >= self._check_at:
                self._check = self._start_check()
        elif self._check.done():
            check, self._check = self._check, None
            self._check_at = self.monotonic() + _CHECK_AFTER_S
            try:
                statuses = check.result()
                recreated = self._recreated(statuses)
            except ServiceUnavailableError:
                return  # The brokers may be unavailable, which ends in a timeout if it lasts.
            self._apply(statuses, recreated)

    def _start_check(self) -> Future[_Statuses]:
        ssps, service = tuple(sorted(self.progress.positions)), self.service()

        def fetch() -> _Statuses:
            topics = service.describe(Assign(partitions=ssps))
            existing = [
                ssp
                for ssp in ssps
                if ssp.stream in topics and ssp.partition < topics[ssp.stream].partition_count
            ]
            earliest = service.list_offsets(existing, LogicalOffset.EARLIEST) if existing else {}
            ends = service.list_offsets(existing, LogicalOffset.LATEST) if existing else {}
            return {
                ssp: PartitionStatus(
                    topic=topics.get(ssp.stream), earliest=earliest.get(ssp), end=ends.get(ssp)
                )
                for ssp in ssps
            }

        return run_in_thread(fetch)

    def _apply(
        self,
        statuses: _Statuses,
        recreated: Collection[SystemStreamPartition],
        *,
        last: bool = False,
    ) -> None:
        for ssp, status in sorted(statuses.items()):
            position = self.progress.position(ssp)
            if position is None:
                continue
            range_ = self.progress.range_of(ssp)
            reason = diagnose(range_, position, status, truncated=ssp in self._truncated)
            is_doubtful = reason in (StallReason.DELETED, StallReason.TRUNCATED)
            doubt = self._doubts[ssp].after(status.end) if is_doubtful else _Doubt()
            # It may be the answer of a broker that is behind, and tolerated records would be left
            # for good: not before the timeout.
            failing = self.options.fail_on_data_loss and doubt.is_confirmed
            is_final = reason is not StallReason.RECREATED and (
                doubt.is_confirmed or not is_doubtful
            )
            certain = (last and is_final) or {
                StallReason.OK: False,
                StallReason.INCOMPLETE: False,
                StallReason.DELETED: failing,
                StallReason.RECREATED: ssp in recreated,
                # A consumer that makes progress may have fetched records that have expired by now.
                StallReason.EXPIRED: ssp in self._stopped,
                StallReason.TRUNCATED: ssp in self._stopped and failing,
            }.get(reason, True)
            certain = certain and reason is not StallReason.OK
            # A log that grows may pass the position before the timeout, which would hide the loss.
            passing = ssp in self._stopped and doubt.is_confirmed and doubt.has_grown
            if (certain or passing) and not doubt.is_reported:
                loss = to_data_loss(range_, position, reason, status)
                report_data_loss([loss], fail=self.options.fail_on_data_loss)
                doubt = replace(doubt, is_reported=is_doubtful)
            self._doubts[ssp] = doubt
            if certain:
                self._continue_after_loss(ssp, reason, status)
                self._truncated.discard(ssp)
            if ssp in self._stopped and (again := self.progress.position(ssp)) is not None:
                self._stopped.remove(ssp)
                self.consumer.seek(ssp, again)

    def _recreated(self, statuses: _Statuses) -> set[SystemStreamPartition]:
        """Return the partitions whose topic has another id in repeated requests. Nothing is read
        until that is confirmed: it would be records of another topic."""
        suspects = {
            ssp
            for ssp, status in statuses.items()
            if self.progress.position(ssp) is not None
            and is_recreated(self.progress.range_of(ssp), status.topic)
        }
        for _ in range(CONFIRMATIONS - 1):
            if suspects:
                self.sleep(CONFIRM_INTERVAL_S)
                topics = self.service().describe(Assign(partitions=tuple(sorted(suspects))))
                suspects = {
                    ssp
                    for ssp in suspects
                    if is_recreated(self.progress.range_of(ssp), topics.get(ssp.stream))
                }
        return suspects

    def _continue_after_loss(
        self, ssp: SystemStreamPartition, reason: StallReason, status: PartitionStatus
    ) -> None:
        if reason is StallReason.EXPIRED and status.earliest is not None:
            self._stopped.add(ssp)
            self.progress.skip_to(ssp, status.earliest)
        elif reason is not StallReason.REWRITTEN:
            self.progress.abandon(ssp)

    def _on_timeout(self) -> None:
        """Raise a timeout unless a last check shows that the missing records are lost, which may be
        tolerated."""
        check, self._check = self._check or self._start_check(), None
        advances = self.progress.advances
        reason = ""
        try:
            for _ in range(CONFIRMATIONS):
                statuses = check.result(_LAST_CHECK_S)
                self._apply(statuses, self._recreated(statuses), last=True)
                unread = self.progress.positions
                doubts = [self._doubts[ssp] for ssp in unread]
                if all(doubt.is_confirmed or not doubt.checks for doubt in doubts):
                    break
                self.sleep(CONFIRM_INTERVAL_S)
                check = self._start_check()
        except NotYetError:
            pass
        except ServiceUnavailableError as error:
            reason = error.found
        if self.progress.advances == advances:
            raise self._timeout_error(self.consumer.last_error() or reason)

    def _timeout_error(self, reason: str) -> SspError:
        ssp, position = next(iter(self.progress.positions.items()))
        more = len(self.progress.positions) - 1
        is_limited = dict(self.options.client.public).get(RECEIVE_BYTES, NO_LIMIT) != NO_LIMIT
        limited = f"{LIMIT_STEP}; " if is_limited else ""
        return ServiceUnavailableError(
            f"partition {kafka_name(ssp)}" + (f" (and {more} more partitions)" if more else ""),
            found=f"no record for {duration_text(self.options.poll_timeout_ms)} at position "
            f"{position} of the range up to {self.progress.range_of(ssp).end}"
            + (f"; last error: {reason}" if reason else ""),
            expected="the records that the brokers have reported",
            next_step=f"{limited}check that the partition has a leader and the brokers can be "
            "reached; raise pollTimeout if they are slow, or if kafka.isolation.level is "
            "read_committed and the range has a transaction that is still open, or ends with long "
            "aborted ones, which contain no readable record",
        )
