"""Days of a query that keeps up: nothing is ever called lost, whatever the service trims."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.simulation.query import Outcome
from tests.support.simulation.scene import STREAM, scene
from tests.support.simulation.world import HOUR_MS


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerTrigger": "3"}])
@pytest.mark.parametrize("start", ["trim_horizon", "latest"])
@pytest.mark.parametrize("quiet_hours", [1, 30])
def test_a_query_that_keeps_up(
    scenes: ExitStack, quiet_hours: int, start: str, options: dict[str, str]
) -> None:
    orders = scene(scenes, 2, startingPosition=start, **options)
    orders.put(2)
    orders.start()
    for hour in range(120):
        if hour % quiet_hours == 0:
            orders.put(2, key=f"key-{hour % 12}")
        if hour % 37 == 36:
            orders.world.split(STREAM, hour)
        if hour % 50 == 49:
            orders.world.merge(STREAM, hour)
        if hour % 23 == 22:
            # Stopped for most of the retention.
            orders.query.stop()
            orders.world.pass_time(20 * HOUR_MS)
            orders.start()
        for _ in range(6):
            assert orders.trigger() is not Outcome.FAILED, orders.query.error
        orders.world.pass_time(HOUR_MS)
    orders.check_all_read()
    assert not orders.judge.losses
