"""Start functions of each kind of worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.interop.scenarios import Start
from tests.interop.scene import STREAM, Scene
from tests.support.kcl.jars import KclVersion
from tests.support.kcl.workers import KclWorker, SparkWorker, Worker

FAILOVER_MS = 10_000
"""As by default: on a busy machine a worker may not get to renew its leases for some seconds."""


def kcl(version: KclVersion, *, is_pushed: bool = False) -> Start:
    """A worker of the KCL, with enhanced fan-out if `is_pushed`."""
    # The embedded service takes no CBOR.
    pushed: dict[str, Any] = (
        {"settings": {"retrievalMode": "FANOUT"}, "java_options": ["-Daws.cborEnabled=false"]}
        if is_pushed
        else {}
    )

    @contextmanager
    def start(scene: Scene, name: str) -> Iterator[Worker]:
        with KclWorker(
            version,
            folder=scene.folder / name,
            name=name,
            application=scene.application,
            stream=STREAM,
            kinesis_url=scene.kinesis_url,
            dynamodb_url=scene.dynamodb_url,
            failover_ms=FAILOVER_MS,
            **pushed,
        ) as worker:
            yield worker

    return start


def _spark(*, is_pushed: bool) -> Start:
    @contextmanager
    def start(scene: Scene, name: str) -> Iterator[Worker]:
        with SparkWorker(
            folder=scene.folder / name,
            name=name,
            application=scene.application,
            stream=STREAM,
            kinesis_url=scene.kinesis_url,
            dynamodb_url=scene.dynamodb_url,
            failover_ms=FAILOVER_MS,
            is_pushed=is_pushed,
        ) as worker:
            yield worker

    return start


ours: Final = _spark(is_pushed=False)
"""A Spark query."""
ours_pushed: Final = _spark(is_pushed=True)
"""A Spark query with enhanced fan-out."""
