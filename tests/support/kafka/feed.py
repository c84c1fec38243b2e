"""Numbers put into topics under keys, by the test or all the time beside a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from tests.support.kafka.topics import KafkaTopics, Put, Record
from tests.support.spark.background import Background

KEYS: Final = 48
"""So many that each of eight partitions has some."""

_AT_ONCE: Final = 12
_PAUSE_S: Final = 0.1


@dataclass
class KafkaFeed:
    """Each number is higher than those before, whatever the topic; `records` are all that lie in
    topics. Each put is by a producer of its own, which learns how many partitions there are."""

    topics: KafkaTopics
    records: list[Put] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def put(self, topic: str, records: int) -> list[Put]:
        numbers = [next(self._numbers) for _ in range(records)]
        put = self.topics.put(
            topic, [Record(key=b"key-%d" % (n % KEYS), value=b"%d" % n) for n in numbers]
        )
        self.records += put
        return put


def query_options(options: dict[str, str], *topics: str) -> dict[str, str]:
    """Those of a query of all that `topics` hold, which hears soon of new partitions and is not
    long in doubt."""
    return {
        **options,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "includeTask": "true",
        "partitionDiscoveryInterval": "200ms",
        "fetchOffset.retryIntervalMs": "50",
    }


def kafka_traffic(
    feed: KafkaFeed, *topics: str, meanwhile: Callable[[], None] | None = None
) -> Background:
    """Records come to all `topics` until the block ends. `meanwhile` is called between two puts."""

    def put() -> None:
        for topic in topics:
            feed.put(topic, _AT_ONCE)
        if meanwhile is not None:
            meanwhile()

    return Background(put, _PAUSE_S)
