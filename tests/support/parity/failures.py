"""The batch queries of the comparison that fail with both sources, or differ by intent, as data.

Any other difference is a defect; docs/design/kafka-parity.md describes each of these.
"""

from __future__ import annotations

import json
from typing import Final

from tests.support.parity.cases import POLL_TIMEOUT_MS, BothFail, Differ
from tests.support.parity.topics import FIRST_MS, STEP_MS, ParityTopics, by_partition_json

_NOT_ASSIGNED: Final = "don't match what are assigned"


def both_fail(topics: ParityTopics) -> dict[str, BothFail]:
    """By name."""
    return {**_bad_selections(topics), **_bad_bounds(topics), **_bad_values(topics)}


def _bad_selections(topics: ParityTopics) -> dict[str, BothFail]:
    mixed = topics.mixed
    return {
        "no topics": BothFail(
            options={},
            sparks="One of the following options must be specified",
            ours=r"\[invalid-options\] subscribe: found neither",
        ),
        "a list without topics": BothFail(
            options={"subscribe": " ,"},
            sparks="No topics to subscribe",
            ours=r"\[invalid-options\] subscribe: found no topic",
        ),
        "two selections": BothFail(
            options={"subscribe": mixed, "assign": json.dumps({mixed: [0]})},
            sparks="Only one of the following",
            ours=r"\[invalid-options\] subscribe: found subscribe together with assign",
        ),
        "a topic that is not there": BothFail(
            options={"subscribe": f"{mixed},{mixed}-not"},
            sparks="UnknownTopicOrPartition",
            ours=rf"\[stream-not-found\] option subscribe: .*: {mixed}-not;",
        ),
        "a topic's name that cannot be": BothFail(
            options={"subscribe": "a b"},
            sparks="InvalidTopicException",
            ours=r"\[invalid-options\] subscribe: found 'a b'",
        ),
        "partitions that are not JSON": BothFail(
            options={"assign": mixed},
            sparks="No topicpartitions",
            ours=r"\[invalid-options\] assign: .* not JSON",
        ),
        "an invalid pattern": BothFail(
            options={"subscribePattern": "("},
            sparks="Unclosed group",
            ours=r"\[invalid-options\] subscribePattern: .*does not compile",
        ),
    }


def _bad_bounds(topics: ParityTopics) -> dict[str, BothFail]:
    mixed, trimmed = topics.mixed, topics.trimmed
    read = {"subscribe": mixed}
    return {
        "a start at the latest": BothFail(
            options={**read, "startingOffsets": "latest"},
            sparks="can't be latest",
            ours=r"\[invalid-options\] startingOffsets: found latest",
        ),
        "a partition's start at the latest": BothFail(
            options={**read, "startingOffsets": by_partition_json(mixed, 0, -1, 0)},
            sparks="can't be latest",
            ours=rf"\[invalid-options\] startingOffsets: found {mixed}-1 at latest",
        ),
        "an end at the earliest": BothFail(
            options={**read, "endingOffsets": "earliest"},
            sparks="can't be earliest",
            ours=r"\[invalid-options\] endingOffsets: found earliest",
        ),
        "a partition's end at the earliest": BothFail(
            options={**read, "endingOffsets": by_partition_json(mixed, 9, -2, 9)},
            sparks="can't be earliest",
            ours=rf"\[invalid-options\] endingOffsets: found {mixed}-1 at earliest",
        ),
        "a start that leaves a partition out": BothFail(
            options={**read, "startingOffsets": by_partition_json(mixed, 0, 0)},
            sparks=_NOT_ASSIGNED,
            ours=rf"\[invalid-options\] startingOffsets: found no entry for {mixed}-2",
        ),
        "a start in a partition that is not there": BothFail(
            options={**read, "startingOffsets": by_partition_json(mixed, 0, 0, 0, 0)},
            sparks=_NOT_ASSIGNED,
            ours=rf"\[invalid-options\] startingOffsets: .*not read: {mixed}-3",
        ),
        "an end that leaves a partition out": BothFail(
            options={**read, "endingOffsets": by_partition_json(mixed, 9, 9)},
            sparks=_NOT_ASSIGNED,
            ours=rf"\[invalid-options\] endingOffsets: found no entry for {mixed}-2",
        ),
        "a start by times that leaves a partition out": BothFail(
            options={**read, "startingOffsetsByTimestamp": by_partition_json(mixed, 0, 0)},
            sparks=_NOT_ASSIGNED,
            ours=rf"\[invalid-options\] startingOffsetsByTimestamp: found no entry for {mixed}-2",
        ),
        "an end before the start": BothFail(
            options={
                **read,
                "startingOffsets": by_partition_json(mixed, 0, 9, 0),
                "endingOffsets": by_partition_json(mixed, 9, 8, 9),
            },
            sparks="greater than the end offset",
            ours=rf"\[invalid-options\] endingOffsets: found {mixed}-1 to 8, which starts at 9",
        ),
        "a time to end before that to start": BothFail(
            options={
                **read,
                "startingTimestamp": str(FIRST_MS + 40 * STEP_MS),
                "endingTimestamp": str(FIRST_MS + 20 * STEP_MS),
            },
            sparks="is greater than the resolved end offset",
            ours=rf"\[invalid-options\] endingTimestamp: found {mixed}-0 to 7, which starts at 14",
        ),
        "a start behind all records": BothFail(
            options={**read, "startingOffsets": by_partition_json(mixed, 19, 19, 999)},
            sparks="999 is greater than the resolved end offset 20",
            ours=rf"\[data-loss\] partition {mixed}-2: found an end at 20, before the position 999",
        ),
        "an end behind all records": BothFail(
            options={
                **read,
                "startingOffsets": by_partition_json(mixed, 19, 19, 19),
                "endingOffsets": by_partition_json(mixed, 20, 20, 999),
                "kafkaConsumer.pollTimeoutMs": POLL_TIMEOUT_MS,
            },
            sparks=r"Some data may have been lost.*999\)",
            ours=rf"\[data-loss\] partition {mixed}-2: found .* before the requested end 999",
        ),
        "a start at a time behind all records": BothFail(
            options={**read, "startingTimestamp": str(FIRST_MS + 58 * STEP_MS)},
            sparks="No offset matched",
            ours=rf"\[invalid-options\] startingTimestamp: found a time later .* of {mixed}-0",
        ),
        "a start at expired records": BothFail(
            options={"subscribe": trimmed, "startingOffsets": by_partition_json(trimmed, 0, 10)},
            sparks="Some data may have been lost",
            ours=rf"\[data-loss\] partition {trimmed}-0: found its oldest record at 4",
        ),
    }


