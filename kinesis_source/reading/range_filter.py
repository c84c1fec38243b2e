"""Selects the records of a page that belong to a range.

A range may begin at an expected record, which must appear before anything is delivered: it proves
that nothing between it and the first delivered record has been trimmed. Its end is its last record.
Both may be part of an aggregated record, so a slice also contains the bounds of the user records in
its first and last Kinesis record.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from spark_ssp.kinesis_source.model.ranges import RangeEnd
from spark_ssp.kinesis_source.model.shard import AfterRecord, SequenceNumber, sequence_order

WHOLE_RECORD: Final = sys.maxsize
"""The number of a user record after the last one of any record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRecord:
    """The record that must come first; its user records above `after_sub` are delivered.

    `after_sub` is -1 to deliver the whole record and `WHOLE_RECORD` to deliver nothing of it.
    """

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
    """Return the part of a page in the range. `sequence_numbers` ascend as integers.

    Records before the expected one and after the end are left out. If the expected record is
    missing, the slice begins with the record that follows it.
    """
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
