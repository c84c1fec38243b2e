"""Selects the records of a page that belong to a range, and builds their rows.

A range may begin at an expected record, which must appear before anything is delivered: it proves
that nothing between it and the first delivered record has been trimmed. Its end is its last record.
Both may be part of an aggregated record, so a slice also contains the bounds of the user records in
its first and last Kinesis record.

For a page without aggregated records only the first bytes of each record are compared; only a page
with some is processed record by record.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import itemgetter
from typing import Final

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.model.deaggregation import (
    MAGIC,
    WHOLE_RECORD,
    Aggregate,
    KeyFilter,
    has_aggregate_magic,
    last_sub,
    open_aggregate,
    repeat_keys,
    user_records,
)
from spark_ssp.kinesis_source.model.ranges import RangeEnd
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    RecordPage,
    SequenceNumber,
    sequence_order,
)
from spark_ssp.kinesis_source.reading.arrow_batches import Chunk, memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRecord:
    """The record that must come first; its user records above `after_sub` are delivered.
    `after_sub` is -1 to deliver the whole record and `WHOLE_RECORD` to deliver nothing of it."""

    sequence_number: SequenceNumber
    after_sub: int


class Match(Enum):
    """The result of the search for a record in a page."""

    PENDING = auto()
    """The page ends before the record."""
    FOUND = auto()
    MISSING = auto()
    """The page has a later record in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSlice:
    """The records `begin` to `end` (excluded) of a page, with the matches of the expected record
    and of the range's end.

    The user records above `after_sub` of record `begin` belong to the range, and those up to
    `up_to_sub` of record `end - 1`; None means no bound. `start_match` is FOUND if no record is
    expected. `instead_of_expected` and `instead_of_end` are the later record if one is MISSING.
    """

    begin: int
    end: int
    after_sub: int | None
    up_to_sub: int | None
    start_match: Match
    instead_of_expected: SequenceNumber | None
    end_match: Match
    instead_of_end: SequenceNumber | None


def slice_page(
    sequence_numbers: Sequence[SequenceNumber], expected: ExpectedRecord | None, end: RangeEnd
) -> PageSlice:
    """Return the part of a page in the range. `sequence_numbers` ascend as integers. Records before
    the expected one and after the end are left out. If the expected record is missing, the slice
    begins with the record that follows it."""
    count = len(sequence_numbers)
    begin, start_match = _find(sequence_numbers, expected.sequence_number if expected else None, 0)
    end_match = Match.PENDING
    stop = following = count
    up_to_sub = None
    if isinstance(end, AfterRecord):
        following, end_match = _find(sequence_numbers, end.sequence_number, begin)
        stop = following
        if end_match is Match.FOUND and end.sub >= 0:
            stop += 1
            up_to_sub = end.sub
    begins_inside = expected is not None and start_match is Match.FOUND
    return PageSlice(
        begin=begin,
        end=stop,
        after_sub=expected.after_sub if expected is not None and begins_inside else None,
        up_to_sub=up_to_sub,
        start_match=start_match,
        instead_of_expected=sequence_numbers[begin] if start_match is Match.MISSING else None,
        end_match=end_match,
        instead_of_end=sequence_numbers[following] if end_match is Match.MISSING else None,
    )


def _find(
    sequence_numbers: Sequence[SequenceNumber], wanted: SequenceNumber | None, begin: int
) -> tuple[int, Match]:
    """Return the first index not before `wanted`, and the match of the record at it."""
    if wanted is None:
        return begin, Match.FOUND
    order = sequence_order(wanted)
    if begin == len(sequence_numbers) or sequence_order(sequence_numbers[-1]) < order:
        return len(sequence_numbers), Match.PENDING
    index = bisect_left(sequence_numbers, order, lo=begin, key=sequence_order)
    is_wanted = sequence_order(sequence_numbers[index]) == order
    return index, Match.FOUND if is_wanted else Match.MISSING


_log = logging.getLogger(__name__)

