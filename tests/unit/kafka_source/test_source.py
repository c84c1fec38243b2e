"""The readers as Spark drives them, without Spark: what is asked, when, and what is pickled."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_kafka_ssp import DefaultSource
from spark_ssp.common.columns import Column
from spark_ssp.common.errors import IncompatibleStateError, InvalidOptionsError, UnsupportedError
from spark_ssp.common.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from spark_ssp.kafka_source.client import admin_client
from spark_ssp.kafka_source.model.offset import Offset
from spark_ssp.kafka_source.model.ranges import TaskRange
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning import spark_checkpoint
from spark_ssp.kafka_source.planning.spark_checkpoint import AnyOffset, decode_any
from spark_ssp.kafka_source.reading import task_reader
from spark_ssp.kafka_source.source import (
    KafkaBatchReader,
    KafkaStreamReader,
    TaskPartition,
    spark_schema,
)
from tests.support.fakes.kafka_fake import FakeKafka

TASKS = tuple(f"SystemStreamPartition [kafka, orders, {number}]" for number in range(2))
OPTIONS = {
    "trigger": "processingTime",
    "kafka.bootstrap.servers": "broker:9092",
    "subscribe": "orders",
    "startingOffsets": "earliest",
}


class Service:
    """A Kafka in memory, who asked for it, and what executors were told to read."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.kafka.create(2, name="orders")
        self.kafka.fill("orders", 6, 4)
        self.connected: list[KafkaOptions] = []
        self.read: list[tuple[TaskRange, str]] = []

    def connect(self, options: KafkaOptions) -> FakeKafka:
        self.connected.append(options)
        return self.kafka

    def read_task(
        self, range_: TaskRange, options: KafkaOptions, group_id: str, **_: object
    ) -> Iterator[pa.RecordBatch]:
        self.read.append((range_, group_id))
        offsets = [n for part in range_.partitions for n in range(part.start, part.end)]
        yield pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())})


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(admin_client, "connect", service.connect)
    monkeypatch.setattr(task_reader, "read_task", service.read_task)
    return service


def through_spark(offset: dict[str, Any]) -> Any:
    """An offset as Spark gives it back."""
    return json.loads(json.dumps(offset))


def first_end(reader: KafkaStreamReader) -> Any:
    return through_spark(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))


# --- Building -------------------------------------------------------------------------------------


def test_building_does_nothing(service: Service) -> None:
    threads = set(threading.enumerate())
    reader = KafkaStreamReader(OPTIONS)
    reader.getDefaultReadLimit()
    reader.initialOffset()
    assert reader.reportLatestOffset() is None
    reader.commit({})
    reader.stop()
    KafkaBatchReader({**OPTIONS, "endingOffsets": "latest"})
    assert service.connected == []
    assert set(threading.enumerate()) <= threads


def test_a_pickle_holds_the_options_alone(service: Service) -> None:
    reader = KafkaStreamReader(OPTIONS)
    before = pickle.dumps(reader)
    first_end(reader)
    assert pickle.dumps(reader) == before
    copy: KafkaStreamReader = pickle.loads(before)
    assert copy.reportLatestOffset() is None
    assert copy.initialOffset() == reader.initialOffset()


def test_what_only_tasks_consumers_have_is_refused_before_there_is_an_offset(
    service: Service,
) -> None:
    options = {**OPTIONS, "kafka.queued.min.messages": "0"}
    reader = KafkaStreamReader(options)
    with pytest.raises(InvalidOptionsError) as caught:
        first_end(reader)
    assert [problem.option for problem in caught.value.problems] == ["kafka.queued.min.messages"]
    with pytest.raises(InvalidOptionsError, match=r"kafka\.queued\.min\.messages"):
        KafkaBatchReader(options).partitions()
    assert service.connected == []


# --- Offsets --------------------------------------------------------------------------------------


def test_with_nothing_new_the_offset_is_the_same_to_the_letter(service: Service) -> None:
    reader = KafkaStreamReader(OPTIONS)
    end = first_end(reader)
    assert "begin" in end["topics"]["orders"]
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    service.kafka.fill("orders", 1)
    later = reader.latestOffset(end, ReadAllAvailable())
    assert "begin" not in later["topics"]["orders"]


