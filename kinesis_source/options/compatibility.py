"""Options of other Kinesis sources for Spark that have no counterpart here.

The names are those of the documentation of Databricks' source and of the sources of awslabs'
spark-sql-kinesis-connector, and one of Spark's Kafka source that people try by habit. The names of
the Kafka source of this project are in `ssp_common.options.sibling_format`.
"""

from __future__ import annotations

from typing import Final

from ssp_common.options.spec import ForeignOption

_EFO: Final = "enhanced fan-out does not exist here yet; shards are read with GetRecords"
_PLANNED: Final = (
    "a batch's end is fixed before it is read: maxRecordsPerTrigger and maxBytesPerTrigger limit it"
)
_CHECKPOINT: Final = "positions stand in Spark's own checkpoint, nowhere else"
_CREDENTIALS: Final = (
    "use roleArn, awsProfile, awsAccessKeyId with awsSecretAccessKey, or AWS's default chain"
)
_PROXY: Final = "set HTTPS_PROXY in the environment of driver and executors"
_SINK: Final = "this is a source: it writes nothing"
_INTERNAL: Final = "a task ends at the end that was planned for it and waits for no queue"


def _tuning(origin: str, advice: str, *names: str) -> tuple[ForeignOption, ...]:
    return tuple(
        ForeignOption(name=name, origin=origin, refused=False, advice=advice) for name in names
    )


def _refused(origin: str, advice: str, *names: str) -> tuple[ForeignOption, ...]:
    return tuple(
        ForeignOption(name=name, origin=origin, refused=True, advice=advice) for name in names
    )


_DATABRICKS: Final = (
    *_refused("Databricks", _EFO, "consumerName", "registeredConsumerId"),
    *_refused("Databricks", _EFO, "registeredConsumerIdType"),
    *_refused("Databricks", _CREDENTIALS, "serviceCredential"),
    *_tuning("Databricks", _EFO, "consumerNamePrefix", "consumerRefreshInterval"),
    *_tuning("Databricks", _EFO, "requireConsumerDeregistration"),
    *_tuning("Databricks", _PLANNED, "maxFetchDuration"),
    *_tuning(
        "Databricks",
        "nothing is fetched between batches; maxBytesInFlight bounds the memory of a task",
        "fetchBufferSize",
    ),
    *_tuning(
        "Databricks",
        "the service's budget for a shard is kept without it; minFetchPeriod sets the pace "
        "near the tip",
        "maxFetchRate",
    ),
    *_tuning("Databricks", "slots sets the number of tasks", "shardsPerTask"),
    *_tuning(
        "Databricks",
        "record batches get a useful size without it",
        "coalesceThresholdBlockSize",
        "coalesceBinSize",
    ),
    *_tuning("Databricks", "shards are listed in the largest pages", "maxShardsPerDescribe"),
)

_AWSLABS: Final = (
    *_refused("awslabs", _EFO, "kinesis.consumerName"),
    *_refused(
        "awslabs",
        _CREDENTIALS,
        "kinesis.credentialProviderClass",
        "kinesis.credentialProviderParam",
    ),
    *_refused(
        "awslabs",
        _PROXY,
        "kinesis.sink.proxyAddress",
        "kinesis.sink.proxyPort",
        "kinesis.sink.proxyUsername",
        "kinesis.sink.proxyPassword",
    ),
    *_tuning(
        "awslabs",
        _EFO,
        "kinesis.subscribeToShard.timeoutSec",
        "kinesis.subscribeToShard.maxRetries",
    ),
    *_tuning(
        "awslabs", _PLANNED, "kinesis.maxFetchRecordsPerShard", "kinesis.maxFetchTimePerShardSec"
    ),
    *_tuning(
        "awslabs",
        "shards are asked side by side without it",
        "kinesis.checkNewRecordThreads",
    ),
    *_tuning(
        "awslabs",
        "the pause between tries starts short and grows up to retry.maxBackoff",
        "kinesis.clientRetryIntervalsMs",
    ),
    *_tuning(
        "awslabs",
        _CHECKPOINT,
        "kinesis.metadataCommitterType",
        "kinesis.metadataPath",
        "kinesis.metadataNumRetries",
        "kinesis.metadataRetryIntervalsMs",
        "kinesis.metadataMaxRetryIntervalMs",
        "kinesis.dynamodb.tableName",
        "kinesis.minBatchesToRetain",
        "kinesis.internal.maintenanceTaskIntervalSec",
    ),
    *_tuning(
        "awslabs",
        _INTERNAL,
        "kinesis.internal.dataQueueCapacity",
        "kinesis.internal.maxDataQueueEmptyCount",
        "kinesis.internal.dataQueueWaitTimeoutSec",
        "kinesis.internal.avoidEmptyBatches",
    ),
    *_tuning(
        "awslabs",
        _SINK,
        "kinesis.sink.recordTtl",
        "kinesis.sink.flushWaitTimeMs",
        "kinesis.sink.recordMaxBufferedTimeMs",
        "kinesis.sink.maxConnections",
        "kinesis.sink.aggregationEnabled",
    ),
)

_SPARK: Final = (*_refused("Spark's Kafka source", "use slots", "minPartitions"),)

OTHER_CONNECTORS_OPTIONS: Final[tuple[ForeignOption, ...]] = (*_DATABRICKS, *_AWSLABS, *_SPARK)
