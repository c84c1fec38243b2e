"""Iterators that the driver hands over to tasks, on every service: they follow the record at which
a range starts, and give the same records as a request for an iterator there."""

from __future__ import annotations

import time

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.contract.services import Service
from tests.support.kinesis.feeds import options_for
from tests.support.kinesis.reading import rows_of
from tests.support.waiting import until

BATCHES = 4


def test_they_give_the_records_after_the_start(service: Service) -> None:
    name = service.stream(shards=2)
    options = parse_options(
        {
            "streamName": name,
            "startingPosition": "trim_horizon",
            "slots": "1",
            **options_for(service.client.meta.endpoint_url),
        }
    )
    kinesis = connect(options.connection)
    streams = {ref.name: ref for ref in options.streams}
    planner = BatchPlanner(options, kinesis, monotonic=time.monotonic, sleep=time.sleep)
    start, handed_over = BEFORE_FIRST_BATCH, 0
    put: list[bytes] = []
    read: list[list[bytes]] = [[], []]

    def read_batch() -> bool:
        nonlocal start, handed_over
        end: Offset | None = planner.next_offset(start, UNLIMITED)
        if end is None:
            return False
        for part in plan_ranges(start, end, streams, iterators=planner.start_iterators(start)):
            handed_over += sum(shard.iterator is not None for shard in part.shards)
            plain = tuple(replace(shard, iterator=None) for shard in part.shards)
            for found, ranges in zip(read, (part, replace(part, shards=plain)), strict=True):
                batches = read_slot(
                    ranges, options, kinesis, rates=ReadRates(), hash_ranges=HashRangeCache()
                )
                found += [row.data for row in rows_of(list(batches))]
        start = end
        return len(read[0]) >= len(put)

    try:
        for batch in range(BATCHES):
            records = [b"%d" % number for number in range(20 * batch, 20 * batch + 20)]
            put += records
            service.client.put_records(
                StreamName=name,
                Records=[{"Data": data, "PartitionKey": data.decode()} for data in records],
            )
            until(read_batch, f"batch {batch}")
    finally:
        planner.close()
    assert [sorted(rows) for rows in read] == [sorted(put)] * 2
    assert handed_over > 0