def _bad_values(topics: ParityTopics) -> dict[str, BothFail]:
    read = {"subscribe": topics.mixed}
    return {
        "no brokers": BothFail(
            options={**read, "kafka.bootstrap.servers": ""},
            sparks="bootstrap.servers",
            ours=r"\[invalid-options\] kafka.bootstrap.servers: found an empty value",
        ),
        "text for offsets": BothFail(
            options={**read, "startingOffsets": "oldest"},
            sparks="Expected e.g.",
            ours=r"\[invalid-options\] startingOffsets: found 'oldest'",
        ),
        "text for a time": BothFail(
            options={**read, "startingTimestamp": "yesterday"},
            sparks="Expected a single long value",
            ours=r"\[invalid-options\] startingTimestamp: found 'yesterday'",
        ),
        "text for a truth value": BothFail(
            options={**read, "includeHeaders": "maybe"},
            sparks="maybe",
            ours=r"\[invalid-options\] includeHeaders: found 'maybe'",
        ),
        "an unknown strategy": BothFail(
            options={
                **read,
                "startingTimestamp": str(FIRST_MS),
                "startingOffsetsByTimestampStrategy": "earliest",
            },
            sparks="No value found for 'EARLIEST'",
            ours=r"\[invalid-options\] startingOffsetsByTimestampStrategy: found 'earliest'",
        ),
        "an offset below -2": BothFail(
            options={**read, "startingOffsets": by_partition_json(topics.mixed, -3, 0, 0)},
            sparks="-3 does not equal -2",
            ours=rf"\[invalid-options\] startingOffsets: .*{topics.mixed} at -3",
        ),
        "a time before 1970": BothFail(
            options={**read, "startingTimestamp": "-5"},
            sparks="No offset matched",
            ours=r"\[invalid-options\] startingTimestamp: found '-5'",
        ),
        "an unknown isolation level": BothFail(
            options={**read, "kafka.isolation.level": "serializable"},
            sparks="Invalid value serializable",
            ours=r"\[invalid-options\] kafka.isolation.level: found 'serializable'",
        ),
        "more than there may be": BothFail(
            options={**read, "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            sparks=r"minOffsetPerTrigger\(6\)",
            ours=r"\[invalid-options\] minOffsetsPerTrigger: found 6",
        ),
        "a property that the source sets": BothFail(
            options={**read, "kafka.auto.offset.reset": "earliest"},
            sparks="'auto.offset.reset' is not supported",
            ours=r"\[invalid-options\] kafka.auto.offset.reset: found a property that is not",
        ),
        "a deserializer": BothFail(
            options={**read, "kafka.value.deserializer": "Mine"},
            sparks="'value.deserializer' is not supported",
            ours=r"\[invalid-options\] kafka.value.deserializer: found a property that is not",
        ),
        "commits": BothFail(
            options={**read, "kafka.enable.auto.commit": "true"},
            sparks="'enable.auto.commit' is not supported",
            ours=r"\[invalid-options\] kafka.enable.auto.commit: found a property that is not",
        ),
        "interceptors": BothFail(
            options={**read, "kafka.interceptor.classes": "Mine"},
            sparks="'interceptor.classes' is not supported",
            ours=r"\[invalid-options\] kafka.interceptor.classes: found a property that is not",
        ),
    }


def differ(topics: ParityTopics) -> dict[str, Differ]:
    """By name. Each is read from where the last two records of each partition are."""
    mixed = topics.mixed
    read = {"subscribe": mixed, "startingOffsets": by_partition_json(mixed, 18, 18, 18)}
    return {
        "a partition that is not there": Differ(
            reason="a partition that was named and is not read is a mistake in the name",
            options={
                "assign": json.dumps({mixed: [0, 3]}),
                "endingTimestamp": str(FIRST_MS + STEP_MS),
            },
            sparks=1,
            ours=rf"\[stream-not-found\] option assign: .*: {mixed}-3;",
        ),
        "a partition twice": Differ(
            reason="of two starts one is not meant; Spark takes the last",
            options={**read, "startingOffsets": _json_of(mixed, '"0": 18, "0": 19')},
            sparks=5,
            ours=r"\[invalid-options\] startingOffsets: found the key '0' twice",
        ),
        "a fraction of an offset": Differ(
            reason="it is not an offset; Spark takes the whole part",
            options={**read, "startingOffsets": _json_of(mixed, '"0": 18.7')},
            sparks=6,
            ours=r"\[invalid-options\] startingOffsets: found partition 0 of .* with '18.7'",
        ),
        "null for an offset": Differ(
            reason="it is not an offset; Spark takes it for 0",
            options={**read, "startingOffsets": _json_of(mixed, '"0": null')},
            sparks=24,
            ours=r"\[invalid-options\] startingOffsets: found partition 0 of .* with 'null'",
        ),
        "a fault in an option that another one overrules": Differ(
            reason="options are checked whether they win or not; Spark does not look at it",
            options={
                "subscribe": mixed,
                "startingTimestamp": str(FIRST_MS + 54 * STEP_MS),
                "startingOffsets": "oldest",
            },
            sparks=6,
            ours=r"\[invalid-options\] startingOffsets: found 'oldest'",
        ),
        "an option that is nearly one": Differ(
            reason="a misspelled option must not be without effect in silence",
            options={**read, "startOffsets": "earliest"},
            sparks=6,
            ours=r"\[invalid-options\] startoffsets: .*did you mean startingOffsets",
        ),
        "an unknown property": Differ(
            reason="librdkafka rejects unknown properties; the Java client warns",
            options={**read, "kafka.no.such": "1"},
            sparks=6,
            ours=r"\[invalid-options\] kafka.no.such: found an unknown property",
        ),
        "no offsets in a batch": Differ(
            reason="limits are checked also where they have no effect",
            options={**read, "maxOffsetsPerTrigger": "0"},
            sparks=6,
            ours=r"\[invalid-options\] maxOffsetsPerTrigger: found '0'",
        ),
        "a pattern in Java's dialect": Differ(
            reason="patterns are Python's, which lacks some of Java's classes",
            options={
                "subscribePattern": rf"\p{{Lower}}+-[\w&&[^a]]+.*{mixed[-6:]}",
                "endingTimestamp": str(FIRST_MS + STEP_MS),
            },
            sparks=1,
            ours=r"\[invalid-options\] subscribePattern: .*does not compile: bad escape",
        ),
        "a start behind all records, tolerated": Differ(
            reason="failOnDataLoss=false reads the remaining records, also in a batch query",
            options={
                **read,
                "startingOffsets": by_partition_json(mixed, 18, 18, 999),
                "failOnDataLoss": "false",
            },
            sparks="999 is greater than the resolved end offset 20",
            ours=4,
        ),
    }


def _json_of(topic: str, first: str) -> str:
    """Return offsets of `mixed` with this value for its first partition."""
    return f'{{"{topic}": {{{first}, "1": 18, "2": 18}}}}'
