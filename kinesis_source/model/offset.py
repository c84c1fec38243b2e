"""Offsets: the position of every shard at a moment, by slot, then stream, then shard.

Version 1:

    {"v": 1, "slots": 2,
     "streams": {"orders": {"created": 1700000000000}},
     "ssp": {"0": {"orders": {"shardId-000000000000": {"after": "4968…", "sub": 0, "seen": 17…}}},
             "1": {"orders": {"shardId-000000000001": {"at": "TRIM_HORIZON"}}}}}

* A shard's entry holds `after` (a record; `sub` is the last user record read of it) or `at` (a time
  in epoch milliseconds, or TRIM_HORIZON or SHARD_END), and, where known, `seen`
  (`ShardState.last_caught_up_ms`) and `first`. `from` (written like an entry) is
  `ShardState.resume_from`, and `follows` (a list of shards) is `ShardState.follows`.
* `streams.<name>.start` is contained only in the first offset that has the stream: the start of its
  shards. So a replay of a query's first batch needs no option and no call.
* `streams.<name>.retention` is the stream's retention in milliseconds, and `kept`, after it was
  raised, the time since when records are kept by it (`Retention`): a query that starts again knows
  what expired before. Offsets of older releases have neither.
* `streams.<name>.leases` is the lease table by which the shards are shared, if they are: then the
  offset holds only this worker's shards.
* `streams.<name>.placement` is contained only where the batch that ends here may leave user records
  out: the proof of where its records were placed (`KeyPlacement`).
* `waiting` (same shape as a slot) holds shards that have a start but may not be read yet, because a
  parent is still being read; they belong to no slot.
* `departed` (same shape) holds shards that left because another worker has their lease, and that
  this query has read further than their checkpoints. Comparisons of positions ignore it.
* The offset before a query's first batch is empty: no streams, no slots.

Version 2 is written for more than MOST_READABLE entries, since Spark writes an offset for every
batch, and keeps two or three in each of its last hundred progress reports:

    {"v": 2, "slots": 64, "streams": {"orders": {"created": 1700000000000}},
     "shards": {"orders": {"ssp": 9998, "waiting": 2}}, "packed": "eNrl…"}

`shards` counts the entries, and `packed` has them, and the families of a placement, as tables: the
entries of thousands of shards differ in little. Entries with the same keys form a table. A column
names a value that all rows share once, and whole numbers by their steps. Sequence numbers consist
of fields of bits, most of which are equal for all shards or count up from one to the next: written
in hexadecimal, with the first digits of all numbers before their second ones, such fields compress
to almost nothing. The tables are JSON, compressed by zlib and encoded as base64, so that Python's
standard library shows them. An entry after a record takes about 11 bytes, where plain JSON takes
128.

Spark compares offsets as text and PySpark writes a dict in insertion order. So every level is
inserted in sorted order, and equal offsets are equal text.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec

from spark_ssp.common.errors import NEW_CHECKPOINT
from spark_ssp.common.locations import MAX_BYTES
from spark_ssp.common.versioned_json import Codec, Json, VersionedDocument, whole_number
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, SlotId, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    KeyPlacement,
    Latest,
    Position,
    Retention,
    SequenceNumber,
    ShardEnd,
    ShardState,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)

READABLE: Final = 1
"""The version for few shards."""
PACKED: Final = 2
"""The version for many."""
MOST_READABLE: Final = 256
"""Entries that are written one by one, about 32 KB of them."""

_DOCUMENT: Final = VersionedDocument(
    subject="checkpoint of a kinesis-ssp query",
    article="an",
    noun="offset",
    full_name="a kinesis-ssp offset",
    next_step="run the query with the spark-ssp version that wrote this checkpoint, or start it "
    f"on {NEW_CHECKPOINT}",
)

_SHAPES: Final = (
    frozenset({"v", "slots", "streams", "ssp"}),
    frozenset({"v", "slots", "streams", "packed"}),
)
_SSP: Final = "ssp"
_WAITING: Final = "waiting"
_DEPARTED: Final = "departed"
_FAMILIES: Final = "families"


class StreamEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in an offset: its creation time, its start while it is new to the query, the lease
    table by which its shards are shared (None: the query has all of them), its retention (None:
    unknown), and `placement` for the batch that ends with this offset."""

    created: EpochMillis
    start: StartingPosition | None = None
    leases: str | None = None
    retention: Retention | None = None
    placement: KeyPlacement | None = None


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """All positions at a moment. `assignment` and `states` have the same keys."""

    slots: int = 0
    streams: Mapping[StreamName, StreamEntry] = msgspec.field(default_factory=dict)
    assignment: Mapping[ShardKey, SlotId] = msgspec.field(default_factory=dict)
    states: Mapping[ShardKey, ShardState] = msgspec.field(default_factory=dict)
    waiting: Mapping[ShardKey, ShardState] = msgspec.field(default_factory=dict)
    lost_shards: Mapping[ShardKey, ShardState] = msgspec.field(default_factory=dict)

    def entry(self, key: ShardKey) -> ShardState | None:
        """Return the entry of a shard, whether it is being read or waits."""
        return self.states.get(key) or self.waiting.get(key)


