"""What a Spark task runs: the ranges of one task as Arrow record batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kafka_source.arrow import record_batch
from kafka_source.client_properties import GROUP_ID
from kafka_source.consumer import PROCESS_WIDE, ConsumerKey, ConsumerPool
from kafka_source.data_loss import warn_of
from kafka_source.faults import FaultKind
from kafka_source.found import Loss, fail_for
from kafka_source.model import kafka_name
from kafka_source.options import KafkaOptions
from kafka_source.partition_consumer import EndOfLog, Event, PartitionConsumer, ReadFault, Run
from kafka_source.ranges import PartitionRange, TaskRange
from kafka_source.reading import Reading, waves
from ssp_common.errors import ServiceUnavailableError
from task_grouping.identifiers import SystemStreamPartition

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
"""A batch goes to Spark once it has so much."""

_POLL_ROWS: Final = 10_000
_POLL_BYTES: Final = 8 << 20
"""How much is taken from the client at once, about."""

_WAIT_S: Final = 0.2
_BOUNDS_S: Final = 10.0


def read_task(
    range_: TaskRange,
    options: KafkaOptions,
    group_id: str,
    *,
    pool: ConsumerPool = PROCESS_WIDE,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """The records of `range_`, of `arrow_schema`; the rows of a partition keep their order, and
    partitions of an older generation come before those of a newer one.

    Reading it again gives the same rows, in batches that may be cut elsewhere. `group_id` is what
    brokers see, unless `kafka.group.id` is set. Nothing starts before the first `next`.

    Raises DataLossError where records are gone and that is not tolerated; ServiceUnavailableError
    when a partition did not advance for `pollTimeout`; and what brokers refuse, at once.
    """
    key = ConsumerKey(
        client=options.client,
        group_id=options.client.config().get(GROUP_ID, group_id),
        headers=options.include_headers,
    )
    with pool.lend(key) as consumer:
        for wave in waves(range_.partitions):
            yield from _Wave(
                task=range_,
                options=options,
                reading=Reading(wave),
                consumer=consumer,
                monotonic=monotonic,
            ).read()


@dataclass(slots=True, kw_only=True)
class _Wave:
    """Reads partitions side by side until all are done."""

    task: TaskRange
    options: KafkaOptions
    reading: Reading
    consumer: PartitionConsumer
    monotonic: Callable[[], float]
    record_bytes: float = 1024.0
    """What a record takes, as seen lately."""

    def read(self) -> Iterator[pa.RecordBatch]:
        reading, consumer = self.reading, self.consumer
        consumer.place(reading.positions)
        deadline = self._deadline()
        while not reading.done:
            progress, left = reading.progress, set(reading.positions)
            for event in consumer.poll(self._limit(), _WAIT_S):
                self._take_in(event)
            if reading.progress > progress:
                deadline = self._deadline()
                still = reading.positions.keys()
                if still and (finished := left - still):
                    consumer.drop(sorted(finished))
            elif self.monotonic() > deadline:
                self._give_up()
            if consumer.rows >= BATCH_ROWS or consumer.weight >= BATCH_BYTES:
                yield self._batch()
                deadline = self._deadline()
        if consumer.rows:
            yield self._batch()

    def _deadline(self) -> float:
        return self.monotonic() + self.options.poll_timeout_ms / 1000

    def _limit(self) -> int:
        """How many records to take at once: no more than remain, nor than memory is meant for."""
        remaining = sum(
            self.reading.range_of(ssp).end - position
            for ssp, position in self.reading.positions.items()
        )
        affordable = max(1, int(_POLL_BYTES / self.record_bytes))
        return min(_POLL_ROWS, affordable, remaining + len(self.reading.positions))

    def _batch(self) -> pa.RecordBatch:
        consumer = self.consumer
        self.record_bytes = max(1.0, consumer.weight / consumer.rows)
        return record_batch(consumer.take(), self.task if self.options.include_task else None)

    # --- What is met on the way -------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:
        match event:
            case Run():
                self.consumer.keep(event, self.reading.keep(event.ssp, event.offsets))
            case EndOfLog():
                self.reading.end_of_log(event.ssp, event.offset)
            case ReadFault():
                self._fault(event)

    def _fault(self, fault: ReadFault) -> None:
        if fault.kind is FaultKind.TRANSIENT:
            return
        if fault.ssp is None or self.reading.position(fault.ssp) is None:
            if fault.ssp is None:
                raise fault.error
            return
        if fault.kind is FaultKind.OUT_OF_RANGE:
            self._out_of_range(fault.ssp)
        elif fault.kind is FaultKind.MISSING:
            self._lost(
                fault.ssp,
                found="that it was deleted",
                expected="the partition to stay while its records are read",
            )
            self.reading.give_up(fault.ssp)
        else:
            raise fault.error

    def _out_of_range(self, ssp: SystemStreamPartition) -> None:
        position = self._position(ssp)
        earliest, end = self.consumer.bounds(ssp, _BOUNDS_S)
        wanted = self.reading.range_of(ssp)
        if earliest > position:
            self._lost(
                ssp,
                found=f"that its oldest record is {earliest}, behind the position {position} "
                f"of the range up to {wanted.end}",
                expected="to read it within the topic's retention",
            )
            self.reading.skip_to(ssp, earliest)
        elif end < position:
            self._cut_off(wanted, position, end)
        if (again := self.reading.position(ssp)) is not None:
            self.consumer.place_again(ssp, again)

    def _cut_off(self, range_: PartitionRange, position: int, end: int) -> None:
        self._lost(
            range_.ssp,
            found=f"an end at {end}, before the end {range_.end} of the range that is read from "
            f"{position}: records were cut off, or the topic was deleted and created again",
            expected=f"an end at {range_.end} or behind it",
        )
        self.reading.give_up(range_.ssp)

    def _lost(self, ssp: SystemStreamPartition, *, found: str, expected: str) -> None:
        losses = [Loss(subject=f"partition {kafka_name(ssp)}", found=found, expected=expected)]
        if self.options.fail_on_data_loss:
            fail_for(losses)
        warn_of(losses)

    def _position(self, ssp: SystemStreamPartition) -> int:
        position = self.reading.position(ssp)
        assert position is not None
        return position

    def _give_up(self) -> None:
        ssp, position = next(iter(self.reading.positions.items()))
        end = self.reading.range_of(ssp).end
        more = len(self.reading.positions) - 1
        others = f" (and {more} more partitions)" if more else ""
        last = self.consumer.last_fault()
        raise ServiceUnavailableError(
            f"partition {kafka_name(ssp)}{others}",
            found=f"no record for {self.options.poll_timeout_ms} ms at position {position} of the "
            f"range up to {end}" + (f"; last report: {last}" if last else ""),
            expected="the records that the brokers said to have",
            next_step="check that the partition has a leader and the brokers can be reached; raise "
            "pollTimeout if they are slow",
        )
