"""From a page and its cut to rows: whole records by column, or split where the KPL aggregated.

A page without aggregated records costs one look at the first bytes of each record; only a
page with some is walked record by record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from kinesis_source.aggregation.deaggregation import (
    MAGIC,
    KeyFilter,
    last_sub,
    looks_aggregated,
    split,
)
from kinesis_source.model.shard import EpochMillis, RecordPage, SequenceNumber
from kinesis_source.reading.arrow_batches import Chunk, weigh
from kinesis_source.reading.range_filter import WHOLE_RECORD, Cut
from task_grouping.identifiers import ShardKey

_log = logging.getLogger(f"spark_ssp.{__name__}")

_FIRST_BYTES: Final = itemgetter(slice(len(MAGIC)))
"""No function of our own: this is asked of every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """The stragglers to drop: those of aggregates that arrived at `since` or later."""

    keys: KeyFilter
    since: EpochMillis


def rows_of(
    page: RecordPage,
    cut: Cut,
    shard: ShardKey,
    *,
    deaggregate: bool,
    dropping: Callable[[], Dropping | None] = lambda: None,
) -> Chunk:
    """Return the rows of `page` within `cut`, in order.

    Without `deaggregate` every Kinesis record is one row: the first one too where the cut begins
    inside it, unless all of its user records have been read. A record that is not a valid aggregate
    holds the one user record 0. `dropping` is called only when an aggregated record is met, since
    it may ask the service; None: no user record is left out.
    """
    data = page.data[cut.begin : cut.end]
    if deaggregate and MAGIC in set(map(_FIRST_BYTES, data)):
        return _split_rows(page, cut, shard, dropping())
    begin = cut.begin + _is_read(data, cut.after_sub)
    partition_keys = page.partition_keys[begin : cut.end]
    data = page.data[begin : cut.end]
    return Chunk(
        shard=shard,
        partition_keys=partition_keys,
        data=data,
        sequence_numbers=page.sequence_numbers[begin : cut.end],
        sub_sequence_numbers=None,
        arrival_millis=page.arrival_millis[begin : cut.end],
        weight=weigh(partition_keys, data),
    )


def _is_read(data: Sequence[bytes], after_sub: int | None) -> bool:
    """Return whether the first record is read completely."""
    return bool(data) and after_sub is not None and after_sub >= last_sub(data[0])


def _split_rows(page: RecordPage, cut: Cut, shard: ShardKey, dropping: Dropping | None) -> Chunk:
    partition_keys: list[str | None] = []
    data: list[bytes] = []
    sequence_numbers: list[SequenceNumber] = []
    subs: list[int] = []
    arrivals: list[EpochMillis] = []
    for index in range(cut.begin, cut.end):
        above, up_to = _bounds(cut, index)
        arrival = page.arrival_millis[index]
        keys = dropping.keys if dropping is not None and arrival >= dropping.since else None
        users = _users(page.partition_keys[index], page.data[index], shard, keys)
        kept = [user for user in users if above < user[0] <= up_to]
        subs.extend(sub for sub, _, _ in kept)
        partition_keys.extend(key for _, key, _ in kept)
        data.extend(body for _, _, body in kept)
        sequence_numbers.extend([page.sequence_numbers[index]] * len(kept))
        arrivals.extend([arrival] * len(kept))
    return Chunk(
        shard=shard,
        partition_keys=partition_keys,
        data=data,
        sequence_numbers=sequence_numbers,
        sub_sequence_numbers=subs,
        arrival_millis=arrivals,
        weight=weigh(partition_keys, data),
    )


def _bounds(cut: Cut, index: int) -> tuple[int, int]:
    above = cut.after_sub if index == cut.begin and cut.after_sub is not None else -1
    last = index == cut.end - 1 and cut.up_to_sub is not None
    return above, cut.up_to_sub if last and cut.up_to_sub is not None else WHOLE_RECORD


def _users(
    partition_key: str | None, data: bytes, shard: ShardKey, stragglers: KeyFilter | None
) -> Sequence[tuple[int, str | None, bytes]]:
    """The user records of one Kinesis record as (number, key, data)."""
    users = split(data, stragglers)
    if users is None:
        if looks_aggregated(data):
            _warn_once(shard, _FAULTY)
        return ((0, partition_key, data),)
    if stragglers is not None and len(users) <= last_sub(data):
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
