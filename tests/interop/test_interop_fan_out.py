"""Workers of the KCL and queries that share a table of leases and a consumer: `make interop`. The
KCL is not changed: it uses HTTP/2, here without TLS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.interop.report import Report
from tests.interop.scenarios import Start, relay, side_by_side, split_under_both
from tests.interop.scene import STREAM, Scene
from tests.interop.starts import kcl, ours_pushed
from tests.support.kcl.jars import KclVersion
from tests.support.kcl.workers import Worker

pytestmark = pytest.mark.interop

_VERSIONS: Final = pytest.mark.parametrize("version", [KclVersion.V3_1, KclVersion.V3_5])


def _consumers(kinesis: EmbeddedKinesis) -> list[str]:
    state = kinesis.state
    return [each.name for each in state.consumers(STREAM).all(state.clock.now_ms())]


@_VERSIONS
def test_one_after_the_other(
    kinesis: EmbeddedKinesis, pushed_scene: Scene, report: Report, version: KclVersion
) -> None:
    """Both subscribe. The consumer outlives the query: a worker of the KCL without it would treat
    its shards as ended."""
    calls: list[Counter[str]] = []

    def counted(start: Start) -> Start:
        @contextmanager
        def counting(scene: Scene, name: str) -> Iterator[Worker]:
            before = Counter(kinesis.calls.by_operation())
            with start(scene, name) as worker:
                yield worker
            calls.append(Counter(kinesis.calls.by_operation()) - before)

        return counting

    by_kcl = counted(kcl(version, is_pushed=True))
    seconds = relay(pushed_scene, [by_kcl, counted(ours_pushed), by_kcl])
    report.check(pushed_scene, seconds, duplicates=0)
    assert _consumers(kinesis) == [pushed_scene.application]
    assert all(each["SubscribeToShard"] for each in calls)
    first, ours, second = calls
    assert first["GetRecords"] == second["GetRecords"] == 0 < ours["GetRecords"]
    assert not ours["RegisterStreamConsumer"]


@_VERSIONS
def test_shards_move_both_ways(
    kinesis: EmbeddedKinesis, pushed_scene: Scene, report: Report, version: KclVersion
) -> None:
    seconds = side_by_side(pushed_scene, kcl(version, is_pushed=True), ours_pushed)
    report.check(pushed_scene, seconds, duplicates=0)
    assert _consumers(kinesis) == [pushed_scene.application]


@_VERSIONS
def test_a_split_under_both(pushed_scene: Scene, report: Report, version: KclVersion) -> None:
    seconds = split_under_both(pushed_scene, kcl(version, is_pushed=True), ours_pushed)
    report.check(pushed_scene, seconds, duplicates=0)
