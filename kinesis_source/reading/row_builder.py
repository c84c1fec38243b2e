"""Builds the rows of a page's slice: whole records by column, or the user records of aggregates.

For a page without aggregated records only the first bytes of each record are compared; only a page
with some is processed record by record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.aggregation.deaggregation import (
    MAGIC,
    Aggregate,
    KeyFilter,
    has_aggregate_magic,
    last_sub,
    open_aggregate,
    user_records,
)
from spark_ssp.kinesis_source.aggregation.repeat_keys import repeat_keys
from spark_ssp.kinesis_source.model.shard import EpochMillis, RecordPage, SequenceNumber
from spark_ssp.kinesis_source.reading.arrow_batches import Chunk, memory_bytes
from spark_ssp.kinesis_source.reading.range_filter import WHOLE_RECORD, PageSlice

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
    begin = part.begin + _is_read(data, part.after_sub)
    partition_keys = page.partition_keys[begin : part.end]
    data = page.data[begin : part.end]
    sequence_numbers = page.sequence_numbers[begin : part.end]
    keys = [_key_of(shard, number) for number in sequence_numbers] if include_repeat_keys else None
    return Chunk(
        shard=shard,
        partition_keys=partition_keys,
        data=data,
        sequence_numbers=sequence_numbers,
        sub_sequence_numbers=None,
        arrival_ms=page.arrival_ms[begin : part.end],
        repeat_keys=keys,
        memory_bytes=memory_bytes(partition_keys, data, keys),
    )


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
    return Chunk(
        shard=shard,
        partition_keys=partition_keys,
        data=data,
        sequence_numbers=sequence_numbers,
        sub_sequence_numbers=subs,
        arrival_ms=arrivals,
        repeat_keys=keys,
        memory_bytes=memory_bytes(partition_keys, data, keys),
    )


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
