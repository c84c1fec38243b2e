"""The position of a lease's checkpoint (KCL: `ExtendedSequenceNumber`).

The KCL stores a sequence number or one of four words. A sequence number is the last record
processed; its successor is next. TRIM_HORIZON, LATEST and AT_TIMESTAMP are starts: nothing is
processed. SHARD_END means that all records are processed.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_ssp.grouping.identifiers import EpochMillis, SequenceNumber


@dataclass(frozen=True, slots=True)
class StartAtTrimHorizon:
    """Start at the oldest record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtLatest:
    """Start with the records that arrive from `since_ms` on, in the service's time.

    None if a KCL worker wrote it: the time when the shard is first read.
    """

    since_ms: EpochMillis | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAtTimestamp:
    """Start with the first record that arrived at `at_ms` or later.

    None if a KCL worker wrote it: the KCL has the time in its configuration, not in the row.
    """

    at_ms: EpochMillis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """All up to and including user record `sub` of the Kinesis record `sequence_number`.

    `sub` is the KCL's `checkpointSubSequenceNumber`: the index within an aggregate of the KPL, 0
    for a plain record. `last_caught_up_ms`, which only this project writes, is a time by the
    service's clock at which the shard was read up to its latest record: all records that follow
    arrived after it. It distinguishes a record that expired after it was read from data loss.
    """

    sequence_number: SequenceNumber
    sub: int = 0
    last_caught_up_ms: EpochMillis | None = None


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """All records of the closed shard are processed."""


Start = StartAtTrimHorizon | StartAtLatest | StartAtTimestamp
Progress = Start | Processed | ShardEnded


def is_forward(before: Progress, after: Progress) -> bool:
    """Return whether `after` is at or beyond `before`.

    Any record is beyond every start, and the end is beyond every record. Two different starts
    cannot be compared, so neither is beyond the other; but LATEST with a time is more precise than
    without.
    """
    match before, after:
        case (_, ShardEnded()):
            return True
        case (ShardEnded(), _):
            return False
        case (Processed() as old, Processed() as new):
            return _order(old) <= _order(new)
        case (_, Processed()) | (StartAtLatest(since_ms=None), StartAtLatest()):
            return True
    return before == after


def _order(progress: Processed) -> tuple[int, int]:
    return int(progress.sequence_number), progress.sub
