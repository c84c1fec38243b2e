"""Packs the entries of thousands of shards, which differ in little, into a short text.

Entries with the same keys form a table. A column names a value that all rows share once, and whole
numbers by their steps. Sequence numbers consist of fields of bits, most of which are equal for all
shards or count up from one to the next: written in hexadecimal, with the first digits of all
numbers before their second ones, such fields compress to almost nothing. The tables are JSON,
compressed by zlib and encoded as base64, so that Python's standard library shows them. An entry
after a record takes about 11 bytes, where plain JSON takes 128.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from spark_ssp.common.locations import MAX_BYTES
from spark_ssp.grouping.identifiers import ShardId

Json = dict[str, Any]

_SHARD_ID: Final = "shardId-"
_LEVEL: Final = 6
"""zlib's level: 9 takes three times as long, and saves a hundredth."""


def seal(tables: Any) -> str:
    """Return tables as text. Two versions of zlib may write different texts."""
    text = json.dumps(tables, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def opened(text: str) -> Any:
    """Return the tables of a text. Raises ValueError for another text, or one that would fill the
    memory."""
    unpacking = zlib.decompressobj()
    try:
        tables = unpacking.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            raise ValueError("it is cut off, longer than it says, or too large")
        return json.loads(tables)
    except (ValueError, zlib.error, RecursionError) as error:
        raise ValueError(f"a packed text that cannot be opened: {error}") from None


def tables_of(entries: Mapping[ShardId, Json]) -> list[Json]:
    """Return entries by shard as tables. An entry is a JSON object with sorted or fixed keys."""
    by_keys: dict[tuple[str, ...], list[ShardId]] = {}
    for shard in sorted(entries):
        by_keys.setdefault(tuple(entries[shard]), []).append(shard)
    return [
        {
            "shards": _column(shards),
            "columns": {key: _column([entries[shard][key] for shard in shards]) for key in keys},
        }
        for keys, shards in sorted(by_keys.items())
    ]


def entries_of(tables: Sequence[Json]) -> dict[ShardId, Json]:
    """Return the entries of tables, by shard. Raises ValueError, TypeError or KeyError for a
    document of another shape."""
    entries: dict[ShardId, Json] = {}
    for table in tables:
        shards = _values(table["shards"], 1)  # no two rows have the same
        columns = [_values(column, len(shards)) for column in table["columns"].values()]
        keys = tuple(table["columns"])
        for shard, *row in zip(shards, *columns, strict=True):
            if not isinstance(shard, str) or shard in entries:
                raise ValueError(f"{shard!r} is no shard, or has two entries")
            entries[ShardId(shard)] = dict(zip(keys, row, strict=True))
    return entries


def _column(values: Sequence[Any]) -> Json:
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return {"all": first}
    if all(type(value) is int for value in values):
        return {"steps": _steps(values)}
    if all(isinstance(value, str) for value in values):
        if all(_is_decimal(value) for value in values):
            return {"digits": list(_by_digit(values))}
        if all(_is_shard_id(value) for value in values):
            return {"numbers": _steps([int(value.removeprefix(_SHARD_ID)) for value in values])}
    return {"each": list(values)}


def _values(column: Json, count: int) -> list[Any]:
    ((kind, content),) = column.items()
    match kind:
        case "all":
            return [content] * count
        case "steps":
            return list(accumulate(content))
        case "digits":
            return [str(int("".join(digits), 16)) for digits in zip(*content, strict=True)]
        case "numbers":
            return [f"{_SHARD_ID}{number:012d}" for number in accumulate(content)]
        case "each":
            return list(content)
        case other:
            raise ValueError(f"unknown column {other!r}")


def _steps(numbers: Sequence[int]) -> list[int]:
    return [numbers[0], *(after - before for before, after in pairwise(numbers))]


def _by_digit(numbers: Sequence[str]) -> Iterator[str]:
    """Yield the first hexadecimal digits of all numbers, then the second ones, and so on."""
    digits = [f"{int(number):x}" for number in numbers]
    width = max(map(len, digits))
    joined = "".join(text.rjust(width, "0") for text in digits)
    for place in range(width):
        yield joined[place::width]


def _is_decimal(value: str) -> bool:
    return value.isascii() and value.isdecimal() and (value[0] != "0" or value == "0")


def _is_shard_id(value: str) -> bool:
    number = value.removeprefix(_SHARD_ID)
    return (
        value.startswith(_SHARD_ID) and len(number) == 12 and number.isdecimal() and value.isascii()
    )