def test_each_offset_is_read_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the reader wrote itself is not read at all; what it makes of them is the same."""
    read: list[Any] = []

    def reading(document: Any) -> AnyOffset:
        read.append(document)
        return decode_any(document)

    monkeypatch.setattr(spark_checkpoint, "decode_any", reading)
    reader = KafkaStreamReader(OPTIONS)
    start = through_spark(reader.initialOffset())
    for number in range(1, 4):
        end = through_spark(reader.latestOffset(start, ReadAllAvailable()))
        found = reader.partitions(through_spark(start), through_spark(end))
        alone = KafkaStreamReader(OPTIONS).partitions(start, end)
        assert [one.value for one in found] == [one.value for one in alone]
        assert len(read) == 1 + 2 * number, "one for this reader, two for each of the others"
        service.kafka.fill("orders", number, number)
        start = end
    # An offset that is none of the last ones is read like any other.
    before = through_spark(reader.initialOffset())
    first = through_spark(KafkaStreamReader(OPTIONS).latestOffset(before, ReadAllAvailable()))
    read.clear()
    reader.partitions(before, first)
    assert len(read) == 2
    with pytest.raises(IncompatibleStateError):
        reader.latestOffset({"v": 99}, ReadAllAvailable())


def test_a_checkpoint_of_sparks_source_becomes_ours(service: Service) -> None:
    reader = KafkaStreamReader(OPTIONS)
    spark = {"orders": {"0": 6, "1": 3}}
    end = through_spark(reader.latestOffset(spark, ReadAllAvailable()))
    assert end["v"] == 2
    (partition,) = reader.partitions(spark, end)
    assert isinstance(partition, TaskPartition)
    assert [(part.start, part.end) for part in partition.value.partitions] == [(3, 4)]


@pytest.mark.parametrize("reads_headers", [True, False])
def test_a_sample_has_the_columns_that_it_needs_and_no_other(
    service: Service, monkeypatch: pytest.MonkeyPatch, reads_headers: bool
) -> None:
    """A time or headers that cannot be decoded fail no query that does not read them."""
    sampled: list[list[str]] = []

    def read_task(
        range_: TaskRange, *_: object, columns: list[Column], **__: object
    ) -> Iterator[pa.RecordBatch]:
        sampled.append([column.name for column in columns])
        values = {"key": [b"k"], "value": [b"v"], "offset": [range_.partitions[0].start]}
        values["headers"] = [[{"key": "trace", "value": b"h" * 1_000}]]
        yield pa.RecordBatch.from_pydict({one.name: values[one.name] for one in columns})

    monkeypatch.setattr(task_reader, "read_task", read_task)
    service.kafka.fill("orders", 50, 50)
    options = {**OPTIONS, "includeHeaders": "true", "maxBytesPerTrigger": "5000"}
    schema = spark_schema(include_headers=reads_headers, include_task=False)
    reader = KafkaStreamReader(options, schema)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(5000))
    assert sampled == [["key", "value", "offset", *(["headers"] if reads_headers else [])]]
    planned = decode_any(end)
    assert isinstance(planned, Offset)
    assert (sum(planned.positions.values()) < 100) == reads_headers, "a limit counts headers"


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "5k"}, ReadMaxBytes(5 * 1024)),
        ({"maxBytesPerTrigger": "5k", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "5"}, ReadMaxRows(2**63 - 1)),
    ],
)
def test_spark_is_given_one_limit_for_all(options: dict[str, str], limit: ReadLimit) -> None:
    assert KafkaStreamReader({**OPTIONS, **options}).getDefaultReadLimit() == limit


def test_the_status_has_the_counts_of_the_reader(service: Service) -> None:
    reader = KafkaStreamReader(OPTIONS)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    status = reader.reportLatestOffset()
    assert status is not None
    assert status["counters"] == {"retries": 0, "reshards": 0, "dataLossWarnings": 0}


def test_all_options_hold_with_any_limit_and_none_without(service: Service) -> None:
    options = {**OPTIONS, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3"}
    reader = KafkaStreamReader(options)

    def ends(start: Any, limit: ReadLimit) -> tuple[Any, list[int]]:
        end = through_spark(reader.latestOffset(start, limit))
        return end, end["topics"]["orders"]["next"]

    first, read = ends(reader.initialOffset(), reader.getDefaultReadLimit())
    assert read == [3, 2]
    second, read = ends(first, reader.getDefaultReadLimit())
    assert read == [6, 4]
    service.kafka.fill("orders", 2)
    assert ends(second, reader.getDefaultReadLimit())[0] == second
    assert ends(second, ReadAllAvailable())[1] == [8, 4]


# --- Reading --------------------------------------------------------------------------------------


def test_executors_read_the_ranges_under_one_group_id(service: Service) -> None:
    reader = KafkaStreamReader({**OPTIONS, "groupIdPrefix": "mine"})
    end = first_end(reader)
    found: list[list[int]] = []
    for partition in reader.partitions(reader.initialOffset(), end):
        elsewhere: KafkaStreamReader = pickle.loads(pickle.dumps(KafkaStreamReader(OPTIONS)))
        batches = elsewhere.read(pickle.loads(pickle.dumps(partition)))
        found.extend(batch.column("offset").to_pylist() for batch in batches)
    assert found == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
    assert [range_.task for range_, _ in service.read] == [
        TASKS[0],
        TASKS[1],
    ]
    (group_id,) = {group_id for _, group_id in service.read}
    assert group_id.startswith("mine-")
    with pytest.raises(TypeError, match="TaskPartition"):
        reader.read(InputPartition(1))


def test_a_batch_query_is_planned_when_its_partitions_are_asked_for(service: Service) -> None:
    bounds = {"startingOffsets": '{"orders": {"0": 2, "1": -2}}', "endingOffsets": "latest"}
    reader = KafkaBatchReader({**OPTIONS, **bounds})
    assert service.connected == []
    copy: KafkaBatchReader = pickle.loads(pickle.dumps(reader))
    for partition in reader.partitions():
        list(copy.read(pickle.loads(pickle.dumps(partition))))
    assert [
        (range_.task, part.start, part.end)
        for range_, _ in service.read
        for part in range_.partitions
    ] == [
        (TASKS[0], 2, 6),
        (TASKS[1], 0, 4),
    ]
    assert all(group_id.startswith("spark-kafka-relation-") for _, group_id in service.read)


# --- The format -----------------------------------------------------------------------------------


def test_loading_takes_the_options_of_either_kind_of_query() -> None:
    for more in ({"endingOffsets": "latest"}, {"startingOffsets": "latest"}):
        DefaultSource({**OPTIONS, **more, "includeHeaders": "true"}).schema()
    with pytest.raises(InvalidOptionsError, match="endingOffsets: found earliest"):
        DefaultSource({**OPTIONS, "endingOffsets": "earliest"}).schema()
    ending = DefaultSource({**OPTIONS, "endingOffsets": "latest"})
    # An error of `streamReader` itself would be hidden by one of Spark's.
    reader = ending.streamReader(ending.schema())
    reader.stop()
    with pytest.raises(InvalidOptionsError, match="endingOffsets: found an end in a streaming"):
        reader.initialOffset()


def test_the_schema_is_that_of_the_options() -> None:
    plain = DefaultSource(OPTIONS)
    headers = DefaultSource({**OPTIONS, "includeHeaders": "true"})
    assert headers.schema().names == [*plain.schema().names, "headers"]
    assert isinstance(plain.streamReader(plain.schema()), KafkaStreamReader)
    assert isinstance(plain.reader(plain.schema()), KafkaBatchReader)
    with pytest.raises(UnsupportedError, match="includeHeaders"):
        plain.reader(headers.schema())
    with pytest.raises(UnsupportedError, match="includeHeaders"):
        plain.streamReader(headers.schema()).initialOffset()


# --- Offsets that PySpark cannot parse ------------------------------------------------------------


def _plan(text: str, module: str) -> None:
    """Plan as PySpark's worker does: it parses the offset, and stops the reader in the end."""
    scope: dict[str, Any] = {"__name__": module, "json": json}
    exec("def parse(text): return json.loads(text)", scope)
    parse: Callable[[str], Any] = scope["parse"]
    reader = KafkaStreamReader(OPTIONS)
    try:
        parse(text)
    finally:
        reader.stop()


@pytest.mark.parametrize("text", ["", '{"v": 2, "topics": {"ord', "[" * 200_000])
@pytest.mark.parametrize("module", ["__main__", "pyspark.sql.streaming.any_worker"])
def test_the_error_names_the_folder_and_the_command(text: str, module: str) -> None:
    with pytest.raises(IncompatibleStateError) as caught:
        _plan(text, module)
    assert "folder offsets" in caught.value.found
    assert "spark-ssp checkpoint" in caught.value.next_step


def test_errors_of_other_origin_are_not_replaced() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        _plan("", "spark_ssp.kafka_source.source")
    _plan("{}", "__main__")