BEFORE_FIRST_BATCH = Offset()


def encode(offset: Offset) -> Json:
    """Return the offset as the JSON document that Spark stores."""
    entries = len(offset.states) + len(offset.waiting) + len(offset.lost_shards)
    if entries <= MOST_READABLE:
        return _encode_readable(offset)
    document = _encode_packed(offset)
    return {**document, "packed": seal_tables(document["packed"])}


def _encode_readable(offset: Offset) -> Json:
    document: Json = {
        "v": READABLE,
        "slots": offset.slots,
        "streams": {name: _encode_stream(offset.streams[name]) for name in sorted(offset.streams)},
        _SSP: _encode_slots(offset),
    }
    if offset.waiting:
        document[_WAITING] = _encode_shards(offset.waiting)
    if offset.lost_shards:
        document[_DEPARTED] = _encode_shards(offset.lost_shards)
    return document


def _encode_packed(offset: Offset) -> Json:
    """Return the document of version 2, with its tables as JSON."""
    parts: dict[StreamName, dict[str, dict[ShardId, Json]]] = {}
    for key, state in offset.states.items():
        entry = {"slot": offset.assignment[key], **encode_state(state)}
        parts.setdefault(key.stream, {}).setdefault(_SSP, {})[key.shard] = entry
    for part, states in ((_WAITING, offset.waiting), (_DEPARTED, offset.lost_shards)):
        for key, state in states.items():
            entry = encode_state(state)
            parts.setdefault(key.stream, {}).setdefault(part, {})[key.shard] = entry
    counts = {
        name: {part: len(parts[name][part]) for part in sorted(parts[name])}
        for name in sorted(parts)
    }
    streams: Json = {}
    for name in sorted(offset.streams):
        document = streams[name] = _encode_stream(offset.streams[name])
        if "placement" in document:
            families = document["placement"].pop(_FAMILIES)
            parts.setdefault(name, {})[_FAMILIES] = {
                ShardId(shard): {"first": first, "last": last}
                for shard, (first, last) in families.items()
            }
    return {
        "v": PACKED,
        "slots": offset.slots,
        "streams": streams,
        "shards": counts,
        "packed": {
            name: {part: tables_of(parts[name][part]) for part in sorted(parts[name])}
            for name in sorted(parts)
        },
    }


def is_offset(document: object) -> bool:
    """Return whether a document of any source has the shape of a kinesis-ssp offset."""
    return isinstance(document, dict) and any(document.keys() >= shape for shape in _SHAPES)


def decode(document: Any) -> Offset:
    """Parse a stored offset. Raises IncompatibleStateError unless this version can read it."""
    return _DOCUMENT.read(
        _opened(document),
        {
            READABLE: Codec(parse=_decode_readable, write=_encode_readable),
            PACKED: Codec(parse=_decode_packed, write=_encode_packed),
        },
    )


# --- Writing -------------------------------------------------------------------------------------


def _encode_stream(entry: StreamEntry) -> Json:
    document: Json = {"created": entry.created}
    if entry.start is not None:
        document["start"] = _encode_start(entry.start)
    if entry.leases is not None:
        document["leases"] = entry.leases
    if entry.retention is not None:
        document["retention"] = entry.retention.millis
        if entry.retention.kept_since is not None:
            document["kept"] = entry.retention.kept_since
    if entry.placement is not None:
        document["placement"] = {
            "since": entry.placement.since,
            _FAMILIES: {
                shard: [str(family.first), str(family.last)]
                for shard, family in sorted(entry.placement.families.items())
            },
        }
    return document


