"""Computes a shard's next state from the result of a probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
    is_behind,
)
from spark_ssp.kinesis_source.planning.data_loss import is_start_point
from spark_ssp.kinesis_source.probing.probe_protocol import (
    Lookahead,
    ProbeResult,
    RecordRef,
    ShardCursor,
)


class LatestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last record to read of a shard, as of `time`: its latest, or one that the user chose.
    None if there is none."""

    record: RecordRef | None
    time: EpochMillis


Target = LatestRecord | ShardEnd
"""The fixed end of a shard in a run that stops there."""


class ShardAdvance(msgspec.Struct, frozen=True, kw_only=True):
    """A shard's part in the next offset, and the cursor to keep."""

    state: ShardState
    cursor: ShardCursor
    millis_behind: int
    at_latest: bool
    expected: ExpectedSize | None = None
    """The size of the shard's part of the batch, if known: a hint for its task."""


def advance_to_end(state: ShardState, result: ProbeResult) -> ShardAdvance:
    """Advance to the farthest end that was found, or to SHARD_END if nothing follows it."""
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


def no_advance(state: ShardState) -> ShardAdvance:
    """Return the advance of a shard of which nothing was found out."""
    return ShardAdvance(state=state, cursor=ShardCursor(), millis_behind=0, at_latest=False)


def with_last_caught_up(
    before: Mapping[ShardKey, ShardState],
    advances: Mapping[ShardKey, ShardAdvance],
    known: Mapping[ShardKey, EpochMillis],
    open_at: Callable[[ShardKey], EpochMillis | None],
) -> dict[ShardKey, ShardAdvance]:
    """Return the advances with times of catching up that hold for the children as well, which
    inherit them. `known`: the latest such times; a shard that ends has it.

    At the end of a closed shard nothing follows either, hours after its children began. So a new
    time counts only up to `open_at`, the last time at which the service listed the shard as open.
    """
    latest = dict(advances)
    for key, advance in advances.items():
        old, seen = before[key].last_caught_up_ms, advance.state.last_caught_up_ms
        proofs = [old]
        if seen is not None and seen != old and (opened := open_at(key)) is not None:
            proofs.append(min(seen, opened))
        if isinstance(advance.state.position, ShardEnd):
            proofs.append(known.get(key))
        proof = max((time for time in proofs if time is not None), default=None)
        if proof != seen:
            latest[key] = replace(advance, state=replace(advance.state, last_caught_up_ms=proof))
    return latest


def _expected(result: ProbeResult) -> ExpectedSize | None:
    if result.expected is not None or result.found_by_time or not result.records:
        return result.expected
    return _counted(result.records)


def _counted(records: Sequence[RecordRef]) -> ExpectedSize:
    return ExpectedSize(
        records=len(records), size_bytes=sum([record.size_bytes for record in records])
    )


def advance_by_records(state: ShardState, result: ProbeResult, admitted: int) -> ShardAdvance:
    """Advance by the first `admitted` of the records found; if that is all of them, to the end."""
    if admitted >= len(result.records):
        return advance_to_end(state, result)
    last = result.records[admitted - 1] if admitted else None
    position = state.position if last is None else last.position
    rest = Lookahead(
        position=position,
        records=result.records[admitted:],
        cached_iterator=result.cursor.cached_iterator,
    )
    return ShardAdvance(
        state=_next_state(state, position, first=result.first),
        cursor=replace(
            result.cursor,
            position=position,
            cached_iterator=None,
            reached_ms=None if last is None else last.arrival,
            # Where reading starts, the first page is needed again for the first record.
            lookahead=None if last is None and is_start_point(position) else rest,
        ),
        # The records left out came at that time or later.
        millis_behind=max(result.millis_behind, result.time - result.records[admitted].arrival, 1),
        at_latest=False,
        expected=_counted(result.records[:admitted]) if admitted else None,
    )


def advance_to_target(
    state: ShardState, target: Target, result: ProbeResult | None
) -> ShardAdvance:
    """Advance to a known target, unless the shard is already there or beyond.

    `result` has the first record after a start that is not a record: it shows whether the target
    follows the start at all, and is recorded as the batch's first. A shard that shows neither a
    record nor its end stays where it is: more records are to come, and the batch could not record
    its first.
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
        # The record that was the target is missing, or hidden for a moment: that proves
        # nothing about the latest record.
        return ShardAdvance(state=state, cursor=result.cursor, millis_behind=0, at_latest=False)
    reachable = record is not None and is_behind(state.position, record.position)
    if record is not None and result is not None and result.end is not None:
        reachable = _includes(record, result.end)
    position = record.position if record and reachable else state.position
    first = result.first if result else None
    return ShardAdvance(
        state=_next_state(state, position, first=first, proven_at=target.time),
        cursor=ShardCursor(),
        millis_behind=0,
        at_latest=True,
    )


def is_target_reached(advance: ShardAdvance, target: Target, kept_since: EpochMillis) -> bool:
    """Return whether no more of the shard is to be read up to its target. A record that arrived
    before the start time is not awaited, nor one from before `kept_since`, which may be trimmed."""
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
    """Return the result up to the target."""
    if isinstance(target, ShardEnd):
        return result
    record = target.record
    records: tuple[RecordRef, ...] = ()
    end: RecordRef | None = None
    if record is not None:
        if result.end is None or result.end.order < record.order:
            return replace(result, closed=False, at_latest=False)
        records = tuple(each for each in result.records if _includes(record, each))
        before_start = bool(result.records) and not records
        end = None if before_start else record
    expected = None
    if end is not None:
        # A few records may follow the target up to the end that was found.
        is_within = len(records) < len(result.records)
        expected = _counted(records) if is_within else result.expected
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
        expected=expected,
        cursor=cursor,
    )


def _includes(target: RecordRef, record: RecordRef) -> bool:
    """Return whether at least one user record of `record` is within the target."""
    return (record.order, 0) <= (target.order, target.last_sub)


def advance_to_shard_end(
    state: ShardState, cursor: ShardCursor, result: ProbeResult | None
) -> ShardAdvance:
    """Advance to the end of a closed shard."""
    proven_at = result.time if result is not None and result.at_latest else None
    first = result.first if result else None
    return ShardAdvance(
        state=_next_state(state, ShardEnd(), first=first, proven_at=proven_at),
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
    """Return the state at `position`. `proven_at`: the time when nothing followed it, at SHARD_END
    for the children; without it the old time remains, which refers to an earlier position. `first`
    is kept only where reading starts, or has yet to start."""
    caught_up_ms = state.last_caught_up_ms
    if proven_at is not None:
        caught_up_ms = proven_at if caught_up_ms is None else max(caught_up_ms, proven_at)
    if not is_start_point(state.position):
        first = None
    elif position == state.position and first is None and proven_at is None:
        first = state.first  # the probe was inconclusive
    return ShardState(position=position, last_caught_up_ms=caught_up_ms, first=first)
