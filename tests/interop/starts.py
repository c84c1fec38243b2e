"""Start functions of each kind of worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.interop.scenarios import Start
from tests.interop.scene import STREAM, Scene
from tests.support.kcl.daemon import KclWorker
from tests.support.kcl.jars import KclVersion
from tests.support.kcl.workers import Worker
from tests.support.leases.spark_worker import SparkWorker

FAILOVER_MS = 10_000
"""As by default: on a busy machine a worker may not get to renew its leases for some seconds."""


def kcl(version: KclVersion) -> Start:
    """A worker of the KCL."""

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
        ) as worker:
            yield worker

    return start


@contextmanager
def ours(scene: Scene, name: str) -> Iterator[Worker]:
    """A Spark query."""
    with SparkWorker(
        folder=scene.folder / name,
        name=name,
        application=scene.application,
        stream=STREAM,
        kinesis_url=scene.kinesis_url,
        dynamodb_url=scene.dynamodb_url,
        failover_ms=FAILOVER_MS,
    ) as worker:
        yield worker
