"""A retention that is raised keeps what is left; what was trimmed before stays lost."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import DataLossError
from tests.support.fakes.planner_world import HOUR_MS, World


@pytest.mark.parametrize("raised_after_h", [23, 25])
def test_a_raised_retention_hides_no_loss_and_makes_none(raised_after_h: int) -> None:
    """The query hangs for 26 hours; the record put in its first minute is kept for 24 of them."""
    world = World(shards=1, fail_on_data_loss=True)
    world.put(3)
    assert len(world.drain()) == 3
    world.clock.advance(60_000)
    world.put(1)
    world.clock.advance(raised_after_h * HOUR_MS)
    world.state.set_retention_hours("orders", 168)
    world.clock.advance((26 - raised_after_h) * HOUR_MS)
    world.put(1)
    if raised_after_h > 24:
        with pytest.raises(DataLossError):
            world.drain()
    else:
        assert len(world.drain()) == 2
