"""A run to the tip, planner and reader without Spark, reads all that was put before it."""

from __future__ import annotations

import os
import time

import pytest

from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED, Limits
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.contract.services import Service
from tests.support.kinesis.feeds import options_for
from tests.support.kinesis.reading import rows_of

RUNS = int(os.environ.get("SSP_AVAILABLE_NOW_RUNS", "2"))
"""The repetitions of each run, since answers of a service depend on the time."""
RECORDS = 2_500


def _put(service: Service, stream: str) -> set[str]:
    numbers: set[str] = set()
    for first in range(0, RECORDS, 500):
        answer = service.client.put_records(
            StreamName=stream,
            Records=[{"Data": b"x", "PartitionKey": f"key-{n}"} for n in range(first, first + 500)],
        )
        numbers |= {entry["SequenceNumber"] for entry in answer["Records"]}
    return numbers


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("limits", [UNLIMITED, Limits(max_records=500), Limits(max_records=251)])
def test_an_available_now_run_reads_all_that_was_put_before_it(
    service: Service, limits: Limits, run: int
) -> None:
    stream = service.stream(shards=1)
    put = _put(service, stream)
    options = parse_options(
        {
            "streamName": stream,
            "startingPosition": "trim_horizon",
            **options_for(service.client.meta.endpoint_url),
        }
    )
    reading = connect(options.connection)
    planner = BatchPlanner(options, reading, monotonic=time.monotonic, sleep=time.sleep)
    planner.stop_at_latest()
    read: list[str] = []
    start = BEFORE_FIRST_BATCH
    while (end := planner.next_offset(start, limits)) is not None:
        for part in plan_ranges(start, end, {ref.name: ref for ref in options.streams}):
            rows = rows_of(
                list(
                    read_slot(
                        part, options, reading, rates=ReadRates(), hash_ranges=HashRangeCache()
                    )
                )
            )
            read += [str(row.sequence) for row in rows]
        start = end
    planner.close()
    assert len(read) == len(put)
    assert set(read) == put
