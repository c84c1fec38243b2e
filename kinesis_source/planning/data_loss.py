"""Reports data loss: an error, or a warning under `failOnDataLoss=false`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_ssp.common.errors import DataLossError, SspError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import SequenceNumber, ShardKey, StreamName
from spark_ssp.kinesis_source.model.read_loss import Evidence, Verdict, judge
from spark_ssp.kinesis_source.model.shard import AfterRecord, ShardState

_log = logging.getLogger(__name__)


_counts: Final[Counter[str]] = Counter()
"""The losses that this process has tolerated: Spark starts a driver process for each reader."""


_NEXT_STEP: Final = (
    "set failOnDataLoss to false to continue after the gap, or start a new query with a new "
    "checkpoint"
)


def report_data_loss(
    subject: str, *, found: str, expected: str, fail: bool, next_step: str = _NEXT_STEP
) -> None:
    """Raise DataLossError if `fail`; otherwise warn in the log and return."""
    if fail:
        raise DataLossError(
            subject,
            found=found,
            expected=expected,
            next_step=next_step,
        )
    _counts["tolerated"] += 1
    _log.warning(
        "data loss in %s, tolerated by failOnDataLoss=false: found %s; expected %s",
        subject,
        found,
        expected,
    )


def tolerated_losses() -> int:
    """Return the number of losses that `report_data_loss` has logged in this process."""
    return _counts["tolerated"]


def report_recreated_stream(stream: StreamName, *, before: int, now: int, fail: bool) -> None:
    """Report that the stream of the checkpoint was deleted and another created under its name."""
    report_data_loss(
        f"stream {stream}",
        found=f"the stream deleted and created again at {time_text(now)}",
        expected=f"the stream that was created at {time_text(before)}",
        fail=fail,
    )


def report_vanished_shard(key: ShardKey, *, fail: bool, next_step: str = _NEXT_STEP) -> None:
    """Report a shard that is no longer listed and was not read to its end."""
    report_data_loss(
        f"shard {key}",
        found="the shard missing from ListShards, expired before it was read to its end",
        expected="a shard that is listed for the stream's retention",
        fail=fail,
        next_step=next_step,
    )


def report_missed_children(key: ShardKey, *, fail: bool, next_step: str = _NEXT_STEP) -> None:
    """Report a shard that was read to its end and expired before its children were started."""
    report_data_loss(
        f"children of shard {key}",
        found="the parent shard missing from ListShards; records of its children have expired, "
        "possibly with children that were closed too",
        expected="reading to reach the children before their records expire",
        fail=fail,
        next_step=next_step,
    )


def report_skipped_batches(keys: Sequence[ShardKey], *, fail: bool) -> None:
    """Report a batch that is replayed from an offset several batches older than its end."""
    report_data_loss(
        f"shard {abbreviate([str(key) for key in keys])}",
        found="a checkpoint without the batches that read the rest of it",
        expected="every batch in the checkpoint, as Spark writes it unless the query's option "
        "asyncProgressTrackingEnabled is set",
        next_step="leave out asyncProgressTrackingEnabled and start the query on a new checkpoint "
        "location with a startingPosition at a time before the missing batches (records since then "
        "are read again), or set failOnDataLoss to false to continue without the rest",
        fail=fail,
    )


def report_absent_end(key: ShardKey, *, fail: bool) -> None:
    """Report that the record at which a batch read should end is not in the shard."""
    report_data_loss(
        f"option endingPosition, shard {key}",
        found="no such record: it is trimmed, or of another shard",
        expected="a record that the shard still has",
        fail=fail,
        next_step="choose a later record, or set failOnDataLoss to false to read nothing of the "
        "shard",
    )


def warn_unreadable_shard(key: ShardKey, error: SspError) -> None:
    """Warn of a shard that the service lists but refuses to open, which is tolerated."""
    report_data_loss(
        f"shard {key}",
        found=f"{error.found} ({error.kind})",
        expected="a shard that can be read, as the service lists it",
        fail=False,
    )


def warn_position_replaced(error: SspError, start: ShardState) -> None:
    """Warn of a position that cannot be read from, and of the `start` of the shard instead."""
    entry = isinstance(start.position, AfterRecord)
    report_data_loss(
        error.subject,
        found=f"{error.found} ({error.kind}); reading "
        + ("continues at the checkpoint" if entry else "begins with the oldest record left"),
        expected=error.expected,
        fail=False,
    )


def warn_start_moved(
    key: ShardKey, *, first: SequenceNumber | None, found: SequenceNumber | None
) -> None:
    """Warn that the oldest record of a shard was trimmed after a probe had found it, before the
    query had read any record of the shard. A start at the oldest record allows this."""
    _log.warning(
        "reading shard %s begins with %s: record %s, the oldest one at the first probe, has been "
        "trimmed since (or is about to be)",
        key,
        "the next record put" if found is None else f"record {found}, the oldest one left",
        first,
    )


def check_absent_start(key: ShardKey, start: ShardState, evidence: Evidence, *, fail: bool) -> None:
    """Report that the record probed by the driver is gone, if other records may be gone too."""
    verdict = judge(start, evidence)
    if verdict is Verdict.NOT_PROMISED and start.first is not None:
        warn_start_moved(key, first=start.first, found=evidence.found)
    if verdict is not Verdict.LOST:
        return
    trimmed = trimmed_record(start, retention_ms=evidence.retention_ms)
    report_data_loss(f"shard {key}", found=trimmed.found, expected=trimmed.expected, fail=fail)


class Trimmed(NamedTuple):
    """The parts of an error about a record that was trimmed too long ago."""

    found: str
    expected: str


def trimmed_record(start: ShardState, *, retention_ms: int) -> Trimmed:
    """Return the parts of the error for the record of `start`."""
    seen = start.last_caught_up_ms
    return Trimmed(
        found="the last record read trimmed"
        + ("" if seen is None else f", and the shard last caught up at {time_text(seen)}"),
        expected=f"progress within the stream's retention ({duration_text(retention_ms)}), so that "
        "nothing that follows can have been trimmed",
    )
