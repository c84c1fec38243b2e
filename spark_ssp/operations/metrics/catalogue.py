"""The metrics by name, with their labels and meanings. Every output and the guide follow it. The
names are those of Prometheus: base units, `_total` for counters. Under `query` is the name of the
query, or its id if it has none."""

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
    help: str
    kind: Kind


def _gauge(name: str, labels: str, text: str, kind: Kind = Kind.GAUGE) -> Metric:
    return Metric(name=name, labels=tuple(labels.split()), help=text, kind=kind)


def _counter(name: str, labels: str, text: str) -> Metric:
    return _gauge(name, labels, text, Kind.COUNTER)


MILLIS_BEHIND: Final = _gauge(
    "ssp_millis_behind_latest",
    "query stream shard",
    "Milliseconds by which a shard of a Kinesis stream is behind its latest record.",
)
MAX_MILLIS_BEHIND: Final = _gauge(
    "ssp_max_millis_behind_latest",
    "query stream",
    "The largest lag of all shards of a stream, in milliseconds.",
)
OFFSETS_BEHIND: Final = _gauge(
    "ssp_offsets_behind",
    "query topic partition",
    "Offsets by which a partition of a topic is behind its end.",
)
MAX_OFFSETS_BEHIND: Final = _gauge(
    "ssp_max_offsets_behind",
    "query topic",
    "The largest lag of all partitions of a topic, in offsets.",
)
TOTAL_OFFSETS_BEHIND: Final = _gauge(
    "ssp_total_offsets_behind",
    "query topic",
    "The sum of the lag of all partitions of a topic, in offsets.",
)
NOT_SHOWN: Final = _gauge(
    "ssp_lag_series_not_shown",
    "query stream",
    "Shards or partitions whose lag has no series: those least behind.",
)
SHARDS: Final = _gauge(
    "ssp_shards", "query stream state", "Shards of a stream by state: open, closed, waiting, ended."
)
PARTITIONS: Final = _gauge("ssp_partitions", "query topic", "Partitions of a topic that are read.")
SLOTS: Final = _gauge("ssp_slots", "query", "Slots of Kinesis sources and tasks of Kafka sources.")
LEASES: Final = _gauge(
    "ssp_leases",
    "query stream owner",
    "Leases by owner, without those of ended shards; the owner of free ones is (none).",
)
NOT_READ: Final = _gauge(
    "ssp_shards_not_read",
    "query stream",
    "Shards that no worker reads until a row of the lease table that cannot be parsed is restored "
    "or deleted.",
)
FAN_OUT: Final = _gauge(
    "ssp_fan_out_shards",
    "query stream mode",
    "Shards of the last batch that enhanced fan-out reads by subscriptions (pushed) or by "
    "GetRecords (polled).",
)
SPREAD: Final = _gauge(
    "ssp_arrival_spread_seconds",
    "query",
    "Seconds by which a shard of a Kinesis source was read ahead of an unread record of another "
    "one.",
)
LEFT_BEHIND: Final = _gauge(
    "ssp_shards_left_behind",
    "query stream",
    "Shards that could not be read for longer than alignmentTimeout, so that the others no longer "
    "wait for them.",
)
BATCH_ROWS: Final = _gauge("ssp_batch_rows", "query", "Rows of the last trigger.")
TRIGGER_SECONDS: Final = _gauge(
    "ssp_trigger_seconds",
    "query phase",
    "The duration of the last trigger by phase, as Spark names them; triggerExecution is the sum.",
)
LAST_TRIGGER: Final = _gauge(
    "ssp_last_trigger_timestamp_seconds",
    "query",
    "The start of the last trigger that Spark has reported, in seconds since the epoch.",
)
ROWS: Final = _counter("ssp_rows_total", "query", "Rows read.")
ROWS_DROPPED: Final = _counter(
    "ssp_rows_dropped_by_watermark_total",
    "query",
    "Rows that Spark dropped because they were late for the watermark.",
)
THROTTLES: Final = _counter(
    "ssp_throttles_total",
    "query",
    "Calls of the driver that Kinesis refused because of their rate.",
)
RETRIES: Final = _counter(
    "ssp_retries_total",
    "query",
    "Calls of the driver that failed and were made again, throttled ones included.",
)
RESHARDS: Final = _counter(
    "ssp_reshards_total",
    "query",
    "Splits, merges and expansions of topics that a query went through.",
)
DATA_LOSS_WARNINGS: Final = _counter(
    "ssp_data_loss_warnings_total",
    "query",
    "Losses that the driver found and failOnDataLoss=false tolerated.",
)
AGENT_RESTARTS: Final = _counter(
    "ssp_lease_agent_restarts_total", "query", "Processes of the lease agent that were replaced."
)
QUERY_FAILURES: Final = _counter(
    "ssp_query_failures_total", "", "Queries of this session that ended with an error."
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
