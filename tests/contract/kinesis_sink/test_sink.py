"""The writer of the Kinesis sink, over the services and under the limits of the real one."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import boto3
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spark_ssp.common.errors import (
    InvalidRowsError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
    UnsupportedError,
)
from spark_ssp.grouping.identifiers import StreamName, hash_of
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.deaggregation import open_aggregate
from spark_ssp.kinesis_source.model.shard import StreamDescription, StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.sink.delivery import DeliveryMetrics
from spark_ssp.kinesis_source.sink.table_sink import KinesisBatchWriter
from spark_ssp.kinesis_source.sink.writer import TargetCache
from spark_ssp.testing.kinesis import Distribution, EmbeddedKinesis, StreamMode
from spark_ssp.testing.kinesis.state.faults import (
    DropConnection,
    Fault,
    InternalFailure,
    LostReply,
    Refusal,
    RejectRecords,
    Throttle,
)
from tests.contract.services import Service
from tests.contract.subjects import over_boto3
from tests.support.kinesis.sink_writer import (
    COLUMNS,
    NAMED,
    ORDERS,
    PLACED,
    batch,
    data_of,
    rows,
    write,
    writer,
)
from tests.support.servers.moto_server import MotoServer

# --- Every service --------------------------------------------------------------------------------


def stored(client: Any, stream: str) -> dict[str, list[tuple[str, bytes]]]:
    """Return keys and data of all records, by shard."""
    found = {}
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = client.get_records(ShardIterator=iterator)["Records"]
        found[shard["ShardId"]] = [(r["PartitionKey"], r["Data"]) for r in records]
    return found


def check_a_service(client: Any, first: str, second: str) -> None:
    """Write rows to two streams, of two open shards each."""
    kinesis = over_boto3(client.meta.endpoint_url)
    names = [first, second] * 600
    data = [f"{number}" for number in range(1_200)]
    keys = [f"clé-{number % 7}" for number in range(1_200)]
    counts = write(kinesis, batch(data, keys, names), columns=NAMED, stream=None)
    assert {name: count.records for name, count in counts.items()} == {first: 600, second: 600}
    for place, stream in enumerate((first, second)):
        by_shard = stored(client, stream)
        records = [record for shard in by_shard.values() for record in shard]
        assert Counter(records) == Counter(
            (key, text.encode()) for key, text in zip(keys[place::2], data[place::2], strict=True)
        )
        assert sum(map(bool, by_shard.values())) == 2
    top, placed = str(2**127 + 1), StreamRef(name=StreamName(first))
    write(kinesis, batch(["low", "high"], ["k", "k"], ["0", top]), columns=PLACED, stream=placed)
    low, high = (records[-1] for records in stored(client, first).values() if records)
    assert {low, high} == {("k", b"low"), ("k", b"high")}
    kinesis.close()


def test_rows_become_records(service: Service) -> None:
    check_a_service(service.client, service.stream(2), service.stream(2))


def test_rows_become_records_of_moto() -> None:
    server = MotoServer()
    client = boto3.client(
        "kinesis",
        endpoint_url=server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    for name in ("one", "two"):
        client.create_stream(StreamName=name, ShardCount=2)
        client.get_waiter("stream_exists").wait(StreamName=name)
    check_a_service(client, "one", "two")
    client.close()
    server.stop()


# --- The limits and faults of the real service ----------------------------------------------------


def connection_of(kinesis: EmbeddedKinesis) -> dict[str, str]:
    return {
        "region": "us-east-1",
        "endpointUrl": kinesis.endpoint_url,
        "awsAccessKeyId": "local",
        "awsSecretAccessKey": "local",
    }


def number_of_rows(data: bytes) -> int:
    aggregate = open_aggregate(data)
    return 1 if aggregate is None else len(aggregate.data)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_stream_is_resharded_under_the_writer(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, *, is_ordered: bool
) -> None:
    """1, 4, then 2 shards, at the full rate, with faults of every kind between."""
    count, state = 9_000, kinesis.state
    faults: list[Fault] = [
        RejectRecords(every=3),
        InternalFailure(),
        LostReply(),
        Throttle(),
        DropConnection(),
        RejectRecords(every=1, code="InternalFailure"),
        Refusal(code="KMSThrottlingException"),
        RejectRecords(every=7),
    ]
    for nth, fault in enumerate(faults, start=2):
        kinesis.faults.add(fault, operation="PutRecords", nth=nth * 2)

    def reshard() -> None:
        for _ in range(2):
            time.sleep(0.5)
            for shard in state.open_shard_ids("orders"):
                state.split("orders", shard)
        for _ in range(2):
            time.sleep(0.8)
            state.merge("orders", *state.open_shard_ids("orders")[:2])

    resharding = threading.Thread(target=reshard)
    resharding.start()
    numbers = [range(start, start + 1_500) for start in range(0, count, 1_500)]
    counts = write(connected, *map(rows, numbers), is_ordered=is_ordered)
    resharding.join()
    found = data_of(kinesis)
    copies = Counter(data for _, data in found)
    assert set(copies) == {b"%d" % n for n in range(count)}
    # Those of the one request whose reply was lost.
    assert len(found) - count <= 500
    assert counts[ORDERS.name].records == count
    assert counts[ORDERS.name].repeats.keys() == {
        "ConnectionClosedError",
        "InternalFailure",
        "KMSThrottlingException",
        "ProvisionedThroughputExceededException",
    }
    if is_ordered:
        by_key = defaultdict[str | None, list[bytes]](list)
        for key, data in found:
            if data not in by_key[key]:
                by_key[key].append(data)
        for key, order in by_key.items():
            assert order == sorted(order, key=int), key


def test_tasks_share_the_shards(kinesis: EmbeddedKinesis, connected: Boto3Kinesis) -> None:
    kinesis.state.split("orders", kinesis.state.open_shard_ids("orders")[0])
    parts = [range(start, start + 3_000) for start in range(0, 12_000, 3_000)]
    results: list[DeliveryMetrics] = []

    def task(numbers: range) -> None:
        results.append(write(connected, rows(numbers, keys=500))[ORDERS.name])

    threads = [threading.Thread(target=task, args=(numbers,)) for numbers in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(data) for _, data in data_of(kinesis)) == list(range(12_000))
    assert sum(one.records for one in results) == 12_000


def test_keys_that_the_service_ignores_may_be_missing(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    kinesis.state.create_stream("auto", shards=2, distribution=Distribution.AUTO)
    auto = StreamRef(name=StreamName("auto"))
    counts = write(connected, batch([b"a", b"b"], ["key", None]), stream=auto)
    assert counts[auto.name].records == 2
    assert {one.data for one in kinesis.state.records("auto")} == {b"a", b"b"}


def test_a_stream_whose_keys_are_ignored_from_now_on_refuses_aggregates(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    kinesis.state.create_stream("demand", shards=4, mode=StreamMode.ON_DEMAND)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(range(100))
        kinesis.state.set_distribution("demand", Distribution.AUTO)
        for _ in range(1_000):
            yield rows(range(100))

    stream = StreamRef(name=StreamName("demand"))
    with pytest.raises(UnsupportedError):
        writer(connected, stream=stream, is_aggregating=True).write(batches())
    assert len(kinesis.state.records("demand")) < 1_000


@pytest.mark.parametrize("by_column", [False, True], ids=["option", "column"])
def test_a_stream_is_created_again_between_two_batches(
    kinesis: EmbeddedKinesis, *, by_column: bool
) -> None:
    """The process remembers the former shards, which had the same ids."""
    part, options = rows(range(1_000), keys=1_000), connection_of(kinesis) | {"aggregation": "true"}
    if by_column:
        part = part.append_column("stream", pa.array(["orders"] * part.num_rows))
    else:
        options["streamName"] = "orders"
    for shards in (2, 3):
        if shards == 3:
            kinesis.state.delete_stream("orders")
        kinesis.state.create_stream("orders", shards=shards)
        KinesisBatchWriter(options, from_arrow_schema(part.schema)).write(iter([part]))
    found: list[bytes] = []
    for shard in kinesis.state.stream("orders").shards(kinesis.state.clock.now_ms()):
        for record in kinesis.state.records("orders", shard.shard_id):
            aggregate = open_aggregate(record.data)
            assert aggregate is not None
            assert all(hash_of(key) in shard.hash_range for key in aggregate.partition_keys)
            found += aggregate.data
    assert sorted(map(int, found)) == list(range(1_000))


@pytest.mark.parametrize("distribution", Distribution)
def test_an_old_botocore_drops_members_of_a_description(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, distribution: Distribution
) -> None:
    """As those of Databricks and Glue do, whose models lack both members."""
    model = connected.client.meta.service_model.operation_model("DescribeStreamSummary")
    members: Any = model.output_shape
    for name in ("MaxRecordSizeInKiB", "RecordDistributionStrategy"):
        members.members["StreamDescriptionSummary"].members.pop(name, None)
    kinesis.state.create_stream(
        "demand",
        shards=2,
        mode=StreamMode.ON_DEMAND,
        distribution=distribution,
        max_record_bytes=10 << 20,
    )
    stream = StreamRef(name=StreamName("demand"))
    if distribution is Distribution.AUTO:
        write(connected, batch([b"a", b"b"], [None, "key"]), stream=stream)
        with pytest.raises(UnsupportedError):
            write(connected, rows(range(10)), stream=stream, is_aggregating=True)
    else:
        with pytest.raises(InvalidRowsError):
            write(connected, batch([b"a", b"b"], ["key", None]), stream=stream)
        counts = write(connected, rows(range(3_000)), stream=stream, is_aggregating=True)
        assert counts[stream.name].records < 10
        counts = write(connected, rows(range(6_000)), stream=stream)
        assert counts[stream.name].throttled.total() < 100
    large = batch([bytes(3 << 20)], ["key"])
    assert write(connected, large, stream=stream)[stream.name].rows == 1


def test_a_stream_that_refuses_every_record_fails_the_task(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    kinesis.faults.add(RejectRecords(), operation="PutRecords", count=None)
    with pytest.raises(ServiceUnavailableError, match=r"Throughput.*deliveryTimeout"):
        write(connected, rows(range(10)), delivery_timeout_ms=1_000)


def split_and_write(kinesis: EmbeddedKinesis, connected: Boto3Kinesis, **options: Any) -> None:
    """Write rows of which the last are sent to a shard that was split."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(range(200))
        kinesis.state.split("orders", kinesis.state.open_shard_ids("orders")[0])
        yield rows(range(200, 2_000))

    writer(connected, **{"delivery_timeout_ms": 1_000} | options).write(batches())


