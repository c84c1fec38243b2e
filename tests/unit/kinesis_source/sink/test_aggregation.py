"""Packing rows into aggregates: any reader returns the rows that were packed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    HashRange,
    SequenceNumber,
    ShardId,
    StreamName,
    hash_of,
)
from spark_ssp.kinesis_source.model.deaggregation import (
    COUNT_TAG,
    MAGIC,
    WRITE_TAG,
    KeyFilter,
    UserRecord,
    WriteId,
    has_aggregate_magic,
    last_sub,
    open_aggregate,
    split,
)
from spark_ssp.kinesis_source.model.shard import Shard
from spark_ssp.kinesis_source.sink.aggregation import (
    MAX_ROWS,
    AggregateLimits,
    PackedRecord,
    Row,
    ShardMap,
    are_read_from,
    check_wrapping,
    group_by_shard,
    rows_of,
    take_record,
)
from spark_ssp.kinesis_source.sink.columns import RecordTooLargeError
from tests.support.kcl.kpl import GOLDEN, new_message, seal
from tests.support.kinesis import sink_writer
from tests.support.kinesis.sink_writer import Entry, shard_of

MIB = 1 << 20
LIMITS = AggregateLimits(record_bytes=MIB)
WRITE = WriteId(source="6f1c", stream=StreamName("orders"), batch=12, task=3)

KEYS = st.one_of(
    st.sampled_from(["a", "b", "клён", "\N{GRINNING FACE}" * 256, "k" * 256]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
)
HASH_KEYS = st.one_of(
    st.none(), st.sampled_from(["0", str(MAX_HASH_KEY)]), st.integers(0, MAX_HASH_KEY).map(str)
)
DATA = st.one_of(
    st.binary(max_size=40),
    st.integers(59_900, 59_996).map(lambda size: MAGIC + bytes(size)),
    st.sampled_from([0, 127, 128, 16_383, 16_384, 60_000]).map(bytes),
)
ROWS = st.lists(
    st.builds(Row, KEYS, HASH_KEYS, DATA, repeat=st.sampled_from([0, 0, 1, 300])),
    min_size=1,
    max_size=12,
)
ALL_LIMITS = st.builds(
    AggregateLimits,
    # The smaller one has room for any row as an aggregate, but not for all repeat keys.
    record_bytes=st.sampled_from([61_110, MIB]),
    aggregate_bytes=st.sampled_from([100, 2_000, 51_200]),
    rows=st.sampled_from([1, 2, 5, MAX_ROWS]),
)
WRITES = st.sampled_from([None, WRITE])


def pack(
    rows: Sequence[Row], limits: AggregateLimits = LIMITS, write: WriteId | None = None
) -> list[PackedRecord]:
    waiting = deque(rows)
    packed = []
    while waiting:
        packed.append(take_record(waiting, limits, write))
    return packed


def unpacked(record: PackedRecord, stragglers: KeyFilter | None = None) -> list[tuple[str, bytes]]:
    """The user records as a reader of this project returns them."""
    found = split(record.data, stragglers)
    if found is None:
        return [(record.partition_key, record.data)]
    return [(each.partition_key, each.data) for each in found]


def by_protobuf(rows: Sequence[Row], write: WriteId | None) -> bytes:
    """The aggregate as protobuf serializes it."""
    message = new_message()
    keys = list(dict.fromkeys(row.partition_key for row in rows))
    hash_keys = list(dict.fromkeys(row.explicit_hash_key for row in rows if row.explicit_hash_key))
    for key in keys:
        message.partition_key_table.append(key)
    for hash_key in hash_keys:
        message.explicit_hash_key_table.append(hash_key)
    for number, row in enumerate(rows):
        record = message.records.add(
            partition_key_index=keys.index(row.partition_key),
            data=row.data,
            explicit_hash_key_index=None
            if row.explicit_hash_key is None
            else hash_keys.index(row.explicit_hash_key),
        )
        if write is not None and number == 0:
            record.tags.add(key=WRITE_TAG, value=str(write))
        if write is not None and row.repeat:
            record.tags.add(key=COUNT_TAG, value=str(row.repeat))
    return seal(message.SerializeToString(deterministic=True))


def write_of(
    record: PackedRecord, limits: AggregateLimits, write: WriteId | None
) -> WriteId | None:
    """The write in the repeat keys of an aggregate: none if there is no room for them."""
    return write if len(by_protobuf(record.rows, write)) + 1 <= limits.record_bytes else None


# --- The format -----------------------------------------------------------------------------------


def test_golden_bytes_with_shared_keys_and_an_explicit_hash_key() -> None:
    (record,) = pack([Row("a", None, b"hi"), Row("bb", "7", b""), Row("a", None, b"!")])
    assert record.data == GOLDEN
    assert (record.partition_key, record.explicit_hash_key) == ("a", str(hash_of("a", None)))


@given(ROWS, ALL_LIMITS, WRITES)
def test_an_aggregate_is_as_protobuf_serializes_it(
    rows: list[Row], limits: AggregateLimits, write: WriteId | None
) -> None:
    for record in pack(rows, limits, write):
        if record.is_aggregate:
            assert record.data == by_protobuf(record.rows, write_of(record, limits, write))


@given(ROWS, ALL_LIMITS, WRITES)
def test_the_rows_are_read_in_order(
    rows: list[Row], limits: AggregateLimits, write: WriteId | None
) -> None:
    packed = pack(rows, limits, write)
    assert [row for record in packed for row in record.rows] == rows
    assert [pair for record in packed for pair in unpacked(record)] == [
        (row.partition_key, row.data) for row in rows
    ]
    for record in packed:
        if record.is_aggregate:
            aggregate = open_aggregate(record.data)
            assert aggregate is not None
            assert aggregate.explicit_hash_keys == [
                None if row.explicit_hash_key is None else int(row.explicit_hash_key)
                for row in record.rows
            ]
            assert rows_of(record.data) == [
                row if write_of(record, limits, write) else row._replace(repeat=0)
                for row in record.rows
            ]


AWS_DEAGGREGATOR = """
import base64, json, sys
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
for line in sys.stdin:
    record = {
        "Data": bytes.fromhex(line),
        "SequenceNumber": "1",
        "PartitionKey": "a",
        "ApproximateArrivalTimestamp": 0,
    }
    found = [each["kinesis"] for each in iter_deaggregate_records([record], data_format="Boto3")]
    print(json.dumps([
        [each["partitionKey"], each["explicitHashKey"], base64.b64decode(each["data"]).hex()]
        for each in found
    ]), flush=True)
