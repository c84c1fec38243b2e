"""Reads a shard: the positions of iterators, the records of pages and their lag. The rules are
those of GetShardIterator and GetRecords in the Kinesis API reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spark_ssp.testing.kinesis.state.errors import expired_iterator, invalid_argument
from spark_ssp.testing.kinesis.state.request import seal, unseal
from spark_ssp.testing.kinesis.state.stream import Record, Shard, Stream, decode_number, shard_id

ITERATOR_LIFE_MS = 300_000
MAX_PAGE_BYTES = 10 * 1024 * 1024
MAX_PAGE_RECORDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusualAnswers:
    """Answers of GetRecords that the API reference allows and a reader must cope with. Emulators
    give them, and AWS may. `UnusualAnswers()` disables all."""

    zero_lag: bool = False
    """MillisBehindLatest is 0 for every page with records, also if the page was cut by `Limit` or
    the size limit and more records follow."""
    empty_pages: int = 0
    """The number of empty pages with a lag above 0 that come before the first page of an iterator
    from GetShardIterator and after each page with records, even if no records follow."""
    late_shard_end: bool = False
    """The last records of a closed shard come with an iterator; the null comes with an empty page
    after them."""
    event_records: int | None = None
    """The most records in an event of SubscribeToShard, to which the other fields apply as they do
    to pages."""

    @classmethod
    def all(cls) -> UnusualAnswers:
        """Return all of them at once, with two empty pages and two records in an event."""
        return cls(zero_lag=True, empty_pages=2, late_shard_end=True, event_records=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The content of an iterator: the next record of a shard by its ordinal, or (`at_ms`) the first
    that arrived at that time or later. `empty_pages` come first."""

    stream: str
    created_ms: int
    shard: str
    ordinal: int = 0
    at_ms: int | None = None
    issued_ms: int
    empty_pages: int = 0

    def to_token(self, serial: int) -> str:
        """Return opaque text; `serial` makes each token different."""
        at = "" if self.at_ms is None else self.at_ms
        place = (self.stream, self.created_ms, self.shard, self.ordinal, at)
        return seal("iterator", *place, self.issued_ms, self.empty_pages, serial)


def parse_cursor(token: str) -> Cursor:
    """Parse the result of `Cursor.to_token`; raise InvalidArgument for any other text."""
    fields = unseal("iterator", token)
    if fields is None:
        raise invalid_argument("Invalid ShardIterator.")
    stream, created, shard, ordinal, at, issued, empty_pages, _serial = fields
    return Cursor(
        stream=stream,
        created_ms=int(created),
        shard=shard,
        ordinal=int(ordinal),
        at_ms=int(at) if at else None,
        issued_ms=int(issued),
        empty_pages=int(empty_pages),
    )


def check_cursor_age(cursor: Cursor, now_ms: int) -> None:
    """Raise ExpiredIterator if the cursor was issued more than five minutes ago."""
    age = now_ms - cursor.issued_ms
    if age > ITERATOR_LIFE_MS:
        raise expired_iterator(
            f"Iterator expired. It was issued {age} milliseconds ago, which is more than the "
            f"tolerated {ITERATOR_LIFE_MS} milliseconds."
        )


def open_cursor(
    stream: Stream,
    shard: Shard,
    kind: str,
    now_ms: int,
    *,
    sequence_number: int | None = None,
    at_ms: int | None = None,
) -> Cursor:
    """Return the position of a new iterator of ShardIteratorType `kind`."""
    cursor = Cursor(
        stream=stream.name,
        created_ms=stream.created_ms,
        shard=shard.shard_id,
        ordinal=shard.log.horizon,
        issued_ms=now_ms,
    )
    if kind == "LATEST":
        return replace(cursor, ordinal=max(shard.log.visible_end(now_ms), shard.log.horizon))
    if kind == "AT_TIMESTAMP":
        if at_ms is None:
            raise invalid_argument("Must specify Timestamp with iterator type AT_TIMESTAMP.")
        if at_ms > now_ms:
            raise invalid_argument(
                f"The timestampInMillis parameter cannot be greater than the "
                f"currentTimestampInMillis. timestampInMillis: {at_ms}, "
                f"currentTimestampInMillis: {now_ms}"
            )
        return replace(cursor, at_ms=at_ms)
    if kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        if sequence_number is None:
            raise invalid_argument(f"Must specify StartingSequenceNumber with iterator type {kind}")
        _check_number(stream, shard, sequence_number)
        find = shard.log.at_number if kind == "AT_SEQUENCE_NUMBER" else shard.log.after_number
        return replace(cursor, ordinal=find(sequence_number))
    return cursor  # TRIM_HORIZON


