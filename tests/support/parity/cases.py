"""The batch queries of the comparison, as data: those whose rows are the same, those that fail with
both sources, and those that differ by intent.

Any other difference is a defect; docs/guide/kafka-from-spark.md describes each of the last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.parity.topics import FIRST_MS, STEP_MS, ParityTopics, by_partition_json

Options = Mapping[str, str]

POLL_TIMEOUT_MS: Final = "2000"
"""The time that Spark's source waits for a record that does not come. A busy machine may be
slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """Both read the same; `rows` is how many, so that both reading nothing does not pass."""

    options: Options
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BothFail:
    """Both fail: a pattern for the message of each."""

    options: Options
    sparks: str
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Differ:
    """A difference that is meant: for each source the number of rows, or a pattern for the message
    with which it fails."""

    reason: str
    options: Options
    sparks: int | str
    ours: int | str


def _at(number: int) -> int:
    """The time of a record of `mixed` by its number."""
    return FIRST_MS + number * STEP_MS


def _between(topic: str, starts: Sequence[int], ends: Sequence[int] = ()) -> dict[str, str]:
    """Read a topic from and to these offsets of its partitions."""
    bounds = {"startingOffsets": starts, "endingOffsets": ends}
    given = {name: by_partition_json(topic, *values) for name, values in bounds.items() if values}
    return {"subscribe": topic, **given}


def same(topics: ParityTopics) -> dict[str, Same]:
    """By name."""
    return {
        **_selections(topics),
        **_offsets(topics),
        **_times(topics),
        **_logs(topics),
        **_client(topics),
    }


def _selections(topics: ParityTopics) -> dict[str, Same]:
    mixed, stamped = topics.mixed, topics.stamped
    return {
        "headers": Same(options={"subscribe": mixed, "includeHeaders": "true"}, rows=60),
        "several topics": Same(
            options={"subscribe": f" {mixed},{stamped} ,{topics.empty},{mixed}"}, rows=70
        ),
        "a pattern": Same(options={"subscribePattern": f"{mixed}|{stamped}"}, rows=70),
        "a pattern for a part of the name": Same(
            options={"subscribePattern": f"{mixed[3:9]}.*{mixed[-4:]}$"}, rows=60
        ),
        "partitions": Same(
            options={
                "assign": json.dumps({mixed: [0, 2], stamped: [1]}),
                "includeHeaders": "TRUE",
            },
            rows=45,
        ),
        "a pattern that matches nothing": Same(
            options={"subscribePattern": f"{mixed}-none"}, rows=0
        ),
        "options in other cases": Same(
            options={"SUBSCRIBE": mixed, "startingoffsets": "Earliest", "EndingOffsets": "LATEST"},
            rows=60,
        ),
    }


def _offsets(topics: ParityTopics) -> dict[str, Same]:
    mixed = topics.mixed
    return {
        "offsets": Same(options=_between(mixed, [-2, 5, 20], [7, -1, 20]), rows=7 + 15),
        "offsets of partitions": Same(
            options={
                "assign": json.dumps({mixed: [1]}),
                "startingOffsets": json.dumps({mixed: {"1": 18}}),
            },
            rows=2,
        ),
        "an offset within a gap": Same(options=_between(topics.compacted, [33], [36]), rows=2),
        "nothing but a gap": Same(options=_between(topics.compacted, [1], [20]), rows=0),
        "records that expired": Same(
            options={**_between(topics.trimmed, [0, 0]), "failOnDataLoss": "false"}, rows=6
        ),
        "records that never were": Same(
            options={
                **_between(topics.mixed, [18, 18, 18], [20, 20, 999]),
                "failOnDataLoss": "false",
                # How long Spark's waits for them.
                "kafkaConsumer.pollTimeoutMs": POLL_TIMEOUT_MS,
            },
            rows=6,
        ),
        "nothing but records that expired": Same(
            options={**_between(topics.trimmed, [0, 2], [3, 5]), "failOnDataLoss": "false"}, rows=0
        ),
    }


