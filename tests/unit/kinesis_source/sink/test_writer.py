"""The writer of the Kinesis sink over a scripted service."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_ssp.common.errors import InvalidRowsError, ServiceUnavailableError
from spark_ssp.grouping.identifiers import EpochMillis
from spark_ssp.kinesis_source.model.deaggregation import WriteId, open_aggregate
from spark_ssp.kinesis_source.model.shard import (
    PutEntries,
    PutOutcome,
    Shard,
    StreamDescription,
    StreamRef,
)
from spark_ssp.kinesis_source.sink.delivery import StreamDelivery
from tests.support.kcl.kpl import seal
from tests.support.kinesis.sink_writer import NAMED, ORDERS, SHARD, Entry, batch, entries_of, writer


class Service:
    """Streams of one shard. `put` has the stream of each request, `stored` the entries."""

    def __init__(self, *limits: int) -> None:
        """`limits` has the most bytes of a record in each description."""
        self.put: list[str] = []
        self.stored: list[Entry] = []
        self.limits = list(limits)

    def describe(self, stream: StreamRef, *, within: float | None = None) -> StreamDescription:
        return StreamDescription(
            name=stream.name,
            arn=f"arn:{stream.name}",
            created=EpochMillis(0),
            retention_ms=1,
            max_record_bytes=self.limits.pop(0) if self.limits else 1 << 20,
        )

    def list_shards(
        self, stream: StreamRef, *, retry: bool = True, within: float | None = None
    ) -> tuple[Shard, ...]:
        return (SHARD,)

    def put_records(self, stream: StreamRef, entries: PutEntries) -> PutOutcome:
        self.put.append(stream.name)
        self.stored += entries_of(entries)
        return PutOutcome(shards=[SHARD.shard_id] * entries.count, codes=[None] * entries.count)


def test_streams_take_turns() -> None:
    """A link that carries less than the rows of the first stream leaves room for the others."""
    added = threading.Event()

    class Waiting(Service):
        def put_records(self, stream: StreamRef, entries: PutEntries) -> PutOutcome:
            added.wait(60)
            return super().put_records(stream, entries)

    def batches() -> Iterator[pa.RecordBatch]:
        names = ["first"] * 60 + ["second"] * 2 + ["third"]
        yield batch([bytes(10_000)] * len(names), ["k"] * len(names), names)
        added.set()

    service = Waiting()
    writer(service, NAMED, stream=None, max_requests_in_flight=1).write(batches())
    assert service.put[:4] == ["first", "second", "third", "first"]
    assert len(service.put) > 5, "the first stream has more rows than two requests take"


@pytest.mark.parametrize(
    ("streams", "rows", "expected"), [(1, 10, 1), (1, 35, 4), (30, 30, 30 * 3), (30, 90, 30 * 10)]
)
def test_the_parts_of_many_streams_age_together(
    monkeypatch: pytest.MonkeyPatch, streams: int, rows: int, expected: int
) -> None:
    """Of an Arrow batch, by the size of a part: not each stream with each part of another one."""
    monkeypatch.setattr("spark_ssp.kinesis_source.sink.writer._ROWS", 10)
    aged = 0
    age = StreamDelivery.age

    def spy(delivery: StreamDelivery) -> None:
        nonlocal aged
        aged += 1
        age(delivery)

    monkeypatch.setattr(StreamDelivery, "age", spy)
    names = [f"stream-{row % streams}" for row in range(rows)]
    part = batch([b"x"] * rows, ["k"] * rows, names)
    writer(Service(), NAMED, stream=None).write([part])
    assert aged == expected


@pytest.mark.parametrize("first", [10, 1_500], ids=["later batch", "first batch"])
def test_a_row_over_the_limit_is_compared_with_the_present_one(first: int) -> None:
    """The driver and the process keep a description for a minute, a task for as long as it runs."""
    service, sizes = Service(1_000, 2_000, 3_000), [first, 1_900, 1_900, 2_900]
    write = WriteId(source="q", stream=ORDERS.name, batch=0, task=0)
    aggregating = writer(service, is_aggregating=True, write_id=lambda _: write)
    aggregating.write(batch([bytes(size)], ["k"]) for size in sizes)
    assert service.limits == []
    found = [open_aggregate(entry.data) for entry in service.stored]
    # A row that fits is packed, for its repeat key.
    assert [each and list(map(len, each.data)) for each in found] == [[size] for size in sizes]
    service = Service(1_000, 2_000)
    with pytest.raises(InvalidRowsError, match="2000"):
        writer(service).write([batch([bytes(3_000)], ["k"])])
    assert service.limits == []


@pytest.mark.parametrize("with_repeat_keys", [False, True])
def test_an_aggregate_that_has_no_room_in_another_one_is_over_the_limit(
    *, with_repeat_keys: bool
) -> None:
    """It would be read as its user records if it were put unchanged."""
    write = WriteId(source="q", stream=ORDERS.name, batch=0, task=0)
    write_id = (lambda _: write) if with_repeat_keys else None
    part = batch([b"x", seal(bytes(964))], ["k"] * 2)
    for limit in (1_000, 1_016):
        service = Service(1_000, limit)
        aggregating = writer(service, is_aggregating=True, write_id=write_id)
        if limit == 1_000:
            with pytest.raises(InvalidRowsError, match="row 1 of the task"):
                aggregating.write([part])
            assert service.stored == []
        else:
            aggregating.write([part])
            opened = [open_aggregate(entry.data) for entry in service.stored]
            assert part["data"][1].as_py() in [
                data for each in opened if each for data in each.data
            ]
        assert service.limits == []


def test_a_row_over_the_limit_is_named_if_the_present_one_cannot_be_read() -> None:
    """Many tasks with such rows may exceed the account's limit of descriptions."""

    class Throttled(Service):
        def describe(self, stream: StreamRef, *, within: float | None = None) -> StreamDescription:
            if not self.limits:
                raise ServiceUnavailableError("", found="throttled", expected="", next_step="")
            return super().describe(stream, within=within)

    with pytest.raises(InvalidRowsError, match="1000"):
        writer(Throttled(1_000)).write([batch([bytes(3_000)], ["k"])])
