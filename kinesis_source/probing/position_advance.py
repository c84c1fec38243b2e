"""From what a look at a shard found to the shard's next state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kinesis_source.model.ranges import ExpectedSize
from kinesis_source.model.read_loss import is_start_point
from kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
)
from kinesis_source.planning.input_partitions import is_behind
from kinesis_source.probing.probe_protocol import ProbeResult, RecordRef, ShardCursor


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRecord:
    """The tip of an open shard at `time`: its last record then, None where it had none."""

    record: RecordRef | None
    time: EpochMillis


Target = LatestRecord | ShardEnd
"""Where a shard shall end that is read to the tip of a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAdvance:
    """A shard's part in the next offset, and what to remember of it."""

    state: ShardState
    cursor: ShardCursor
    millis_behind: int
    at_latest: bool
    expected: ExpectedSize | None = None
    """The size of the shard's part of the batch, if known: a hint for its task."""


def advance_to_end(state: ShardState, result: ProbeResult) -> ShardAdvance:
    """To the farthest end that was found, or to SHARD_END if nothing follows it."""
    if result.closed:
        return advance_to_shard_end(state, result.cursor, result)
    position = result.end.position if result.end else state.position
    return ShardAdvance(
        state=_next_state(
            state,
            position,
            first=result.first,
            proven_at=result.time if result.at_latest else None,
        ),
        cursor=result.cursor,
        millis_behind=result.millis_behind,
        at_latest=result.at_latest,
        expected=_expected(result),
    )


def _expected(result: ProbeResult) -> ExpectedSize | None:
    if result.expected is not None or result.found_by_time or not result.records:
        return result.expected
    return _counted(result.records)


def _counted(records: Sequence[RecordRef]) -> ExpectedSize:
    return ExpectedSize(
        records=len(records), size_bytes=sum(record.size_bytes for record in records)
    )


def advance_by_records(state: ShardState, result: ProbeResult, admitted: int) -> ShardAdvance:
    """By the first `admitted` of the records found; by all of them, as far as was found."""
    if admitted >= len(result.records):
        return advance_to_end(state, result)
    last = result.records[admitted - 1] if admitted else None
    position = state.position if last is None else last.position
    reached = None if last is None else last.arrival
    return ShardAdvance(
        state=_next_state(state, position, first=result.first),
        cursor=replace(result.cursor, position=position, cached_iterator=None, reached_ms=reached),
        # What was left out came at that time or later.
        millis_behind=max(result.millis_behind, result.time - result.records[admitted].arrival, 1),
        at_latest=False,
        expected=_counted(result.records[:admitted]) if admitted else None,
    )


def advance_to_target(
    state: ShardState, target: Target, result: ProbeResult | None
) -> ShardAdvance:
    """To a known place, unless the shard already stands there or beyond.

    `finding` is the first record behind the start, for a start that is no record: it tells
    whether the target lies behind the start at all, and is recorded as the batch's first. A
    shard that shows neither a record nor its end stays where it is: there is more to come, and
    the batch could not say with what it begins.
    """
    if isinstance(target, ShardEnd):
        if result is not None and result.end is None and not result.closed:
            return ShardAdvance(
                state=state,
                cursor=result.cursor,
                millis_behind=result.millis_behind,
                at_latest=False,
            )
        return advance_to_shard_end(state, result.cursor if result else ShardCursor(), result)
    record = target.record
    if record is not None and result is not None and result.end is None:
        # What was there when the target was found is gone, or hidden for a moment: that proves
        # nothing about the tip.
        return ShardAdvance(state=state, cursor=result.cursor, millis_behind=0, at_latest=False)
    reachable = record is not None and is_behind(state.position, record.position)
    if record is not None and result is not None and result.end is not None:
        reachable = result.end.order <= record.order
    position = record.position if record and reachable else state.position
    first = result.first if result else None
    return ShardAdvance(
        state=_next_state(state, position, first=first, proven_at=target.time),
        cursor=ShardCursor(),
        millis_behind=0,
        at_latest=True,
    )


def is_target_reached(advance: ShardAdvance, target: Target, kept_since: EpochMillis) -> bool:
    """Whether nothing more of the shard is to be read up to its target. A record that arrived
    before the start time is not awaited, nor one from before `kept_since`: that may be gone."""
    position = advance.state.position
    if isinstance(target, ShardEnd):
        return isinstance(position, ShardEnd)
    record = target.record
    if isinstance(position, AtTimestamp):
        kept_since = max(kept_since, position.millis)
    return (
        record is None
        or advance.at_latest
        or not is_behind(position, record.position)
        or record.arrival < kept_since
    )


def truncate_to_target(result: ProbeResult, target: Target) -> ProbeResult:
    """What was found, up to the target and no further."""
    if isinstance(target, ShardEnd):
        return result
    record = target.record
    records: tuple[RecordRef, ...] = ()
    end: RecordRef | None = None
    if record is not None:
        if result.end is None or result.end.order < record.order:
            return replace(result, closed=False, at_latest=False)
        records = tuple(each for each in result.records if each.order <= record.order)
        before_start = bool(result.records) and not records
        end = None if before_start else record
    cursor = replace(
        result.cursor,
        position=end.position if end else None,
        reached_ms=end.arrival if end else None,
        cached_iterator=None,
    )
    return replace(
        result,
        records=records,
        end=end,
        closed=False,
        at_latest=True,
        millis_behind=0,
        time=target.time,
        expected=None,
        cursor=cursor,
    )


def advance_to_shard_end(
    state: ShardState, cursor: ShardCursor, result: ProbeResult | None
) -> ShardAdvance:
    """To the end of a closed shard."""
    return ShardAdvance(
        state=_next_state(state, ShardEnd(), first=result.first if result else None),
        cursor=replace(cursor, position=ShardEnd(), cached_iterator=None),
        millis_behind=0,
        at_latest=False,
        expected=_expected(result) if result is not None and result.closed else None,
    )


def _next_state(
    state: ShardState,
    position: Position,
    *,
    first: SequenceNumber | None,
    proven_at: EpochMillis | None = None,
) -> ShardState:
    """`proven_at`: when nothing followed `position`. Without it the old proof stands: it was about
    an earlier position. At SHARD_END it is kept for the children: they are younger than it.
    `first` is kept where reading begins, or has yet to begin, and only there."""
    caught_up_ms = state.last_caught_up_ms
    if proven_at is not None and not isinstance(position, ShardEnd):
        caught_up_ms = proven_at if caught_up_ms is None else max(caught_up_ms, proven_at)
    if not is_start_point(state.position):
        first = None
    elif position == state.position and first is None and proven_at is None:
        first = state.first  # the look has not decided anything
    return ShardState(position=position, last_caught_up_ms=caught_up_ms, first=first)
