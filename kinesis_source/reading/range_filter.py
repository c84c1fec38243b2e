"""Which records of a page belong to a range: a pure function of the page's sequence numbers.

The anchor is the record that must be met before anything is delivered: the range's start record,
which proves that nothing between it and the first delivered record has been trimmed. The end is
the last record of the range. Both may lie inside an aggregated record, so a cut also says which
user records of its first and last Kinesis record belong to it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kinesis_source.model.ranges import RangeEnd
from kinesis_source.model.shard import AfterRecord, SequenceNumber, sequence_order

WHOLE_RECORD: Final = sys.maxsize
"""As a user record's number: behind the last one, however many the record holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The record that must come first; its user records above `after_sub` are delivered.

    `after_sub` is -1 to deliver the whole record and `WHOLE_RECORD` to deliver nothing of it.
    """

    sequence_number: SequenceNumber
    after_sub: int


class Meeting(Enum):
    """What a page says about a record that is looked for."""

    AWAITED = auto()
    """The page ends before it: read on."""
    MET = auto()
    MISSING = auto()
    """A later record stands where it should have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The records `begin` to `end` (excluded) of a page, and what became of anchor and end.

    Of record `begin` the user records above `after_sub` belong to the range, of record `end - 1`
    those up to `up_to_sub`; None where there is no such bound. `anchor` is MET where none is asked
    for. `instead_of_anchor` and `instead_of_end` name the later record when one is MISSING.
    """

    begin: int
    end: int
    after_sub: int | None
    up_to_sub: int | None
    anchor: Meeting
    instead_of_anchor: SequenceNumber | None
    finish: Meeting
    instead_of_end: SequenceNumber | None


def cut_page(
    sequence_numbers: Sequence[SequenceNumber], anchor: Anchor | None, end: RangeEnd
) -> Cut:
    """The part of a page that lies in the range. `sequence_numbers` ascend as integers.

    Records before the anchor are left out, whoever sent them; records after the end too. Where
    the anchor is missing, the cut begins with the record that follows it.
    """
    count = len(sequence_numbers)
    begin, anchor_meeting = _find(sequence_numbers, anchor.sequence_number if anchor else None, 0)
    finish = Meeting.AWAITED
    stop = following = count
    up_to_sub = None
    if isinstance(end, AfterRecord):
        following, finish = _find(sequence_numbers, end.sequence_number, begin)
        stop = following
        if finish is Meeting.MET:
            stop += 1
            up_to_sub = end.sub
    anchored = anchor is not None and anchor_meeting is Meeting.MET
    return Cut(
        begin=begin,
        end=stop,
        after_sub=anchor.after_sub if anchor is not None and anchored else None,
        up_to_sub=up_to_sub,
        anchor=anchor_meeting,
        instead_of_anchor=sequence_numbers[begin] if anchor_meeting is Meeting.MISSING else None,
        finish=finish,
        instead_of_end=sequence_numbers[following] if finish is Meeting.MISSING else None,
    )


def _find(
    sequence_numbers: Sequence[SequenceNumber], wanted: SequenceNumber | None, begin: int
) -> tuple[int, Meeting]:
    """The first index not before `wanted`, and whether it is the wanted record itself."""
    if wanted is None:
        return begin, Meeting.MET
    order = sequence_order(wanted)
    if begin == len(sequence_numbers) or sequence_order(sequence_numbers[-1]) < order:
        return len(sequence_numbers), Meeting.AWAITED
    index = bisect_left(sequence_numbers, order, lo=begin, key=sequence_order)
    met = sequence_order(sequence_numbers[index]) == order
    return index, Meeting.MET if met else Meeting.MISSING
