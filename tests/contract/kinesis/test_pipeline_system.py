"""Kinesis as a system of a pipeline, over every service: counting and creating streams."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import cast

import pytest

from spark_ssp.common.errors import (
    InvalidOptionsError,
    ServiceUnavailableError,
    StreamNotFoundError,
    UnsupportedError,
)
from spark_ssp.kinesis_source.client.api import StreamInUseError
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import EpochMillis, Shard, StreamDescription, StreamRef
from spark_ssp.kinesis_source.pipeline_system import KinesisSystem
from spark_ssp.planner import Pipeline, Services, StreamExistsError
from spark_ssp.planner.graph.operators import SystemKind
from tests.contract.services import FIRST, MIDDLE, SECOND, Service
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.pipeline_services import MemorySystem

_numbers = count()


def _options(service: Service) -> dict[str, str]:
    return {
        "endpointUrl": service.client.meta.endpoint_url,
        "region": service.client.meta.region_name,
        "awsAccessKeyId": "local",
        "awsSecretAccessKey": "local",
        "startingPosition": "latest",
    }


@pytest.fixture
def system(service: Service) -> KinesisSystem:
    return KinesisSystem(_options(service))


def _name() -> str:
    return f"planned-{next(_numbers)}"


def test_open_shards_are_counted(service: Service, system: KinesisSystem) -> None:
    stream = service.stream(3)
    assert system.partition_count(stream) == 3
    service.split(stream, FIRST, at=MIDDLE // 3)
    assert system.partition_count(stream) == 4
    assert system.kind is SystemKind.KINESIS


def test_shards_are_counted_over_all_pages(embedded: Service) -> None:
    """1,000 shards are one page of ListShards, and more than kinesis-mock has for a stream."""
    stream = embedded.stream(1001)
    assert KinesisSystem(_options(embedded)).partition_count(stream) == 1001


def test_a_stream_that_is_not_there_has_no_count(system: KinesisSystem) -> None:
    assert system.partition_count("absent") is None


def test_a_created_stream_can_be_used_at_once(service: Service, system: KinesisSystem) -> None:
    stream = _name()
    system.create(stream, 2)
    assert service.summary(stream)["StreamStatus"] == "ACTIVE"
    assert system.partition_count(stream) == 2
    assert service.open_shards(stream) == [FIRST, SECOND]


def test_a_stream_that_is_there_is_left_as_it_is(service: Service, system: KinesisSystem) -> None:
    stream = service.stream(3)
    with pytest.raises(StreamExistsError, match=f"stream {stream}: found ResourceInUseException"):
        system.create(stream, 2)
    assert system.partition_count(stream) == 3


def test_of_several_who_create_one_does(service: Service) -> None:
    stream = _name()

    def create(_: int) -> bool:
        try:
            KinesisSystem(_options(service)).create(stream, 2)
        except StreamExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, range(4))) == [False, False, False, True]
    assert KinesisSystem(_options(service)).partition_count(stream) == 2


def test_a_plan_is_applied_to_kinesis(service: Service, system: KinesisSystem) -> None:
    name = _name()
    pipeline = Pipeline("flow", intermediate_system="kinesis")
    pipeline.input("kafka", "a").partition_by("k", stream=name, partitions=2).output("kafka", "out")
    kafka = MemorySystem(streams={"a": 1, "out": 1})
    services = Services({"kafka": kafka, "kinesis": system})
    planned = pipeline.plan(services)
    assert [str(s) for s in planned.apply(services).created] == [f"kinesis/{name}"]
    assert [str(s) for s in planned.apply(services).found] == [f"kinesis/{name}"]
    assert service.open_shards(name) == [FIRST, SECOND]


# --- How Spark reads it ---------------------------------------------------------------------------


def test_a_stream_is_read_with_the_options_of_the_system() -> None:
    system = KinesisSystem({"region": "eu-west-1", "initialPosition": "latest"})
    plain = system.reader_format("flights")
    assert (plain.format, plain.options) == (
        "kinesis-ssp",
        {"region": "eu-west-1", "initialPosition": "latest", "streamName": "flights"},
    )
    whole = system.reader_format("flights", from_start=True)
    assert whole.options == {
        "region": "eu-west-1",
        "startingPosition": "trim_horizon",
        "streamName": "flights",
    }


def test_nothing_is_written_to_kinesis() -> None:
    with pytest.raises(UnsupportedError, match="give partition_by or output a Kafka system"):
        KinesisSystem({"region": "eu-west-1"}).writer_format("flights")


@pytest.mark.parametrize("option", ["streamName", "streamarn", "kinesis.streamName"])
def test_options_that_name_a_stream_are_refused(option: str) -> None:
    with pytest.raises(InvalidOptionsError, match=f"{option}: found a stream"):
        KinesisSystem({"region": "eu-west-1", option: "orders"})


def test_the_text_shows_names_of_options_alone() -> None:
    system = KinesisSystem({"awsSecretAccessKey": "secret", "region": "eu-west-1"})
    assert repr(system) == "KinesisSystem(options awsSecretAccessKey, region)"


# --- Streams that come and go ---------------------------------------------------------------------


class _Scripted:
    """Answers to `describe` and to `create_stream`, one after the other: None is yes."""

    def __init__(self, **answers: list[Exception | None]) -> None:
        self._answers: Mapping[str, list[Exception | None]] = answers

    def describe(self, stream: StreamRef) -> StreamDescription:
        self._next("describe")
        return StreamDescription(name=stream.name, arn="", created=EpochMillis(0), retention_ms=1)

    def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
        raise AssertionError("nobody counts here")

    def create_stream(self, stream: StreamRef, shards: int) -> None:
        self._next("create")

    def left(self) -> int:
        return sum(len(answers) for answers in self._answers.values())

    def _next(self, call: str) -> None:
        answer = self._answers[call].pop(0)
        if answer is not None:
            raise answer


def _scripted(streams: _Scripted, timeout_s: float = 10) -> KinesisSystem:
    clock = ManualTime()
    return KinesisSystem(
        {"region": "eu-west-1"},
        timeout_s=timeout_s,
        connect=lambda _: cast("Boto3Kinesis", streams),
        monotonic=clock.monotonic,
        sleep=clock.sleep,
    )


def _absent() -> StreamNotFoundError:
    return StreamNotFoundError("stream s", found="none", expected="one", next_step="wait")


def _creating() -> ServiceUnavailableError:
    return ServiceUnavailableError("stream s", found="CREATING", expected="it", next_step="wait")


def _in_use() -> StreamInUseError:
    return StreamInUseError("stream s", found="in use", expected="none", next_step="use it")


def test_a_new_stream_is_waited_for_while_nobody_has_heard_of_it() -> None:
    streams = _Scripted(create=[None], describe=[_absent(), _creating(), None])
    _scripted(streams).create("s", 1)
    assert streams.left() == 0


def test_a_stream_that_is_being_removed_is_created_once_it_is_gone() -> None:
    streams = _Scripted(create=[_in_use(), _in_use(), None], describe=[_absent(), _absent(), None])
    _scripted(streams).create("s", 1)
    assert streams.left() == 0


def test_a_stream_that_a_rival_is_creating_is_waited_for() -> None:
    streams = _Scripted(create=[_in_use(), _in_use()], describe=[_creating(), None])
    with pytest.raises(StreamExistsError):
        _scripted(streams).create("s", 1)
    assert streams.left() == 0


def test_waiting_ends() -> None:
    forever = _Scripted(create=[None], describe=[_absent()] * 20)
    with pytest.raises(StreamNotFoundError):
        _scripted(forever, timeout_s=5).create("s", 1)
    assert forever.left() == 14
    removed = _Scripted(create=[_in_use()] * 20, describe=[_absent()] * 20)
    with pytest.raises(StreamInUseError):
        _scripted(removed, timeout_s=5).create("s", 1)
