"""Progress reports as Spark makes them, of a query that reads one stream by Kinesis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_ssp.grouping.assignment import TaskAssignment
from spark_ssp.grouping.identifiers import (
    ShardId,
    ShardKey,
    SlotId,
    StreamName,
    SystemName,
    SystemStream,
    TaskName,
)
from spark_ssp.kafka_source.model import offset as kafka_offset
from spark_ssp.kafka_source.model.topic import partition_of
from spark_ssp.kinesis_source.model import offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    ShardEnd,
    ShardState,
)
from spark_ssp.kinesis_source.probing.shard_lag import progress_entry
from tests.support.kinesis.planning import shard_id

ORDERS = StreamName("orders")
COUNTERS = {
    "retries": 3,
    "throttles": 2,
    "reshards": 1,
    "dataLossWarnings": 0,
    "agentRestarts": 0,
}


def status(
    lag: Mapping[int, int], states: Mapping[str, int] | None = None, **counters: int
) -> dict[str, Any]:
    """The status of a reader with the leases of worker anne and with enhanced fan-out."""
    default = {"open": len(lag), "closed": 0, "waiting": 0, "ended": 0}
    return {
        "orders": {
            **progress_entry({shard_id(n): ms for n, ms in lag.items()}),
            "shards": default | dict(states or {}),
            "worker": "anne",
            "leases": {"owners": {"anne": len(lag), "bert": 1}, "free": 1, "notRead": 2},
            "fanOut": {"pushed": 3, "polled": 1},
            "alignment": {"spreadMillis": 90_500, "leftBehind": 1},
            "counters": COUNTERS | counters,
        }
    }


def end_offset(
    shards: int, *, slots: int = 4, ended: tuple[int, ...] = (), positions: Sequence[str] = ()
) -> dict[str, Any]:
    """`positions`: the last sequence numbers of the first shards."""
    numbers = [*positions, *["7"] * (shards - len(positions))]
    keys = [ShardKey(stream=ORDERS, shard=ShardId(shard_id(n))) for n in range(shards)]
    return offset.encode(
        offset.Offset(
            slots=slots,
            streams={ORDERS: offset.StreamEntry(created=EpochMillis(1))},
            assignment={key: SlotId(n % slots) for n, key in enumerate(keys)},
            states={
                key: ShardState(
                    position=ShardEnd()
                    if n in ended
                    else AfterRecord(sequence_number=SequenceNumber(numbers[n]))
                )
                for n, key in enumerate(keys)
            },
        )
    )


def kafka_end_offset(topic: str, partitions: int, position: int) -> dict[str, Any]:
    """An offset with a task for each partition."""
    stream = StreamName(topic)
    ssps = [partition_of(stream, number) for number in range(partitions)]
    return kafka_offset.encode(
        kafka_offset.Offset(
            topics={stream: None},
            positions=dict.fromkeys(ssps, position),
            assignment=TaskAssignment(
                grouper="partition",
                counts={SystemStream(system=SystemName("kafka"), stream=stream): (partitions,)},
                tasks={TaskName(f"Partition {ssp.partition}"): frozenset({ssp}) for ssp in ssps},
            ),
        )
    )


def report(
    end: Mapping[str, Any],
    latest: Mapping[str, Any] | None,
    *,
    batch: int = 7,
    run: str = "run-1",
    name: str | None = "etl",
    rows: int = 40,
    dropped: Sequence[int] = (3, 2),
) -> dict[str, Any]:
    """A report of one source. `latest`: its status; before PySpark 4.2, its end offset. `dropped`:
    the rows that the watermark dropped, by stateful operator."""
    return {
        "id": "query-1",
        "runId": run,
        "name": name,
        "timestamp": f"2026-11-23T20:00:{batch:02}.000Z",
        "batchId": batch,
        "durationMs": {"addBatch": 700, "triggerExecution": 900},
        "stateOperators": [{"numRowsDroppedByWatermark": count} for count in dropped],
        "sources": [
            {
                "endOffset": json.dumps(end),
                "latestOffset": "null" if latest is None else json.dumps(latest),
                "numInputRows": rows,
            }
        ],
    }
