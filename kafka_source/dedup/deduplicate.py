"""Drops duplicates from the records of a sink with `includeRepeatHeaders`.

    records = spark.readStream.format("kafka-ssp").option("includeHeaders", "true")...load()
    rows = drop_duplicates(records)

A streaming query stores the ids of the rows it has seen in Spark's state store, by
`transformWithState`, so they are as durable as the query; `dedup_state` decides. The state is
bounded: for each partition of a topic and each of at most 1,000 sources that have recently written
to it, 16 bytes for each row of the source's two newest batches there. The rows of a partition come
in the order of their offsets, which Spark's shuffle does not preserve: they are sorted, on disk if
they exceed a limit (`row_blocks`).

A row is dropped only if the same row came before. Duplicates stay if a row went to another
partition when it was written again, because its topic was expanded in between; if its content was
different (`rand()`, `uuid()`, the current time) or its task was (a shuffle whose number of
partitions has changed); and if its source wrote nothing for `forget_after`. Two queries that run
with copies of one checkpoint at the same time can lose rows: give a copy a new checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ssp.common.errors import InvalidRowsError, UnsupportedError
from spark_ssp.common.spark.pyspark_api import LIMITS_STATE_BYTES, check_state_in_pandas
from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING, is_rocksdb
from spark_ssp.kafka_source.dedup.dedup_headers import (
    POSITION_HEADER,
    POSITION_PATTERN,
    SOURCE_HEADER,
)
from spark_ssp.kafka_source.dedup.dedup_processor import DedupProcessor
from spark_ssp.kafka_source.dedup.row_blocks import BLOCK_BYTES, BLOCKS_SCHEMA, TYPES, BlockWriter

_COLUMNS: Final = {"topic": "string", "partition": "int", "offset": "bigint"}
_SOURCE: Final = "ssp_source"
_POSITION: Final = "ssp_position"
_NAME_PATTERN: Final = "^[A-Za-z0-9-]{1,64}$"

_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_BYTES: Final = 64 << 20
"""Approximate bytes of blocks that are passed to a stateful operator at a time."""


def drop_duplicates(df: DataFrame, *, forget_after: timedelta = timedelta(days=7)) -> DataFrame:
    """Return the rows of a Kafka source without duplicates of records that a sink wrote again.

    `df` is the result of `load()` of a Kafka source with `includeHeaders`; columns of the same
    types may have been added. The result has the same columns. All rows without the two headers
    stay. The first of several copies of a row stays. In a streaming query the rows of a partition
    come in the order of their offsets, and partitions in any order.

    A streaming query remembers a source until others have written `forget_after` longer to the same
    partition. It must run with the RocksDB state store, and in the output mode append. As with any
    `transformWithState` in Spark, only stateless operators and sinks may follow. Raises
    InvalidRowsError or UnsupportedError.
    """
    _check_columns(df.schema)
    marked = _mark(df)
    if not df.isStreaming:
        return _keep_first(marked).select(*map(_column, df.columns))
    _check_state_store(df)
    types = _kinds(df.schema)
    return _drop_in_stream(marked, types, forget_after // timedelta(milliseconds=1))


def _kinds(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _check_columns(schema: StructType) -> None:
    found = _kinds(schema)
    needed = {**_COLUMNS, "headers": HEADERS}
    wrong = [name for name, kind in needed.items() if found.get(name) != kind]
    wrong += [
        name for name in found if name not in needed and found[name] not in {*TYPES, *CONVERTED}
    ]
    if wrong or len(found) < len(schema.fields):
        raise InvalidRowsError(
            ", ".join(f"column {name}" for name in wrong) or "columns",
            found=", ".join(f"{name} {found.get(name, 'missing')}" for name in wrong)
            or "several columns of one name",
            expected="the columns of a Kafka source, with topic, partition, offset and headers",
            next_step="read with the option includeHeaders=true, name these columns in any "
            ".schema(...) too, and call drop_duplicates on the result of load(), before any select",
        )


def _check_state_store(df: DataFrame) -> None:
    provider = df.sparkSession.conf.get(PROVIDER_SETTING)
    if not is_rocksdb(provider):
        raise UnsupportedError(
            PROVIDER_SETTING,
            found=str(provider),
            expected="the state store RocksDB, which transformWithState needs",
            next_step=f'spark.conf.set("{PROVIDER_SETTING}", "{PROVIDER}")',
        )


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _mark(df: DataFrame) -> DataFrame:
    """Add the columns source, without the topic, and position: null and null unless the headers are
    those of a sink that wrote to this topic."""
    # In two steps: Spark evaluates the search in the headers for each use within one.
    found = df.select(
        "*",
        header_column(SOURCE_HEADER).alias(_SOURCE),
        header_column(POSITION_HEADER).alias(_POSITION),
    )
    source, position = F.col(_SOURCE), F.col(_POSITION)
    name = F.substring_index(source, "/", 1)
    good = (
        name.rlike(_NAME_PATTERN)
        & (source == F.concat(name, F.lit("/"), F.col("topic")))
        & position.rlike(f"^{POSITION_PATTERN}$")
    )
    return found.withColumns({_SOURCE: F.when(good, name), _POSITION: F.when(good, position)})


def header_column(name: str) -> Column:
    """Return the last value of a header, as text."""
    own = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.try_element_at(own, F.lit(-1))["value"].cast("string")


def _keep_first(marked: DataFrame) -> DataFrame:
    """Keep the first copy of each row, across all partitions of a topic: a batch query reads them
    all."""
    parts = F.split(F.col(_POSITION), ":")
    place = F.when(F.col(_POSITION).isNull(), F.struct("partition", "offset"))
    copies = Window.partitionBy(
        _SOURCE, "topic", parts[0], parts[2], parts[3], parts[4], place
    ).orderBy("partition", "offset")
    return marked.withColumn("ssp_copy", F.row_number().over(copies)).where("ssp_copy = 1")


# --- Streaming ------------------------------------------------------------------------------------


def _drop_in_stream(marked: DataFrame, types: Mapping[str, str], forget_after_ms: int) -> DataFrame:
    """Return the rows without duplicates. `types` are those of the columns, by Spark's names."""
    places: dict[str, list[int]] = {}
    kinds: list[str] = []
    packed: list[Column] = []
    for name, kind in types.items():
        passed = passed_as(kind)
        places[name] = [*range(len(kinds), len(kinds) + len(passed.kinds))]
        kinds += passed.kinds
        packed += passed.pack(_column(name))
    # PySpark renames columns whose names are not identifiers.
    names = [f"column{place}" for place in range(len(kinds))]
    writer = BlockWriter(
        types=tuple(kinds),
        keys=(places["topic"][0], places["partition"][0], places["offset"][0]),
        max_bytes=_block_bytes(marked.sparkSession),
    )
    mark = F.concat(F.col(_SOURCE), F.lit("/"), F.col(_POSITION))
    named = [one.alias(name) for one, name in zip(packed, names, strict=True)]
    blocks = marked.select(*named, mark.alias("mark")).mapInArrow(writer, BLOCKS_SCHEMA)
    grouped = blocks.withColumn("spread", spread()).groupBy("topic", "partition", "spread")
    check_state_in_pandas(grouped)
    kept = grouped.transformWithStateInPandas(
        DedupProcessor(tuple(kinds), forget_after_ms),
        outputStructType=", ".join(map(" ".join, zip(names, kinds, strict=True))),
        outputMode="Append",
        timeMode="None",
    )
    return kept.select(
        *(
            passed_as(kind).unpack([F.col(names[place]) for place in places[name]]).alias(name)
            for name, kind in types.items()
        )
    )