def _times(topics: ParityTopics) -> dict[str, Same]:
    mixed = topics.mixed
    by_time = {
        "startingOffsetsByTimestamp": by_partition_json(mixed, 0, _at(30), _at(10**6)),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    return {
        "from a time to one behind all records": Same(
            options={
                "subscribe": mixed,
                "startingTimestamp": str(_at(20) - 1),
                "endingTimestamp": str(_at(10**6)),
            },
            rows=40,
        ),
        "from a time behind some partitions": Same(
            options={
                "subscribe": mixed,
                "startingTimestamp": str(_at(58)),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            rows=2,
        ),
        "to the last time of a long": Same(
            options={"subscribe": mixed, "endingTimestamp": str((1 << 63) - 1)}, rows=60
        ),
        "to a time": Same(options={"subscribe": mixed, "endingTimestamp": str(_at(30))}, rows=30),
        "to times by partition": Same(
            options={
                "subscribe": mixed,
                "endingOffsetsByTimestamp": by_partition_json(mixed, _at(0), _at(30), _at(10**6)),
            },
            rows=30,
        ),
        "from a time rather than times or offsets": Same(
            options={
                "subscribe": mixed,
                "startingTimestamp": str(_at(20)),
                "startingOffsets": by_partition_json(mixed, 0, 0, 0),
                **by_time,
                "endingTimestamp": str(_at(40)),
                "endingOffsets": "latest",
            },
            rows=20,
        ),
        "from times rather than offsets": Same(
            options={"subscribe": mixed, "startingOffsets": "earliest", **by_time}, rows=30
        ),
        "from a time of the brokers": Same(
            options={"subscribe": topics.stamped, "startingTimestamp": str(_at(0))}, rows=10
        ),
    }


def _logs(topics: ParityTopics) -> dict[str, Same]:
    transactions = topics.transactions
    committed = {"subscribe": transactions, "kafka.isolation.level": "read_committed"}
    return {
        "a compacted topic": Same(options={"subscribe": topics.compacted}, rows=5),
        "a topic whose oldest records expired": Same(options={"subscribe": topics.trimmed}, rows=6),
        "a topic without records": Same(options={"subscribe": topics.empty}, rows=0),
        "transactions, all": Same(options={"subscribe": transactions}, rows=41),
        "transactions, committed": Same(options=committed, rows=22),
        "transactions, committed, by offsets": Same(
            options={
                **committed,
                **_between(transactions, [2, 7], [15, 19]),
            },
            rows=10,
        ),
        "transactions, to an end behind an open one": Same(
            options={
                **committed,
                **_between(transactions, [20, 20], [25, 24]),
                "failOnDataLoss": "false",
                "kafkaConsumer.pollTimeoutMs": POLL_TIMEOUT_MS,
            },
            rows=6,
        ),
        "transactions, one that was aborted": Same(
            options={
                **committed,
                **_between(transactions, [5, 5], [10, 10]),
            },
            rows=0,
        ),
        "transactions, nothing but a marker": Same(
            options=_between(transactions, [4, 9], [5, 10]), rows=0
        ),
    }


def _client(topics: ParityTopics) -> dict[str, Same]:
    return {
        "properties of the Java client": Same(
            options={
                "subscribe": topics.mixed,
                "kafka.group.id": "parity",
                "kafka.client.id": "parity",
                "kafka.request.timeout.ms": "20000",
                "kafka.max.poll.records": "7",
                "kafka.max.partition.fetch.bytes": "1000",
                "kafka.fetch.min.bytes": "1",
                "kafka.metadata.max.age.ms": "60000",
            },
            rows=60,
        ),
        "options without effect on the rows": Same(
            options={
                "subscribe": topics.stamped,
                "groupIdPrefix": "parity",
                "minPartitions": "3",
                "maxRecordsPerPartition": "4",
                "maxOffsetsPerTrigger": "5",
                "minOffsetsPerTrigger": "3",
                "maxTriggerDelay": "1s",
            },
            rows=10,
        ),
    }


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
            options=_between(mixed, [0, 9, 0], [9, 8, 9]),
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
                **_between(mixed, [19, 19, 19], [20, 20, 999]),
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
            options={**_between(mixed, [18, 18, 999]), "failOnDataLoss": "false"},
            sparks="999 is greater than the resolved end offset 20",
            ours=4,
        ),
    }


def _json_of(topic: str, first: str) -> str:
    """Return offsets of `mixed` with this value for its first partition."""
    return f'{{"{topic}": {{{first}, "1": 18, "2": 18}}}}'
