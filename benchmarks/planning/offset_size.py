"""Offsets of many shards and partitions: their size, and the cost of writing and reading them.

    python -m benchmarks.planning.offset_size [--parts 1000 10000] [--rounds 9]

Spark writes an offset into the checkpoint for every batch, and hands each to Python and back
several times. Of Kinesis every shard has a position after a record and was once read to its latest
record; of Kafka there is one topic, with a task for each partition. Milliseconds are of CPU; `read`
compares the offset with the one that was written. `reported bytes` are those of a progress report:
the start, the end, and of Kafka the lag, or the latest offset of Spark's own source.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from benchmarks.planning import partition_planning
from benchmarks.support.growth import cpu_ms
from benchmarks.support.report import Report
from spark_ssp.common.versioned_json import Json
from spark_ssp.grouping.assignment import GroupBySystemStreamPartition
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kafka_source.batch_planner import lag_metrics
from spark_ssp.kafka_source.model import offset as kafka
from spark_ssp.kafka_source.planning.plan_batch import BatchRules
from spark_ssp.kinesis_source.model import offset as kinesis
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    ShardState,
)

SLOTS = 64


def of_kinesis(shards: int) -> kinesis.Offset:
    """Every shard after a record, all of them read to the latest record within three seconds. The
    sequence numbers have the fields of the service's: the creation of the shard, a count, the time
    and the shard's number."""
    stream, chance = StreamName("orders"), Random(shards)

    def sequence_number(shard: int) -> SequenceNumber:
        count, second = chance.randrange(1 << 36), 1_763_720_000 + chance.randrange(60)
        fields = f"2{1_700_000_000:09x}{shard % 16:x}{count:016x}00{second:09x}{shard:08x}2"
        return SequenceNumber(str(int(fields, 16)))

    keys = [ShardKey(stream=stream, shard=ShardId(f"shardId-{n:012d}")) for n in range(shards)]
    return kinesis.Offset(
        slots=SLOTS,
        streams={stream: kinesis.StreamEntry(created=EpochMillis(1_700_000_000_000))},
        assignment={key: SlotId(n % SLOTS) for n, key in enumerate(keys)},
        states={
            key: ShardState(
                position=AfterRecord(sequence_number=sequence_number(n), sub=0),
                last_caught_up_ms=EpochMillis(1_763_720_100_000 + chance.randrange(3_000)),
            )
            for n, key in enumerate(keys)
        },
    )


def of_kafka(partitions: int) -> kafka.Offset:
    """Every partition a billion records further than where the batch before began, with the tasks
    of the default options."""
    rules = BatchRules(grouping=FixedTasks(grouper=GroupBySystemStreamPartition()))
    first = partition_planning.after(
        kafka.BEFORE_FIRST_BATCH, partition_planning.found(partitions, 0), rules
    )
    return partition_planning.after(
        first, partition_planning.found(partitions, 1_000_000_000), rules
    )


def of_spark(offset: kafka.Offset) -> Json:
    """The offset of Spark's own source with the same positions."""
    document: Json = {}
    for ssp in sorted(offset.positions):
        document.setdefault(ssp.stream, {})[str(ssp.partition)] = offset.positions[ssp]
    return document


def reported_bytes(offset: Json, latest: Json | None) -> int:
    """The bytes of a batch in a progress report, without the blanks of indented JSON."""
    documents = {"startOffset": offset, "endOffset": offset, "latestOffset": latest}
    return len(json.dumps(documents, separators=(",", ":")))


def run(*, parts: Sequence[int], rounds: int) -> Report:
    """Measure offsets of each number of shards and of as many partitions."""
    report = Report(
        name="planning.offset_size",
        command="python -m benchmarks.planning.offset_size "
        f"--parts {' '.join(str(count) for count in parts)} --rounds {rounds}",
        columns=("offset of", "bytes", "bytes each", "written ms", "read ms", "reported bytes"),
    )
    for count in parts:
        _add(
            report,
            f"{count:,} shards",
            count,
            of_kinesis(count),
            kinesis.encode,
            kinesis.decode,
            rounds,
        )
    for count in parts:
        offset = of_kafka(count)
        lag: dict[StreamName, dict[int, int]] = {}
        for ssp, position in offset.positions.items():
            lag.setdefault(ssp.stream, {})[ssp.partition] = position
        _add(
            report,
            f"{count:,} partitions",
            count,
            offset,
            kafka.encode,
            kafka.decode,
            rounds,
            latest=lag_metrics(lag),
        )
        _add_spark(report, count, of_spark(offset))
    return report


def _add(
    report: Report,
    name: str,
    count: int,
    offset: Any,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    rounds: int,
    latest: Json | None = None,
) -> None:
    document = encode(offset)
    text, reported = json.dumps(document), reported_bytes(document, latest)
    written = cpu_ms(lambda: json.dumps(encode(offset)), rounds)
    read = cpu_ms(partial(_read, text, offset, decode), rounds)
    report.add(
        name,
        f"{len(text):,}",
        f"{len(text) / count:.0f}",
        written.text(1),
        read.text(1),
        f"{reported:,}",
        of=name,
        parts=count,
        bytes=len(text),
        written_ms=written.median,
        read_ms=read.median,
        reported_bytes=reported,
    )


def _add_spark(report: Report, count: int, document: Json) -> None:
    name, text = (
        f"{count:,} partitions, Spark's source",
        json.dumps(document, separators=(",", ":")),
    )
    reported = reported_bytes(document, document)
    report.add(
        name,
        f"{len(text):,}",
        f"{len(text) / count:.0f}",
        "",
        "",
        f"{reported:,}",
        of=name,
        parts=count,
        bytes=len(text),
        reported_bytes=reported,
    )


def _read(text: str, offset: object, decode: Callable[[Any], Any]) -> None:
    if decode(json.loads(text)) != offset:
        raise AssertionError("an offset does not read back as it was written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=9)
    run(**vars(parser.parse_args())).publish()


if __name__ == "__main__":
    main()
