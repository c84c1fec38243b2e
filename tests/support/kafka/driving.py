"""A query over an in-memory Kafka, driven as by Spark, but without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_ssp.checkpoint.assignments.store import AssignmentStore
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.batch_planner import BatchPlanner
from spark_ssp.kafka_source.client.api import KafkaService
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kafka_source.model.ranges import TaskRange, plan_ranges
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.rate_limit import ReadLimits
from spark_ssp.kafka_source.planning.spark_checkpoint import AnyOffset
from tests.support.fakes.clocks import ManualTime

Read = list[tuple[str, SystemStreamPartition, int, int]]
"""Task, partition, start and end of each range, in the order of reading within a task."""


def kafka_options(**changed: str) -> KafkaOptions:
    """Return the options of a query of the topic `orders` from its start that relies on its tasks;
    `_` in a name means `.`."""
    given = {name.replace("_", "."): value for name, value in changed.items()}
    if not {"subscribePattern", "assign"} & given.keys():
        given.setdefault("subscribe", "orders")
    if "grouper" not in given:
        given.setdefault("onPartitionCountChange", "keep")
    return parse_options(
        {"kafka.bootstrap.servers": "broker:9092", "startingOffsets": "earliest", **given}
    )


@dataclass
class FakeQuery:
    """Runs of one query. `restart` continues in a new process, which has only the logged
    offsets."""

    kafka: KafkaService
    options: KafkaOptions = field(default_factory=kafka_options)
    store: AssignmentStore | None = None
    time: ManualTime = field(default_factory=ManualTime)
    offset: AnyOffset = BEFORE_FIRST_BATCH
    record_bytes: int = 10
    large_bytes: int = 0
    without_records: range = range(0)
    """The offsets that compaction or aborted transactions have left without records."""
    sampled: list[TaskRange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, options: KafkaOptions | None = None) -> None:
        self.options = options or self.options
        self.planner = BatchPlanner(
            self.options,
            self.kafka,
            monotonic=self.time.monotonic,
            sleep=self.time.sleep,
            read=self._sample,
            store=self.store,
        )

    @property
    def limits(self) -> ReadLimits | None:
        """The limits that `source` derives from the options."""
        most, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if (most, size, self.options.min_offsets_per_trigger) == (None, None, None):
            return None
        return ReadLimits(max_offsets=most, max_bytes=size)

    def batch(self, *, once: bool = False) -> Read | None:
        """Plan a batch and treat it as done; None if there is nothing to do."""
        end = self.planner.next_offset(self.offset, None if once else self.limits)
        if end is None:
            return None
        assert decode(json.loads(json.dumps(encode(end)))) == end
        ranges = self.planner.ranges(self.offset, end)
        if isinstance(self.offset, Offset):
            assert ranges == plan_ranges(self.offset, end)
        self.offset = end
        return [
            (range_.task, part.ssp, part.start, part.end)
            for range_ in ranges
            for part in range_.partitions
        ]

    def counts(self) -> list[int]:
        """Return the number of offsets of each batch until there is nothing to do."""
        found = []
        while (read := self.batch()) is not None:
            found.append(sum(end - start for _, _, start, end in read))
            assert len(found) < 100
        return found

    def pass_time(self) -> None:
        """Advance the clock to the next discovery of partitions."""
        self.time.now += self.options.partition_discovery_interval_ms / 1000

    def _sample(self, range_: TaskRange) -> Iterator[pa.RecordBatch]:
        self.sampled.append(range_)
        (part,) = range_.partitions
        for begin in range(part.start, part.end, 100):
            last = min(begin + 100, part.end)
            offsets = [one for one in range(begin, last) if one not in self.without_records]
            values = [b"x" * self.size_of(offset) for offset in offsets]
            yield pa.RecordBatch.from_pydict(
                {
                    "key": pa.array([None] * len(values), pa.binary()),
                    "value": pa.array(values, pa.binary()),
                    "offset": pa.array(offsets, pa.int64()),
                }
            )

    def size_of(self, offset: int) -> int:
        """Return the bytes of a record: `record_bytes`, and `large_bytes` of the last in 500."""
        return self.large_bytes if self.large_bytes and offset % 500 == 499 else self.record_bytes
