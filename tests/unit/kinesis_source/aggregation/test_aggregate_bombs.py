"""Aggregates made to cost more than they weigh pass whole, for one row and one log line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.aggregation.deaggregation import (
    MAX_KEY_CHARACTERS,
    MAX_USER_BYTES,
    MAX_USER_RECORDS,
    UserRecord,
    last_sub,
    split,
)
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    RecordPage,
    SequenceNumber,
    TrimHorizon,
)
from spark_ssp.kinesis_source.reading import row_builder
from spark_ssp.kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES
from spark_ssp.kinesis_source.reading.range_filter import slice_page
from spark_ssp.kinesis_source.reading.row_builder import build_rows
from tests.support.fakes.scripted import Rec, ScriptedService, ScriptedShard, recs
from tests.support.kcl.kpl import Put, aggregate, seal
from tests.support.kcl.kpl_by_hand import chunk, expect_whole, number, user_record, varint
from tests.support.kinesis.reading import A, after, read, shard_range

MIB = 1 << 20
EMPTY_RECORD = user_record(0, b"")
FEW = chunk(1, b"k") + 3 * EMPTY_RECORD

BOMBS = {
    "one-huge-key": chunk(1, bytes(512 << 10)) + 65_000 * EMPTY_RECORD,
    "a-key-over-the-limit": chunk(1, b"k" * (MAX_KEY_CHARACTERS + 1)) + 3 * EMPTY_RECORD,
    "an-unused-key-over-the-limit": chunk(1, b"k" * 257) + chunk(1, b"k") + user_record(1, b""),
    "keys-of-four-bytes-a-character": chunk(1, "\N{GRINNING FACE}".encode() * 256)
    + (MAX_USER_BYTES // 1024 + 1) * EMPTY_RECORD,
    "too-many-user-records": chunk(1, b"k") + (MAX_USER_RECORDS + 1) * EMPTY_RECORD,
    "a-huge-table-of-keys": FEW + (MAX_USER_RECORDS + 1) * chunk(1, b""),
    "a-huge-table-of-hash-keys": FEW + (MAX_USER_RECORDS + 1) * chunk(2, b""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_passes_whole_and_costs_little_more_than_its_size(name: str) -> None:
    data = seal(BOMBS[name])
    expect_whole(data)
    tracemalloc.start()
    try:
        split(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB + 2 * len(data)
    finally:
        tracemalloc.stop()


def test_a_bomb_costs_one_row_and_one_log_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_builder, "_warned", set())  # by other tests of this process
    bomb = seal(BOMBS["one-huge-key"])
    held = [*recs(1), Rec(sequence=2, data=bomb), Rec(sequence=3, data=bomb), *recs(4)]
    shard = ScriptedShard(shard_id=A, records=held)
    with caplog.at_level(logging.WARNING):
        rows = read(ScriptedService([shard]), shard_range(A, TrimHorizon(), after(4)))
    assert [(row.sequence, row.sub, row.data) for row in rows] == [
        (record.sequence, 0, record.data) for record in held
    ]
    (said,) = [each for each in caplog.records if "they are delivered whole" in each.message]
    assert "shardId-000000000000" in said.message


@pytest.mark.parametrize(
    "key", ["k" * 256, "\N{GRINNING FACE}" * 256], ids=["ascii", "four-bytes-a-character"]
)
def test_a_key_at_the_limit_is_split(key: str) -> None:
    data = aggregate([Put(partition_key=key, data=b"x")])
    assert split(data) == (UserRecord(partition_key=key, data=b"x", sub=0),)


def test_the_largest_aggregate_of_the_kpl_is_split_within_a_known_weight() -> None:
    """1 MiB of empty user records with one key of the largest size, in ASCII."""
    key = b"k" * MAX_KEY_CHARACTERS
    count = (MIB - len(chunk(1, key))) // len(EMPTY_RECORD)
    data = seal(chunk(1, key) + count * EMPTY_RECORD)
    page = RecordPage(
        sequence_numbers=[SequenceNumber("1")],
        partition_keys=["a"],
        arrival_ms=[EpochMillis(0)],
        data=[data],
        next_iterator=None,
        millis_behind_latest=0,
        service_time=EpochMillis(0),
    )
    cut = slice_page(page.sequence_numbers, None, after(1, count))
    shard = ShardKey(stream=StreamName("orders"), shard=ShardId("s"))
    chunk_of_rows = build_rows(page, cut, shard, deaggregate=True)
    assert len(chunk_of_rows) == count == last_sub(data) + 1
    assert chunk_of_rows.memory_bytes == count * (MAX_KEY_CHARACTERS + ROW_OVERHEAD_BYTES)
    assert chunk_of_rows.memory_bytes < 90 * MIB


NESTED_GROUPS = """
from google.protobuf.internal import api_implementation
from spark_ssp.kinesis_source.aggregation.deaggregation import last_sub, split
from tests.support.kcl.kpl import seal
from tests.support.kcl.kpl_by_hand import chunk, user_record
print(api_implementation.Type())
for depth in (10, 150, 2_000, 200_000):
    groups = b"\\x3b" * depth + b"\\x3c" * depth
    data = seal(chunk(1, b"k") + user_record(0, b"x") + groups)
    records = split(data)
    assert records is None or len(records) == 1
    assert last_sub(data) == 0
