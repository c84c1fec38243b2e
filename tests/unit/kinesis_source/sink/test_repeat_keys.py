"""Rows that are written by several attempts of a task, dropped by their repeat keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    ShardKey,
    StreamName,
)
from spark_ssp.kinesis_source.aggregation.repeat_keys import WriteId
from spark_ssp.kinesis_source.model.shard import EpochMillis, RecordPage, Shard
from spark_ssp.kinesis_source.reading.arrow_batches import Chunk
from spark_ssp.kinesis_source.reading.range_filter import Match, PageSlice
from spark_ssp.kinesis_source.reading.row_builder import build_rows
from spark_ssp.kinesis_source.sink.aggregation import AggregateLimits, PackedRecord, Packing
from spark_ssp.kinesis_source.sink.shard_map import ShardMap
from tests.support.kinesis.sink_rows import Entry, rows_of

ORDERS, COPIES = StreamName("orders"), StreamName("copies")
SHARD = ShardId("shardId-000000000000")
MAX_BYTES = 61_100
LARGE = Entry(bytes(MAX_BYTES - 1), "a")
"""A row that fits into a record, and not into an aggregate."""

ROWS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([b"x", b"y", b"z"])), max_size=20
)


def shards(count: int) -> ShardMap:
    width = (MAX_HASH_KEY + 1) // count
    return ShardMap(
        Shard(
            shard_id=ShardId(f"{count}-{number}"),
            hash_range=HashRange(first=number * width, last=(number + 1) * width - 1),
            first_sequence_number=SequenceNumber("1"),
            closed=False,
        )
        for number in range(count)
    )


def write_of(task: int) -> WriteId:
    return WriteId(source="6f1c", stream=ORDERS, batch=12, task=task)


def attempt(
    rows: Sequence[tuple[str, bytes]], task: int, random: Random, stored: list[PackedRecord]
) -> None:
    """Write the rows of a task, in batches and in some order; up to a failure, if there is one."""
    limits = AggregateLimits(record_bytes=MAX_BYTES, rows=random.randint(1, 4))
    packing = Packing(shards(1), limits, write_of(task))
    waiting = [Entry(data, key) for key, data in random.sample(rows, len(rows))]
    while waiting:
        size = random.randint(1, len(waiting))
        packed = packing.pack(rows_of(waiting[:size]))
        waiting = waiting[size:]
        for record in packed:
            if random.random() < 0.3:  # a reshard; sometimes both forms are read
                packing.shard_map = shards(random.choice([1, 2, 4]))
                if random.random() < 0.5:
                    stored.append(record)
                stored.extend(packing.repack(record.rows))
            else:
                stored.extend([record] * random.choice([1, 1, 1, 2]))  # 2: the answer was lost


def read(stored: Sequence[PackedRecord], stream: StreamName) -> Chunk:
    count = len(stored)
    page = RecordPage(
        sequence_numbers=[SequenceNumber(str(100 + number)) for number in range(count)],
        partition_keys=[record.partition_key for record in stored],
        arrival_ms=[EpochMillis(number) for number in range(count)],
        data=[record.data for record in stored],
        next_iterator=None,
        millis_behind_latest=0,
        service_time=EpochMillis(0),
    )
    whole = PageSlice(
        begin=0,
        end=count,
        after_sub=None,
        up_to_sub=None,
        start_match=Match.FOUND,
        instead_of_expected=None,
        end_match=Match.FOUND,
        instead_of_end=None,
    )
    shard = ShardKey(stream=stream, shard=SHARD)
    return build_rows(page, whole, shard, deaggregate=True, include_repeat_keys=True)


@given(st.lists(ROWS, min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_each_row_is_left_once_after_any_attempts(
    tasks: list[list[tuple[str, bytes]]], random: Random
) -> None:
    stored: list[PackedRecord] = []
    for task, rows in enumerate(tasks):
        for _ in range(random.randint(0, 2)):
            failed: list[PackedRecord] = []
            attempt(rows, task, random, failed)
            stored += random.sample(failed, random.randint(0, len(failed)))
        attempt(rows, task, random, stored)
    wanted = Counter(row for rows in tasks for row in rows)
    found = read(random.sample(stored, len(stored)), ORDERS)
    assert found.repeat_keys is not None
    rows_of = dict(
        zip(found.repeat_keys, zip(found.partition_keys, found.data, strict=True), strict=True)
    )
    assert Counter(rows_of.values()) == wanted
    # Copied to another stream, the tags mean nothing: every row stays.
    copied = read(stored, COPIES)
    assert copied.repeat_keys is not None
    assert len(set(copied.repeat_keys)) == len(copied) == len(found)


def test_a_row_that_is_too_large_for_an_aggregate_stays_twice() -> None:
    packing = Packing(shards(1), AggregateLimits(record_bytes=MAX_BYTES), write_of(0))
    stored = [*packing.pack(rows_of([LARGE])), *packing.pack(rows_of([LARGE]))]
    found = read(stored, ORDERS)
    assert found.repeat_keys == [f"orders/{SHARD}/{number}/0" for number in (100, 101)]
