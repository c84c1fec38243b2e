"""Pages of records, and slices of them, of which a test only names what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    RecordPage,
    SequenceNumber,
    ShardIterator,
)
from spark_ssp.kinesis_source.reading.page_rows import Match, PageSlice


def page(
    data: Sequence[bytes] = (),
    *,
    keys: Sequence[str | None] | None = None,
    numbers: Iterable[int | str] | None = None,
    arrivals: Iterable[int] | None = None,
    following: str | None = None,
    behind: int = 0,
    now: int = 0,
    subs: Sequence[int] | None = None,
    repeat_keys: Sequence[str] | None = None,
) -> RecordPage:
    """Records of these bytes, numbered from 1, with the key "k", that arrived at 0."""
    counted = range(1, len(data) + 1) if numbers is None else numbers
    return RecordPage(
        sequence_numbers=[SequenceNumber(str(number)) for number in counted],
        partition_keys=["k"] * len(data) if keys is None else keys,
        arrival_ms=[EpochMillis(a) for a in ([0] * len(data) if arrivals is None else arrivals)],
        data=data,
        sub_sequence_numbers=subs,
        repeat_keys=repeat_keys,
        next_iterator=None if following is None else ShardIterator(following),
        millis_behind_latest=behind,
        service_time=EpochMillis(now),
    )


def slice_of(
    begin: int, end: int, *, after_sub: int | None = None, up_to_sub: int | None = None
) -> PageSlice:
    """A slice of which nothing is missing."""
    return PageSlice(
        begin=begin,
        end=end,
        after_sub=after_sub,
        up_to_sub=up_to_sub,
        start_match=Match.FOUND,
        instead_of_expected=None,
        end_match=Match.FOUND,
        instead_of_end=None,
    )
