"""The shard, its starts and its cursors for the tests of end probes."""

from __future__ import annotations

from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    SequenceNumber,
    ShardEnd,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_end_probe import probe
from spark_ssp.kinesis_source.probing.limited_end_probe import MANY_RECORDS, LimitShare, scan_ahead
from spark_ssp.kinesis_source.probing.probe_protocol import ProbeResult, ProbeSteps, ShardCursor
from tests.support.kinesis.probes import DAY_MS, NOW, cursor, ms, row

P = AfterRecord(sequence_number=SequenceNumber("100"))
START_ROW = row(100, -5000)
QUIET = ShardState(position=P, last_caught_up_ms=ms(-60_000))
TRIM = ShardState(position=TrimHorizon())
FRESH = ShardCursor()
KNOWN = ShardCursor(record_bytes=100.0)
AT_TIP = ShardCursor(
    position=P, cached_iterator=cursor("c", -1000), record_bytes=1024.0, proven=True
)
PEEK = 64
"""The number of records of 1024 bytes that a page from the start may fetch."""

EXPIRED = ExpiredIteratorError("it", found="old", expected="young", next_step="open another")
THROTTLED = ThrottledError("it", found="many", expected="few", next_step="wait")
UNREACHABLE = UnreachableError("it", found="nothing", expected="an answer", next_step="wait")


def at(offset: int) -> AtTimestamp:
    return AtTimestamp(millis=ms(offset))


def look(start: ShardState, memory: ShardCursor) -> ProbeSteps:
    return probe(start, memory, NOW, DAY_MS)


def ahead(
    start: ShardState,
    memory: ShardCursor,
    records: int = MANY_RECORDS,
    size: int | None = None,
    *,
    closed: bool = False,
) -> ProbeSteps:
    share = LimitShare(records=records, size_bytes=size)
    return scan_ahead(start, memory, NOW, DAY_MS, share, ShardEnd() if closed else None)


def orders(finding: ProbeResult) -> list[int]:
    return [found.order for found in finding.records]
