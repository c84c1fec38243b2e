"""The verdict on a position that this run did not produce: one that the option `startingPosition`,
the checkpoint or a lease gives.

A sequence number belongs to one shard of one stream. The service refuses one that cannot be of the
shard (API reference, GetShardIterator: InvalidArgumentException); an emulator may accept it, and
then returns the records above it. So `check_position` opens an iterator *at* the number. If its
record comes first, the position is good. Otherwise the oldest record of the shard decides: the
service trims older records first, so a record cannot have been trimmed while an older one is there.

`judge_position` is the rule, without I/O; `given_positions.py` acts on it.
"""

from __future__ import annotations

from enum import Enum, auto

from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.model.read_loss import Evidence, Verdict, judge
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    Shard,
    ShardState,
    TrimHorizon,
    sequence_order,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    CheckSteps,
    PageView,
    PositionAnswer,
    ShardCursor,
    cached_iterator_after,
    follow_iterator,
    open_iterator,
)


class PositionVerdict(Enum):
    """The worth of a position in a shard."""

    ACCEPTED = auto()
    """Its record is there, or every record after it is, by the time of the last proof."""
    SHARD_START = auto()
    """The shard's StartingSequenceNumber: all of the shard follows."""
    SHARD_END = auto()
    """The EndingSequenceNumber of the closed shard: nothing follows."""
    REFUSED = auto()
    """The service refuses the number for this shard."""
    WRONG = auto()
    """The service accepts the number, but the shard never had the record: it has older ones."""
    LOST = auto()
    """The record was trimmed, and records after it may have been."""
    UNKNOWN = auto()
    """The service has not answered, or the record may not be visible yet: check again."""


BAD = frozenset({PositionVerdict.REFUSED, PositionVerdict.WRONG, PositionVerdict.LOST})
"""Verdicts after which reading from the position would leave records out."""


DOUBT_MS = 3000
"""The time for which a record that does not appear in its shard may still become visible: one that
was just put, or one at the end of a closed shard that answers empty pages before it."""


def judge_position(
    state: ShardState,
    shard: Shard,
    answer: PositionAnswer | None,
    *,
    retention_ms: int,
    doubted_ms: int | None = None,
) -> PositionVerdict:
    """Return the verdict on the position of `state`; `answer` None: the service has not answered.
    `doubted_ms`: the time since the first answer about this position."""
    position = state.position
    if not isinstance(position, AfterRecord):
        return PositionVerdict.ACCEPTED
    if answer is None:
        return PositionVerdict.UNKNOWN
    order = sequence_order(position.sequence_number)
    if answer.found is not None and sequence_order(answer.found) == order:
        return PositionVerdict.ACCEPTED
    if position.sequence_number == shard.ending_sequence_number:
        return PositionVerdict.SHARD_END
    if order == sequence_order(shard.first_sequence_number):
        return PositionVerdict.SHARD_START
    if answer.refused:
        return PositionVerdict.REFUSED
    if order < sequence_order(shard.first_sequence_number):
        return PositionVerdict.WRONG
    certain = answer.found is not None or (doubted_ms or 0) >= DOUBT_MS
    if answer.oldest is not None and sequence_order(answer.oldest) < order:
        return PositionVerdict.WRONG if certain else PositionVerdict.UNKNOWN
    evidence = Evidence(found=answer.found, time=answer.time, retention_ms=retention_ms)
    if judge(state, evidence) is not Verdict.LOST:
        return PositionVerdict.ACCEPTED
    # A record that was read from, up to the latest, has been visible.
    certain = certain or state.last_caught_up_ms is not None
    return PositionVerdict.LOST if certain else PositionVerdict.UNKNOWN


def check_position(position: AfterRecord, now: EpochMillis) -> CheckSteps:
    """Request the evidence: the first record at `position` or after it, and unless that is its
    record, the oldest record of the shard. The cursor continues after the position."""
    try:
        iterator = yield from open_iterator(position, inclusive=True)
    except InvalidPositionError as error:
        return PositionAnswer(refused=error.found, time=now)
    page = yield from follow_iterator(iterator, 1, persistent=True)
    found = _first(page)
    if found is not None and sequence_order(found) == sequence_order(position.sequence_number):
        (record,) = page.records[:1]
        cursor = ShardCursor()
        if len(page.records) == 1 and record.last_sub <= position.sub:
            cursor = ShardCursor(
                position=position,
                cached_iterator=cached_iterator_after(page),
                proven=True,
                reached_ms=record.arrival,
            )
        return PositionAnswer(found=found, time=page.time, cursor=cursor)
    iterator = yield from open_iterator(TrimHorizon())
    horizon = yield from follow_iterator(iterator, 1, persistent=True)
    return PositionAnswer(found=found, oldest=_first(horizon), time=page.time)


def _first(page: PageView) -> SequenceNumber | None:
    return page.records[0].sequence_number if page.records else None
