"""Drops duplicates from the records of a sink with `includeRepeatHeaders`.

    records = spark.readStream.format("kafka-ssp").option("includeHeaders", "true")...load()
    rows = drop_duplicates(records)

A streaming query stores the ids of the rows it has seen in Spark's state store, by
`transformWithState`, so they are as durable as the query; `dedup_filter` decides. The state is
bounded: for each partition of a topic and each of at most 1,000 sources that have recently written
to it, 16 bytes for each row of the source's two newest batches there. The rows of a partition come
in the order of their offsets, which Spark's shuffle does not preserve: they are sorted, on disk if
they exceed a limit (`offset_order`).

A row is dropped only if the same row came before. Duplicates stay if a row went to another
partition when it was written again, because its topic was expanded in between; if its content was
different (`rand()`, `uuid()`, the current time) or its task was (a shuffle whose number of
partitions has changed); and if its source wrote nothing for `forget_after`. Two queries that run
with copies of one checkpoint at the same time can lose rows: give a copy a new checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_source.dedup.dedup_headers import (
    POSITION_HEADER,
    POSITION_PATTERN,
    SOURCE_HEADER,
    parse_position,
)
from kafka_source.dedup.dedup_state import KEY_SCHEMA, VALUE_SCHEMA, DedupState
from kafka_source.dedup.offset_order import sort_by_offset
from ssp_common.errors import InvalidRowsError, UnsupportedError
from ssp_common.spark.pyspark_api import check_state_in_pandas
from ssp_common.spark.state_store import PROVIDER, PROVIDER_SETTING, is_rocksdb

_COLUMNS: Final = {"topic": "string", "partition": "int", "offset": "bigint"}
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = frozenset({"binary", "string", "boolean", "int", "bigint", "timestamp", _HEADERS})
# PySpark has its own names for columns that begin with an underscore.
_SOURCE: Final = "ssp_source"
_POSITION: Final = "ssp_position"
_OFFSET: Final = "ssp_offset"
_REST: Final = "ssp_rest"
_NAME_PATTERN: Final = "^[A-Za-z0-9-]{1,64}$"

MAX_SOURCES: Final = 1_000
"""Sources remembered for each partition: the most recent ones."""

MAX_CLOCK_SKEW_MS: Final = 5 * 60 * 1000
"""The longest time that the clock of a writing driver may be ahead of that of a reading worker."""

_log = logging.getLogger(f"spark_ssp.{__name__}")


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
    marked = df.select("*", *_mark_columns())
    if not df.isStreaming:
        return _keep_first(marked).select(*map(_column, df.columns))
    _check_state_store(df)
    packed = _Packed.of(df.schema)
    grouped = packed.pack(marked).groupBy("topic", "partition")
    check_state_in_pandas(grouped)
    kept = grouped.transformWithStateInPandas(
        DedupProcessor(packed.schema.fieldNames(), forget_after // timedelta(milliseconds=1)),
        outputStructType=packed.schema,
        outputMode="Append",
        timeMode="None",
    )
    return packed.unpack(kept)


def _check_columns(schema: StructType) -> None:
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    needed = {**_COLUMNS, "headers": _HEADERS}
    wrong = [name for name, kind in needed.items() if found.get(name) != kind]
    wrong += [name for name in found if name not in needed and found[name] not in _TYPES]
    if wrong or len(found) < len(schema.fields):
        raise InvalidRowsError(
            ", ".join(f"column {name}" for name in wrong) or "columns",
            found=", ".join(f"{name} {found.get(name, 'missing')}" for name in wrong)
            or "several columns of one name",
            expected="the columns of a Kafka source, with topic, partition, offset and headers",
            next_step="read with the option includeHeaders=true, and call drop_duplicates on the "
            "result of load(), before any select",
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


def _mark_columns() -> tuple[Column, Column]:
    """Return the columns for source and position, null and null unless the headers are those of a
    sink that wrote to this topic."""
    source, position = _header_column(SOURCE_HEADER), _header_column(POSITION_HEADER)
    name = F.substring_index(source, "/", 1)
    good = (
        name.rlike(_NAME_PATTERN)
        & (source == F.concat(name, F.lit("/"), F.col("topic")))
        & position.rlike(f"^{POSITION_PATTERN}$")
    )
    return F.when(good, name).alias(_SOURCE), F.when(good, position).alias(_POSITION)


def _header_column(name: str) -> Column:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """The schema of rows on their way through Python: text and bytes unchanged, all other columns
    as one JSON text, which Spark writes and parses, since converting them in Python costs more than
    all other work."""

    columns: tuple[str, ...]
    plain: tuple[StructField, ...]
    """Columns of text and bytes."""
    rest: tuple[StructField, ...]

    @classmethod
    def of(cls, schema: StructType) -> Self:
        fields = schema.fields
        plain = [one for one in fields if isinstance(one.dataType, StringType | BinaryType)]
        return cls(
            columns=tuple(schema.fieldNames()),
            plain=tuple(plain),
            rest=tuple(one for one in fields if one not in plain),
        )

    @property
    def schema(self) -> StructType:
        """The packed columns, renamed: PySpark renames columns whose names are not identifiers."""
        plain = [StructField(f"plain{n}", one.dataType) for n, one in enumerate(self.plain)]
        return StructType([*plain, StructField(_REST, StringType())])

    def pack(self, marked: DataFrame) -> DataFrame:
        """Return the packed rows with the columns `topic` and `partition`, by which they are
        grouped."""
        rest = [
            F.unix_micros(_column(one.name)).alias(one.name)
            if isinstance(one.dataType, TimestampType)
            else _column(one.name)
            for one in self.rest
        ]
        plain = [_column(one.name).alias(f"plain{n}") for n, one in enumerate(self.plain)]
        packed = F.to_json(F.struct(*rest)).alias(_REST)
        offset = F.col("offset").alias(_OFFSET)
        return marked.select("topic", "partition", *plain, packed, offset, _SOURCE, _POSITION)

    def unpack(self, kept: DataFrame) -> DataFrame:
        """Return the rows with their original columns."""
        times = {one.name for one in self.rest if isinstance(one.dataType, TimestampType)}
        read = StructType(
            [
                StructField(one.name, LongType() if one.name in times else one.dataType)
                for one in self.rest
            ]
        )
        plain = [F.col(f"plain{n}").alias(one.name) for n, one in enumerate(self.plain)]
        opened = kept.select(*plain, F.from_json(_column(_REST), read).alias(_REST))
        texts = {one.name for one in self.plain}
        return opened.select(
            *(
                _column(name)
                if name in texts
                else (
                    F.timestamp_micros(F.col(_REST)[name]) if name in times else F.col(_REST)[name]
                ).alias(name)
                for name in self.columns
            )
        )


class DedupProcessor(StatefulProcessor):
    """Drops the duplicates of one partition of a topic."""

    def __init__(
        self, names: list[str], forget_after_ms: int, now: Callable[[], float] = time.time
    ) -> None:
        """`names` are the columns to return. `now` is in seconds since 1970."""
        self._names = names
        self._forget_after_ms = forget_after_ms
        self._now = now
        self._entries: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._entries = handle.getMapState("seen", KEY_SCHEMA, VALUE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Return the new rows in the order of their offsets. `rows` are pandas data frames in any
        order: Spark sorts the rows of a task only by partition, and a sort that spills reorders
        those of one partition.
        """
        max_attempt_ms = int(self._now() * 1000) + MAX_CLOCK_SKEW_MS
        state = DedupState(self._entries, self._forget_after_ms, MAX_SOURCES, max_attempt_ms)
        ahead = 0
        tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in rows)
        for table in sort_by_offset(tables, _OFFSET):
            new = []
            marks = table.select([_SOURCE, _POSITION]).to_pydict()
            for source, text in zip(marks[_SOURCE], marks[_POSITION], strict=True):
                position = parse_position(text) if text else None
                if position is not None and position.attempt_ms > max_attempt_ms:
                    ahead += 1
                    position = None
                new.append(position is None or state.of(source).is_new(position))
            yield table.select(self._names).filter(pa.array(new)).to_pandas()
        state.save()
        if ahead:
            _log.warning(
                "partition %s-%s: %d records with the header %s of a time more than %d s ahead of "
                "this machine's clock: the header is ignored; either a clock is wrong, or a "
                "program other than a sink writes such headers",
                *key,
                ahead,
                POSITION_HEADER,
                MAX_CLOCK_SKEW_MS // 1000,
            )

    def close(self) -> None:
        """Do nothing: no resources are held."""
