"""The metrics by name, with their labels, units and meanings. Every output and the guide follow it.
The names are those of Prometheus: base units, `_total` for counters. Under `query` is the name of
the query, or its id if it has none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """The type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric. `help` is one sentence for the scrape and the guide."""

    name: str
    labels: tuple[str, ...]
    unit: str
    """As OpenTelemetry writes units (UCUM): `s`, or what is counted, in braces."""
    help: str
    kind: Kind

    @property
    def base_name(self) -> str:
        """The name without unit and `_total`, which exporters from OpenTelemetry append."""
        return self.name.removesuffix("_total").removesuffix("_seconds")


def _gauge(name: str, labels: str, unit: str, text: str, kind: Kind = Kind.GAUGE) -> Metric:
    return Metric(name=name, labels=tuple(labels.split()), unit=unit, help=text, kind=kind)


def _counter(name: str, labels: str, unit: str, text: str) -> Metric:
    return _gauge(name, labels, unit, text, Kind.COUNTER)


RUNNING: Final = _gauge(
    "ssp_running_queries", "", "{query}", "Queries of this session that run, of any source."
)
VERDICT: Final = _gauge(
    "ssp_query_verdict",
    "query verdict",
    "{verdict}",
    "1 for the verdict on the health of a query, 0 for the others; of a query that has failed or "
    "ended too, until it is started again.",
)
COMMITTED_DELAY: Final = _gauge(
    "ssp_committed_delay_seconds",
    "query",
    "s",
    "The largest age of the oldest record that is in no committed batch, at most; it grows while a "
    "batch runs or hangs.",
)
UNMEASURED: Final = _gauge(
    "ssp_unmeasured_parts",
    "query",
    "{shard}",
    "Shards and partitions whose delay is not known.",
)
UNTIL_CAUGHT_UP: Final = _gauge(
    "ssp_until_caught_up_seconds",
    "query",
    "s",
    "The time until the newest record is read, at the pace of the last batches; 0 if the delay is "
    "within the limit, +Inf if the query reads no faster than writers write.",
)
UNTIL_EXPIRY: Final = _gauge(
    "ssp_until_expiry_seconds",
    "query",
    "s",
    "The time until records expire unread at the earliest: below ssp_until_caught_up_seconds, they "
    "will.",
)
STREAM_DELAY: Final = _gauge(
    "ssp_planned_delay_seconds",
    "query stream",
    "s",
    "The largest age of the oldest record of a stream or topic that was in no batch when the last "
    "one was planned.",
)
SHARD_DELAY: Final = _gauge(
    "ssp_shard_delay_seconds",
    "query stream shard",
    "s",
    "The same of a shard or partition.",
)
OFFSETS_BEHIND: Final = _gauge(
    "ssp_partition_offsets_behind",
    "query topic partition",
    "{offset}",
    "Offsets between the last planned batch and the end of a partition.",
)
MAX_OFFSETS_BEHIND: Final = _gauge(
    "ssp_max_offsets_behind",
    "query topic",
    "{offset}",
    "The largest of all partitions of a topic.",
)
TOPIC_OFFSETS_BEHIND: Final = _gauge(
    "ssp_topic_offsets_behind",
    "query topic",
    "{offset}",
    "The sum of all partitions of a topic.",
)
NOT_SHOWN: Final = _gauge(
    "ssp_series_not_shown",
    "query stream",
    "{shard}",
    "Shards or partitions without series of their own: all of a stream that has more than the "
    "argument series.",
)
SHARDS: Final = _gauge(
    "ssp_shards",
    "query stream state",
    "{shard}",
    "Shards of a stream by state: open, closed, waiting, ended.",
)
PARTITIONS: Final = _gauge(
    "ssp_partitions", "query topic", "{partition}", "Partitions of a topic that are read."
)
SLOTS: Final = _gauge(
    "ssp_slots", "query", "{task}", "Slots of Kinesis sources and tasks of Kafka sources."
)
LEASES: Final = _gauge(
    "ssp_leases",
    "query stream owner",
    "{lease}",
    "Leases by owner, without those of ended shards; the owner of free ones is (none).",
)
UNREAD: Final = _gauge(
    "ssp_unread_shards",
    "query stream reason",
    "{shard}",
    "Shards that no worker reads: free, without an owner; stale, whose owner does not renew the "
    "lease; malformed, until a row of the lease table that cannot be parsed is restored or "
    "deleted.",
)
FAN_OUT: Final = _gauge(
    "ssp_fan_out_shards",
    "query stream mode",
    "{shard}",
    "Shards of the last batch that enhanced fan-out reads by subscriptions (pushed) or by "
    "GetRecords (polled).",
)
SPREAD: Final = _gauge(
    "ssp_arrival_spread_seconds",
    "query",
    "s",
    "Seconds by which a shard of a Kinesis source was read ahead of an unread record of another "
    "one.",
)
LEFT_BEHIND: Final = _gauge(
    "ssp_shards_left_behind",
    "query stream",
    "{shard}",
    "Shards that could not be read for longer than alignmentTimeout, so that the others no longer "
    "wait for them.",
)
BATCH_ROWS: Final = _gauge("ssp_batch_rows", "query", "{row}", "Rows of the last trigger.")
TRIGGER_SECONDS: Final = _gauge(
    "ssp_trigger_seconds",
    "query phase",
    "s",
    "The duration of the last trigger by phase, as Spark names them; triggerExecution is the sum.",
)
LAST_TRIGGER: Final = _gauge(
    "ssp_last_trigger_timestamp_seconds",
    "query",
    "s",
    "The start of the last trigger that Spark has reported, in seconds since the epoch.",
)
LAST_COMMIT: Final = _gauge(
    "ssp_last_commit_timestamp_seconds",
    "query",
    "s",
    "The end of the last trigger that Spark has reported, in seconds since the epoch.",
)
ROWS: Final = _counter("ssp_rows_total", "query", "{row}", "Rows read.")
ROWS_DROPPED: Final = _counter(
    "ssp_rows_dropped_by_watermark_total",
    "query",
    "{row}",
    "Rows that Spark dropped because they were late for the watermark.",
)
THROTTLES: Final = _counter(
    "ssp_throttles_total",
    "query",
    "{call}",
    "Calls of the driver that Kinesis refused because of their rate.",
)
RETRIES: Final = _counter(
    "ssp_retries_total",
    "query",
    "{call}",
    "Calls of the driver that failed and were made again, throttled ones included.",
)
RESHARDS: Final = _counter(
    "ssp_reshards_total",
    "query",
    "{reshard}",
    "Splits, merges and expansions of topics that a query went through.",
)
DATA_LOSS_WARNINGS: Final = _counter(
    "ssp_data_loss_warnings_total",
    "query",
    "{loss}",
    "Losses that the driver found and failOnDataLoss=false tolerated.",
)
AGENT_RESTARTS: Final = _counter(
    "ssp_lease_agent_restarts_total",
    "query",
    "{process}",
    "Processes of the lease agent that were replaced.",
)
QUERY_FAILURES: Final = _counter(
    "ssp_query_failures_total", "query", "{failure}", "Runs of a query that ended with an error."
)

METRICS: Final = tuple(value for value in vars().copy().values() if isinstance(value, Metric))
"""All of the above, in their order."""

BY_COUNTER: Final = {
    "throttles": THROTTLES,
    "retries": RETRIES,
    "reshards": RESHARDS,
    "dataLossWarnings": DATA_LOSS_WARNINGS,
    "agentRestarts": AGENT_RESTARTS,
}
"""The metric of each count in a reader's status (`spark_ssp.common.spark.reader_status`)."""
