"""Checks that topics still have their planned ids, before the first read and again after a while.

A batch may be planned long before it is read: a query that was stopped within a batch reads it
after its restart, and by then the topic may have been deleted and created again, with records at
the same offsets. So every worker process checks a topic before it reads it for the first time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.api import KafkaService, TopicDescription
from spark_ssp.kafka_source.model.ranges import PartitionRange
from spark_ssp.kafka_source.model.topic import Subscribe, TopicId
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.properties.translation import ClientProperties

VALID_S: Final = 60.0
"""The time for which an answer is valid. The driver checks before each batch as well."""

_Key = tuple[ClientProperties, StreamName, TopicId]


@dataclass(slots=True)
class TopicIdChecker:
    """Caches the confirmed topic ids of one process. Thread-safe."""

    connect: Callable[[KafkaOptions], KafkaService] = connect
    monotonic: Callable[[], float] = time.monotonic
    _valid_until: dict[_Key, float] = field(default_factory=dict)
    _services: dict[ClientProperties, KafkaService] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def service(self, options: KafkaOptions) -> KafkaService:
        """Return the brokers' service, with a cached connection."""
        with self._lock:
            if options.client not in self._services:
                self._services[options.client] = self.connect(options)
            return self._services[options.client]

    def unconfirmed(
        self, ranges: Collection[PartitionRange], options: KafkaOptions
    ) -> Mapping[StreamName, TopicDescription]:
        """Return the existing topics of `ranges`, except those that were confirmed recently or have
        no known id."""
        now = self.monotonic()
        ids = {one.ssp.stream: one.topic_id for one in ranges if one.topic_id is not None}
        with self._lock:
            unconfirmed = [
                topic
                for topic, topic_id in sorted(ids.items())
                if self._valid_until.get((options.client, topic, topic_id), -math.inf) < now
            ]
        if not unconfirmed:
            return {}
        found = self.service(options).describe(Subscribe(topics=tuple(unconfirmed)))
        with self._lock:
            for topic in unconfirmed:
                if topic in found and found[topic].topic_id == ids[topic]:
                    self._valid_until[(options.client, topic, ids[topic])] = now + VALID_S
        return found


_checkers: dict[int, TopicIdChecker] = {}


def checker_of_process(process: int) -> TopicIdChecker:
    """Return the checker of a process, by its id: a forked child starts with a new one."""
    return _checkers.setdefault(process, TopicIdChecker())
