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
from kinesis_source.probing.probe_protocol import Finding, Memory, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The tip of an open shard at `time`: its last record then, None where it had none."""

    row: Row | None
    time: EpochMillis


Target = Tip | ShardEnd
"""Where a shard shall end that is read to the tip of a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A shard's part in the next offset, and what to remember of it."""

    state: ShardState
    memory: Memory
    millis_behind: int
    at_tip: bool
    expected: ExpectedSize | None = None
    """The size of the shard's part of the batch, if known: a hint for its task."""


def advance_all(state: ShardState, finding: Finding) -> Advance:
    """To the farthest end that was found, or to SHARD_END if nothing follows it."""
    if finding.closed:
        return to_shard_end(state, finding.memory, finding)
    position = finding.end.position if finding.end else state.position
    return Advance(
        state=_moved(
            state,
            position,
            first=finding.first,
            proven_at=finding.time if finding.at_tip else None,
        ),
        memory=finding.memory,
        millis_behind=finding.millis_behind,
        at_tip=finding.at_tip,
        expected=_expected(finding),
    )


def _expected(finding: Finding) -> ExpectedSize | None:
    if finding.expected is not None or finding.jumped or not finding.rows:
        return finding.expected
    return _counted(finding.rows)


def _counted(rows: Sequence[Row]) -> ExpectedSize:
    return ExpectedSize(records=len(rows), size=sum(row.size for row in rows))


def advance_by(state: ShardState, finding: Finding, admitted: int) -> Advance:
    """By the first `admitted` of the records found; by all of them, as far as was found."""
    if admitted >= len(finding.rows):
        return advance_all(state, finding)
    last = finding.rows[admitted - 1] if admitted else None
    position = state.position if last is None else last.position
    reached = None if last is None else last.arrival
    return Advance(
        state=_moved(state, position, first=finding.first),
        memory=replace(finding.memory, position=position, cursor=None, reached=reached),
        # What was left out came at that time or later.
        millis_behind=max(finding.millis_behind, finding.time - finding.rows[admitted].arrival, 1),
        at_tip=False,
        expected=_counted(finding.rows[:admitted]) if admitted else None,
    )


def advance_to(state: ShardState, target: Target, finding: Finding | None) -> Advance:
    """To a known place, unless the shard already stands there or beyond.

    `finding` is the first record behind the start, for a start that is no record: it tells
    whether the target lies behind the start at all, and is recorded as the batch's first. A
    shard that shows neither a record nor its end stays where it is: there is more to come, and
    the batch could not say with what it begins.
    """
    if isinstance(target, ShardEnd):
        if finding is not None and finding.end is None and not finding.closed:
            return Advance(
                state=state,
                memory=finding.memory,
                millis_behind=finding.millis_behind,
                at_tip=False,
            )
        return to_shard_end(state, finding.memory if finding else Memory(), finding)
    row = target.row
    if row is not None and finding is not None and finding.end is None:
        # What was there when the target was found is gone, or hidden for a moment: that proves
        # nothing about the tip.
        return Advance(state=state, memory=finding.memory, millis_behind=0, at_tip=False)
    reachable = row is not None and is_behind(state.position, row.position)
    if row is not None and finding is not None and finding.end is not None:
        reachable = finding.end.order <= row.order
    position = row.position if row and reachable else state.position
    first = finding.first if finding else None
    return Advance(
        state=_moved(state, position, first=first, proven_at=target.time),
        memory=Memory(),
        millis_behind=0,
        at_tip=True,
    )


def is_reached(advance: Advance, target: Target, kept_since: EpochMillis) -> bool:
    """Whether nothing more of the shard is to be read up to its target. A record that arrived
    before the start time is not awaited, nor one from before `kept_since`: that may be gone."""
    position = advance.state.position
    if isinstance(target, ShardEnd):
        return isinstance(position, ShardEnd)
    row = target.row
    if isinstance(position, AtTimestamp):
        kept_since = max(kept_since, position.millis)
    return (
        row is None
        or advance.at_tip
        or not is_behind(position, row.position)
        or row.arrival < kept_since
    )


def clip(finding: Finding, target: Target) -> Finding:
    """What was found, up to the target and no further."""
    if isinstance(target, ShardEnd):
        return finding
    row = target.row
    rows: tuple[Row, ...] = ()
    end: Row | None = None
    if row is not None:
        if finding.end is None or finding.end.order < row.order:
            return replace(finding, closed=False, at_tip=False)
        rows = tuple(found for found in finding.rows if found.order <= row.order)
        before_start = bool(finding.rows) and not rows
        end = None if before_start else row
    memory = replace(
        finding.memory,
        position=end.position if end else None,
        reached=end.arrival if end else None,
        cursor=None,
    )
    return replace(
        finding,
        rows=rows,
        end=end,
        closed=False,
        at_tip=True,
        millis_behind=0,
        time=target.time,
        expected=None,
        memory=memory,
    )


def to_shard_end(state: ShardState, memory: Memory, finding: Finding | None) -> Advance:
    """To the end of a closed shard."""
    return Advance(
        state=_moved(state, ShardEnd(), first=finding.first if finding else None),
        memory=replace(memory, position=ShardEnd(), cursor=None),
        millis_behind=0,
        at_tip=False,
        expected=_expected(finding) if finding is not None and finding.closed else None,
    )


def _moved(
    state: ShardState,
    position: Position,
    *,
    first: SequenceNumber | None,
    proven_at: EpochMillis | None = None,
) -> ShardState:
    """`proven_at`: when nothing followed `position`. Without it the old proof stands: it was about
    an earlier position. At SHARD_END it is kept for the children: they are younger than it.
    `first` is kept where reading begins, or has yet to begin, and only there."""
    seen = state.seen
    if proven_at is not None and not isinstance(position, ShardEnd):
        seen = proven_at if seen is None else max(seen, proven_at)
    if not is_start_point(state.position):
        first = None
    elif position == state.position and first is None and proven_at is None:
        first = state.first  # the look has not decided anything
    return ShardState(position=position, seen=seen, first=first)
