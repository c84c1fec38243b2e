"""Options that only one of the two sources has, and the options to use in the other one.

A user who moves a query from one format to the other would otherwise lose fixed tasks, a limit or
shared reading without an error, so a source refuses the names of the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from spark_ssp.common.options.spec import ForeignOption, OptionSpec, spellings

KINESIS: Final = "the Kinesis source"
KAFKA: Final = "the Kafka source"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Options of the two sources for the same purpose; either side may be empty.

    The advice of a source answers the names of the other; by default it is its first option.
    """

    kinesis: tuple[str, ...] = ()
    kafka: tuple[str, ...] = ()
    in_kinesis: str = ""
    in_kafka: str = ""


_NO_LEASES: Final = (
    "a Kafka query reads all partitions of its topics and has no leases; to share a topic, give "
    "each query its own partitions by assign"
)
_NO_AWS: Final = "it is for AWS; Kafka's connection and login are options that begin with kafka."
_END: Final = (
    "use endingPosition in a batch read, and the trigger availableNow to stop a stream at the "
    "latest record"
)
_TRIGGER: Final = "set the interval by the trigger: processingTime"

_PAIRS: Final = (
    _Pair(
        kinesis=("streamName", "streamARN"),
        kafka=("subscribe", "subscribePattern", "assign"),
    ),
    _Pair(kinesis=("startingPosition",), kafka=("startingOffsets",)),
    _Pair(
        kafka=(
            "startingTimestamp",
            "startingOffsetsByTimestamp",
            "startingOffsetsByTimestampStrategy",
        ),
        in_kinesis="use startingPosition with at_timestamp",
    ),
    _Pair(
        kinesis=("endingPosition",),
        kafka=("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        in_kinesis=_END,
        in_kafka="use endingOffsets, endingTimestamp or endingOffsetsByTimestamp in a batch read",
    ),
    _Pair(
        kinesis=("maxRecords",),
        in_kafka="a batch read has no limit of records; use endingOffsets",
    ),
    _Pair(kinesis=("maxRecordsPerTrigger",), kafka=("maxOffsetsPerTrigger",)),
    _Pair(kafka=("minOffsetsPerTrigger", "maxTriggerDelay"), in_kinesis=_TRIGGER),
    _Pair(kinesis=("slots",), kafka=("tasks",)),
    _Pair(
        kinesis=("slotAssignment",),
        kafka=("grouper", "partitionExpansionAlgorithm", "onPartitionCountChange"),
        in_kinesis="use slots and slotAssignment, which place shards in tasks",
    ),
    _Pair(
        kafka=("assignmentStore",),
        in_kinesis="the checkpoint keeps the slots of shards; to share a stream with other "
        "queries, use applicationName",
    ),
    _Pair(kinesis=("shardDiscoveryInterval",), kafka=("partitionDiscoveryInterval",)),
    _Pair(
        kinesis=(
            "applicationName",
            "leaseTable",
            "workerId",
            "processorIdGenerator",
            "failoverTime",
            "maxLeasesPerWorker",
            "checkpointInterval",
            "dynamodbEndpointUrl",
            "leaseTableTags",
            "leaseTableReadWriteCapacity",
            "leaseMaxOutage",
            "leaseRoleArn",
            "leaseRoleExternalId",
        ),
        in_kafka=_NO_LEASES,
    ),
    _Pair(
        kinesis=(
            "region",
            "endpointUrl",
            "awsProfile",
            "awsAccessKeyId",
            "awsSecretAccessKey",
            "awsSessionToken",
            "roleArn",
            "roleExternalId",
            "roleSessionName",
            "stsEndpointUrl",
        ),
        in_kafka=_NO_AWS,
    ),
    _Pair(
        kinesis=("consumerMode", "consumerName", "consumerArn", "consumerLifecycle"),
        in_kafka="Kafka has no enhanced fan-out: its consumers share no rate of a partition",
    ),
    _Pair(
        kinesis=("deaggregate",),
        in_kafka="it has no meaning for Kafka: a record of Kafka is one row",
    ),
    _Pair(
        kinesis=("retry.maxAttempts", "retry.maxBackoff", "connectTimeout", "readTimeout"),
        kafka=("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "pollTimeout"),
        in_kinesis="use retry.maxAttempts, retry.maxBackoff and readTimeout",
        in_kafka="use fetchOffset.numRetries, fetchOffset.retryIntervalMs and pollTimeout",
    ),
    _Pair(
        kinesis=("maxBytesPerShard", "maxRecordsPerFetch", "minFetchPeriod", "maxBytesInFlight"),
        in_kafka="the source sizes its fetches; maxBytesPerTrigger limits a batch",
    ),
    _Pair(
        kafka=("groupIdPrefix", "commitOffsetsToGroup"),
        in_kinesis="Kinesis has no consumer groups; applicationName names those who share a stream",
    ),
    _Pair(
        kinesis=("dropStreams",),
        kafka=("dropTopics",),
        in_kinesis="use dropStreams",
        in_kafka="use dropTopics",
    ),
    _Pair(
        kafka=("acceptTopicIds",),
        in_kinesis="a stream that was created again is read with failOnDataLoss=false",
    ),
    _Pair(
        kafka=("tokenProvider", "tokenProviderSecretArguments"),
        in_kinesis="use credentialsProvider and credentialsProviderSecretArguments for AWS",
    ),
    _Pair(kafka=("includeHeaders",), in_kinesis="a record of Kinesis has no headers"),
    _Pair(kafka=("includeTask",), in_kinesis="a Kinesis query has the column ssp"),
    _Pair(
        kinesis=("includeRepeatKeys",),
        in_kafka="use includeHeaders and spark_ssp.drop_duplicates",
    ),
)


def options_of_sister(source: str, *own: OptionSpec[Any]) -> tuple[ForeignOption, ...]:
    """Return the names to refuse in `source` (KINESIS or KAFKA): the other's, except its own."""
    known = spellings(*own)
    return tuple(option for option in _foreign(source) if option.name.lower() not in known)


def _foreign(source: str) -> Iterator[ForeignOption]:
    for pair in _PAIRS:
        names, twins, advice, origin = (
            (pair.kafka, pair.kinesis, pair.in_kinesis, KAFKA)
            if source == KINESIS
            else (pair.kinesis, pair.kafka, pair.in_kafka, KINESIS)
        )
        for name in names:
            yield ForeignOption(
                name=name, origin=origin, refused=True, advice=advice or f"use {twins[0]}"
            )
