"""Options of other Kinesis connectors for Spark that have no equivalent here.

The names are taken from the documentation of Databricks' source and from the code of awslabs'
spark-sql-kinesis-connector; one is an option of Spark's Kafka source that users may try. The names
of this project's Kafka source are in `spark_ssp.common.options.sibling_format`.
"""

from __future__ import annotations

from typing import Final

from spark_ssp.common.options.spec import ForeignOption

_SUBSCRIPTIONS: Final = "a subscription that fails is replaced by GetRecords at once"
_PLANNED: Final = (
    "a batch's end is fixed before it is read: maxRecordsPerTrigger and maxBytesPerTrigger limit it"
)
_CHECKPOINT: Final = "positions are stored only in Spark's checkpoint"
_CREDENTIALS: Final = (
    "use credentialsProvider, roleArn, awsProfile, awsAccessKeyId with awsSecretAccessKey, or "
    "AWS's default chain"
)
_SERVICE_CREDENTIAL: Final = (
    "use credentialsProvider with a function that returns the service credential's session"
)
_PROXY: Final = "set HTTPS_PROXY in the environment of driver and executors"
_SINK: Final = "it is an option of the sink"
_INTERNAL: Final = "a task ends at its planned end and does not wait for a queue"


def _tuning(origin: str, advice: str, *names: str) -> tuple[ForeignOption, ...]:
    return tuple(
        ForeignOption(name=name, origin=origin, refused=False, advice=advice) for name in names
    )


def _refused(origin: str, advice: str, *names: str) -> tuple[ForeignOption, ...]:
    return tuple(
        ForeignOption(name=name, origin=origin, refused=True, advice=advice) for name in names
    )


_DATABRICKS: Final = (
    *_refused("Databricks", _SERVICE_CREDENTIAL, "serviceCredential"),
    *_tuning("Databricks", "consumerName sets the whole name", "consumerNamePrefix"),
    *_tuning("Databricks", "consumers are looked up each minute", "consumerRefreshInterval"),
    *_tuning("Databricks", "consumerLifecycle decides", "requireConsumerDeregistration"),
    *_tuning(
        "Databricks",
        "consumerArn takes ARNs, and consumerName takes names",
        "registeredConsumerIdType",
    ),
    *_tuning("Databricks", _PLANNED, "maxFetchDuration"),
    *_tuning(
        "Databricks",
        "nothing is fetched between batches; maxBytesInFlight bounds the memory of a task",
        "fetchBufferSize",
    ),
    *_tuning(
        "Databricks",
        "the rates of a shard are respected without it; minFetchPeriod sets the pace near the "
        "latest record",
        "maxFetchRate",
    ),
    *_tuning("Databricks", "slots sets the number of tasks", "shardsPerTask"),
    *_tuning(
        "Databricks",
        "record batches have a suitable size without it",
        "coalesceThresholdBlockSize",
        "coalesceBinSize",
    ),
    *_tuning("Databricks", "shards are listed in the largest pages", "maxShardsPerDescribe"),
)

_PROXIES: Final = _refused(
    "awslabs",
    _PROXY,
    "kinesis.sink.proxyAddress",
    "kinesis.sink.proxyPort",
    "kinesis.sink.proxyUsername",
    "kinesis.sink.proxyPassword",
)

_AWSLABS: Final = (
    *_refused(
        "awslabs",
        _CREDENTIALS,
        "kinesis.credentialProviderClass",
        "kinesis.credentialProviderParam",
    ),
    *_PROXIES,
    *_tuning(
        "awslabs",
        _SUBSCRIPTIONS,
        "kinesis.subscribeToShard.timeoutSec",
        "kinesis.subscribeToShard.maxRetries",
    ),
    *_tuning(
        "awslabs", _PLANNED, "kinesis.maxFetchRecordsPerShard", "kinesis.maxFetchTimePerShardSec"
    ),
    *_tuning(
        "awslabs",
        "shards are probed concurrently without it",
        "kinesis.checkNewRecordThreads",
    ),
    *_tuning(
        "awslabs",
        "the pause between attempts starts short and grows up to retry.maxBackoff",
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

SINK_OPTIONS_WITHOUT_EFFECT: Final[tuple[ForeignOption, ...]] = (
    *_PROXIES,
    *_tuning(
        "awslabs",
        "requests are sent as soon as the shards' limits allow",
        "kinesis.sink.flushWaitTimeMs",
        "kinesis.sink.recordMaxBufferedTimeMs",
    ),
)
"""Those of other connectors' sinks."""
