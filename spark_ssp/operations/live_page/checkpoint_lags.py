"""Measures the lag after a batch of a checkpoint, as the status that the query's reader reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.spark.progress_offsets import Status
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kafka_source.model import offset as kafka_offset
from spark_ssp.kafka_source.planning.progress_metrics import lag_metrics
from spark_ssp.kinesis_source.model import offset as kinesis_offset
from spark_ssp.kinesis_source.model.shard import ShardEnd
from spark_ssp.kinesis_source.probing.shard_lag import progress_entry
from spark_ssp.operations.inspection.shard_lags import lags_of
from spark_ssp.operations.inspection.topics import latest_offsets


def measure_status(end: Any, kinesis: ConnectionOptions, kafka: Mapping[str, str]) -> Status | None:
    """Return the lag of each shard or partition behind the end offset of a batch, a document; None
    for a source of another package. `kafka`: options of the Kafka source.

    Raises SspError if the service or the brokers cannot be read.
    """
    if kinesis_offset.is_offset(end):
        return _kinesis_status(kinesis_offset.decode(end), kinesis)
    if kafka_offset.is_offset(end):
        return _kafka_status(kafka_offset.decode(end), kafka)
    return None


def _kinesis_status(end: kinesis_offset.Offset, connection: ConnectionOptions) -> Status:
    positions = {
        key: state.position
        for key, state in end.states.items()
        if not isinstance(state.position, ShardEnd)
    }
    lags: dict[StreamName, dict[ShardId, int]] = {}
    for key, lag in lags_of(positions, connection).items():
        if lag is not None:
            lags.setdefault(key.stream, {})[key.shard] = lag
    return {stream: progress_entry(found) for stream, found in lags.items()}


def _kafka_status(end: kafka_offset.Offset, options: Mapping[str, str]) -> Status | None:
    latest = latest_offsets(end.positions, options)
    lags: dict[StreamName, dict[int, int]] = {}
    for ssp, offset in latest.items():
        lags.setdefault(ssp.stream, {})[ssp.partition] = max(0, offset - end.positions[ssp])
    return lag_metrics(lags)
