"""Which columns a sink takes, and how records are told from each other."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_ssp.common.errors import InvalidRowsError
from spark_ssp.kafka_source.dedup.dedup_headers import (
    POSITION_HEADER,
    SOURCE_HEADER,
    Header,
    RowCounter,
    WriteId,
    record_hash,
)
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.table_sink import resolve_columns
from tests.support.kafka.dedup_memory import Position, parse_position


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _headers(**columns: DataType) -> ArrayType:
    return ArrayType(_schema(**columns))


TEXT, BYTES, INT = StringType(), BinaryType(), IntegerType()

# --- Columns --------------------------------------------------------------------------------------


def test_the_columns_of_a_record_are_found_by_name() -> None:
    headers = _headers(Key=TEXT, value=BYTES)
    every = _schema(other=LongType(), headers=headers, key=BYTES, value=TEXT, topic=TEXT)
    found = resolve_columns(every.add("partition", INT), topic_given=False)
    assert found == SinkColumns(headers=1, key=2, value=3, topic=4, partition=5)
    assert pickle.loads(pickle.dumps(found)) == found
    assert resolve_columns(_schema(value=BYTES), topic_given=True) == SinkColumns(value=0)
    ignored = resolve_columns(_schema(topic=INT, value=BYTES, Key=INT), topic_given=True)
    assert ignored == SinkColumns(value=1)


def test_all_columns_that_are_wrong_are_reported_at_once() -> None:
    wrong = _schema(
        topic=INT, key=INT, headers=_headers(key=TEXT, value=TEXT), partition=LongType()
    )
    with pytest.raises(InvalidRowsError) as caught:
        resolve_columns(wrong, topic_given=False)
    error = caught.value
    assert error.subject == (
        "column value, column topic, column key, column headers, column partition"
    )
    assert "partition of type bigint" in error.found
    assert "headers of type array<struct<key:string,value:binary>>" in error.expected
    assert "CAST(partition AS INT)" in error.next_step
    with pytest.raises(InvalidRowsError, match=r"column topic.*\.option\(\"topic\", .*to_json"):
        resolve_columns(_schema(value=_schema(a=INT)), topic_given=False)


@pytest.mark.parametrize(
    "kind",
    [
        ArrayType(TEXT),
        _headers(key=TEXT),
        _headers(value=BYTES, key=TEXT),
        MapType(TEXT, BYTES),
    ],
)
def test_headers_have_one_type(kind: DataType) -> None:
    with pytest.raises(InvalidRowsError, match="column headers"):
        resolve_columns(_schema(value=TEXT, headers=kind), topic_given=True)


# --- Which record it is ---------------------------------------------------------------------------

_BYTES = st.none() | st.binary(max_size=3)
_RECORDS = st.tuples(
    st.sampled_from(["a", "ab", "b"]),
    _BYTES,
    _BYTES,
    st.none() | st.integers(0, 2),
    st.lists(st.tuples(st.sampled_from(["", "a", "ab"]), _BYTES), max_size=2),
)
Record = tuple[str, bytes | None, bytes | None, int | None, list[Header]]


@given(_RECORDS, _RECORDS)
def test_the_hash_covers_the_whole_record(one: Record, other: Record) -> None:
    assert (record_hash(*one) == record_hash(*other)) == (one == other)


@given(st.lists(_RECORDS, max_size=6), st.randoms())
def test_positions_are_unique_and_do_not_depend_on_the_order(
    records: list[Record], chance: object
) -> None:
    def positions(attempt_ms: int, rows: list[Record]) -> dict[str, tuple[object, int]]:
        counter = RowCounter(WriteId(source="q", batch=3, attempt_ms=attempt_ms, task=8))
        found: dict[str, tuple[object, int]] = {}
        for topic, key, value, partition, headers in rows:
            digest = record_hash(topic, key, value, partition, headers)
            ((_, source), (_, position)), spread = counter.headers(topic, digest)
            assert source == f"q/{topic}".encode()
            parsed = parse_position((position or b"").decode())
            assert parsed is not None
            assert (parsed.batch, parsed.attempt_ms) == (3, attempt_ms)
            content = (topic, key, value, partition, tuple(headers))
            assert found.setdefault(parsed.row, (content, spread)) == (content, spread)
        return found

    shuffled = list(records)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    first = positions(1, records)
    assert len(first) == len(records)
    assert positions(2, shuffled) == first


def test_what_headers_say_is_read_strictly() -> None:
    counter = RowCounter(WriteId(source="q", batch=3, attempt_ms=5, task=8))
    ((source, _), (position, text)), _ = counter.headers("orders", bytes(16))
    assert (source, position) == (SOURCE_HEADER, POSITION_HEADER)
    assert text is not None
    wanted = Position(batch=3, attempt_ms=5, row=f"8:{'00' * 16}:0")
    assert parse_position(text.decode()) == wanted
    for wrong in ("", "3:5:8", text.decode() + "0" * 9, text.decode() + ":1", "x" + text.decode()):
        assert parse_position(wrong) is None
