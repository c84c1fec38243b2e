"""Columns of a DataFrame on their way through a stateful operator in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

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