_FIRST_BYTES: Final = itemgetter(slice(len(MAGIC)))
"""A C function rather than a lambda, since it is called for every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFilter:
    """The user records to drop: stragglers in aggregates that arrived at `since` or later."""

    keys: KeyFilter
    since: EpochMillis


def build_rows(
    page: RecordPage,
    part: PageSlice,
    shard: ShardKey,
    *,
    deaggregate: bool,
    include_repeat_keys: bool = False,
    straggler_filter: Callable[[], StragglerFilter | None] = lambda: None,
) -> Chunk:
    """Return the rows of `part` of `page`, in order.

    Without `deaggregate` every Kinesis record is one row: the first one too if the slice begins
    inside it, unless all of its user records have been read. A record that is not a valid aggregate
    contains the one user record 0. `straggler_filter` is called only if there is an aggregated
    record, since it may call the service; None means that no user record is left out.
    `include_repeat_keys` requires `deaggregate`.
    """
    data = page.data[part.begin : part.end]
    if deaggregate and MAGIC in set(map(_FIRST_BYTES, data)):
        return _split_rows(
            page, part, shard, straggler_filter(), include_repeat_keys=include_repeat_keys
        )
    rows = page.part(part.begin + _is_read(data, part.after_sub), part.end)
    if include_repeat_keys:
        keys = [_key_of(shard, number) for number in rows.sequence_numbers]
        rows = replace(rows, repeat_keys=keys)
    return Chunk(shard, rows, memory_bytes(rows))


def _is_read(data: Sequence[bytes], after_sub: int | None) -> bool:
    """Return whether the first record is read completely."""
    return bool(data) and after_sub is not None and after_sub >= last_sub(data[0])


def _key_of(shard: ShardKey, sequence_number: SequenceNumber, sub: int = 0) -> str:
    """Return a key that only this row has: no repeat key, of which each has a colon."""
    return f"{shard}/{sequence_number}/{sub}"


def _split_rows(
    page: RecordPage,
    part: PageSlice,
    shard: ShardKey,
    straggler_filter: StragglerFilter | None,
    *,
    include_repeat_keys: bool = False,
) -> Chunk:
    partition_keys: list[str | None] = []
    data: list[bytes] = []
    sequence_numbers: list[SequenceNumber] = []
    subs: list[int] = []
    arrivals: list[EpochMillis] = []
    keys: list[str] | None = [] if include_repeat_keys else None
    for index in range(part.begin, part.end):
        above, up_to = _bounds(part, index)
        arrival = page.arrival_ms[index]
        stragglers = (
            straggler_filter.keys
            if straggler_filter is not None and arrival >= straggler_filter.since
            else None
        )
        number, aggregate = page.sequence_numbers[index], open_aggregate(page.data[index])
        if aggregate is None:
            users = _whole(page.partition_keys[index], page.data[index], shard)
        else:
            users = _users(aggregate, shard, stragglers)
        kept = [user for user in users if above < user[0] <= up_to]
        subs.extend(sub for sub, _, _ in kept)
        partition_keys.extend(key for _, key, _ in kept)
        data.extend(body for _, _, body in kept)
        sequence_numbers.extend([number] * len(kept))
        arrivals.extend([arrival] * len(kept))
        if keys is not None:
            written = None if aggregate is None else repeat_keys(aggregate, shard.stream)
            keys.extend(
                _key_of(shard, number, sub) if written is None else written[sub]
                for sub, _, _ in kept
            )
    rows = replace(
        page,
        sequence_numbers=sequence_numbers,
        partition_keys=partition_keys,
        arrival_ms=arrivals,
        data=data,
        sub_sequence_numbers=subs,
        repeat_keys=keys,
    )
    return Chunk(shard, rows, memory_bytes(rows))


def _bounds(part: PageSlice, index: int) -> tuple[int, int]:
    above = part.after_sub if index == part.begin and part.after_sub is not None else -1
    last = index == part.end - 1 and part.up_to_sub is not None
    return above, part.up_to_sub if last and part.up_to_sub is not None else WHOLE_RECORD


_User = tuple[int, str | None, bytes]
"""A user record: its number, key and data."""


def _whole(partition_key: str | None, data: bytes, shard: ShardKey) -> Sequence[_User]:
    if has_aggregate_magic(data):
        _warn_once(shard, _FAULTY)
    return ((0, partition_key, data),)


def _users(aggregate: Aggregate, shard: ShardKey, stragglers: KeyFilter | None) -> Sequence[_User]:
    users = user_records(aggregate, stragglers)
    if len(users) < len(aggregate.data):
        _warn_once(shard, _OUTSIDE)
    return [(user.sub, user.partition_key, user.data) for user in users]


_OUTSIDE: Final = (
    "shard %s holds aggregated records with user records whose hash keys belong to a sibling since "
    "a split; they are left out, as the KPL puts them again; other producers do not; see "
    "docs/design/kpl-aggregates.md (logged once for each shard)"
)
_FAULTY: Final = (
    "shard %s holds records that begin like KPL aggregates but are damaged, or hold more than an "
    "aggregate can; they are delivered whole; see docs/design/kpl-aggregates.md (logged once for "
    "each shard)"
)
_warned: set[tuple[ShardKey, str]] = set()


def _warn_once(shard: ShardKey, text: str) -> None:
    """Log once for each shard and process: a producer may send many such records."""
    if (shard, text) not in _warned:
        _warned.add((shard, text))
        _log.warning(text, shard)