"""

Deaggregate = Callable[[bytes], list[tuple[str, str | None, bytes]]]


@pytest.fixture(scope="module")
def deaggregate_by_aws() -> Iterator[Deaggregate]:
    """In a separate process: importing that library changes the search path for modules."""
    with subprocess.Popen(
        [sys.executable, "-c", AWS_DEAGGREGATOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def deaggregate(data: bytes) -> list[tuple[str, str | None, bytes]]:
            asked.write(f"{data.hex()}\n")
            asked.flush()
            found = json.loads(answers.readline())
            return [(key, hash_key, bytes.fromhex(content)) for key, hash_key, content in found]

        yield deaggregate
        asked.close()


@given(ROWS, ALL_LIMITS, WRITES)
def test_the_library_of_aws_reads_the_same_rows(
    deaggregate_by_aws: Deaggregate,
    rows: list[Row],
    limits: AggregateLimits,
    write: WriteId | None,
) -> None:
    for record in pack(rows, limits, write):
        if not record.is_aggregate:
            continue
        expected = [(row.partition_key, row.explicit_hash_key, row.data) for row in record.rows]
        # In an aggregate with explicit hash keys, it returns the first for a row without one.
        default = next((hash_key for _, hash_key, _ in expected if hash_key), None)
        assert deaggregate_by_aws(record.data) == [
            (key, hash_key or default, data) for key, hash_key, data in expected
        ]


# --- Sizes ----------------------------------------------------------------------------------------


@given(ROWS, ALL_LIMITS, WRITES)
def test_a_record_is_as_large_as_allowed_and_not_larger(
    rows: list[Row], limits: AggregateLimits, write: WriteId | None
) -> None:
    packed = pack(rows, limits, write)
    for record in packed:
        assert record.size == len(record.data) + len(record.partition_key.encode())
        assert record.size <= limits.record_bytes
        assert record.is_aggregate or not has_aggregate_magic(record.data)
        assert len(record.rows) <= limits.rows
        if write is not None and not record.is_aggregate:
            assert len(by_protobuf(record.rows, write)) + 1 > limits.record_bytes
        if len(record.rows) > 1:
            assert record.size <= limits.aggregate_bytes
    for record, following in pairwise(packed):
        longer = [*record.rows, following.rows[0]]
        assert (
            len(longer) > limits.rows
            or len(by_protobuf(longer, write)) + 1 > limits.aggregate_bytes
        )


@pytest.mark.parametrize("name", ["record_bytes", "aggregate_bytes"])
def test_an_aggregate_is_filled_up_to_the_smaller_limit(name: str) -> None:
    rows = [Row("a", None, bytes(50))] * 10
    size = len(by_protobuf(rows, None)) + 1
    both = {"record_bytes": MIB, "aggregate_bytes": MIB}
    for limit, counts in ((size, [10]), (size - 1, [9, 1])):
        packed = pack(rows, AggregateLimits(**{**both, name: limit}))
        assert [len(record.rows) for record in packed] == counts


def test_one_row_is_put_unchanged() -> None:
    (record,) = pack([Row("клён", "7", b"x")])
    assert (record.data, record.partition_key, record.explicit_hash_key) == (b"x", "клён", "7")
    assert not record.is_aggregate


def test_a_row_too_large_to_share_is_put_unchanged_and_in_order() -> None:
    small, large = Row("a", None, b"s"), Row("a", None, bytes(60_000))
    packed = pack([small, small, large, small, small])
    assert [len(record.rows) for record in packed] == [2, 1, 2]
    assert [record.is_aggregate for record in packed] == [True, False, True]


def test_with_repeat_keys_a_row_is_put_unchanged_only_if_its_aggregate_is_too_large() -> None:
    limits = AggregateLimits(record_bytes=MIB)
    room = MIB - len(by_protobuf([Row("a", None, bytes(MIB))], WRITE)) - 1
    fitting, larger = Row("a", None, bytes(MIB + room)), Row("a", None, bytes(MIB + room + 1))
    (record,) = pack([fitting], limits, WRITE)
    assert (record.is_aggregate, record.size) == (True, MIB)
    (record,) = pack([larger], limits, WRITE)
    assert (record.is_aggregate, record.data) == (False, larger.data)


def test_data_that_is_an_aggregate_is_read_as_it_was_written() -> None:
    """A copy of a stream whose aggregates were not split."""
    (inner,) = pack([Row("a", None, b"x"), Row("b", None, b"y")])
    row = Row("k", None, inner.data)
    for rows in ([row], [row, row]):
        (record,) = pack(rows)
        assert unpacked(record) == [("k", inner.data)] * len(rows)


@given(
    key=KEYS,
    hash_key=HASH_KEYS,
    size=st.sampled_from([100, 16_360, 60_000]),
    over=st.integers(-1, 1),
    is_sealed=st.booleans(),
)
def test_data_that_is_an_aggregate_and_has_no_room_in_another_one_is_refused(
    key: str, hash_key: str | None, size: int, over: int, *, is_sealed: bool
) -> None:
    """Unless its MD5 is wrong: then no reader splits it."""
    entry = Entry(seal(bytes(size)) if is_sealed else MAGIC + bytes(size), key, hash_key)
    row = Row(key, hash_key, entry.data)
    limit = len(by_protobuf([row], None)) + 1 - over
    rows = sink_writer.rows_of([Entry(b"x" * size, key), entry])
    is_refused = is_sealed and over > 0
    with pytest.raises(RecordTooLargeError, match="row 8") if is_refused else nullcontext():
        check_wrapping(rows, limit, range(7, 9))
    if not is_refused:
        for write in (None, WRITE):
            (record,) = pack([row], AggregateLimits(record_bytes=limit), write)
            assert record.is_aggregate is (over <= 0)
            assert unpacked(record) == [(key, entry.data)]


def test_the_most_rows_with_the_longest_keys_are_split() -> None:
    limits = AggregateLimits(record_bytes=10 * MIB, aggregate_bytes=10 * MIB)
    row = Row("\N{GRINNING FACE}" * 256, None, bytes(190))
    rows = deque([row] * (MAX_ROWS + 1))
    record = take_record(rows, limits)
    assert (len(record.rows), len(rows)) == (MAX_ROWS, 1)
    assert record.size > 9 * MIB
    assert last_sub(record.data) == MAX_ROWS - 1


# --- Shards ---------------------------------------------------------------------------------------


def shards_of(firsts: list[int]) -> list[Shard]:
    lasts = [first - 1 for first in firsts[1:]] + [MAX_HASH_KEY]
    return [
        Shard(
            shard_id=ShardId(f"shardId-{number}"),
            hash_range=HashRange(first=first, last=last),
            first_sequence_number=SequenceNumber("0"),
            closed=False,
        )
        for number, (first, last) in enumerate(zip(firsts, lasts, strict=True))
    ]


BOUNDS = st.sets(st.integers(1, MAX_HASH_KEY), max_size=4).map(lambda some: [0, *sorted(some)])


@given(ROWS, ALL_LIMITS, WRITES, BOUNDS, BOUNDS)
def test_no_row_is_dropped_from_the_shard_of_its_aggregate_also_after_a_reshard(
    rows: list[Row],
    limits: AggregateLimits,
    write: WriteId | None,
    before: list[int],
    after: list[int],
) -> None:
    for firsts in (before, after):
        shards = {shard.shard_id: shard for shard in shards_of(firsts)}
        shard_map = ShardMap(shards.values())
        groups = group_by_shard(rows, shard_map)
        repacked: list[Row] = []
        for shard_id, group in groups.items():
            own = shards[shard_id].hash_range
            assert list(group) == [row for row in rows if row in group]
            expected = [(row.partition_key, row.data) for row in group]
            packed = pack(group, limits, write)
            assert [
                pair
                for record in packed
                for pair in unpacked(
                    record, KeyFilter(own=own, family=HashRange(first=0, last=MAX_HASH_KEY))
                )
            ] == expected
            for record in packed:
                stored = hash_of(record.partition_key, record.explicit_hash_key)
                assert shard_of(shard_map, stored) == shard_id
                assert are_read_from(own, record.rows)
                repacked += record.rows
        rows = repacked


def test_an_aggregate_is_read_from_a_shard_with_all_of_its_rows() -> None:
    lower, upper = (shard.hash_range for shard in shards_of([0, 1 << 127]))
    # MD5 of "a" is 0cc1…, of "b" 92eb…: the two are in different halves of the hash space.
    of_lower, of_upper = Row("a", None, b"x"), Row("b", None, b"y")
    placed = of_upper._replace(explicit_hash_key="0")
    assert [
        (are_read_from(lower, rows), are_read_from(upper, rows))
        for rows in ([of_lower, of_upper], [of_upper, of_upper], [placed, of_lower])
    ] == [(False, False), (False, True), (True, False)]


def test_the_user_records_are_numbered_in_the_order_of_the_rows() -> None:
    (record,) = pack([Row("a", None, b"0"), Row("a", None, b"1")])
    assert split(record.data) == (
        UserRecord(partition_key="a", data=b"0", sub=0),
        UserRecord(partition_key="a", data=b"1", sub=1),
    )
