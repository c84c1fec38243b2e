"""Snapshots of queries, from progress reports in each form in which PySpark returns them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spark_ssp.common.spark.reader_status import lacks_status
from spark_ssp.grouping.identifiers import SlotId, StreamName
from spark_ssp.kinesis_source.model import offset as kinesis
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    ShardEnd,
    ShardState,
)
from spark_ssp.kinesis_source.probing.shard_lag import MAX_REPORTED_SHARDS, progress_entry
from spark_ssp.operations.snapshot import (
    AlignmentSnapshot,
    FanOutCounts,
    LeaseCounts,
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    query_snapshot,
)
from tests.support.kinesis.planning import shard_id as shard
from tests.support.kinesis.shards import key
from tests.support.operations import reports
from tests.support.operations.reports import kafka_end_offset

ORDERS = StreamName("orders")
READING = ShardState(position=AfterRecord(sequence_number=SequenceNumber("7")))
ENDED = ShardState(position=ShardEnd())


def reading(
    slots: Mapping[int, int], *, ended: tuple[int, ...] = (), waiting: tuple[int, ...] = ()
) -> kinesis.Offset:
    """An offset of four slots: `slots` has the slot of each shard."""
    return kinesis.Offset(
        slots=4,
        streams={ORDERS: kinesis.StreamEntry(created=EpochMillis(1))},
        assignment={key(n): SlotId(slot) for n, slot in slots.items()},
        states={key(n): ENDED if n in ended else READING for n in slots},
        waiting={key(n): READING for n in waiting},
    )


def progress(*sources: tuple[str, str], rows: int | None = None) -> dict[str, Any]:
    """A report of sources, each with its end offset and its latest offset."""
    return {
        "id": "query-id",
        "runId": "run-id",
        "name": None,
        "timestamp": "2026-11-23T20:00:00.250Z",
        "batchId": 7,
        "batchDuration": 900,
        "numInputRows": rows,
        "durationMs": {"addBatch": 700, "triggerExecution": 900},
        "sources": [
            {"endOffset": end, "latestOffset": latest, "numInputRows": 5} for end, latest in sources
        ],
    }


def of_kinesis(offset: kinesis.Offset, entry: dict[str, Any] | None) -> QuerySnapshot:
    latest = "null" if entry is None else json.dumps({"orders": entry})
    return query_snapshot(progress((json.dumps(kinesis.encode(offset)), latest)))


def test_a_report_has_the_query_its_batch_and_its_phases() -> None:
    found = of_kinesis(reading({0: 0}), None)
    assert (found.query_id, found.run_id, found.batch_id) == ("query-id", "run-id", 7)
    assert found.label == "query-id"
    assert found.time_ms == 1_795_464_000_250
    assert found.rows == 5
    assert found.phases_ms == {"addBatch": 700, "triggerExecution": 900}
    assert found.dropped == 0


def test_the_rows_that_the_watermark_dropped_are_those_of_all_operators() -> None:
    operators = [{"numRowsDroppedByWatermark": count} for count in (3, 0, 2)]
    assert query_snapshot(progress() | {"stateOperators": operators}).dropped == 5


def test_shards_have_slots_states_lag_and_parents() -> None:
    entry = progress_entry({shard(0): 0, shard(1): 80, shard(2): 900, shard(3): 900, shard(4): 950})
    entry |= {
        "worker": "anne",
        "closedShards": [shard(2)],
        "parents": {shard(1): [shard(0)], shard(3): [shard(2)]},
        "shards": {"open": 1, "closed": 1, "waiting": 2, "ended": 1},
        "leases": {"owners": {"anne": 3, "bert": 2}, "free": 1},
        "fanOut": {"pushed": 2, "polled": 1},
        "alignment": {"spreadMillis": 40, "leftBehind": 1, "holdsBack": shard(3)},
        "counters": {"reshards": 2},
    }
    (source,) = of_kinesis(reading({0: 3, 1: 0, 2: 1}, ended=(0,), waiting=(3,)), entry).sources
    assert source.format is SourceFormat.KINESIS
    assert source.tasks == ("0", "1", "2", "3")
    assert (source.counters, source.worker) == ({"reshards": 2}, "anne")
    (stream,) = source.streams
    waits = ReadState.WAITING
    assert stream.shards == (
        ShardSnapshot(shard=shard(0), state=ReadState.ENDED, task="3", lag=0, owner="anne"),
        ShardSnapshot(
            shard=shard(1),
            state=ReadState.OPEN,
            task="0",
            lag=80,
            owner="anne",
            parents=(shard(0),),
        ),
        ShardSnapshot(shard=shard(2), state=ReadState.CLOSED, task="1", lag=900, owner="anne"),
        ShardSnapshot(shard=shard(3), state=waits, lag=900, parents=(shard(2),)),
        ShardSnapshot(shard=shard(4), state=waits, lag=950),
    )
    assert (stream.max_lag, stream.total_lag, stream.not_shown_max_lag) == (950, 2830, None)
    assert stream.states == {
        ReadState.OPEN: 1,
        ReadState.CLOSED: 1,
        ReadState.WAITING: 2,
        ReadState.ENDED: 1,
    }
    assert stream.leases == LeaseCounts(by_owner={"anne": 3, "bert": 2}, free=1)
    assert stream.fan_out == FanOutCounts(pushed=2, polled=1)
    assert stream.alignment == AlignmentSnapshot(spread_ms=40, left_behind=1, holds_back=shard(3))


def test_the_lag_of_shards_that_a_report_leaves_out_is_bounded_and_not_zero() -> None:
    count = MAX_REPORTED_SHARDS + 2
    entry = progress_entry({shard(n): 1000 + n for n in range(count)})
    (source,) = of_kinesis(reading({n: n % 4 for n in range(count)}), entry).sources
    (stream,) = source.streams
    assert [one.lag for one in stream.shards[:3]] == [None, None, 1002]
    assert stream.not_shown_max_lag == 1002
    assert stream.states[ReadState.OPEN] == count


def test_without_a_status_only_the_offset_is_known() -> None:
    (source,) = of_kinesis(reading({0: 0, 1: 1}, ended=(1,)), None).sources
    (stream,) = source.streams
    assert [(one.state.value, one.lag) for one in stream.shards] == [
        ("open", None),
        ("ended", None),
    ]
    assert (stream.max_lag, stream.leases, source.counters) == (None, None, None)
    assert (stream.states[ReadState.OPEN], stream.states[ReadState.ENDED]) == (1, 1)


@pytest.mark.parametrize("write", [json.dumps, str])  # str: PySpark before 4.2
def test_partitions_have_tasks_and_lag_in_offsets(write: Callable[[Any], str]) -> None:
    end = write(kafka_end_offset(ORDERS, 11, 3))
    status = {
        "topics": {
            "orders": {
                "offsetsBehindLatest": {str(n): n for n in range(11)},
                "maxOffsetsBehindLatest": 10,
                "sumOffsetsBehindLatest": 55,
            }
        },
        "maxOffsetsBehindLatest": 10,
        "counters": {"retries": 1},
    }
    (source,) = query_snapshot(progress((end, end)), [status]).sources
    assert source.format is SourceFormat.KAFKA
    assert source.tasks == tuple(f"Partition {n}" for n in range(11))
    assert source.counters == {"retries": 1}
    (topic,) = source.streams
    assert topic.shards[10] == ShardSnapshot(
        shard="10", state=ReadState.OPEN, task="Partition 10", lag=10, position=3
    )
    assert (topic.max_lag, topic.total_lag, topic.states[ReadState.OPEN]) == (10, 55, 11)


def test_sources_of_other_packages_are_left_out() -> None:
    own = json.dumps(kinesis.encode(reading({0: 0})))
    spark_kafka = json.dumps({"topics": {"0": 23}, "v": {"0": 1}})
    found = query_snapshot(
        progress(("5", "None"), (spark_kafka, spark_kafka), (own, "null"), rows=9)
    )
    assert [source.format for source in found.sources] == [SourceFormat.KINESIS]
    assert found.rows == 9


def test_the_offsets_of_other_packages_may_be_any_text() -> None:
    progress = reports.report(reports.end_offset(1), reports.status({0: 7}))
    for text in ("ts=2026-11-23", "(", "", "[" * 100_000):
        progress["sources"].append({"endOffset": text, "latestOffset": text, "numInputRows": 1})
    snapshot = query_snapshot(progress)
    assert [source.format for source in snapshot.sources] == [SourceFormat.KINESIS]
    assert not any(map(lacks_status, progress["sources"]))
