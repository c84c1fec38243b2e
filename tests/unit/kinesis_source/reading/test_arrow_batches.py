"""Chunks become batches of the schema that Spark demands, of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.columns import Column
from spark_ssp.common.errors import InvalidRequestError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model.shard import RecordPage
from spark_ssp.kinesis_source.reading import arrow_batches
from spark_ssp.kinesis_source.reading.arrow_batches import (
    Chunk,
    all_columns,
    memory_bytes,
    to_batches,
)
from spark_ssp.kinesis_source.source import spark_schema
from tests.support.kinesis.pages import page
from tests.support.spark.arrow_schemas import arrow_schema_of
from tests.support.spark.requested_columns import selected, some_of

ALL = all_columns(include_repeat_keys=False)


def chunk(
    shard: str, numbers: Sequence[int], *, subs: Sequence[int] | None = None, size: int = 3
) -> Chunk:
    rows = page(
        [b"x" * size for _ in numbers],
        keys=[f"key-{number}" for number in numbers],
        numbers=numbers,
        arrivals=[1_700_000_000_000 + number for number in numbers],
        subs=subs,
    )
    return chunk_of(rows, shard)


def chunk_of(rows: RecordPage, shard: str = "a") -> Chunk:
    key = ShardKey(stream=StreamName("orders"), shard=ShardId(shard))
    return Chunk(key, rows, memory_bytes(rows))


@pytest.mark.parametrize("repeat_keys", [False, True])
def test_the_arrow_schema_is_what_pyspark_makes_of_the_spark_schema(repeat_keys: bool) -> None:
    columns = all_columns(include_repeat_keys=repeat_keys)
    (batch,) = to_batches([with_repeat_keys(chunk("a", [1]))], SlotId(0), columns)
    spark = spark_schema(include_repeat_keys=repeat_keys)
    assert arrow_schema_of(spark).equals(batch.schema, check_metadata=True)


def test_the_spark_schema_is_the_documented_one() -> None:
    assert spark_schema(include_repeat_keys=True).simpleString() == (
        "struct<partitionKey:string,data:binary,stream:string,shardId:string,"
        "sequenceNumber:string,subSequenceNumber:bigint,approximateArrivalTimestamp:timestamp,"
        "ssp:int,repeatKey:string>"
    )


def test_chunks_of_several_shards_share_a_batch() -> None:
    (batch,) = to_batches([chunk("a", [1, 2]), chunk("b", [7], subs=[5])], SlotId(3), ALL)
    batch.validate(full=True)
    assert batch.to_pylist() == [
        {
            "partitionKey": f"key-{number}",
            "data": b"xxx",
            "stream": "orders",
            "shardId": shard,
            "sequenceNumber": str(number),
            "subSequenceNumber": sub,
            "approximateArrivalTimestamp": datetime(
                2023, 11, 14, 22, 13, 20, number * 1000, tzinfo=UTC
            ),
            "ssp": 3,
        }
        for shard, number, sub in [("a", 1, 0), ("a", 2, 0), ("b", 7, 5)]
    ]


def test_text_beyond_ascii_keeps_its_bytes() -> None:
    words = ["", "a", "ключ", "鍵🔑", "b"]
    source = chunk("a", range(5))
    (batch,) = to_batches([keyed(source, words)], SlotId(0), ALL)
    batch.validate(full=True)
    assert batch["partitionKey"].to_pylist() == words


words = st.lists(
    st.one_of(
        st.text(st.characters(codec="ascii"), max_size=5),
        st.text(max_size=5),
        st.sampled_from(["", "\0", "k" * 70_000, "鍵" * 30_000]),
    ),
    max_size=8,
)


@given(words)
def test_columns_are_what_arrow_makes_of_the_same_values(values: list[str]) -> None:
    text, data = arrow_batches._text(values), [value.encode() for value in values]
    text.validate(full=True)
    assert text.equals(pa.array(values, pa.string()))
    assert arrow_batches._bytes(pa.binary(), data).equals(pa.array(data, pa.binary()))


@given(st.lists(st.one_of(st.none(), words.map("".join)), max_size=20))
def test_a_partition_key_may_be_null(keys: list[str | None]) -> None:
    source = chunk("a", range(len(keys)))
    columns = [batch["partitionKey"] for batch in to_batches([keyed(source, keys)], SlotId(0), ALL)]
    for column in columns:
        column.validate(full=True)
    assert [key for column in columns for key in column.to_pylist()] == keys


def keyed(source: Chunk, keys: Sequence[str | None]) -> Chunk:
    return chunk_of(replace(source.rows, partition_keys=keys))


def with_repeat_keys(source: Chunk) -> Chunk:
    keys = [f"{source.shard.shard}/{number}" for number in source.rows.sequence_numbers]
    return chunk_of(replace(source.rows, repeat_keys=keys), source.shard.shard)


@given(
    some_of(all_columns(include_repeat_keys=True), ["data"]),
    st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_any_columns_are_those_of_the_full_read(
    columns: list[Column], texts: list[list[str]]
) -> None:
    chunks = [
        with_repeat_keys(
            chunk_of(
                page(
                    [text.encode() for text in data],
                    keys=[text or None for text in data],
                    subs=range(len(data)) if place % 2 else None,
                ),
                str(place),
            )
        )
        for place, data in enumerate(texts)
    ]
    (full,) = to_batches(chunks, SlotId(5), all_columns(include_repeat_keys=True))
    (found,) = to_batches(chunks, SlotId(5), columns)
    found.validate(full=True)
    assert found.equals(selected(full, columns))


@given(st.lists(st.binary(max_size=3) | st.text(max_size=2).map(str.encode), min_size=1))
def test_data_that_is_not_text_is_an_error_that_names_the_record(data: list[bytes]) -> None:
    """Each record by itself: in a row, halves of a character would be one."""
    bad = [n for n, one in enumerate(data) if one.decode(errors="replace").encode() != one]
    chunks = [
        chunk_of(page([one], numbers=[n], subs=[7]), "ab"[n % 2]) for n, one in enumerate(data)
    ]
    batches = to_batches(chunks, SlotId(0), [Column("data", is_text=True)])
    if not bad:
        assert [text for batch in batches for text in batch["data"].to_pylist()] == [
            one.decode() for one in data
        ]
        return
    with pytest.raises(InvalidRequestError) as caught:
        list(batches)
    assert caught.value.subject == (
        f"record {bad[0]}, sub-sequence number 7, of shard {chunks[bad[0]].shard}"
    )
    assert caught.value.__cause__ is None


def test_nothing_makes_no_batch() -> None:
    assert list(to_batches([], SlotId(0), ALL)) == []
    assert list(to_batches([chunk("a", [])], SlotId(0), ALL)) == []


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "MAX_BATCH_ROWS", 4)
    monkeypatch.setattr(arrow_batches, "MAX_BATCH_BYTES", 2_000)


@pytest.mark.usefixtures("small_batches")
@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([0, 100, 900, 5_000]), st.booleans()),
        max_size=6,
    ),
    st.booleans(),
)
def test_batches_keep_rows_and_order_within_the_limits(
    shapes: list[tuple[int, int, bool]], repeat_keys: bool
) -> None:
    chunks = [
        chunk(str(place), range(rows), subs=range(rows) if subs else None, size=size)
        for place, (rows, size, subs) in enumerate(shapes)
    ]
    if repeat_keys:
        chunks = [with_repeat_keys(one) for one in chunks]
    columns = all_columns(include_repeat_keys=repeat_keys)
    batches = list(to_batches(chunks, SlotId(0), columns))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(r["shardId"], r["sequenceNumber"], r["subSequenceNumber"]) for r in rows] == [
        (str(place), str(number), number if subs else 0)
        for place, (count, _, subs) in enumerate(shapes)
        for number in range(count)
    ]
    for batch in batches:
        assert 1 <= batch.num_rows <= 4
        keys = batch["repeatKey"].to_pylist() if repeat_keys else None
        if keys is not None:
            assert keys == [
                f"{row['shardId']}/{row['sequenceNumber']}" for row in batch.to_pylist()
            ]
        rows_of_batch = page(
            batch["data"].to_pylist(), keys=batch["partitionKey"].to_pylist(), repeat_keys=keys
        )
        batch_bytes = memory_bytes(rows_of_batch)
        assert batch_bytes <= 2_000 or batch.num_rows == 1


def test_a_big_page_is_split_below_the_limit() -> None:
    big = chunk("a", range(20), size=1 << 20)
    batches = list(to_batches([big], SlotId(0), ALL))
    assert [batch.num_rows for batch in batches] == [15, 5]
    assert pa.Table.from_batches(batches)["sequenceNumber"].to_pylist() == list(map(str, range(20)))


def test_the_weight_counts_keys_data_and_an_overhead() -> None:
    two, overhead = [b"1234", b""], arrow_batches.ROW_OVERHEAD_BYTES
    assert memory_bytes(page(two, keys=["ab", "c"])) == 7 + 2 * overhead
    assert memory_bytes(page([b"1"], repeat_keys=["abc"])) == 5 + overhead
    assert memory_bytes(page(two, keys=[None, "c"])) == 5 + 2 * overhead
