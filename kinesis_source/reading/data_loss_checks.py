"""Handles missing records of a task's range: the task fails, or warns and continues. The rule by
which records count as lost is in `planning/data_loss.py`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_ssp.common.errors import SspError, StreamNotFoundError
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.model.ranges import ShardRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Retention,
    SequenceNumber,
    ShardState,
    StreamDescription,
)
from spark_ssp.kinesis_source.planning.data_loss import (
    Evidence,
    Verdict,
    anchor_of,
    judge,
    report_data_loss,
    warn_start_moved,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLossChecks:
    """The checks of one range. With `fail` (`failOnDataLoss`) a data loss raises DataLossError;
    otherwise it is logged as a warning."""

    range: ShardRange
    service: KinesisService
    fail: bool

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
        )

    def _lost(self, *, found: str, expected: str) -> None:
        report_data_loss(f"shard {self.range.key}", found=found, expected=expected, fail=self.fail)
