"""The broker of the tests: retention and compaction take effect within a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from local_kafka import LocalKafka
from local_kafka.broker import LOOPBACK
from tests.support.servers.process import FIRST_COMPILER_ALONE

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
