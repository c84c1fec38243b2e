"""What to make of records that should be there and are not: nothing lost, data loss, or a warning.

A record that a range names can be gone for three reasons: it was trimmed (its retention is over),
its shard expired, or the stream was deleted and created again. Only the first can be harmless: the
start record itself is not read again, so its going is no loss as long as everything behind it is
still kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto

from kinesis_source.data_loss import data_lost
from kinesis_source.model import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    StreamDescription,
)
from kinesis_source.ranges import ShardRange
from kinesis_source.service import KinesisService
from ssp_common.errors import SspError, StreamNotFoundError

logger = logging.getLogger("spark_ssp.kinesis_source.missing_records")


class Judgement(Enum):
    """What the absence of a range's first record means."""

    HARMLESS = auto()
    TRIMMED = auto()
    RECREATED = auto()


def judge_absent_start(
    range_: ShardRange, seen: EpochMillis | None, stream: StreamDescription, now: EpochMillis
) -> Judgement:
    """Whether records between the start and the first one found can have been lost.

    All that follows the start arrived after `seen`; the service keeps what arrived within its
    retention. So nothing is lost while `seen` is within the retention of `now`. `seen` None is no
    proof of anything.
    """
    if stream.created != range_.created:
        return Judgement.RECREATED
    if seen is not None and now - seen < stream.retention_millis - CLOCK_UNCERTAINTY_MS:
        return Judgement.HARMLESS
    return Judgement.TRIMMED


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """The verdicts for one range, as `failOnDataLoss` wants them: an error, or a warning.

    Each method returns whether to read on; False means to treat the shard as read.
    """

    range: ShardRange
    service: KinesisService
    fail: bool

    def start(
        self, wanted: SequenceNumber, seen: EpochMillis | None, found: SequenceNumber | None
    ) -> bool:
        """The record `wanted` should come first; `found` did, or nothing at all."""
        stream = self._describe()
        if stream is None:
            return False
        now = self.service.service_time()
        judgement = judge_absent_start(self.range, seen, stream, now)
        if judgement is Judgement.RECREATED:
            self._recreated(stream)
            return False
        first = "no record" if found is None else f"record {found}"
        if judgement is Judgement.HARMLESS:
            logger.info(
                "Shard %s: start record %s was trimmed, reading goes on with %s; nothing is lost: "
                "the shard was read to its tip at %s and keeps %s ms (now %s).",
                *(self.range.key, wanted, first, seen, stream.retention_millis, now),
            )
            return True
        self._lost(
            found=f"{first} first, after record {wanted} was trimmed (retention "
            f"{stream.retention_millis} ms, last read to the tip at {seen}, now {now})",
            expected=f"record {wanted} first, as proof that nothing behind it was trimmed",
        )
        return True

    def end(self, found: str) -> None:
        """The range's last record is gone; `found` says what is there instead. Reading ends."""
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
        self._lost(found=found, expected=f"{last}, which was there when the batch was planned")

    def shard(self, error: SspError) -> None:
        """The service no longer knows the shard, the stream, or the position. Reading ends."""
        stream = self._describe()
        if stream is None:
            return
        if stream.created != self.range.created:
            self._recreated(stream)
            return
        self._lost(
            found=f"{error.found} ({error.kind})",
            expected="the shard as it was when the batch was planned; shards expire with the last "
            "of their records",
        )

    def _describe(self) -> StreamDescription | None:
        """The stream as it is now; None when it is gone and that is tolerated."""
        try:
            return self.service.describe(self.range.stream)
        except StreamNotFoundError as error:
            self._lost(
                found=f"the stream deleted ({error.found})", expected="the stream of this query"
            )
            return None

    def _recreated(self, stream: StreamDescription) -> None:
        self._lost(
            found=f"the stream deleted and created again at {stream.created}",
            expected=f"the stream that was created at {self.range.created}",
        )

    def _lost(self, *, found: str, expected: str) -> None:
        data_lost(f"shard {self.range.key}", found=found, expected=expected, fail=self.fail)
