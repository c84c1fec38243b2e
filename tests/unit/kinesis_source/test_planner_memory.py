"""A query runs for months: the memory of its planner does not grow with the number of batches."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from benchmarks.kinesis.planning import ReadyKinesis
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits

SHARDS = 8
BATCHES = 300
MOST_BYTES = 40 * SHARDS * BATCHES
"""Less than a reference for each shard and batch, with an object that it leads to."""


@dataclass
class Clock:
    seconds: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, UNLIMITED),
        ({"alignBatches": "false", "deaggregate": "true"}, UNLIMITED),
        ({"maxRecordsPerTrigger": "80"}, Limits(max_records=80)),
        ({"maxBytesPerTrigger": "100000"}, Limits(max_bytes=100_000)),
    ],
    ids=["unlimited", "not aligned", "records", "bytes"],
)
def test_the_planner_keeps_nothing_of_past_batches(
    options: Mapping[str, str], limits: Limits
) -> None:
    clock, service = Clock(), ReadyKinesis(SHARDS)
    planner = BatchPlanner(
        _options(options), service, monotonic=lambda: clock.seconds, sleep=clock.sleep
    )
    offset = BEFORE_FIRST_BATCH

    def run(batches: int) -> None:
        nonlocal offset
        for _ in range(batches):
            clock.seconds += 2.0
            service.millis += 2_000
            offset = planner.next_offset(offset, limits) or offset

    try:
        run(100)
        tracemalloc.start()
        run(BATCHES)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        planner.close()
    assert kept < MOST_BYTES


def _options(options: Mapping[str, str]) -> KinesisOptions:
    return parse_options(
        {
            "streamName": "bench",
            "region": "us-east-1",
            "startingPosition": "trim_horizon",
            "slots": "2",
            **options,
        }
    )
