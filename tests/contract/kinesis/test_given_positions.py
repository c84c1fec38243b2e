"""A start at the sequence number of another shard, on every service: refused, or with
`failOnDataLoss=false` all of the shard is read. Planner and readers, without Spark. A service that
accepts such a number, as the API reference does not allow, gives the same result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.batch_read import plan_read
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH
from spark_ssp.kinesis_source.model.ranges import SlotRange
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import KinesisOptions, QueryKind
from spark_ssp.kinesis_source.planning.input_partitions import plan_ranges
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED
from spark_ssp.kinesis_source.probing.given_positions import DOUBT_MS
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.contract.services import Service
from tests.support.kinesis.feeds import options_for
from tests.support.kinesis.reading import rows_of


def _rows(options: KinesisOptions, ranges: Iterable[SlotRange]) -> list[str]:
    service = connect(options.connection)
    read: list[str] = []
    for part in ranges:
        batches = read_slot(part, options, service, rates=ReadRates(), hash_ranges=HashRangeCache())
        read += [str(row.sequence) for row in rows_of(list(batches))]
    return read


def _stream(options: KinesisOptions, *, available_now: bool) -> list[str]:
    """Plan and read batches, until there is none for longer than a position may be in doubt."""
    planner = BatchPlanner(
        options, connect(options.connection), monotonic=time.monotonic, sleep=time.sleep
    )
    if available_now:
        planner.stop_at_latest()
    read: list[str] = []
    start = BEFORE_FIRST_BATCH
    patient_until = time.monotonic() + 2 * DOUBT_MS / 1000 + 2
    try:
        while True:
            end = planner.next_offset(start, UNLIMITED)
            if end is not None:
                streams = {ref.name: ref for ref in options.streams}
                read += _rows(options, plan_ranges(start, end, streams))
                start = end
            elif available_now or time.monotonic() > patient_until:
                return read
    finally:
        planner.close()


def _processing_time(options: KinesisOptions) -> list[str]:
    return _stream(options, available_now=False)


def _available_now(options: KinesisOptions) -> list[str]:
    return _stream(options, available_now=True)


def _batch(options: KinesisOptions) -> list[str]:
    service = connect(options.connection)
    ranges = plan_read(options, service, monotonic=time.monotonic, sleep=time.sleep)
    return _rows(options, ranges)


Trigger = Callable[[KinesisOptions], list[str]]


@dataclass(frozen=True, kw_only=True)
class _Given:
    """A stream of two shards, and a start for one of them."""

    service: Service
    name: str
    shard: str
    number: str

    def options(
        self, trigger: Callable[[KinesisOptions], list[str]], **more: str
    ) -> KinesisOptions:
        start = {self.shard: {"after_sequence_number": self.number}, "default": "trim_horizon"}
        kind = QueryKind.BATCH if trigger is _batch else QueryKind.STREAM
        return parse_options(
            {
                "streamName": self.name,
                "startingPosition": json.dumps(start),
                **options_for(self.service.client.meta.endpoint_url),
            }
            | more,
            kind,
        )


@pytest.mark.parametrize("trigger", [_processing_time, _available_now, _batch])
def test_a_start_in_another_shard(service: Service, trigger: Trigger) -> None:
    name = service.stream(shards=2)
    by_shard: dict[str, list[str]] = {}
    for first in range(0, 60, 20):
        answer = service.client.put_records(
            StreamName=name,
            Records=[{"Data": b"x", "PartitionKey": f"key-{n}"} for n in range(first, first + 20)],
        )
        for entry in answer["Records"]:
            by_shard.setdefault(entry["ShardId"], []).append(entry["SequenceNumber"])
    (low, below), (high, above) = sorted(by_shard.items(), key=lambda item: int(item[1][-1]))
    put = sorted([*below, *above])
    for shard, number in ((low, above[-1]), (high, below[0])):
        given = _Given(service=service, name=name, shard=shard, number=number)
        with pytest.raises(InvalidPositionError, match=shard):
            trigger(given.options(trigger))
        assert sorted(trigger(given.options(trigger, failOnDataLoss="false"))) == put
