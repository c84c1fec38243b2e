"""The model behind the guide of thousands of shards, and its tables in the guide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.planning.scale import TABLES, Load, Settings, plan, writes_a_lease
from tests.support.guides import GUIDE

FULL = Load(shards=10_000, gb_s=10)
EVERY_SECOND = Settings(trigger_s=1)
ROUNDED = 1.01
"""One driver may have a part of a shard more than the limit."""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_the_guide_has_the_tables_of_the_command(table: Callable[[], list[str]]) -> None:
    page = (GUIDE / "scale.md").read_text(encoding="utf-8")
    assert "\n\n" + "\n".join(table()) + "\n" in page


def test_a_stream_is_shared_only_if_one_driver_is_not_enough() -> None:
    alone = plan(FULL, Settings(trigger_s=10))
    assert (alone.drivers, alone.has_leases, alone.binds) == (1, False, "")
    assert (alone.writes_s, alone.scan_dollars, alone.agent_ms) == (0, 0, 0)
    shared = plan(FULL, EVERY_SECOND)
    assert shared.drivers > 1
    assert (shared.has_leases, shared.binds) == (True, "driver's CPU")
    assert shared.shards_a_driver * shared.drivers >= FULL.shards
    assert shared.planning_s <= ROUNDED * EVERY_SECOND.trigger_s * EVERY_SECOND.driver_share


def test_each_resource_binds_where_it_is_scarce() -> None:
    busy_agents = replace(EVERY_SECOND, failover_s=3, checkpoint_s=0.5)
    small_heaps = replace(EVERY_SECOND, heap_mib=1)
    assert plan(FULL, busy_agents).binds == "lease agent"
    assert plan(FULL, small_heaps).binds == "driver's heap"
    for settings in (EVERY_SECOND, busy_agents, small_heaps):
        found = plan(FULL, settings)
        assert found.agent_ms <= ROUNDED * settings.agent_share * 1000
        assert found.heap_mib <= ROUNDED * settings.heap_mib


def test_streams_of_ten_thousand_shards_add_up() -> None:
    one, ten = plan(FULL, EVERY_SECOND), plan(Load(shards=100_000, gb_s=100), EVERY_SECOND)
    assert ten.streams == 10
    assert ten.drivers == 10 * one.drivers
    assert ten.listings_s == one.listings_s
    for name in ("writes_s", "write_dollars", "scan_dollars", "gbit_s", "on_demand_dollars"):
        assert getattr(ten, name) == pytest.approx(10 * getattr(one, name))


@pytest.mark.parametrize(
    ("failover_s", "checkpoint_s", "a_minute"), [(30, 5, 12), (30, 15, 4), (30, 60, 6), (10, 5, 12)]
)
def test_progress_replaces_renewals(failover_s: float, checkpoint_s: float, a_minute: int) -> None:
    settings = Settings(failover_s=failover_s, checkpoint_s=checkpoint_s)
    assert 60 * writes_a_lease(settings) == pytest.approx(a_minute)


def test_more_than_the_shards_take_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1 GB/s"):
        Load(shards=1_000, gb_s=2)
