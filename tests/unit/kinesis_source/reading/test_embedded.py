"""The reader on the embedded service: its limits, its faults, reshards, and a boto3 client."""

from __future__ import annotations

import pytest

from spark_ssp.common.errors import DataLossError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client.api import KinesisService
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.model.ranges import RangeEnd, RangeStart, ShardRange
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    SequenceNumber,
    ShardEnd,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions, KinesisOptions
from spark_ssp.kinesis_source.reading.process_wide import HashRangeCache, ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from spark_ssp.testing.kinesis import EmbeddedKinesis, KinesisState, Limits, ManualClock
from spark_ssp.testing.kinesis.state.faults import (
    DelayVisibility,
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    Fault,
    InternalFailure,
    LateShardEnd,
    Throttle,
    TrimRecords,
)
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.fakes.scripted import STREAM
from tests.support.kinesis.reading import (
    A,
    Row,
    options,
    rows_of,
    shard_range,
    slot_of,
    timing_of,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(clock: ManualClock) -> KinesisState:
    service = KinesisState(clock=clock)
    service.create_stream(STREAM.name, 1)
    return service


def put(state: KinesisState, count: int, *, size: int = 3) -> list[SequenceNumber]:
    return [
        SequenceNumber(state.put(STREAM.name, f"key-{n}", b"x" * size).sequence_number)
        for n in range(count)
    ]


def range_of(
    service: KinesisService,
    shard: ShardId,
    start: RangeStart = TrimHorizon(),  # noqa: B008 - frozen
    end: RangeEnd = ShardEnd(),  # noqa: B008 - frozen
    *,
    seen: EpochMillis | None = None,
) -> ShardRange:
    plain = shard_range(shard, start, end, seen=seen)
    return replace(plain, created=service.describe(STREAM).created)


def read(
    service: KinesisService,
    clock: ManualClock,
    *ranges: ShardRange,
    using: KinesisOptions | None = None,
) -> list[Row]:
    batches = read_slot(
        slot_of(*ranges),
        using or options(),
        service,
        clock=timing_of(clock),
        hash_ranges=HashRangeCache(),
        rates=ReadRates(),
    )
    return rows_of(list(batches))


def numbers(rows: list[Row]) -> list[str]:
    return [str(row.sequence) for row in rows]


def test_a_backlog_is_read_within_the_limits_of_the_service(
    state: KinesisState, clock: ManualClock
) -> None:
    """30 MB in a shard: each 10 MB answer blocks the shard for five seconds."""
    written = put(state, 60, size=500_000)
    clock.advance(60_000)
    state.set_limits(Limits.strict())
    service = InProcessKinesis(state)
    the_range = range_of(service, A, end=AfterRecord(sequence_number=written[-1]))
    began = clock.now_ms()
    assert numbers(read(service, clock, the_range)) == written
    assert 5_000 <= clock.now_ms() - began < 30_000


def test_a_closed_shard_is_read_through_all_faults(state: KinesisState, clock: ManualClock) -> None:
    written = put(state, 40)
    state.split(STREAM.name, A)
    faults: list[Fault] = [
        Throttle(),
        EmptyPage(),
        InternalFailure(),
        ExpiredIterator(),
        DropConnection(),
        EmptyPage(millis_behind_latest=0),
    ]
    for nth, fault in enumerate(faults):
        state.faults.add(fault, operation="GetRecords", nth=2 + nth * 2)
    state.faults.add(LateShardEnd(), operation="GetRecords", count=None)
    state.faults.add(Throttle(), operation="GetShardIterator", count=2)
    service = InProcessKinesis(state)
    rows = read(service, clock, range_of(service, A), using=options(max_records_per_fetch=3))
    assert numbers(rows) == written
    late = read(service, clock, range_of(service, A, AfterRecord(sequence_number=written[-1])))
    assert late == []


def test_records_that_show_late_are_waited_for(state: KinesisState, clock: ManualClock) -> None:
    early = put(state, 2)
    state.faults.add(DelayVisibility(delay_ms=20_000), operation="PutRecord")
    late = state.call("PutRecord", {"StreamName": STREAM.name, "PartitionKey": "k", "Data": "eA=="})
    assert isinstance(late, dict)
    service = InProcessKinesis(state)
    the_end = AfterRecord(sequence_number=late["SequenceNumber"])
    rows = read(
        service, clock, range_of(service, A, AfterRecord(sequence_number=early[0]), the_end)
    )
    assert numbers(rows) == [early[1], late["SequenceNumber"]]


def test_a_trimmed_start_is_judged_by_the_stream_s_retention(
    state: KinesisState, clock: ManualClock
) -> None:
    written = put(state, 5)
    seen = EpochMillis(clock.now_ms())
    service = InProcessKinesis(state)
    start, end = (AfterRecord(sequence_number=written[place]) for place in (1, 4))
    state.trim(STREAM.name, A, before_sequence_number=written[2])
    rows = read(service, clock, range_of(service, A, start, end, seen=seen))
    assert numbers(rows) == written[2:]
    state.faults.add(
        TrimRecords(before_sequence_number=written[3]), operation="GetRecords", shard=A
    )
    clock.advance(24 * 3_600_000 - 1)
    with pytest.raises(DataLossError, match="was trimmed"):
        read(service, clock, range_of(service, A, start, end))


@pytest.mark.parametrize("recreate", [True, False])
def test_a_stream_deleted_meanwhile_is_data_loss(
    state: KinesisState, clock: ManualClock, recreate: bool
) -> None:
    written = put(state, 5)
    service = InProcessKinesis(state)
    start, end = (AfterRecord(sequence_number=written[place]) for place in (1, 4))
    the_range = range_of(service, A, start, end)
    clock.advance(3_600_000)
    state.delete_stream(STREAM.name)
    if recreate:
        state.create_stream(STREAM.name, 1)
        put(state, 5)
    with pytest.raises(DataLossError, match="created again" if recreate else "stream deleted"):
        read(service, clock, the_range)
    assert read(service, clock, the_range, using=options(fail_on_data_loss=False)) == []


def test_a_replay_through_boto3_gives_the_same_rows() -> None:
    with EmbeddedKinesis() as running:
        state = running.state
        state.create_stream(STREAM.name, 2)
        put(state, 3_000, size=200)
        first, _ = state.open_shard_ids(STREAM.name)
        state.split(STREAM.name, first)
        put(state, 1_000, size=200)
        service = connect(
            ConnectionOptions(
                region="us-east-1",
                endpoint_url=running.endpoint_url,
                aws_access_key_id="local",
                aws_secret_access_key="local",
            )
        )
        ranges = [
            range_of(
                service,
                shard.shard_id,
                end=ShardEnd()
                if shard.closed
                else AfterRecord(
                    sequence_number=SequenceNumber(
                        state.records(STREAM.name, shard.shard_id)[-1].sequence_number
                    )
                ),
            )
            for shard in service.list_shards(STREAM)
        ]
        faults: list[Fault] = [Throttle(), DropConnection(), ExpiredIterator()]
        for fault in faults:
            state.faults.add(fault, operation="GetRecords", nth=3)
        for _ in range(2):
            batches = read_slot(
                slot_of(*ranges), options(max_records_per_fetch=500), service, rates=ReadRates()
            )
            rows = rows_of(list(batches))
            assert len(rows) == 4_000
            for each in ranges:
                assert numbers([row for row in rows if row.shard == each.shard]) == [
                    record.sequence_number for record in state.records(STREAM.name, each.shard)
                ]
