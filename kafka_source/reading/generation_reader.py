"""Partitions of one task that are read side by side, until all are done or one cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from kafka_source.client.admin_connection import in_thread
from kafka_source.client.api import KafkaService
from kafka_source.client.arrow_batches import record_batch
from kafka_source.client.consumer_api import (
    EndOfLog,
    Event,
    PartitionConsumer,
    ReadFault,
    Run,
)
from kafka_source.client.error_translation import FaultKind
from kafka_source.model.ranges import TaskRange
from kafka_source.model.topic import Assign, Edge, kafka_name
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.data_loss import warn_of
from kafka_source.planning.topic_metadata import fail_for
from kafka_source.reading.range_progress import Reading
from kafka_source.reading.stall_diagnosis import (
    LOOK_AGAIN_S,
    LOOKS,
    Standing,
    Verdict,
    is_recreated,
    judge,
    loss_of,
)
from ssp_common.errors import ServiceUnavailableError, SspError
from task_grouping.identifiers import SystemStreamPartition

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
"""A batch goes to Spark once it has so much."""

_POLL_ROWS: Final = 10_000
POLL_BYTES: Final = 8 << 20
"""Approximate bytes taken from the client at once, and the most bytes of one Arrow batch, unless
one record is larger."""

_FIRST_ROWS: Final = 64
"""Rows of the first poll, while the size of a record is unknown, and of the first batch with
headers, whose size is known only after reading them."""

_WAIT_S: Final = 0.2
_LOOK_AFTER_S: Final = 2.0
"""Without progress, brokers are asked so often what became of the partitions."""
_LAST_LOOK_S: Final = 10.0

_NOT_IN_LOG: Final = frozenset({FaultKind.OUT_OF_RANGE, FaultKind.MISSING, FaultKind.TRUNCATED})

_Standings = Mapping[SystemStreamPartition, Standing]


@dataclass(slots=True, kw_only=True)
class Wave:
    """`service`: whom to ask when there is no progress; made only then."""

    task: TaskRange
    options: KafkaOptions
    reading: Reading
    consumer: PartitionConsumer
    service: Callable[[], KafkaService]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    record_bytes: float | None = None
    """What a record takes, as seen lately, with the headers that are read."""
    _header_bytes: float | None = None
    """The largest header bytes per record of any batch so far; None before the first one."""
    _stopped: set[SystemStreamPartition] = field(default_factory=set)
    """Those that the consumer reads no further: their position is not in the log."""
    _truncated: set[SystemStreamPartition] = field(default_factory=set)
    """Partitions whose log was truncated before the position."""
    _gone: Counter[SystemStreamPartition] = field(default_factory=Counter)
    _look: Future[_Standings] | None = None
    _look_at: float = 0.0

    def read(self) -> Iterator[pa.RecordBatch]:
        """The records, once. See `reader.read_task`."""
        reading, consumer = self.reading, self.consumer
        consumer.place(reading.positions)
        deadline = self._progress()
        while not reading.done:
            progress, before = reading.progress, set(reading.positions)
            for event in consumer.poll(self._limit(), _WAIT_S):
                self._take_in(event)
            self._ask_about()
            if reading.progress > progress:
                deadline = self._progress()
                finished = before - reading.positions.keys()
                if finished and reading.positions:
                    consumer.drop(sorted(finished))
            elif self.monotonic() > deadline:
                self._time_is_over()
                deadline = self._progress()
            if self._enough():
                yield from self._batches()
                deadline = self._progress()
        yield from self._batches()

    def _progress(self) -> float:
        """Time begins anew: the moment at which it is over."""
        now = self.monotonic()
        self._look_at = now + _LOOK_AFTER_S
        return now + self.options.poll_timeout_ms / 1000

    def _limit(self) -> int:
        """How many records to take at once: no more than remain, nor than memory is meant for."""
        positions = self.reading.positions
        remaining = sum(self.reading.range_of(ssp).end - at for ssp, at in positions.items())
        if self._headers_unknown():
            most = _FIRST_ROWS - self.consumer.rows
        else:
            self._note_size()
            size = self.record_bytes
            most = _FIRST_ROWS if size is None else min(_POLL_ROWS, max(1, int(POLL_BYTES / size)))
        return min(most, remaining + len(positions))

    def _headers_unknown(self) -> bool:
        return self.options.include_headers and self._header_bytes is None

    def _note_size(self) -> None:
        """Update the size of a record by the gathered records, before a batch is made of them."""
        rows = self.consumer.rows
        if rows:
            self.record_bytes = max(1.0, self.consumer.weight / rows + (self._header_bytes or 0.0))

    def _enough(self) -> bool:
        """Whether what there is makes a batch."""
        rows = self.consumer.rows
        most = _FIRST_ROWS if self._headers_unknown() else BATCH_ROWS
        weight = self.consumer.weight + rows * (self._header_bytes or 0.0)
        return rows >= most or weight >= BATCH_BYTES

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Return all gathered records. If records have grown, a poll may have taken more than
        `POLL_BYTES`, hence several batches."""
        while self.consumer.rows:
            self._note_size()
            columns = self.consumer.take(POLL_BYTES, self._header_bytes or 0.0)
            if columns.headers is not None:
                each = columns.headers.nbytes / len(columns.offsets)
                self._header_bytes = max(self._header_bytes or 0.0, each)
            yield record_batch(columns, self.task if self.options.include_task else None)

    def _take_in(self, event: Event) -> None:
        match event:
            case Run():
                self.consumer.keep(event, self.reading.keep(event.ssp, event.offsets))
            case EndOfLog():
                self.reading.end_of_log(event.ssp, event.offset)
            case ReadFault():
                self._fault(event)

    # --- When something is odd --------------------------------------------------------------------

    def _fault(self, fault: ReadFault) -> None:
        ssp = fault.ssp
        if fault.kind in (FaultKind.TRANSIENT, FaultKind.OF_GROUPS):
            return
        if ssp is not None and self.reading.position(ssp) is None:
            return
        if ssp is not None and fault.kind in _NOT_IN_LOG:
            self._stopped.add(ssp)
            if fault.kind is FaultKind.TRUNCATED:
                self._truncated.add(ssp)
            if not self._gone[ssp]:
                self._look_at = self.monotonic()
            return
        raise fault.error

    def _ask_about(self) -> None:
        """Ask when it is time, without waiting; act on an answer that is there."""
        if self._look is None:
            if self.reading.positions and self.monotonic() >= self._look_at:
                self._look = self._asked()
        elif self._look.done():
            look, self._look = self._look, None
            self._look_at = self.monotonic() + _LOOK_AFTER_S
            try:
                standings = look.result()
                recreated = self._recreated(standings)
            except ServiceUnavailableError:
                return  # It may be that brokers are away: time tells.
            self._act_on(standings, recreated)

    def _asked(self) -> Future[_Standings]:
        ssps, service = tuple(sorted(self.reading.positions)), self.service()

        def ask() -> _Standings:
            topics = service.describe(Assign(partitions=ssps))
            there = [
                ssp
                for ssp in ssps
                if ssp.stream in topics and ssp.partition < topics[ssp.stream].partition_count
            ]
            earliest = service.offsets(there, Edge.EARLIEST) if there else {}
            ends = service.offsets(there, Edge.LATEST) if there else {}
            return {
                ssp: Standing(
                    topic=topics.get(ssp.stream), earliest=earliest.get(ssp), end=ends.get(ssp)
                )
                for ssp in ssps
            }

        return in_thread(ask)

    def _act_on(
        self,
        standings: _Standings,
        recreated: Collection[SystemStreamPartition],
        *,
        last: bool = False,
    ) -> None:
        for ssp, standing in sorted(standings.items()):
            position = self.reading.position(ssp)
            if position is None:
                continue
            range_ = self.reading.range_of(ssp)
            verdict = judge(range_, position, standing, truncated=ssp in self._truncated)
            if verdict is Verdict.GONE:
                self._gone[ssp] += 1
            certain = (last and verdict is not Verdict.RECREATED) or {
                Verdict.FINE: False,
                Verdict.SHORT: False,
                Verdict.GONE: self._gone[ssp] >= LOOKS,
                Verdict.RECREATED: ssp in recreated,
                # A consumer that makes progress may have fetched records that have expired by now.
                Verdict.OVERTAKEN: ssp in self._stopped,
                Verdict.CUT_OFF: ssp in self._stopped,
            }.get(verdict, True)
            if certain and verdict is not Verdict.FINE:
                loss = loss_of(range_, position, verdict, standing)
                if self.options.fail_on_data_loss:
                    fail_for([loss])
                warn_of([loss])
                self._go_on_behind(ssp, verdict, standing)
                self._truncated.discard(ssp)
            if ssp in self._stopped and (again := self.reading.position(ssp)) is not None:
                self._stopped.remove(ssp)
                self.consumer.place_again(ssp, again)

    def _recreated(self, standings: _Standings) -> set[SystemStreamPartition]:
        """Those whose topic stays another one when it is asked for again. Nothing is read while it
        is in doubt: it would be records of another topic."""
        suspects = {
            ssp
            for ssp, standing in standings.items()
            if self.reading.position(ssp) is not None
            and is_recreated(self.reading.range_of(ssp), standing.topic)
        }
        for _ in range(LOOKS - 1):
            if suspects:
                self.sleep(LOOK_AGAIN_S)
                topics = self.service().describe(Assign(partitions=tuple(sorted(suspects))))
                suspects = {
                    ssp
                    for ssp in suspects
                    if is_recreated(self.reading.range_of(ssp), topics.get(ssp.stream))
                }
        return suspects

    def _go_on_behind(
        self, ssp: SystemStreamPartition, verdict: Verdict, standing: Standing
    ) -> None:
        if verdict is Verdict.OVERTAKEN and standing.earliest is not None:
            self._stopped.add(ssp)
            self.reading.skip_to(ssp, standing.earliest)
        elif verdict is not Verdict.REPLACED:
            self.reading.give_up(ssp)

    def _time_is_over(self) -> None:
        """Raise, unless it comes out that what is missing is lost, which may be tolerated."""
        look, self._look = self._look or self._asked(), None
        progress = self.reading.progress
        reason = ""
        try:
            standings = look.result(_LAST_LOOK_S)
            self._act_on(standings, self._recreated(standings), last=True)
        except NotYetError:
            pass
        except ServiceUnavailableError as error:
            reason = error.found
        if self.reading.progress == progress:
            raise self._too_late(self.consumer.last_fault() or reason)

    def _too_late(self, reason: str) -> SspError:
        ssp, position = next(iter(self.reading.positions.items()))
        more = len(self.reading.positions) - 1
        return ServiceUnavailableError(
            f"partition {kafka_name(ssp)}" + (f" (and {more} more partitions)" if more else ""),
            found=f"no record for {self.options.poll_timeout_ms} ms at position {position} of the "
            f"range up to {self.reading.range_of(ssp).end}"
            + (f"; what was reported last: {reason}" if reason else ""),
            expected="the records that the brokers said to have",
            next_step="check that the partition has a leader and the brokers can be reached; raise "
            "pollTimeout if they are slow, or if kafka.isolation.level is read_committed and long "
            "aborted transactions, which contain no readable record, end the range",
        )
