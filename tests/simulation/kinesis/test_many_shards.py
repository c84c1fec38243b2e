"""A query by its defaults, from `trim_horizon`, on a stream of many shards with full retention."""

from __future__ import annotations

import logging

import pytest

from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.probing import probe_runner
from spark_ssp.testing.kinesis.state.clock import ManualClock
from tests.support.fakes.formula_kinesis import HOUR_MS, FormulaKinesis
from tests.support.simulation.fleet import STREAM, Fleet

RECORD_BYTES, INTERVAL_MS = 20_000, 50
"""0.4 MB a second for each shard: 200 MB a second for 500."""


@pytest.mark.parametrize(
    ("shards", "hours"),
    [
        pytest.param(20, 6, id="20 shards, 6 hours"),
        pytest.param(500, 24, marks=[pytest.mark.soak, pytest.mark.timeout(3000)], id="500, a day"),
    ],
)
def test_many_full_shards_from_the_horizon(
    shards: int, hours: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For the second quarter of the time another consumer reads too, the sink takes half of what
    comes in, and at its beginning one shard answers nothing for an hour."""
    monkeypatch.setattr(probe_runner, "MAX_PROBE_THREADS", 1)
    clock = ManualClock()
    starved = ShardId("shardId-000000000007")
    began = 0
    quarter = hours * HOUR_MS // 4

    def bad_times() -> bool:
        return began + quarter <= clock.now_ms() < began + 2 * quarter

    def throttled(shard: ShardId) -> bool:
        since = clock.now_ms() - began - quarter
        return shard == starved and 0 <= since < HOUR_MS

    service = FormulaKinesis(
        clock=clock,
        shards=shards,
        record_bytes=RECORD_BYTES,
        interval_ms=INTERVAL_MS,
        throttled=throttled,
    )
    clock.advance(30 * HOUR_MS)
    began = clock.now_ms()
    taken_in = shards * RECORD_BYTES / INTERVAL_MS
    fleet = Fleet(
        service=service,
        trigger_ms=60_000,
        first_tasks_ms=120_000,
        sink_bytes_per_ms=lambda: taken_in * (0.5 if bad_times() else 5.0),
        share=lambda: 0.5 if bad_times() else 1.0,
    )
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        for _ in fleet.run_for(hours * HOUR_MS):
            service.calls_per_second = 3 if bad_times() else 5
    fleet.stop()

    assert len(fleet.read) == shards
    assert fleet.longest_batch_ms < HOUR_MS
    assert fleet.report_bytes < 20_000
    assert f"shard {STREAM}/{starved} could not be probed for" in caplog.text
