"""Planning of Kafka over many partitions: groups, limits, ranges, offsets.

    python -m benchmarks.planning.partition_planning [--partitions 10000] [--tasks 64] [--rounds 5]

In this process, without brokers. One topic, with new records in each partition: `idle` is a batch
without any; `batch` plans one of all new records, `limited` one with maxOffsetsPerTrigger and
maxBytesPerTrigger at half of it; `first batch` groups all partitions; `expansion` meets a topic
that has twice the partitions of the batch before. Each with a task for each partition, and with a
fixed number of them. The offset is written and read as JSON, as Spark has it done for every batch.
The bare loop writes the same positions, of each partition one number, as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.support.growth import Work, add_grown, columns, draw, grown
from benchmarks.support.report import OUTPUT, Report
from spark_ssp.grouping.assignment import GroupByPartition
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kafka_source.model.ranges import plan_ranges
from spark_ssp.kafka_source.model.topic import TopicId
from spark_ssp.kafka_source.planning.plan_batch import BatchPlan, BatchRules, plan_batch
from spark_ssp.kafka_source.planning.rate_limit import ReadLimits
from spark_ssp.kafka_source.planning.topic_metadata import (
    BatchContext,
    Metadata,
    PartitionOffsets,
    TopicMetadata,
)

TOPIC: Final = StreamName("orders")
BEHIND: Final = 1_000
"""Offsets to read in each partition."""


def found(partitions: int, end: int) -> Metadata:
    """Return the topic's metadata with all partitions readable up to `end`."""
    return {
        TOPIC: TopicMetadata(
            topic_id=TopicId("bench"),
            partitions={
                number: PartitionOffsets(earliest=0, end=end + number % 7)
                for number in range(partitions)
            },
        )
    }


def rules(tasks: int | None) -> BatchRules:
    return BatchRules(grouping=FixedTasks(grouper=GroupByPartition(tasks=tasks)))


def after(start: Offset, now: Metadata, by: BatchRules) -> Offset:
    """Return the end of the batch after `start`."""
    return plan_batch(BatchContext(start=start, metadata=now), by).end


def _planned(start: Offset, now: Metadata, by: BatchRules, ranges: int) -> BatchPlan:
    plan = plan_batch(BatchContext(start=start, metadata=now), by)
    read = sum(len(one.partitions) for one in plan_ranges(start, plan.end))
    if read != ranges:
        raise AssertionError(f"{read} partitions are read, not {ranges}")
    return plan


def _decoded(text: str, wanted: Offset) -> None:
    if decode(json.loads(text)) != wanted:
        raise AssertionError("an offset does not read back as it was written")


def steps(tasks: int | None, partitions: int) -> dict[str, Work]:
    """Return the measured steps."""
    by = rules(tasks)
    half = partitions // 2
    news = found(partitions, BEHIND)
    start = after(BEFORE_FIRST_BATCH, found(partitions, 0), by)
    small = after(BEFORE_FIRST_BATCH, found(half, 0), by)
    limit = partitions * BEHIND // 2
    limited = replace(
        by,
        limits=ReadLimits(max_offsets=limit, max_bytes=limit * 200, bytes_per_offset={TOPIC: 200}),
    )
    end = _planned(start, news, by, partitions).end
    text = json.dumps(encode(end))
    return {
        "idle": partial(_planned, start, found(partitions, 0), by, 0),
        "batch": partial(_planned, start, news, by, partitions),
        "limited": partial(_planned, start, news, limited, partitions),
        "first batch": partial(_planned, BEFORE_FIRST_BATCH, news, by, partitions),
        "expansion": partial(_planned, small, found(2 * half, BEHIND), by, 2 * half),
        "offset written": lambda: json.dumps(encode(end)),
        "offset read": partial(_decoded, text, end),
    }


def bare(partitions: int) -> Work:
    """The bare loop."""
    return partial(json.dumps, {str(number): BEHIND + number for number in range(partitions)})


def run(*, partitions: int, tasks: Sequence[int], rounds: int) -> Report:
    """Measure up to `partitions` partitions: a task for each, and each number of `tasks`."""
    report = Report(
        name="planning.partition_planning",
        command=f"python -m benchmarks.planning.partition_planning --partitions {partitions} "
        f"--tasks {' '.join(str(count) for count in tasks)} --rounds {rounds}",
        columns=columns("tasks: step", "bare JSON"),
    )
    for count in (None, *tasks):
        grew = grown(partial(steps, count), bare, size=partitions, rounds=rounds)
        add_grown(report, "as partitions" if count is None else f"{count} tasks", grew)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    report = run(partitions=arguments.partitions, tasks=arguments.tasks, rounds=arguments.rounds)
    report.publish()
    draw(report, OUTPUT / f"{report.name}.png")


if __name__ == "__main__":
    main()