def _encode_slots(offset: Offset) -> Json:
    by_slot: dict[SlotId, dict[ShardKey, ShardState]] = {}
    for key, state in offset.states.items():
        by_slot.setdefault(offset.assignment[key], {})[key] = state
    return {str(slot): _encode_shards(by_slot[slot]) for slot in sorted(by_slot)}


def _encode_shards(states: Mapping[ShardKey, ShardState]) -> Json:
    document: Json = {}
    for key in sorted(states):
        document.setdefault(key.stream, {})[key.shard] = encode_state(states[key])
    return document


def encode_state(state: ShardState) -> Json:
    """Return the entry of one shard."""
    document = _encode_point(state.position)
    if state.last_caught_up_ms is not None:
        document["seen"] = state.last_caught_up_ms
    if state.first is not None:
        document["first"] = state.first
    if state.resume_from is not None:
        document["from"] = encode_state(state.resume_from)
    if state.follows:
        document["follows"] = list(state.follows)
    return document


def _encode_point(point: Position | Latest) -> Json:
    match point:
        case AfterRecord():
            return {"after": point.sequence_number, "sub": point.sub}
        case AtTimestamp():
            return {"at": point.millis}
        case TrimHorizon():
            return {"at": "TRIM_HORIZON"}
        case ShardEnd():
            return {"at": "SHARD_END"}
        case Latest():
            return {"at": "LATEST"}


def _encode_start(start: StartingPosition) -> Json:
    document: Json = {}
    if start.default is not None:
        document["default"] = _encode_point(start.default)
    if start.by_shard:
        shards: Json = {}
        for key in sorted(start.by_shard):
            shards.setdefault(key.stream, {})[key.shard] = _encode_point(start.by_shard[key])
        document["shards"] = shards
    return document


# --- Reading -------------------------------------------------------------------------------------


def _opened(document: Any) -> Any:
    """Return a document of version 2 with its tables as JSON, in which it is compared: the same
    tables may be other text. Raises IncompatibleStateError if they cannot be opened."""
    if not isinstance(document, dict) or not isinstance(document.get("packed"), str):
        return document
    try:
        return {**document, "packed": open_tables(document["packed"])}
    except ValueError as error:
        raise _DOCUMENT.incompatible(
            f"an offset with {error}", f"the layout of version {PACKED}"
        ) from None


def _decode_packed(document: Json) -> Offset:
    slots: dict[str, Json] = {}
    readable: Json = {
        "slots": document["slots"],
        "streams": dict(document["streams"]),
        _SSP: slots,
        _WAITING: {},
        _DEPARTED: {},
    }
    for name, parts in document["packed"].items():
        for part, tables in parts.items():
            entries = entries_of(tables)
            if part == _FAMILIES:
                stream = readable["streams"][name]
                families = {shard: [each["first"], each["last"]] for shard, each in entries.items()}
                placement = {**stream["placement"], _FAMILIES: families}
                readable["streams"][name] = {**stream, "placement": placement}
            elif part == _SSP:
                for shard, entry in entries.items():
                    slot = str(whole_number(entry.pop("slot")))
                    slots.setdefault(slot, {}).setdefault(name, {})[shard] = entry
            elif part in (_WAITING, _DEPARTED):
                readable[part][name] = entries
            else:
                raise ValueError(f"unknown part {part!r} of {name}")
    return _decode_readable(readable)


def _decode_readable(document: Json) -> Offset:
    slots = whole_number(document["slots"])
    states: dict[ShardKey, ShardState] = {}
    assignment: dict[ShardKey, SlotId] = {}
    for text, shards in document[_SSP].items():
        slot = SlotId(int(text))
        if not 0 <= slot < slots:
            raise ValueError(f"slot {slot} of {slots}")
        for key, state in _decode_shards(shards).items():
            if key in states:
                raise ValueError(f"{key} is in two slots")
            states[key] = state
            assignment[key] = slot
    offset = Offset(
        slots=slots,
        streams={
            StreamName(name): StreamEntry(
                created=EpochMillis(whole_number(entry["created"])),
                start=_decode_start(entry["start"]) if "start" in entry else None,
                leases=_table_name(entry["leases"]) if "leases" in entry else None,
                retention=_decode_retention(entry),
                placement=_decode_placement(entry["placement"]) if "placement" in entry else None,
            )
            for name, entry in document["streams"].items()
        },
        assignment=assignment,
        states=states,
        waiting=_decode_shards(document.get(_WAITING, {})),
        lost_shards=_decode_shards(document.get(_DEPARTED, {})),
    )
    _check_whole(offset)
    return offset


