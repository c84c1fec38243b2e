"""How many bytes an offset holds, for `maxBytesPerTrigger`: seen in a few records of each topic.

Brokers tell offsets, not sizes, and what tasks read cannot be reported to the driver. So the driver
reads a few of the records that the next batch begins with, the way a task does, when it has not
done so for a while. The estimate follows the topic: half of what is known is the newest sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka_source.model.offset import Positions
from kafka_source.model.ranges import PartitionRange, TaskRange
from kafka_source.model.topic import kafka_name
from kafka_source.planning.topic_metadata import Metadata, offsets_of
from task_grouping.identifiers import StreamName, SystemStreamPartition, TaskName

if TYPE_CHECKING:
    import pyarrow as pa

ReadTask = Callable[[TaskRange], "Iterator[pa.RecordBatch]"]

SAMPLE_OFFSETS: Final = 100
SAMPLE_PERIOD_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    bytes_per_offset: float
    at: float


class RecordSizeEstimator:
    """What is known of each topic. `read` reads as a task does, `monotonic` is in seconds."""

    def __init__(self, read: ReadTask, monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._known: dict[StreamName, _Estimate] = {}

    def estimate(self, metadata: Metadata, positions: Positions) -> Mapping[StreamName, int]:
        """Bytes of key and value per offset, at least 1, of each topic that was ever seen; topics
        with something to read behind `positions` are looked into when it is time."""
        now = self._monotonic()
        for topic, ssp in _longest(metadata, positions).items():
            known = self._known.get(topic)
            if known is not None and now - known.at < SAMPLE_PERIOD_S:
                continue
            seen = self._sample(metadata, ssp, positions[ssp])
            mean = seen if known is None else (known.bytes_per_offset + seen) / 2
            self._known[topic] = _Estimate(bytes_per_offset=mean, at=now)
        return {
            topic: max(1, round(self._known[topic].bytes_per_offset))
            for topic in sorted(self._known)
        }

    def _sample(self, metadata: Metadata, ssp: SystemStreamPartition, position: int) -> float:
        end = min(position + SAMPLE_OFFSETS, offsets_of(metadata, ssp).end)
        part = PartitionRange(
            ssp=ssp, topic_id=metadata[ssp.stream].topic_id, start=position, end=end
        )
        task = TaskRange(task=TaskName(f"sample of {kafka_name(ssp)}"), partitions=(part,))
        return sum(_size(batch) for batch in self._read(task)) / (end - position)


def _longest(metadata: Metadata, positions: Positions) -> dict[StreamName, SystemStreamPartition]:
    """Of each topic that has something to read, the partition that has most of it."""
    longest: dict[StreamName, tuple[int, SystemStreamPartition]] = {}
    for ssp in sorted(positions):
        lag = offsets_of(metadata, ssp).end - positions[ssp]
        if lag > longest.get(ssp.stream, (0, ssp))[0]:
            longest[ssp.stream] = (lag, ssp)
    return {topic: ssp for topic, (_, ssp) in longest.items()}


def _size(batch: pa.RecordBatch) -> int:
    """Of keys and values, with some bytes for each record as brokers have them too."""
    return sum(batch.column(name).nbytes for name in ("key", "value"))
