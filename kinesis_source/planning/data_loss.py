"""The rule by which records count as lost, used by the driver and the executors; the checks of a
task's range; and the report of a loss: an error, or a warning under `failOnDataLoss=false`.

A record can be missing for three reasons: it was trimmed after the stream's retention, its shard
expired, or the stream was deleted and created again. The absence of a record that has been read
already is harmless, but its presence proves that no later record was trimmed. There are other
proofs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from spark_ssp.common.errors import NEW_CHECKPOINT, DataLossError, SspError, StreamNotFoundError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.structs import replace
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import SequenceNumber, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    Retention,
    ShardState,
    StreamDescription,
    TrimHorizon,
)

_log = logging.getLogger(__name__)


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


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe of a shard, as evidence about lost records.

    `found` is the first record at the start or after it; None: there is none up to the latest
    record or the end of the shard. `parent_listed`: the service lists a parent of the shard. Shards
    expire after the last of their records, so all records of the shard, which are younger, are
    still there.
    """

    found: SequenceNumber | None
    time: EpochMillis
    kept_ms: int
    """The age up to which records are surely kept (`Retention.kept_ms`)."""
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
       records were never promised. Any shard that is read after records of its parents has a
       `last_caught_up_ms`.
    """
    if evidence.recreated:
        return Verdict.RECREATED
    anchor = anchor_of(start)
    if anchor is not None and evidence.found is not None and int(evidence.found) == int(anchor):
        return Verdict.WHOLE
    kept_ms = evidence.kept_ms - CLOCK_UNCERTAINTY_MS
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
    `start`, or a margin after the horizon if that is later, in a stream that is older than its
    retention and a shard of which the query has read nothing."""
    spared = EpochMillis(now - retention_ms + START_MARGIN_MS)
    begin = start.position
    if not is_unpromised(start) or created >= spared:
        return begin
    is_later = isinstance(begin, AtTimestamp) and begin.millis >= spared
    return begin if is_later else AtTimestamp(millis=spared)


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
    lost. If no parent was ever read to its latest record, the best proof is that the stream was
    empty when it was `created`."""
    return replace(state, last_caught_up_ms=created) if is_unpromised(state) else state


# --- The report -----------------------------------------------------------------------------------


_counts: Final[Counter[str]] = Counter()
"""The losses that this process has tolerated: Spark starts a driver process for each reader."""


_NEXT_STEP: Final = (
    "set failOnDataLoss to false to continue after the gap, or start a new query with "
    f"{NEW_CHECKPOINT}"
)


def next_step_after_loss(table: str | None) -> str:
    """Return the next step after a loss. A new query finds the rows of the lease `table` again."""
    if table is None:
        return _NEXT_STEP
    return (
        "set failOnDataLoss to false for each worker to continue after the gap; or stop all "
        "workers, delete the rows of the shards that are named here from lease table "
        f"{table} (a new query would find them again), and start new queries with {NEW_CHECKPOINT}"
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


def report_expired_shards(
    unread: Iterable[ShardKey],
    finished: Iterable[ShardKey],
    *,
    fail: bool,
    table: str | None = None,
) -> None:
    """Report shards that are no longer listed: those that were not read to their end, and those
    that were `finished` but whose children were not started. `table`: the lease table, if shards
    are shared."""
    unread, finished = sorted(unread), sorted(finished)
    step = next_step_after_loss(table)
    for key in unread:
        report_data_loss(
            f"shard {key}",
            found="the shard missing from ListShards, expired before it was read to its end"
            + _others(key, [*unread, *finished], fail=fail),
            expected="a shard that is listed for the stream's retention",
            fail=fail,
            next_step=step,
        )
    for key in finished:
        report_data_loss(
            f"children of shard {key}",
            found="the parent shard missing from ListShards; records of its children have expired, "
            "possibly with children that were closed too" + _others(key, finished, fail=fail),
            expected="reading to reach the children before their records expire",
            fail=fail,
            next_step=step,
        )


def _others(key: ShardKey, lost: Sequence[ShardKey], *, fail: bool) -> str:
    """Return the part of `found` that names the other shards, since an error is the only report."""
    others = [str(other) for other in lost if other != key]
    if not fail or not others:
        return ""
    return f"; records of other shards may be gone as well: {abbreviate(others)}"


def report_skipped_batches(keys: Sequence[ShardKey], *, fail: bool) -> None:
    """Report a batch that is replayed from an offset several batches older than its end."""
    report_data_loss(
        f"shard {abbreviate([str(key) for key in keys])}",
        found="a checkpoint without the batches that read the rest of it",
        expected="every batch in the checkpoint, as Spark writes it unless the query's option "
        "asyncProgressTrackingEnabled is set",
        next_step="leave out asyncProgressTrackingEnabled and start the query on "
        f"{NEW_CHECKPOINT}, from a startingPosition at a time before the missing batches (records "
        "since then are read again), or set failOnDataLoss to false to continue without the rest",
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


def warn_start_expired(key: ShardKey) -> None:
    """Warn of a shard that has expired before the query had read any record of it or begun its
    children. A start at the oldest record allows this."""
    _log.warning(
        "shard %s is left out: it has expired before any record of it was read, so reading begins "
        "with younger shards",
        key,
    )


def check_absent_starts(
    starts: Mapping[ShardKey, tuple[ShardState, Evidence]], *, fail: bool, table: str | None = None
) -> None:
    """Report that the records probed by the driver are gone, if other records may be gone too.
    `table`: the lease table, if shards are shared."""
    lost: dict[ShardKey, Trimmed] = {}
    for key, (start, evidence) in starts.items():
        verdict = judge(start, evidence)
        if verdict is Verdict.NOT_PROMISED and start.first is not None:
            warn_start_moved(key, first=start.first, found=evidence.found)
        if verdict is Verdict.LOST:
            lost[key] = trimmed_record(start, kept_ms=evidence.kept_ms)
    for key, trimmed in sorted(lost.items()):
        report_data_loss(
            f"shard {key}",
            found=trimmed.found + _others(key, sorted(lost), fail=fail),
            expected=trimmed.expected,
            fail=fail,
            next_step=next_step_after_loss(table),
        )


class Trimmed(NamedTuple):
    """The parts of an error about a record that was trimmed too long ago."""

    found: str
    expected: str


def trimmed_record(start: ShardState, *, kept_ms: int) -> Trimmed:
    """Return the parts of the error for the record of `start`."""
    seen = start.last_caught_up_ms
    found = "the last record read trimmed"
    if seen is not None:
        found += f", and the shard last caught up at {time_text(seen)}"
    if is_start_point(start.position):
        # The time may be that of the stream's creation, or of a start.
        found = "no record read"
        if seen is not None:
            found += f", and no proof that all since {time_text(seen)} are kept"
    return Trimmed(
        found=found,
        expected="progress within the time for which records are kept "
        f"({duration_text(kept_ms)}), so that nothing that follows can have been trimmed",
    )


# --- The checks of a task ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLossChecks:
    """The checks of one range. With `fail` (`failOnDataLoss`) a data loss raises DataLossError;
    otherwise it is logged as a warning."""

    range: ShardRange
    service: KinesisService
    fail: bool
    table: str | None = None
    """The lease table, if shards are shared."""

    def check_start(self, start: ShardState, found: SequenceNumber | None) -> bool:
        """Check a start whose expected record is missing; `found` came first, or no record at all.
        Return whether to continue; False means to treat the shard as read."""
        stream = self._describe()
        if stream is None:
            return False
        now = self.service.service_time()
        kept_ms = Retention.described(
            stream.retention_ms, now=now, before=self.range.retention
        ).kept_ms(now)
        evidence = Evidence(
            found=found,
            time=now,
            kept_ms=kept_ms,
            recreated=stream.created != self.range.created,
        )
        wanted = anchor_of(start)
        seen = start.last_caught_up_ms
        caught_up = "an unknown time" if seen is None else time_text(seen)
        first = "no record" if found is None else f"record {found}"
        match judge(start, evidence):
            case Verdict.RECREATED:
                self._recreated(stream)
                return False
            case Verdict.WHOLE:
                _log.info(
                    "shard %s: start record %s was trimmed, and %s comes first; no data was lost: "
                    "the shard was last caught up at %s (records are kept for %s, now %s)",
                    *(
                        self.range.key,
                        wanted,
                        first,
                        caught_up,
                        duration_text(kept_ms),
                        time_text(now),
                    ),
                )
            case Verdict.NOT_PROMISED:
                warn_start_moved(self.range.key, first=wanted, found=found)
            case Verdict.LOST:
                self._lost(
                    found=f"{first} first, after record {wanted} was trimmed (records are kept "
                    f"for {duration_text(kept_ms)}, last caught up at {caught_up}, "
                    f"now {time_text(now)})",
                    expected=f"record {wanted} first, as proof that no record after it was trimmed",
                )
        return True

    def report_missing_end(self, found: str) -> None:
        """Report that the range's last record is gone, and `found` in its place. Reading ends."""
        stream = self._describe()
        if stream is None:
            return
        if stream.created != self.range.created:
            self._recreated(stream)
            return
        end = self.range.end
        last = (
            f"record {end.sequence_number}" if isinstance(end, AfterRecord) else "the shard's end"
        )
        self._lost(found=found, expected=f"{last}, which existed when the batch was planned")

    def report_missing_shard(self, error: SspError) -> bool:
        """Report that the shard, the stream or the position no longer exists. Return whether the
        stream is still there; otherwise reading ends."""
        stream = self._describe()
        if stream is None:
            return False
        if stream.created != self.range.created:
            self._recreated(stream)
            return False
        self._lost(
            found=f"{error.found} ({error.kind})",
            expected="the shard as planned; shards expire with the last of their records",
        )
        return True

    def _describe(self) -> StreamDescription | None:
        """Return the stream's current description; None if it is gone and that is tolerated."""
        try:
            return self.service.describe(self.range.stream)
        except StreamNotFoundError as error:
            self._lost(
                found=f"the stream deleted ({error.found})", expected="the stream of this query"
            )
            return None

    def _recreated(self, stream: StreamDescription) -> None:
        self._lost(
            found=f"the stream deleted and created again at {time_text(stream.created)}",
            expected=f"the stream that was created at {time_text(self.range.created)}",
            next_step=_NEXT_STEP
            if self.table is None
            else f"choose a new applicationName and {NEW_CHECKPOINT}",
        )

    def _lost(self, *, found: str, expected: str, next_step: str | None = None) -> None:
        report_data_loss(
            f"shard {self.range.key}",
            found=found,
            expected=expected,
            fail=self.fail,
            next_step=next_step or next_step_after_loss(self.table),
        )
