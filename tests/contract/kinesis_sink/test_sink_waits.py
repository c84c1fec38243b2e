"""The writer of the Kinesis sink while its task waits: for rows, for answers, for a slow shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import PutEntries, PutOutcome, StreamRef
from spark_ssp.kinesis_source.sink.aggregation import ShardMap
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import RejectRecords
from tests.support.kinesis.sink_writer import Entry, batch, data_of, entries_of, rows, write, writer
from tests.support.waiting import until


def test_records_are_sent_while_the_task_waits_for_rows(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    half = RejectRecords(every=2, code="InternalFailure")
    kinesis.faults.add(half, operation="PutRecords", count=2)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(range(600))
        until(lambda: len(data_of(kinesis)) >= 600, "the first rows are stored")
        assert len(data_of(kinesis)) == 600
        yield rows(range(600, 1_000))

    writer(connected).write(batches())
    assert sorted(int(data) for _, data in data_of(kinesis)) == list(range(1_000))


def test_the_delivery_timeout_ends_while_the_task_waits_for_rows(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    kinesis.faults.add(RejectRecords(), operation="PutRecords", count=None)

    def is_sending() -> bool:
        return any(each.name.startswith("kinesis-put") for each in threading.enumerate())

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(range(10))
        until(lambda: not is_sending(), "the threads have ended")
        yield rows(range(10))

    slow = writer(connected, delivery_timeout_ms=1_000)
    with pytest.raises(ServiceUnavailableError, match=r"Throughput.*deliveryTimeout"):
        slow.write(batches())


def test_a_slow_shard_does_not_keep_the_memory_of_others(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis.state.create_stream("payments", shards=8)
    payments = StreamRef(name=StreamName("payments"))
    first, *others = (f"key-{n}" for n in range(100))
    slow, *places = ShardMap(connected.list_shards(payments)).place([first, *others])
    fast = [key for key, place in zip(others, places, strict=True) if place != slow]
    # One record for the slow shard: a small share of the memory of its part.
    part = batch([bytes(1_000)] * (1 + len(fast)), [first, *fast])
    put, parts, is_slow = connected.put_records, 40, True
    # Lists, since several threads add to them.
    used: list[int] = [0]
    fast_stored: list[Entry] = []
    memory = pa.system_memory_pool()

    def put_records(stream: StreamRef, entries: PutEntries) -> PutOutcome:
        """Store all records, but report those of the slow shard as refused."""
        used.append(memory.bytes_allocated())
        sent = entries_of(entries)
        outcome = put(stream, entries)
        assert not any(outcome.codes)
        fast_stored.extend(entry for entry in sent if entry.partition_key != first)
        refused = [is_slow and entry.partition_key == first for entry in sent]
        return replace(outcome, codes=["InternalFailure" if one else None for one in refused])

    def is_stored(count: int) -> bool:
        return len(fast_stored) >= count

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal is_slow
        before = memory.bytes_allocated()
        for number in range(1, parts + 1):
            yield part
            until(
                partial(is_stored, number * len(fast)),
                "the other shards' records are stored",
                poll_s=0.001,
            )
        assert len(fast_stored) == parts * len(fast)
        assert max(used) - before < 10 * part.nbytes * 4 / 3, "the text of ten parts, in base64"
        is_slow = False

    monkeypatch.setattr(connected, "put_records", put_records)
    counts = writer(connected, stream=payments).write(batches())
    assert counts[payments.name].records == parts * part.num_rows


@pytest.mark.parametrize("most", [1, 2])
def test_requests_in_flight_are_limited(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    put, lock, in_flight, peak = connected.put_records, threading.Lock(), 0, 0
    together, first = threading.Barrier(most), iter(range(most))

    def put_records(stream: StreamRef, entries: PutEntries) -> PutOutcome:
        nonlocal in_flight, peak
        with lock:
            in_flight += 1
            peak = max(peak, in_flight)
        if next(first, None) is not None:
            together.wait(60)
            time.sleep(0.05)
        try:
            return put(stream, entries)
        finally:
            with lock:
                in_flight -= 1

    monkeypatch.setattr(connected, "put_records", put_records)
    write(connected, rows(range(1_000)), max_requests_in_flight=most)
    assert peak == most
    assert len(data_of(kinesis)) == 1_000