def _check_whole(offset: Offset) -> None:
    """Check that the parts of an offset are consistent, so that an edited one fails here."""
    for key in sorted({*offset.states, *offset.waiting, *offset.lost_shards}):
        if key.stream not in offset.streams:
            raise ValueError(f"{key} belongs to a stream missing from the offset")
        if key in offset.states and key in offset.waiting:
            raise ValueError(f"{key} is both in a slot and waiting")
        if key in offset.lost_shards and (key in offset.states or key in offset.waiting):
            raise ValueError(f"{key} is both present and departed")
    for key, state in offset.states.items():
        for shard in state.follows:
            older = offset.states.get(ShardKey(stream=key.stream, shard=shard))
            if older is None or not isinstance(older.position, ShardEnd):
                raise ValueError(f"{key} follows {shard}, which is not at SHARD_END")
            if shard == key.shard or not set(older.follows) <= set(state.follows):
                raise ValueError(f"{key} follows {shard} without the shards that this follows")


def _table_name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a table name")
    return value


def _decode_retention(entry: Json) -> Retention | None:
    if "retention" not in entry:
        return None
    since = EpochMillis(whole_number(entry["kept"])) if "kept" in entry else None
    return Retention(millis=whole_number(entry["retention"]), kept_since=since)


def _decode_placement(document: Json) -> KeyPlacement:
    return KeyPlacement(
        since=EpochMillis(whole_number(document["since"])),
        families={
            ShardId(shard): _hash_range(*family) for shard, family in document[_FAMILIES].items()
        },
    )


def _hash_range(first: str, last: str) -> HashRange:
    return HashRange(first=int(first), last=int(last))


def _sequence_number(value: object) -> SequenceNumber:
    if not isinstance(value, str) or not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{value!r} is not a sequence number")
    return SequenceNumber(value)


def _decode_shards(document: Json) -> dict[ShardKey, ShardState]:
    return {
        ShardKey(stream=StreamName(stream), shard=ShardId(shard)): _decode_state(state)
        for stream, shards in document.items()
        for shard, state in shards.items()
    }


def _decode_state(document: Json) -> ShardState:
    position = _decode_point(document)
    if isinstance(position, Latest):
        raise ValueError("LATEST is not a position")
    begin = _decode_state(document["from"]) if "from" in document else None
    if begin is not None and isinstance(begin.position, ShardEnd):
        raise ValueError("SHARD_END cannot be resumed from")
    seen = document.get("seen")
    first = document.get("first")
    return ShardState(
        position=position,
        last_caught_up_ms=None if seen is None else EpochMillis(whole_number(seen)),
        first=None if first is None else _sequence_number(first),
        resume_from=begin,
        follows=tuple(ShardId(shard) for shard in document.get("follows", ())),
    )


def _decode_point(document: Json) -> Position | Latest:
    if "after" in document:
        return AfterRecord(
            sequence_number=_sequence_number(document["after"]), sub=whole_number(document["sub"])
        )
    match document["at"]:
        case int(millis):
            return AtTimestamp(millis=EpochMillis(whole_number(millis)))
        case "TRIM_HORIZON":
            return TrimHorizon()
        case "SHARD_END":
            return ShardEnd()
        case "LATEST":
            return Latest()
        case other:
            raise ValueError(f"unknown position {other!r}")


def _decode_start(document: Json) -> StartingPosition:
    return StartingPosition(
        default=_decode_start_point(document["default"]) if "default" in document else None,
        by_shard={
            ShardKey(stream=StreamName(stream), shard=ShardId(shard)): _decode_start_point(point)
            for stream, shards in document.get("shards", {}).items()
            for shard, point in shards.items()
        },
    )


def _decode_start_point(document: Json) -> StartPoint:
    point = _decode_point(document)
    if isinstance(point, ShardEnd):
        raise ValueError("SHARD_END is not a start")
    return point


# --- Packed entries ------------------------------------------------------------------------------


_SHARD_ID: Final = "shardId-"
_LEVEL: Final = 6
"""zlib's level: 9 takes three times as long, and saves a hundredth."""


def seal_tables(tables: Any) -> str:
    """Return tables as text. Two versions of zlib may write different texts."""
    text = json.dumps(tables, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def open_tables(text: str) -> Any:
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
