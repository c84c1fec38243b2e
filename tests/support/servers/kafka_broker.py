"""The brokers of the tests: retention and compaction take effect within a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaException

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.testing.kafka import LocalKafka, LocalKafkaCluster
from spark_ssp.testing.kafka.broker import LOOPBACK
from tests.support.servers.process import FIRST_COMPILER_ALONE
from tests.support.waiting import until

_HASTE: Final[Mapping[str, str]] = {
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
}


class KafkaBroker(LocalKafka):
    """As `LocalKafka`, in haste."""

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: tuple[str, ...] = (),
        host: str = LOOPBACK,
    ) -> None:
        super().__init__(
            settings={**_HASTE, **(settings or {})},
            listeners=listeners,
            host=host,
            java_options=(FIRST_COMPILER_ALONE,),
        )


class KafkaBrokers(LocalKafkaCluster):
    """As `LocalKafkaCluster`, with three brokers."""

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(3, settings=settings, java_options=(FIRST_COMPILER_ALONE,))

    @contextmanager
    def away(self, number: int, fault: str) -> Iterator[None]:
        """Take a broker away for the block, by `kill`, `stop` or `freeze`. When the context ends,
        all replicas are in sync again."""
        getattr(self, fault)(number)
        try:
            yield
        finally:
            if fault == "freeze":
                self.thaw(number)
            else:
                self.start_again(number)
            until(self._is_in_sync, f"broker {number} is back")

    def _is_in_sync(self) -> bool:
        # A new client each time: it has not learned of a dead broker.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": "0"})
        try:
            found = admin.list_topics(timeout=5)
        except KafkaException:
            return False
        return len(found.brokers) == len(self.numbers) and all(
            len(one.isrs) == len(one.replicas)
            for topic in found.topics.values()
            for one in topic.partitions.values()
        )
