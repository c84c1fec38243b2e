"""The rule by which records count as lost, used by the driver and the executors.

A record can be missing for three reasons: it was trimmed after the stream's retention, its shard
expired, or the stream was deleted and created again. The absence of a record that has been read
already is harmless, but its presence proves that no later record was trimmed. There are other
proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardState,
    TrimHorizon,
)


class Verdict(Enum):
    """The fate of the records after a start."""

    WHOLE = auto()
    """All of them are there."""
    NOT_PROMISED = auto()
    """The oldest may have been trimmed before the query had read any record of the shard. Its start
    is the oldest record left, so reading begins there."""
    LOST = auto()
    """Some records that the query should have read may have been trimmed."""
    RECREATED = auto()
    """The shard belongs to another stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The result of a probe of a shard, as evidence about lost records.

    `found` is the first record at the start or after it; None: there is none up to the latest
    record or the end of the shard. `parent_listed`: the service lists a parent of the shard. Shards
    expire after the last of their records, so all records of the shard, which are younger, are
    still there.
    """

    found: SequenceNumber | None
    time: EpochMillis
    retention_ms: int
    recreated: bool = False
    parent_listed: bool = False


def judge(start: ShardState, evidence: Evidence) -> Verdict:
    """Return the fate of the records after `start`, whose `first` is the record that must come
    first, if one is known.

    1. The start record, or the first record, is there: all later records are younger.
    2. All later records arrived after `last_caught_up_ms`, and at the start's time or later: within
       the retention they are there.
    3. The same is true of a shard that has not been started while a parent is listed.
    4. A start that is not a record and has no `last_caught_up_ms` is where the query starts: older
       records were never promised. Any shard that is read after its parents has a
       `last_caught_up_ms`.
    """
    if evidence.recreated:
        return Verdict.RECREATED
    anchor = anchor_of(start)
    if anchor is not None and evidence.found is not None and int(evidence.found) == int(anchor):
        return Verdict.WHOLE
    kept_ms = evidence.retention_ms - CLOCK_UNCERTAINTY_MS
    since = start.last_caught_up_ms
    if since is not None and isinstance(start.position, AtTimestamp):
        since = max(since, start.position.millis)
    if since is not None and evidence.time - since < kept_ms:
        return Verdict.WHOLE
    if is_start_point(start.position) and evidence.parent_listed:
        return Verdict.WHOLE
    return Verdict.NOT_PROMISED if is_unpromised(start) else Verdict.LOST


def anchor_of(start: ShardState) -> SequenceNumber | None:
    """Return the record whose presence proves that nothing after it was trimmed."""
    if isinstance(start.position, AfterRecord):
        return start.position.sequence_number
    return start.first


def is_unpromised(start: ShardState) -> bool:
    """Return whether the query starts here, at the oldest record left, and has read no record."""
    return start.last_caught_up_ms is None and is_start_point(start.position)


def is_start_point(position: Position) -> bool:
    """Return whether no record has been read from here, so that `first` must be recorded."""
    return isinstance(position, TrimHorizon | AtTimestamp)


START_MARGIN_MS = 300_000
"""A batch under a limit may end shortly after its beginning. If it began with records that are
trimmed within this time, its end could be gone before any task reads it."""


def limited_start(
    start: ShardState, created: EpochMillis, now: EpochMillis, retention_ms: int
) -> Position:
    """Return the position where a batch under a limit starts to search for its first record:
    `start`, or a margin after the horizon if the stream is older than its retention and the query
    has read nothing of the shard."""
    spared = EpochMillis(now - retention_ms + START_MARGIN_MS)
    aside = is_unpromised(start) and isinstance(start.position, TrimHorizon) and created < spared
    return AtTimestamp(millis=spared) if aside else start.position


def kept_since(
    start: ShardState, created: EpochMillis, now: EpochMillis, retention_ms: int, *, limited: bool
) -> EpochMillis:
    """Return the arrival time of the oldest record that is certainly read: older ones may be
    trimmed, or left out by a batch under a limit."""
    kept = EpochMillis(now - retention_ms + CLOCK_UNCERTAINTY_MS)
    begin = limited_start(start, created, now, retention_ms) if limited else start.position
    return max(kept, begin.millis) if isinstance(begin, AtTimestamp) else kept


def admit_child(state: ShardState, created: EpochMillis) -> ShardState:
    """Return the start of a shard whose parents have been read, so that no record of it may be
    lost.

    If no parent was ever read to its latest record, the best proof is that the stream was empty
    when it was `created`.
    """
    return replace(state, last_caught_up_ms=created) if is_unpromised(state) else state
