"""The limits of a batch: `maxOffsetsPerTrigger`, `maxBytesPerTrigger`, `minOffsetsPerTrigger`.

The first two are divided as in Spark's source (`KafkaMicroBatchStream.rateLimit`): each partition
gets a part of the limit in proportion to its backlog, rounded down, but at least one offset, so
that small partitions never starve. The remainder of rounding is not distributed. Offsets are
counted, not records: compacted records and transaction markers count as well.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition, TaskName
from spark_ssp.kafka_source.model.offset import Positions
from spark_ssp.kafka_source.model.ranges import PartitionRange, TaskRange
from spark_ssp.kafka_source.model.topic import kafka_name
from spark_ssp.kafka_source.planning.topic_metadata import Metadata, offsets_of

if TYPE_CHECKING:
    import pyarrow as pa

Lags = Mapping[SystemStreamPartition, int]
"""The number of offsets to read in each partition, 1 or more."""

DEFAULT_BYTES_PER_OFFSET: Final = 1024
"""The assumed bytes per offset of a topic that has not been sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """The limits of one batch; None means unlimited. `bytes_per_offset` is the estimate for each
    sampled topic, 1 or more."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    bytes_per_offset: Mapping[StreamName, int] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """True if no more may be read."""
        return (self.max_offsets is not None and self.max_offsets <= 0) or (
            self.max_bytes is not None and self.max_bytes <= 0
        )

    def allow(self, lags: Lags) -> bool:
        """Return whether all of `lags` may be read."""
        part, whole = self._part(lags)
        return part >= whole

    def usage(self, lags: Lags) -> float:
        """Return the part of the stricter limit that reading `lags` uses; above 1 they exceed
        it."""
        by_offsets = 0.0 if self.max_offsets is None else sum(lags.values()) / self.max_offsets
        by_bytes = 0.0 if self.max_bytes is None else self._bytes(lags) / self.max_bytes
        return max(by_offsets, by_bytes)

    def without(self, granted: Lags) -> ReadLimits:
        """Return the limits that remain after `granted` is read."""
        max_offsets, max_bytes = self.max_offsets, self.max_bytes
        return replace(
            self,
            max_offsets=None if max_offsets is None else max_offsets - sum(granted.values()),
            max_bytes=None if max_bytes is None else max_bytes - self._bytes(granted),
        )

    def split(self, lags: Lags) -> dict[SystemStreamPartition, int]:
        """Return the number of offsets that each partition reads of its backlog, at least 1."""
        part, whole = self._part(lags)
        if part >= whole:
            return dict(lags)
        return {ssp: max(1, lag * part // whole) for ssp, lag in lags.items()}

    def _part(self, lags: Lags) -> tuple[int, int]:
        """Return the stricter limit as a fraction of the backlog: numerator and denominator."""
        part, whole = 1, 1
        if self.max_offsets is not None:
            part, whole = self.max_offsets, sum(lags.values())
        if self.max_bytes is not None:
            total = self._bytes(lags)
            if self.max_bytes * whole < part * total:
                part, whole = self.max_bytes, total
        return part, whole

    def _bytes(self, offsets: Lags) -> int:
        return sum(
            number * self.bytes_per_offset.get(ssp.stream, DEFAULT_BYTES_PER_OFFSET)
            for ssp, number in offsets.items()
        )


UNLIMITED: Final = ReadLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerDelay:
    """`minOffsetsPerTrigger`, `maxTriggerDelay`, and the time that the query has waited.
    `waited_ms` is the time since a batch was last planned without delay; None before the first one,
    which is never delayed."""

    min_offsets: int
    max_delay_ms: int
    waited_ms: int | None

    def should_delay(self, backlog: int) -> bool:
        """Return whether to wait for more than `backlog` offsets."""
        if self.waited_ms is None or self.waited_ms >= self.max_delay_ms:
            return False
        return backlog < self.min_offsets


# --- Bytes per offset -----------------------------------------------------------------------------

ReadTask = Callable[[TaskRange], "Iterator[pa.RecordBatch]"]

SAMPLE_BYTES: Final = 1 << 20
"""The size of a sample, unless the limit is smaller. It may be exceeded by one batch of a task."""
SAMPLE_OFFSETS: Final = 10_000
"""The most offsets of a sample."""
SAMPLE_PERIOD_S: Final = 30.0
SAMPLED_COLUMNS: Final = ("key", "value", "offset")
"""The columns that `read` is to return, besides `headers` if the query reads them. A record with
another one that cannot be decoded is no error before a task that needs it reads it."""
_LEAST_DENSITY: Final = 0.1
"""The assumed records per offset where a sample has fewer: compaction and aborted transactions
leave gaps, after which a batch may reach records that lie close together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """The first records of a batch in one partition: their size, and the offsets that they span."""

    size: int
    records: int
    offsets: int

    def bytes_per_record(self, known: float) -> float:
        """Return the mean size of a record; without one, the `known` size."""
        return self.size / self.records if self.records else known

    def bytes_per_offset(self, known: float) -> float:
        """Return the mean size of an offset, as `bytes_per_record`."""
        return max(self.size / self.offsets, _LEAST_DENSITY * self.bytes_per_record(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    bytes_per_offset: float
    bytes_per_record: float
    at: float


class RecordSizeEstimator:
    """Estimates bytes per offset for `maxBytesPerTrigger`, from samples of each topic.

    Brokers return offsets, not sizes, and tasks cannot report to the driver. So the driver reads
    the first records of the next batch, like a task, if the limit leaves some of the backlog for
    later batches, or the last sample is older than `SAMPLE_PERIOD_S`. A sample is counted in bytes,
    not in records: among many small records there may be a few large ones that make up most of the
    data. The estimate follows the topic: it rises at once, and falls halfway with each sample.

    `read` reads the `SAMPLED_COLUMNS` of a range as a task does; `monotonic` is in seconds.
    """

    def __init__(self, read: ReadTask, monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._known: dict[StreamName, _Estimate] = {}

    def estimate(
        self, metadata: Metadata, positions: Positions, max_bytes: int
    ) -> Mapping[StreamName, int]:
        """Return the bytes read per offset, at least 1, of each sampled topic. Topics
        with unread records after `positions` are sampled if it is time; `max_bytes` is the limit of
        the batch."""
        now = self._monotonic()
        exceeds = self._backlog_bytes(metadata, positions) > max_bytes
        for topic, ssp in _longest(metadata, positions).items():
            known = self._known.get(topic)
            if known is not None and not exceeds and now - known.at < SAMPLE_PERIOD_S:
                continue
            sample = self._sample(metadata, ssp, positions[ssp], min(SAMPLE_BYTES, max_bytes))
            size = DEFAULT_BYTES_PER_OFFSET if known is None else known.bytes_per_record
            mean = sample.bytes_per_offset(size)
            if known is not None:
                mean = max(mean, (known.bytes_per_offset + mean) / 2)
            self._known[topic] = _Estimate(
                bytes_per_offset=mean, bytes_per_record=sample.bytes_per_record(size), at=now
            )
        return {
            topic: max(1, round(self._known[topic].bytes_per_offset))
            for topic in sorted(self._known)
        }

    def _backlog_bytes(self, metadata: Metadata, positions: Positions) -> float:
        """Return the estimated size of the unread records of topics that were sampled."""
        return sum(
            max(0, offsets_of(metadata, ssp).end - position)
            * self._known[ssp.stream].bytes_per_offset
            for ssp, position in positions.items()
            if ssp.stream in self._known
        )

    def _sample(
        self, metadata: Metadata, ssp: SystemStreamPartition, position: int, size: int
    ) -> _Sample:
        end = min(position + SAMPLE_OFFSETS, offsets_of(metadata, ssp).end)
        part = PartitionRange(
            ssp=ssp, topic_id=metadata[ssp.stream].topic_id, start=position, end=end
        )
        task = TaskRange(task=TaskName(f"sample of {kafka_name(ssp)}"), partitions=(part,))
        read, records, batches = 0, 0, self._read(task)
        for batch in batches:
            read += _size(batch)
            records += batch.num_rows
            if read >= size and batch.num_rows:
                end = min(end, batch.column("offset")[-1].as_py() + 1)
                break
        if isinstance(batches, Generator):
            batches.close()
        return _Sample(size=read, records=records, offsets=end - position)


def _longest(metadata: Metadata, positions: Positions) -> dict[StreamName, SystemStreamPartition]:
    """Return the partition with the most unread offsets, for each topic that has some."""
    longest: dict[StreamName, tuple[int, SystemStreamPartition]] = {}
    for ssp in sorted(positions):
        lag = offsets_of(metadata, ssp).end - positions[ssp]
        if lag > longest.get(ssp.stream, (0, ssp))[0]:
            longest[ssp.stream] = (lag, ssp)
    return {topic: ssp for topic, (_, ssp) in longest.items()}


def _size(batch: pa.RecordBatch) -> int:
    """Return the bytes of keys, values and headers, including Arrow's offsets, as brokers have some
    per record too."""
    return sum(batch.column(name).nbytes for name in batch.schema.names if name != "offset")