@pytest.mark.parametrize("fault", [Throttle(), InternalFailure()], ids=["throttled", "failing"])
@pytest.mark.parametrize("is_aggregating", [False, True], ids=["rows", "aggregates"])
def test_a_reshard_while_shards_cannot_be_listed(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, fault: Fault, *, is_aggregating: bool
) -> None:
    """Only an aggregate depends on the listing: readers of its shard might drop its rows."""
    kinesis.faults.add(fault, operation="ListShards", nth=2, count=None)
    if is_aggregating:
        with pytest.raises(ServiceUnavailableError, match=r"on a single ListShards, for \d+ s"):
            split_and_write(kinesis, connected, is_aggregating=True)
    else:
        split_and_write(kinesis, connected)
        assert sorted(int(data) for _, data in data_of(kinesis)) == list(range(2_000))


def test_a_listing_that_fails_once_is_repeated(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    kinesis.faults.add(Throttle(), operation="ListShards", nth=2)
    split_and_write(kinesis, connected, is_aggregating=True, delivery_timeout_ms=9_000)
    stored = kinesis.state.records("orders")
    assert sum(number_of_rows(one.data) for one in stored) > 2_000, "packed again for both shards"


def test_failed_requests_of_a_kind_are_logged_together(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis.faults.add(InternalFailure(), operation="PutRecords", count=4)
    counts = write(connected, rows(range(300)))
    assert counts[ORDERS.name].repeats.total() >= 4
    warnings = [one for one in caplog.records if "failed requests" in one.getMessage()]
    assert len(warnings) == 1


def test_each_stream_is_described_once_in_a_task(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process does not remember all of them."""
    monkeypatch.setattr("spark_ssp.kinesis_source.sink.writer._MAX_TARGETS", 1)
    names = ["orders", "payments", "returns"]
    for name in names[1:]:
        kinesis.state.create_stream(name, shards=1)
    described: list[str] = []
    describe = connected.describe

    def spy(stream: StreamRef, **options: Any) -> StreamDescription:
        described.append(stream.name)
        return describe(stream, **options)

    monkeypatch.setattr(connected, "describe", spy)
    part = batch([b"x"] * 3, ["k"] * 3, names)
    write(connected, part, part, part, columns=NAMED, stream=None)
    assert sorted(described) == names


def test_streams_that_cannot_be_listed_fail_within_the_delivery_timeout(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    kinesis.faults.add(Throttle(), operation="ListShards", count=None)
    with pytest.raises(ServiceUnavailableError, match="ListShards"):
        TargetCache().get(ORDERS, ConnectionOptions(), connected, within=0.1)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Refusal(code="KMSThrottlingException"), r"KMSThrottling.*every attempt.*quotas of KMS"),
        (DropConnection(), r"ConnectionClosedError for a record.*check the network"),
        (Refusal(code="KMSAccessDeniedException"), r"allow kms:GenerateDataKey on"),
        (Refusal(code="ResourceNotFoundException"), r"\[stream-not-found\].*check streamName"),
        (
            Refusal(code="ValidationException", message="Value 's3cret' at 'records.1.member'"),
            r"found ValidationException on PutRecords.*MaxRecordSizeInKiB",
        ),
    ],
)
def test_the_error_of_refused_requests(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, fault: Fault, expected: str
) -> None:
    kinesis.faults.add(fault, operation="PutRecords", count=None)
    with pytest.raises(SspError, match=expected) as caught:
        write(connected, rows(range(10)), delivery_timeout_ms=1_000)
    assert "s3cret" not in str(caught.value)


# --- Rows that cannot be records ------------------------------------------------------------------

NOT_TEXT = pa.Array.from_buffers(pa.string(), 2, pa.array([b"k", b"\xfff"]).buffers())
TOO_LARGE = b"x" * (1 << 20)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((["a", None], ["k", "k"]), "column data: found null in row 101 of the task"),
        ((["a", "b"], [None, "k"]), "column partitionKey: found null in row 100"),
        ((["a", "b"], ["", "k" * 257]), "a key of 0 characters in row 100 .*, and 1 more rows"),
        ((["a", "b"], ["k", ""]), "a key of 0 characters in row 101"),
        ((["a", "b"], ["k", "k" * 257]), "a key of 257 characters in row 101"),
        (([b"a", TOO_LARGE], ["k", "k"]), r"found 1048577 bytes .* row 101 .* at most 1048576"),
        ((["a", "b"], ["k", "k"], ["-1", None]), "column explicitHashKey: .* row 100"),
        ((["a", "b"], ["k", "k"], ["0", str(2**128)]), "explicitHashKey: .* row 101"),
        ((["a", "b"], NOT_TEXT), "partitionKey: found bytes that are not UTF-8 in row 101 .*text"),
    ],
)
def test_a_batch_is_checked_before_any_of_it_is_sent(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, columns: tuple[Any, ...], expected: str
) -> None:
    wrong = batch(*columns)
    with pytest.raises(InvalidRowsError, match=expected) as caught:
        write(
            connected,
            batch([b"%d" % n for n in range(100)], ["k"] * 100, ["0"] * 100),
            wrong,
            columns=PLACED if len(columns) == 3 else COLUMNS,
        )
    assert "kkk" not in str(caught.value)
    assert {data for _, data in data_of(kinesis)} <= {b"%d" % n for n in range(100)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["orders", None], "column stream: found null in row 1 of the task"),
        (["orders", "s3cret stream"], "found text that is not the name of a stream in row 1 "),
        (["orders", "absent"], r"\[stream-not-found\] stream absent: .* column stream"),
    ],
)
def test_no_row_is_sent_if_one_names_no_stream(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis, names: list[str | None], expected: str
) -> None:
    with pytest.raises(SspError, match=expected) as caught:
        write(connected, batch(["a", "b"], ["k", "k"], names), columns=NAMED, stream=None)
    assert "s3cret" not in str(caught.value)
    assert data_of(kinesis) == []


def test_a_stream_of_the_column_that_is_deleted_under_the_task(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    """The option streamName, which others advise to correct, would send all rows to one stream."""
    kinesis.faults.add(
        Refusal(code="ResourceNotFoundException"), operation="PutRecords", count=None
    )
    with pytest.raises(StreamNotFoundError, match="column stream") as caught:
        write(connected, batch(["a"], ["k"], ["orders"]), columns=NAMED, stream=None)
    assert "streamName" not in str(caught.value)


def test_the_limit_of_a_key_is_one_of_characters(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    write(connected, batch(["a"], ["\N{GRINNING FACE}" * 256]))
    assert data_of(kinesis) == [("\N{GRINNING FACE}" * 256, b"a")]


def test_a_batch_may_have_no_rows(kinesis: EmbeddedKinesis, connected: Boto3Kinesis) -> None:
    some = batch(["a", ""], ["k", "k"], ["0", None])
    write(connected, some.slice(2), some, columns=PLACED)
    assert data_of(kinesis) == [("k", b"a"), ("k", b"")]


def test_a_stream_may_take_larger_records(
    kinesis: EmbeddedKinesis, connected: Boto3Kinesis
) -> None:
    connected._client.update_max_record_size(  # type: ignore[attr-defined]
        StreamARN=kinesis.state.stream("orders").arn, MaxRecordSizeInKiB=10_240
    )
    large = [random.randbytes(3 << 20) for _ in range(2)]
    write(connected, batch(large, ["k", "k"]))
    assert [data for _, data in data_of(kinesis)] == large
