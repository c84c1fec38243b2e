"""The records and reshards of the demo, the same on each run.

The departures come in their order. Among them are malformed records, each a spoilt copy of the
departure before it, under the same key. Every now and then the stream is split or merged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

import orjson
import pyarrow as pa

from examples.flights.data import partition_keys

SEED: Final = 2013
BATCH_RECORDS: Final = 500
"""The most records that PutRecords takes (Kinesis API reference)."""
DEPARTURES_PER_MALFORMED: Final = 500
MIN_MALFORMED: Final = 20


class Reshard(StrEnum):
    SPLIT = "split"
    MERGE = "merge"


RESHARDS: Final = (
    (0.15, Reshard.SPLIT),
    (0.35, Reshard.SPLIT),
    (0.55, Reshard.SPLIT),
    (0.75, Reshard.MERGE),
)
"""After which share of the records the stream is changed, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A record to put."""

    key: str
    data: bytes


Step = tuple[Message, ...] | Reshard
"""One thing to do: put at most `BATCH_RECORDS` records, or reshard."""


def steps(table: pa.Table) -> Iterator[Step]:
    """The whole script for these departures (`data.departures`)."""
    moments = [(int(share * record_count(table.num_rows)), kind) for share, kind in RESHARDS]
    batch: list[Message] = []
    for done, message in enumerate(_messages(table), start=1):
        batch.append(message)
        due = bool(moments) and done >= moments[0][0]
        if due or len(batch) == BATCH_RECORDS:
            yield tuple(batch)
            batch = []
        if due:
            yield moments.pop(0)[1]
    if batch:
        yield tuple(batch)


def record_count(departures: int) -> int:
    """Return the number of records put in all."""
    return departures + malformed_count(departures)


def malformed_count(departures: int) -> int:
    """Return the number of malformed records."""
    return min(departures, max(MIN_MALFORMED, departures // DEPARTURES_PER_MALFORMED))


def malformed(table: pa.Table) -> list[Message]:
    """The malformed records, in their order."""
    chosen = sorted(_spoilt(table.num_rows))
    rows = table.take(pa.array(chosen, pa.int64()))
    return [
        Message(key=key, data=_spoil(number, row))
        for number, (row, key) in enumerate(zip(_rows(rows), _keys(rows), strict=True))
    ]


def _messages(table: pa.Table) -> Iterator[Message]:
    spoilt = _spoilt(table.num_rows)
    number = 0
    for start in range(0, table.num_rows, BATCH_RECORDS):
        part = table.slice(start, BATCH_RECORDS)
        for row, key in zip(_rows(part), _keys(part), strict=True):
            yield Message(key=key, data=orjson.dumps(row))
            if row["index"] in spoilt:
                yield Message(key=key, data=_spoil(number, row))
                number += 1


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield dict(zip(table.column_names, values, strict=True))


def _keys(table: pa.Table) -> list[str]:
    keys: list[str] = partition_keys(table).to_pylist()
    return keys


def _spoilt(departures: int) -> set[int]:
    """The departures that are followed by a malformed copy."""
    chance = random.Random(SEED)
    return set(chance.sample(range(departures), malformed_count(departures)))


def _spoil(number: int, row: dict[str, Any]) -> bytes:
    """The `number`-th malformed record: in turn, each of the ways in which a record goes bad."""
    whole = orjson.dumps(row)
    match number % 5:
        case 0:  # cut off
            return whole[: len(whole) // 2]
        case 1:  # something else altogether
            return f"Flight {row['flight']} is delayed; please see the board.".encode()
        case 2:  # not even text
            return b"\xff\xfe" + number.to_bytes(8, "big")
        case 3:  # a word where a number belongs
            return orjson.dumps({**row, "month": "January"})
        case _:  # without a field that each departure has
            return orjson.dumps({name: value for name, value in row.items() if name != "carrier"})


# --- Which shards ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShard:
    """An open shard: its part of the hash keys, first to last, and its parent if it has one."""

    shard: str
    parent: str | None
    first: int
    last: int

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    @property
    def middle(self) -> int:
        """The first hash key of the upper half."""
        return self.first + self.width // 2


def shard_to_split(shards: Sequence[OpenShard]) -> OpenShard:
    """The widest, of equal ones the first."""
    return min(shards, key=lambda shard: (-shard.width, shard.first))


def shards_to_merge(shards: Sequence[OpenShard]) -> tuple[OpenShard, OpenShard]:
    """The narrowest two neighbours, of different parents where possible: so the merge does more
    than undo a split."""
    ordered = sorted(shards, key=lambda shard: shard.first)
    return min(
        pairwise(ordered),
        key=lambda pair: (
            pair[0].parent == pair[1].parent,
            pair[0].width + pair[1].width,
            pair[0].first,
        ),
    )
