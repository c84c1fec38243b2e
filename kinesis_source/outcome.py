"""From what a look at a shard found to the shard's next state. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kinesis_source.looking import Finding, Memory, Row
from kinesis_source.model import AfterRecord, Position, ShardEnd, ShardState, sequence_order
from kinesis_source.planning import is_start_point

Target = Row | ShardEnd | None
"""Where a shard shall end that is read to the tip of a moment: the last record it had then, its
end if it was closed, None if it was empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A shard's part in the next offset, and what to remember of it."""

    state: ShardState
    memory: Memory
    millis_behind: int
    at_tip: bool


def advance_all(state: ShardState, finding: Finding) -> Advance:
    """To the farthest end that was found, or to SHARD_END if nothing follows it."""
    if finding.closed:
        return to_shard_end(state, finding.memory, finding)
    position = finding.end.position if finding.end else state.position
    return Advance(
        state=_moved(state, position, finding, at_tip=finding.at_tip),
        memory=finding.memory,
        millis_behind=finding.millis_behind,
        at_tip=finding.at_tip,
    )


def advance_by(state: ShardState, finding: Finding, admitted: int) -> Advance:
    """By the first `admitted` of the records found; by all of them, as far as was found."""
    if admitted >= len(finding.rows):
        return advance_all(state, finding)
    position = finding.rows[admitted - 1].position if admitted else state.position
    return Advance(
        state=_moved(state, position, finding, at_tip=False),
        memory=replace(finding.memory, position=position, cursor=None),
        # What was left out came at that time or later.
        millis_behind=max(finding.millis_behind, finding.time - finding.rows[admitted].arrival, 1),
        at_tip=False,
    )


def advance_to(state: ShardState, target: Target, finding: Finding | None) -> Advance:
    """To a known place, unless the shard already stands there or beyond.

    `finding` is the first record behind the start, for a start that is no record: it tells
    whether the target lies behind the start at all, and is recorded as the batch's first.
    """
    if isinstance(target, ShardEnd):
        return to_shard_end(state, finding.memory if finding else Memory(), finding)
    reachable = target is not None and is_behind(state.position, target.position)
    if finding is not None and target is not None:
        reachable = reachable and finding.end is not None and finding.end.order <= target.order
    position = target.position if target and reachable else state.position
    return Advance(
        state=_moved(state, position, finding, at_tip=False),
        memory=Memory(proven=reachable or finding is not None),
        millis_behind=0,
        at_tip=False,
    )


def clip(finding: Finding, target: Target) -> Finding:
    """What was found, up to the target and no further."""
    if isinstance(target, ShardEnd):
        return finding
    if target is None:
        rows: tuple[Row, ...] = ()
        end = None
    elif finding.end is None or finding.end.order < target.order:
        return replace(finding, closed=False)
    else:
        rows = tuple(row for row in finding.rows if row.order <= target.order)
        before_start = bool(finding.rows) and not rows
        end = None if before_start else target
    memory = replace(finding.memory, position=end.position if end else None, cursor=None)
    return replace(finding, rows=rows, end=end, closed=False, at_tip=False, memory=memory)


def to_shard_end(state: ShardState, memory: Memory, finding: Finding | None) -> Advance:
    """To the end of a closed shard."""
    return Advance(
        state=_moved(state, ShardEnd(), finding, at_tip=False),
        memory=replace(memory, position=ShardEnd(), cursor=None),
        millis_behind=0,
        at_tip=False,
    )


def _moved(
    state: ShardState, position: Position, finding: Finding | None, *, at_tip: bool
) -> ShardState:
    if isinstance(position, ShardEnd):
        seen = None
    else:
        seen = finding.time if at_tip and finding else state.seen
    if position == state.position:
        return replace(state, seen=seen)
    entering = is_start_point(state.position)
    first = finding.first if entering and finding else None
    return ShardState(position=position, seen=seen, first=first)


def is_behind(position: Position, target: Position) -> bool:
    """Whether `position` is before `target`, as far as the two tell: a start point is."""
    if isinstance(target, ShardEnd):
        return not isinstance(position, ShardEnd)
    if not isinstance(target, AfterRecord) or isinstance(position, ShardEnd):
        return False
    if not isinstance(position, AfterRecord):
        return True
    return (sequence_order(position.sequence_number), position.sub) < (
        sequence_order(target.sequence_number),
        target.sub,
    )
