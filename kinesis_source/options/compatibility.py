"""Options of other Kinesis connectors for Spark that have no equivalent here. The names are taken
from the documentation of Databricks' source and from the code of awslabs'
spark-sql-kinesis-connector; one is an option of Spark's Kafka source that users may try."""

from __future__ import annotations

from typing import Final

from spark_ssp.common.options.endpoints import AWSLABS, DATABRICKS
from spark_ssp.common.options.spec import ForeignOption

_REFUSED: Final[tuple[tuple[str, str, str], ...]] = (
    (
        DATABRICKS,
        "serviceCredential",
        "use credentialsProvider with a function that returns the service credential's session",
    ),
    (
        AWSLABS,
        "kinesis.credentialProviderClass kinesis.credentialProviderParam",
        (
            "use credentialsProvider, roleArn, awsProfile, awsAccessKeyId with "
            "awsSecretAccessKey, or AWS's default chain"
        ),
    ),
    (
        AWSLABS,
        (
            "kinesis.sink.proxyAddress kinesis.sink.proxyPort kinesis.sink.proxyUsername "
            "kinesis.sink.proxyPassword"
        ),
        "set HTTPS_PROXY in the environment of driver and executors",
    ),
)
"""Product, names and advice of options that are refused."""

_PLANNED: Final = (
    "a batch's end is fixed before it is read: maxRecordsPerTrigger and maxBytesPerTrigger limit it"
)

_TUNING: Final[tuple[tuple[str, str, str], ...]] = (
    (DATABRICKS, "consumerNamePrefix", "consumerName sets the whole name"),
    (DATABRICKS, "consumerRefreshInterval", "consumers are looked up each minute"),
    (DATABRICKS, "requireConsumerDeregistration", "consumerLifecycle decides"),
    (
        DATABRICKS,
        "registeredConsumerIdType",
        "consumerArn takes ARNs, and consumerName takes names",
    ),
    (DATABRICKS, "maxFetchDuration", _PLANNED),
    (
        DATABRICKS,
        "fetchBufferSize",
        "nothing is fetched between batches; maxBytesInFlight bounds the memory of a task",
    ),
    (
        DATABRICKS,
        "maxFetchRate",
        (
            "the rates of a shard are respected without it; minFetchPeriod sets the pace near the "
            "latest record"
        ),
    ),
    (DATABRICKS, "shardsPerTask", "slots sets the number of tasks"),
    (
        DATABRICKS,
        "coalesceThresholdBlockSize coalesceBinSize",
        "record batches have a suitable size without it",
    ),
    (DATABRICKS, "maxShardsPerDescribe", "shards are listed in the largest pages"),
    (
        AWSLABS,
        "kinesis.subscribeToShard.timeoutSec kinesis.subscribeToShard.maxRetries",
        "a subscription that fails is replaced by GetRecords at once",
    ),
    (AWSLABS, "kinesis.maxFetchRecordsPerShard kinesis.maxFetchTimePerShardSec", _PLANNED),
    (AWSLABS, "kinesis.checkNewRecordThreads", "shards are probed concurrently without it"),
    (
        AWSLABS,
        "kinesis.clientRetryIntervalsMs",
        "the pause between attempts starts short and grows up to retry.maxBackoff",
    ),
    (
        AWSLABS,
        (
            "kinesis.metadataCommitterType kinesis.metadataPath kinesis.metadataNumRetries "
            "kinesis.metadataRetryIntervalsMs kinesis.metadataMaxRetryIntervalMs "
            "kinesis.dynamodb.tableName kinesis.minBatchesToRetain "
            "kinesis.internal.maintenanceTaskIntervalSec"
        ),
        "positions are stored only in Spark's checkpoint",
    ),
    (
        AWSLABS,
        (
            "kinesis.internal.dataQueueCapacity kinesis.internal.maxDataQueueEmptyCount "
            "kinesis.internal.dataQueueWaitTimeoutSec kinesis.internal.avoidEmptyBatches"
        ),
        "a task ends at its planned end and does not wait for a queue",
    ),
    (
        AWSLABS,
        (
            "kinesis.sink.recordTtl kinesis.sink.flushWaitTimeMs "
            "kinesis.sink.recordMaxBufferedTimeMs kinesis.sink.maxConnections "
            "kinesis.sink.aggregationEnabled"
        ),
        "it is an option of the sink",
    ),
)
"""Product, names and reason of options that only tune, and have no effect here."""


def _options(rows: tuple[tuple[str, str, str], ...], *, refused: bool) -> tuple[ForeignOption, ...]:
    return tuple(
        ForeignOption(name=name, origin=origin, refused=refused, advice=advice)
        for origin, names, advice in rows
        for name in names.split()
    )


OTHER_CONNECTORS_OPTIONS: Final[tuple[ForeignOption, ...]] = (
    *_options(_REFUSED, refused=True),
    *_options(_TUNING, refused=False),
)

SINK_OPTIONS_WITHOUT_EFFECT: Final[tuple[ForeignOption, ...]] = (
    *(
        option
        for option in OTHER_CONNECTORS_OPTIONS
        if option.name.startswith("kinesis.sink.proxy")
    ),
    *_options(
        (
            (
                AWSLABS,
                "kinesis.sink.flushWaitTimeMs kinesis.sink.recordMaxBufferedTimeMs",
                "requests are sent as soon as the shards' limits allow",
            ),
        ),
        refused=False,
    ),
)
"""Those of other connectors' sinks."""
