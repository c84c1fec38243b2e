"""Produces numbers with keys to topics, once or continuously beside a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from tests.support.kafka.topics import KafkaTopics, Put, Record
from tests.support.waiting import Background

KEYS: Final = 48
"""Enough keys for each of eight partitions to have some."""

_AT_ONCE: Final = 12
_PAUSE_S: Final = 0.1


@dataclass
class KafkaFeed:
    """Numbers ascend over all topics; `records` are all that topics contain. Each call uses a new
    producer, which fetches the current partition counts."""

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
    """Return the options of a query that reads `topics` from their start, discovers new partitions
    quickly and retries after short pauses."""
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
    """Produce to all `topics` until the block ends. `meanwhile` is called after each round."""

    def put() -> None:
        for topic in topics:
            feed.put(topic, _AT_ONCE)
        if meanwhile is not None:
            meanwhile()

    return Background(put, _PAUSE_S)
