"""Rows as the JSON entries of PutRecords."""

from __future__ import annotations

import json
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, SequenceNumber, ShardId, hash_of
from spark_ssp.kinesis_source.client.messages import ENCODERS, to_parameters
from spark_ssp.kinesis_source.model.shard import PutEntries, Shard
from spark_ssp.kinesis_source.sink import encoding
from spark_ssp.kinesis_source.sink.aggregation import ANY, ShardMap
from spark_ssp.kinesis_source.sink.columns import RecordLimits, SinkColumns, checked_rows
from spark_ssp.kinesis_source.sink.encoding import RecordRun, encode_by_shard, encode_rows
from tests.support.kinesis.sink_writer import Entry, entries_of, rows_of, shard_of

KEYS = st.one_of(
    st.sampled_from(["a", "b", 'quote " and \\', "\0\n\x1f", "\x7f", "клён", "\N{GRINNING FACE}"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
)
HASH_KEYS = st.one_of(st.none(), st.sampled_from(["0", str(MAX_HASH_KEY)]))
ENTRIES = st.lists(st.builds(Entry, st.binary(max_size=20), KEYS, HASH_KEYS), max_size=30)
WITHOUT_KEYS = st.lists(
    st.builds(Entry, st.binary(max_size=20), st.none() | KEYS, st.none()), max_size=30
)
QUARTER = (MAX_HASH_KEY + 1) // 4
SHARDS = ShardMap(
    Shard(
        shard_id=ShardId(f"shardId-{number}"),
        hash_range=HashRange(first=number * QUARTER, last=(number + 1) * QUARTER - 1),
        first_sequence_number=SequenceNumber("1"),
        closed=False,
    )
    for number in range(4)
)


def decoded(run: RecordRun) -> list[Entry]:
    found = entries_of(PutEntries(text=[run.entries], count=run.count))
    assert run.size == sum(len(one.data) + len((one.partition_key or "").encode()) for one in found)
    assert [(key.partition_key, key.explicit_hash_key) for key in run.keys] == [
        (one.partition_key, one.explicit_hash_key) for one in found
    ]
    return found


@given(ENTRIES, st.sampled_from([1, 7, 5_000]))
def test_the_records_of_each_shard_are_the_rows_in_their_order(
    entries: list[Entry], chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_CHUNK", chunk)
        found: dict[ShardId, list[Entry]] = {shard: [] for shard in SHARDS.shards}
        for shard, run in encode_by_shard(rows_of(entries), SHARDS):
            found[shard] += decoded(run)
    for shard, its in found.items():
        assert its == [
            one
            for one in entries
            if shard_of(SHARDS, hash_of(one.partition_key or "", one.explicit_hash_key)) == shard
        ]


@given(WITHOUT_KEYS)
def test_a_partition_key_may_be_missing(entries: list[Entry]) -> None:
    assert [one for _, run in encode_by_shard(rows_of(entries), ANY) for one in decoded(run)] == (
        entries
    )


@given(ENTRIES.filter(bool), st.data())
def test_the_parts_of_a_run_are_its_records(entries: list[Entry], draw: st.DataObject) -> None:
    run = encode_rows(rows_of(entries))
    assert decoded(run) == entries
    values = draw.draw(st.lists(st.booleans(), min_size=run.count, max_size=run.count))
    pairs = [(value, one) for value, part in run.split(values) for one in decoded(part)]
    assert pairs == list(zip(values, entries, strict=True))
    begin = draw.draw(st.integers(0, run.count - 1))
    rest = run.part(begin, run.count)
    sizes = [len(one.data) + len((one.partition_key or "").encode()) for one in entries[begin:]]
    count, size = draw.draw(st.integers(0, 40)), draw.draw(st.integers(-1, sum(sizes) + 1))
    ends = [end for end in accumulate(sizes[:count]) if end <= size]
    assert rest.fitting(count, size) == len(ends)


@given(ENTRIES.filter(bool))
def test_the_body_of_a_request_is_json(entries: list[Entry]) -> None:
    runs = [run.entries for _, run in encode_by_shard(rows_of(entries), ANY)]
    encoded = PutEntries(text=runs, count=len(entries))
    body = json.loads(ENCODERS["PutRecords"]({"StreamName": "orders", "Records": encoded}))
    assert body.keys() == {"StreamName", "Records"}
    assert len(body["Records"]) == len(entries)
    # As boto3 takes them, for the requests that it sends.
    assert [
        Entry(one["Data"], one.get("PartitionKey"), one.get("ExplicitHashKey"))
        for one in to_parameters(encoded)
    ] == entries


@pytest.mark.parametrize("large", [False, True])
def test_rows_are_cut_by_number_and_size(*, large: bool) -> None:
    data, keys = [bytes(size) for size in (1, 2, 50, 3, 1, 1, 1)], ["k"] * 7
    types = (pa.large_binary(), pa.large_string()) if large else (pa.binary(), pa.string())
    batch = pa.RecordBatch.from_arrays(
        [pa.array(data, types[0]), pa.array(keys, types[1])], ["data", "partitionKey"]
    ).slice(0, 7)
    rows = checked_rows(
        batch, SinkColumns(data=0, partition_key=1), RecordLimits(max_bytes=99), range(7)
    )
    assert [list(part.sizes) for part in rows.parts(3, 9)] == [[2, 3], [51], [4, 2, 2], [2]]
    found = [one for part in rows.parts(3, 9) for one in decoded(encode_rows(part))]
    assert found == [Entry(each, "k") for each in data]
