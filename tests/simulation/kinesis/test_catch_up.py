"""A query with a limit catches up with a shard that takes in 1 MB a second, within its share."""

from __future__ import annotations

import pytest

from tests.support.simulation.catch_up import (
    MEGABYTE,
    Arrivals,
    catch_up,
    in_clumps,
    steady,
    up_and_down,
)

SECONDS = 120.0
ALLOWED = 1.25
"""So much above its limit a batch may be while the rate is steady, or so many records more as came
at one instant."""


@pytest.mark.parametrize(
    ("limit", "at_least"), [(1.0, 1.45), (1.25, 1.8), (2, 1.8), (5, 1.8), (10, 1.8)]
)
@pytest.mark.parametrize("arrivals", [steady(1000), in_clumps(1000, 50)])
def test_a_limit_is_caught_up_with_within_the_share_of_calls(
    limit: float, at_least: float, arrivals: Arrivals
) -> None:
    size = round(limit * MEGABYTE)
    run = catch_up({"maxBytesPerTrigger": str(size)}, arrivals=arrivals, seconds=SECONDS)
    assert run.megabytes_per_second >= at_least
    assert run.share_of_calls <= 0.6
    assert max(run.batches) <= ALLOWED * size


def test_a_limit_of_records_is_no_other() -> None:
    run = catch_up({"maxRecordsPerTrigger": "2000"}, arrivals=steady(1000), seconds=SECONDS)
    assert run.megabytes_per_second >= 1.8
    assert run.share_of_calls <= 0.6
    assert max(run.batches) <= ALLOWED * 2 * MEGABYTE


def test_without_a_limit() -> None:
    run = catch_up({}, arrivals=steady(1000), backlog_s=300)
    assert run.behind_ms <= 1000 or run.size >= 300 * MEGABYTE
    assert run.megabytes_per_second >= 1.8
    assert run.share_of_calls <= 0.6


def test_records_that_come_half_a_megabyte_at_a_time() -> None:
    run = catch_up(
        {"maxBytesPerTrigger": "2000000"}, arrivals=in_clumps(1000, 500), seconds=SECONDS
    )
    assert run.megabytes_per_second >= 1.8
    assert max(run.batches) <= 2_500_000 + 10_000


def test_a_rate_that_goes_up_and_down_is_followed() -> None:
    """Between a quarter of the shard's rate and all of it, every ten minutes."""
    run = catch_up(
        {"maxBytesPerTrigger": "2000000"}, arrivals=up_and_down(1000, 600), seconds=SECONDS
    )
    assert run.megabytes_per_second >= 1.7
    assert run.share_of_calls <= 0.6
    assert max(run.batches) <= 4 * 2_000_000
