"""Numbers put into topics under keys, by the test or all the time beside a query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Final, Self

from tests.support.kafka_topics import KafkaTopics, Put, Record

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


class KafkaTraffic:
    """A context manager: records come to all `topics` until the block ends. `meanwhile` is called
    between two puts."""

    def __init__(
        self, feed: KafkaFeed, *topics: str, meanwhile: Callable[[], None] | None = None
    ) -> None:
        self._feed = feed
        self._topics = topics
        self._meanwhile = meanwhile
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="traffic")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_PAUSE_S):
                for topic in self._topics:
                    self._feed.put(topic, _AT_ONCE)
                if self._meanwhile is not None:
                    self._meanwhile()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self._error = error
