"""The leases of a driver that is lost with its machine are taken soon, and in even shares; no lease
is lost by throttled writes."""

from __future__ import annotations

import pytest

from tests.support.simulation.shared_leases import keep_leases, lose_a_driver


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("drivers", "leases", "most"), [(2, 40, 40), (4, 60, 20), (6, 60, 12)])
def test_the_others_take_the_leases_in_time(
    drivers: int, leases: int, most: int, seed: int
) -> None:
    failover_s = 10.0
    found = lose_a_driver(
        drivers=drivers, leases=leases, failover_ms=round(failover_s * 1000), seed=seed
    )
    assert found.leases == leases // drivers
    assert found.largest == most
    # The last renewal is up to a third of the time old, and is noticed up to half of it late.
    assert failover_s * 2 / 3 <= found.first_s <= found.all_s <= failover_s * 3 / 2 + 1


@pytest.mark.parametrize("throttled", [0.01, 0.1])
@pytest.mark.parametrize(("drivers", "leases"), [(1, 500), (3, 200)])
def test_throttled_writes_lose_no_lease(drivers: int, leases: int, throttled: float) -> None:
    failover_s = 10.0
    found = keep_leases(
        drivers=drivers,
        leases=leases,
        failover_ms=round(failover_s * 1000),
        seconds=120,
        throttled=throttled,
    )
    assert (found.moved, found.refused) == (0, 0)
    assert found.oldest_s < failover_s
