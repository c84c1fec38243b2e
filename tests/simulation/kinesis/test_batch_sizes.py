"""No batch is much larger than `maxBytesPerTrigger`, whatever the sizes of records and their order.
`python -m tests.support.simulation.mixed_sizes` prints the figures of any number of histories."""

from __future__ import annotations

import pytest

from tests.support.simulation.catch_up import Feed, catch_up
from tests.support.simulation.effort import AMOUNT
from tests.support.simulation.mixed_sizes import ALLOWED_MEAN, MIB, draw, run

PART = 25
"""Histories of one test."""
CAUGHT_UP = 0.35
"""The intake in MB a second with which a query catches up under any limit of 1 MiB or more."""


@pytest.mark.parametrize("part", range(max(1, AMOUNT.histories // (5 * PART))))
def test_no_batch_exceeds_its_bound(part: int) -> None:
    for seed in range(part * PART, part * PART + PART):
        outcome = run(draw(seed))
        assert outcome.keeps_bound, seed
        if outcome.limit >= outcome.largest_record:
            assert outcome.largest_mean <= ALLOWED_MEAN, seed
        if outcome.limit >= MIB and outcome.written <= CAUGHT_UP:
            assert outcome.is_caught_up, seed


@pytest.mark.parametrize("per_second", [1000, 55])
def test_few_large_records_among_many_small_ones(per_second: int) -> None:
    """2 % of 900 KB, written faster than the service accepts as well."""
    count = 60 * per_second
    sizes = [900_000 if number % 50 == 30 else 200 for number in range(count)]
    arrivals = [number * 1000 // per_second for number in range(count)]
    limit = 256 * 1024
    read = catch_up(
        {"maxBytesPerTrigger": str(limit)},
        arrivals=Feed.of(arrivals, sizes),
        backlog_s=60,
        seconds=30,
    )
    assert max(read.batches) == 900_000
    tens = [sum(read.batches[n : n + 10]) / 10 for n in range(len(read.batches) - 9)]
    assert max(tens) <= ALLOWED_MEAN * limit
