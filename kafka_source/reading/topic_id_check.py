"""Whether topics are still those that were planned: asked once, and again after a while.

A batch may be planned long before it is read: a query that was stopped in the middle of one reads
it when it starts again, and by then a topic may have been deleted and created again, with records
at the very offsets. So every worker process asks before it reads a topic for the first time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kafka_source.client.admin_client import connect
from kafka_source.client.api import KafkaService, TopicDescription
from kafka_source.model.ranges import PartitionRange
from kafka_source.model.topic import Subscribe, TopicId
from kafka_source.options.values import KafkaOptions
from kafka_source.properties.translation import ClientProperties
from task_grouping.identifiers import StreamName

VALID_S: Final = 60.0
"""How long an answer is good for: the driver asks before each batch, too."""

_Known = tuple[ClientProperties, StreamName, TopicId]


@dataclass(slots=True)
class TopicIdChecker:
    """What one process knows of topics. Thread-safe."""

    connect: Callable[[KafkaOptions], KafkaService] = connect
    monotonic: Callable[[], float] = time.monotonic
    _seen: dict[_Known, float] = field(default_factory=dict)
    _services: dict[ClientProperties, KafkaService] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def service(self, options: KafkaOptions) -> KafkaService:
        """The brokers, by a connection that stays."""
        with self._lock:
            if options.client not in self._services:
                self._services[options.client] = self.connect(options)
            return self._services[options.client]

    def unconfirmed(
        self, ranges: Collection[PartitionRange], options: KafkaOptions
    ) -> Mapping[StreamName, TopicDescription]:
        """The topics of `ranges` as they are now, those that exist; left out are those that were
        found to be the same not long ago, and those whose id nobody knows."""
        now = self.monotonic()
        ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
        with self._lock:
            ask = [
                topic
                for topic, topic_id in sorted(ids.items())
                if now - self._seen.get((options.client, topic, topic_id), now - 2 * VALID_S)
                > VALID_S
            ]
        if not ask:
            return {}
        found = self.service(options).describe(Subscribe(topics=tuple(ask)))
        with self._lock:
            for topic in ask:
                if topic in found and found[topic].topic_id == ids[topic]:
                    self._seen[(options.client, topic, ids[topic])] = now
        return found


_process_wide: dict[int, TopicIdChecker] = {}


def checker_of_process(process: int) -> TopicIdChecker:
    """Those of this process, by its id: a child that was forked begins anew."""
    return _process_wide.setdefault(process, TopicIdChecker())