"""


@pytest.mark.parametrize("implementation", ["python", "upb"])
def test_nested_groups_never_raise(implementation: str) -> None:
    """In a process, because protobuf chooses its implementation when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", NESTED_GROUPS],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        cwd=Path(__file__).parents[4],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, implementation), done.stderr


def test_a_parser_that_recurses_without_a_limit_makes_a_faulty_aggregate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As protobuf's pure-Python implementation did up to 4.25.7, 5.29.4 and 6.31.0."""
    from spark_ssp.kinesis_source.aggregation import kpl_proto

    class Recursing:
        @staticmethod
        def FromString(message: bytes) -> object:
            return Recursing.FromString(message)

    data = seal(FEW)
    assert last_sub(data) == 2
    monkeypatch.setattr(kpl_proto, "_AGGREGATED_RECORD", Recursing)
    expect_whole(data)


def varied() -> st.SearchStrategy[bytes]:
    """Messages of the format's fields in any order and number, and of others."""
    keys = st.one_of(st.binary(max_size=6), st.integers(250, 260).map(lambda size: b"k" * size))
    record = st.builds(
        lambda parts: chunk(3, b"".join(parts)),
        st.lists(
            st.one_of(
                st.integers(0, 4).map(lambda index: number(1, index)),
                st.integers(0, 2**70).map(lambda index: varint(1 << 3) + varint(index)),
                st.integers(0, 3).map(lambda index: number(2, index)),
                st.binary(max_size=8).map(lambda data: chunk(3, data)),
                st.binary(max_size=8).map(lambda tag: chunk(4, tag)),
            ),
            max_size=5,
        ),
    )
    groups = st.integers(0, 300).map(lambda depth: b"\x3b" * depth + b"\x3c" * depth)
    return st.lists(
        st.one_of(
            keys.map(lambda key: chunk(1, key)),
            st.one_of(keys, st.just(b"7")).map(lambda key: chunk(2, key)),
            record,
            groups,
            st.binary(max_size=8),
        ),
        max_size=12,
    ).map(b"".join)


@given(varied())
def test_any_message_is_split_or_passes_whole_and_both_ways_to_read_it_agree(
    message: bytes,
) -> None:
    data = seal(message)
    records = split(data)
    if records is None:
        expect_whole(data)
        return
    assert [record.sub for record in records] == list(range(last_sub(data) + bool(records)))
    assert all(len(record.partition_key) <= MAX_KEY_CHARACTERS for record in records)