def _block_bytes(spark: SparkSession) -> int:
    """Return the size of blocks. PySpark 4.0 passes blocks to a stateful operator in batches
    limited by number only: then they are so small that a batch remains small."""
    if LIMITS_STATE_BYTES:
        return BLOCK_BYTES
    blocks = int(spark.conf.get(_BATCH_ROWS) or 0)
    return min(BLOCK_BYTES, _BATCH_BYTES // blocks) if blocks > 0 else BLOCK_BYTES


# --- Columns on their way through Python ----------------------------------------------------------

HEADERS: Final = "array<struct<key:string,value:binary>>"
_TIMESTAMP: Final = "timestamp"

_FLAT_HEADERS: Final = 4
"""The headers of a record that pass through Python as columns. Those of a record with more of them
pass as JSON, which costs Spark several microseconds for each record."""

_SPREAD: Final = 48
"""Partitions are spread evenly over a number of tasks that divides this one. The keys of the state
depend on it."""
_SPREAD_TRIED: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedColumn:
    """A column as it passes through Python: as one or several columns of other types, since PySpark
    would otherwise convert each value."""

    kinds: tuple[str, ...]
    """The types of these columns, by Spark's names."""
    pack: Callable[[Column], list[Column]]
    unpack: Callable[[Sequence[Column]], Column]


def _pack_headers(headers: Column) -> list[Column]:
    """Return the number of headers, null, and their keys and values; for more than `_FLAT_HEADERS`
    headers, or with a null among them, null and JSON."""
    pairs = [F.get(headers, F.lit(place)) for place in range(_FLAT_HEADERS)]
    # The size of null is -1 in a session without ANSI mode.
    flat = headers.isNotNull() & (F.size(headers) <= _FLAT_HEADERS)
    for place, pair in enumerate(pairs):
        # Spark compiles this, unlike a higher-order function.
        flat &= pair.isNotNull() | (F.size(headers) <= place)
    count = F.when(flat, F.size(headers))
    text = F.when(~flat, F.to_json(headers))
    return [count, text, *(pair[name] for pair in pairs for name in ("key", "value"))]


def _unpack_headers(passed: Sequence[Column]) -> Column:
    count, text, *flat = passed
    pairs = F.array(
        *(
            F.struct(key.alias("key"), value.alias("value"))
            for key, value in zip(flat[::2], flat[1::2], strict=True)
        )
    )
    few = F.slice(pairs, F.lit(1), count)
    return F.when(count.isNotNull(), few).otherwise(F.from_json(text, HEADERS))


CONVERTED: Final = {
    HEADERS: PassedColumn(
        kinds=("int", "string", *("string", "binary") * _FLAT_HEADERS),
        pack=_pack_headers,
        unpack=_unpack_headers,
    ),
    _TIMESTAMP: PassedColumn(
        kinds=("bigint",),
        pack=lambda column: [F.unix_micros(column)],
        unpack=lambda passed: F.timestamp_micros(passed[0]),
    ),
}
"""The columns that pass as other ones, by their types."""


def passed_as(kind: str) -> PassedColumn:
    """Return how a column of this type passes through Python."""
    unchanged = PassedColumn(
        kinds=(kind,), pack=lambda column: [column], unpack=lambda passed: passed[0]
    )
    return CONVERTED.get(kind, unchanged)


def spread() -> Column:
    """Return a number that depends only on the columns topic and partition, and with which as a
    third key the partitions of a topic are spread evenly over the tasks.

    Spark assigns keys to tasks by their hash; of few keys, one task often has most. This is the
    first number whose hash with them has the remainder that follows from the topic and the
    partition's number. If no number up to `_SPREAD_TRIED` has it, this is 0, and Spark's hash
    decides on the task.
    """
    key = F.col("topic"), F.col("partition")
    wanted = F.pmod(F.hash("topic").cast("bigint") + F.col("partition"), F.lit(_SPREAD))
    tried = F.sequence(F.lit(0), F.lit(_SPREAD_TRIED - 1))
    found = F.filter(tried, lambda one: F.pmod(F.hash(*key, one), F.lit(_SPREAD)) == wanted)
    return F.coalesce(F.get(found, F.lit(0)), F.lit(0))
