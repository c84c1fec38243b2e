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


def advance_to_end(state: ShardState, finding: ProbeResult) -> ShardAdvance:
    """To the farthest end that was found, or to SHARD_END if nothing follows it."""
    if finding.closed:
        return advance_to_shard_end(state, finding.cursor, finding)
    position = finding.end.position if finding.end else state.position
    return ShardAdvance(
        state=_next_state(
            state,
            position,
            first=finding.first,
            proven_at=finding.time if finding.at_latest else None,
        ),
        cursor=finding.cursor,
        millis_behind=finding.millis_behind,
        at_latest=finding.at_latest,
        expected=_expected(finding),
    )


def _expected(finding: ProbeResult) -> ExpectedSize | None:
    if finding.expected is not None or finding.found_by_time or not finding.rows:
        return finding.expected
    return _counted(finding.rows)


def _counted(rows: Sequence[RecordRef]) -> ExpectedSize:
    return ExpectedSize(records=len(rows), size=sum(row.size for row in rows))


def advance_by_records(state: ShardState, finding: ProbeResult, admitted: int) -> ShardAdvance:
    """By the first `admitted` of the records found; by all of them, as far as was found."""
    if admitted >= len(finding.rows):
        return advance_to_end(state, finding)
    last = finding.rows[admitted - 1] if admitted else None
    position = state.position if last is None else last.position
    reached = None if last is None else last.arrival
    return ShardAdvance(
        state=_next_state(state, position, first=finding.first),
        cursor=replace(finding.cursor, position=position, cached_iterator=None, reached_ms=reached),
        # What was left out came at that time or later.
        millis_behind=max(finding.millis_behind, finding.time - finding.rows[admitted].arrival, 1),
        at_latest=False,
        expected=_counted(finding.rows[:admitted]) if admitted else None,
    )


def advance_to_target(
    state: ShardState, target: Target, finding: ProbeResult | None
) -> ShardAdvance:
    """To a known place, unless the shard already stands there or beyond.

    `finding` is the first record behind the start, for a start that is no record: it tells
    whether the target lies behind the start at all, and is recorded as the batch's first. A
    shard that shows neither a record nor its end stays where it is: there is more to come, and
    the batch could not say with what it begins.
    """
    if isinstance(target, ShardEnd):
        if finding is not None and finding.end is None and not finding.closed:
            return ShardAdvance(
                state=state,
                cursor=finding.cursor,
                millis_behind=finding.millis_behind,
                at_latest=False,
            )
        return advance_to_shard_end(state, finding.cursor if finding else ShardCursor(), finding)
    row = target.record
    if row is not None and finding is not None and finding.end is None:
        # What was there when the target was found is gone, or hidden for a moment: that proves
        # nothing about the tip.
        return ShardAdvance(state=state, cursor=finding.cursor, millis_behind=0, at_latest=False)
    reachable = row is not None and is_behind(state.position, row.position)
    if row is not None and finding is not None and finding.end is not None:
        reachable = finding.end.order <= row.order
    position = row.position if row and reachable else state.position
    first = finding.first if finding else None
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
    row = target.record
    if isinstance(position, AtTimestamp):
        kept_since = max(kept_since, position.millis)
    return (
        row is None
        or advance.at_latest
        or not is_behind(position, row.position)
        or row.arrival < kept_since
    )


def truncate_to_target(finding: ProbeResult, target: Target) -> ProbeResult:
    """What was found, up to the target and no further."""
    if isinstance(target, ShardEnd):
        return finding
    row = target.record
    rows: tuple[RecordRef, ...] = ()
    end: RecordRef | None = None
    if row is not None:
        if finding.end is None or finding.end.order < row.order:
            return replace(finding, closed=False, at_latest=False)
        rows = tuple(found for found in finding.rows if found.order <= row.order)
        before_start = bool(finding.rows) and not rows
        end = None if before_start else row
    memory = replace(
        finding.cursor,
        position=end.position if end else None,
        reached_ms=end.arrival if end else None,
        cached_iterator=None,
    )
    return replace(
        finding,
        rows=rows,
        end=end,
        closed=False,
        at_latest=True,
        millis_behind=0,
        time=target.time,
        expected=None,
        cursor=memory,
    )


def advance_to_shard_end(
    state: ShardState, memory: ShardCursor, finding: ProbeResult | None
) -> ShardAdvance:
    """To the end of a closed shard."""
    return ShardAdvance(
        state=_next_state(state, ShardEnd(), first=finding.first if finding else None),
        cursor=replace(memory, position=ShardEnd(), cached_iterator=None),
        millis_behind=0,
        at_latest=False,
        expected=_expected(finding) if finding is not None and finding.closed else None,
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
    seen = state.last_caught_up_ms
    if proven_at is not None and not isinstance(position, ShardEnd):
        seen = proven_at if seen is None else max(seen, proven_at)
    if not is_start_point(state.position):
        first = None
    elif position == state.position and first is None and proven_at is None:
        first = state.first  # the look has not decided anything
    return ShardState(position=position, last_caught_up_ms=seen, first=first)
