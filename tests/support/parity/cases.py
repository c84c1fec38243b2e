"""The batch queries of the comparison, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        "offsets": Same(
            options={
                "subscribe": mixed,
                "startingOffsets": by_partition_json(mixed, -2, 5, 20),
                "endingOffsets": by_partition_json(mixed, 7, -1, 20),
            },
            rows=7 + 15,
        ),
        "offsets of partitions": Same(
            options={
                "assign": json.dumps({mixed: [1]}),
                "startingOffsets": json.dumps({mixed: {"1": 18}}),
            },
            rows=2,
        ),
        "an offset within a gap": Same(
            options={
                "subscribe": topics.compacted,
                "startingOffsets": by_partition_json(topics.compacted, 33),
                "endingOffsets": by_partition_json(topics.compacted, 36),
            },
            rows=2,
        ),
        "nothing but a gap": Same(
            options={
                "subscribe": topics.compacted,
                "startingOffsets": by_partition_json(topics.compacted, 1),
                "endingOffsets": by_partition_json(topics.compacted, 20),
            },
            rows=0,
        ),
        "records that expired": Same(
            options={
                "subscribe": topics.trimmed,
                "startingOffsets": by_partition_json(topics.trimmed, 0, 0),
                "failOnDataLoss": "false",
            },
            rows=6,
        ),
        "records that never were": Same(
            options={
                "subscribe": topics.mixed,
                "startingOffsets": by_partition_json(topics.mixed, 18, 18, 18),
                "endingOffsets": by_partition_json(topics.mixed, 20, 20, 999),
                "failOnDataLoss": "false",
                # How long Spark's waits for them.
                "kafkaConsumer.pollTimeoutMs": POLL_TIMEOUT_MS,
            },
            rows=6,
        ),
        "nothing but records that expired": Same(
            options={
                "subscribe": topics.trimmed,
                "startingOffsets": by_partition_json(topics.trimmed, 0, 2),
                "endingOffsets": by_partition_json(topics.trimmed, 3, 5),
                "failOnDataLoss": "false",
            },
            rows=0,
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
                "startingOffsets": by_partition_json(transactions, 2, 7),
                "endingOffsets": by_partition_json(transactions, 15, 19),
            },
            rows=10,
        ),
        "transactions, to an end behind an open one": Same(
            options={
                **committed,
                "startingOffsets": by_partition_json(transactions, 20, 20),
                "endingOffsets": by_partition_json(transactions, 25, 24),
                "failOnDataLoss": "false",
                "kafkaConsumer.pollTimeoutMs": POLL_TIMEOUT_MS,
            },
            rows=6,
        ),
        "transactions, one that was aborted": Same(
            options={
                **committed,
                "startingOffsets": by_partition_json(transactions, 5, 5),
                "endingOffsets": by_partition_json(transactions, 10, 10),
            },
            rows=0,
        ),
        "transactions, nothing but a marker": Same(
            options={
                "subscribe": transactions,
                "startingOffsets": by_partition_json(transactions, 4, 9),
                "endingOffsets": by_partition_json(transactions, 5, 10),
            },
            rows=0,
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
