"""The writers that Spark creates on the driver, over a scripted service."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_ssp.common.errors import ServiceUnavailableError, UnsupportedError
from spark_ssp.grouping.identifiers import EpochMillis
from spark_ssp.kinesis_source.model.shard import Shard, StreamDescription, StreamRef
from spark_ssp.kinesis_source.sink import table_sink
from spark_ssp.kinesis_source.sink.delivery import DeliveryMetrics
from spark_ssp.kinesis_source.sink.table_sink import KinesisStreamWriter, WriteResult
from spark_ssp.kinesis_source.sink.writer import TargetCache
from tests.support.kinesis.sink_writer import ORDERS, SHARD

SCHEMA = StructType([StructField("data", BinaryType()), StructField("partitionKey", StringType())])


class Service:
    """A stream whose keys may have no effect, and the calls about it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.placed_by_key = True
        self.is_down = False

    def describe(self, stream: StreamRef, *, within: float | None = None) -> StreamDescription:
        self._note("describe")
        return StreamDescription(
            name=stream.name,
            arn=f"arn:{stream.name}",
            created=EpochMillis(0),
            retention_ms=1,
            placed_by_key=self.placed_by_key,
        )

    def list_shards(self, stream: StreamRef, *, within: float | None = None) -> tuple[Shard, ...]:
        self._note("list")
        return (SHARD,)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.is_down:
            raise ServiceUnavailableError("", found="", expected="", next_step="")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(table_sink, "connect", lambda _: service)
    monkeypatch.setattr(table_sink, "TARGETS", TargetCache())
    return service


def stream_writer(**options: str) -> KinesisStreamWriter:
    given = {"streamName": ORDERS.name, "region": "us-east-1"} | options
    return KinesisStreamWriter(given, SCHEMA)


def called_by(worker: str, call: Callable[[], KinesisStreamWriter]) -> KinesisStreamWriter:
    """Call as a worker module of PySpark does."""
    scope = vars(import_module(f"pyspark.sql.worker.{worker}")) | {"call": call}
    exec("made = call()", scope)
    made = scope["made"]
    assert isinstance(made, KinesisStreamWriter)
    return made


@pytest.mark.parametrize("aggregation", ["false", "true"])
def test_the_shards_are_listed_for_a_batch_and_not_for_its_commit(
    service: Service, aggregation: str
) -> None:
    """Tasks that begin with former shards would each list them. A failed call for the commit would
    repeat a batch whose rows are all stored."""
    for expected in (["describe", "list"], ["list"]):
        called_by("write_into_data_source", lambda: stream_writer(aggregation=aggregation))
        assert service.calls == expected
        service.calls.clear()
        service.is_down = True
        committing = called_by(
            "python_streaming_sink_runner", lambda: stream_writer(aggregation=aggregation)
        )
        committing.commit([WriteResult({ORDERS.name: DeliveryMetrics()})], 0)
        assert service.calls == []
        service.is_down = False


def test_former_shards_do_while_the_service_lists_none(service: Service) -> None:
    """Without aggregates: they only affect the pace."""
    called_by("write_into_data_source", stream_writer)
    service.is_down = True
    called_by("write_into_data_source", stream_writer)
    with pytest.raises(ServiceUnavailableError):
        called_by("write_into_data_source", lambda: stream_writer(aggregation="true"))


def test_a_stream_that_cannot_be_written_to_fails_before_there_is_data(service: Service) -> None:
    service.is_down = True
    with pytest.raises(ServiceUnavailableError):
        called_by("write_into_data_source", stream_writer)
    service.is_down, service.placed_by_key = False, False
    with pytest.raises(UnsupportedError):
        called_by("write_into_data_source", lambda: stream_writer(aggregation="true"))