def _check_number(stream: Stream, shard: Shard, number: int) -> None:
    """Raise InvalidArgument for a number that no position in this shard can have."""
    decoded = decode_number(number)
    if decoded is None:
        raise invalid_argument(f"Invalid StartingSequenceNumber {number}.")
    if decoded.shard_index != shard.index:
        raise invalid_argument(
            f"Invalid StartingSequenceNumber. It encodes {shard_id(decoded.shard_index)}, while "
            f"it was used in a call to a shard with {shard.shard_id}"
        )
    if not shard.starting_number <= number <= shard.last_possible_number():
        raise invalid_argument(
            f"StartingSequenceNumber {number} used in GetShardIterator on shard "
            f"{shard.shard_id} in stream {stream.name} is invalid because it did not come from "
            f"this stream or shard."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPage:
    """The answer of GetRecords. At the end of a closed shard `next_iterator` is None, and only then
    `child_shards` is set."""

    records: list[Record]
    size: int
    next_iterator: str | None
    millis_behind_latest: int
    child_shards: list[dict[str, Any]] | None


def read_page(
    stream: Stream, cursor: Cursor, *, limit: int, now_ms: int, serial: int, answers: UnusualAnswers
) -> RecordsPage:
    """Return the page at `cursor`: at most `limit` records and 10 MiB (at least one record)."""
    shard = stream.shard(cursor.shard, now_ms)
    if cursor.empty_pages:
        before = replace(cursor, empty_pages=cursor.empty_pages - 1)
        return empty_page(shard, before, millis_behind=1, now_ms=now_ms, serial=serial)
    end = shard.log.visible_end(now_ms)
    start = shard.log.at_time(cursor.at_ms) if cursor.at_ms is not None else cursor.ordinal
    found = shard.log.slice(start, end, limit=limit, max_bytes=MAX_PAGE_BYTES)
    following = shard.log.at(found.next_ordinal) if found.next_ordinal < end else None
    behind = 0 if following is None else max(1, now_ms - following.arrival_ms)
    if answers.zero_lag and found.records:
        behind = 0
    at_end = following is None and not shard.is_open and end == shard.log.end
    if at_end and not (answers.late_shard_end and found.records):
        next_iterator = None
    else:
        onward = replace(cursor, issued_ms=now_ms)
        if found.records or cursor.at_ms is None:
            onward = replace(onward, at_ms=None, ordinal=found.next_ordinal)
        if found.records:
            onward = replace(onward, empty_pages=answers.empty_pages)
        next_iterator = onward.to_token(serial)
    return RecordsPage(
        records=found.records,
        size=found.size,
        next_iterator=next_iterator,
        millis_behind_latest=behind,
        child_shards=child_shards(stream, shard, now_ms) if next_iterator is None else None,
    )


def empty_page(
    shard: Shard, cursor: Cursor, *, millis_behind: int, now_ms: int, serial: int
) -> RecordsPage:
    """Return a page without records, with an iterator at the position of `cursor`."""
    following = shard.log.at(max(cursor.ordinal, shard.log.horizon))
    behind = now_ms - following.arrival_ms if following is not None else 0
    return RecordsPage(
        records=[],
        size=0,
        next_iterator=replace(cursor, issued_ms=now_ms).to_token(serial),
        millis_behind_latest=max(behind, millis_behind, 1),
        child_shards=None,
    )


def child_shards(stream: Stream, shard: Shard, now_ms: int) -> list[dict[str, Any]]:
    """Return a closed shard's ChildShards in the form of the API."""
    children = (stream.living(wanted, now_ms) for wanted in shard.children)
    return [
        {
            "ShardId": child.shard_id,
            "ParentShards": list(child.parents),
            "HashKeyRange": hash_key_range(child),
        }
        for child in children
        if child is not None
    ]


def hash_key_range(shard: Shard) -> dict[str, str]:
    """Return a shard's HashKeyRange in the form of the API."""
    return {
        "StartingHashKey": str(shard.hash_range.first),
        "EndingHashKey": str(shard.hash_range.last),
    }
