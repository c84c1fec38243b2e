"""Kafka as a system of a pipeline, over a real broker: counting and creating topics."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_ssp.common.errors import (
    InvalidOptionsError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.topic import IsolationLevel, Selection, Subscribe
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions, QueryKind
from spark_ssp.kafka_source.pipeline_system import KafkaSystem, TopicAdmin
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.planner import Pipeline, Services, StreamExistsError
from spark_ssp.planner.graph.operators import StreamId, SystemKind, SystemName
from spark_ssp.planner.graph.systems import StreamUse
from spark_ssp.planner.planning.plan_history import newest
from spark_ssp.planner.running.dataframes import StreamAccess
from tests.support.fakes.clocks import ManualTime
from tests.support.kafka.topics import KafkaTopics as Topics
from tests.support.pipelines.examples import both
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.waiting import until

WAIT_S = 30
LOCAL = {"kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture
def system(kafka_broker: KafkaBroker) -> KafkaSystem:
    return KafkaSystem(kafka_broker.options, topic_config={"retention.ms": "86400000"})


@pytest.fixture
def new_topic(topics: Topics) -> Callable[[], str]:
    """Names that nobody has; a topic that is made of one is deleted at the end."""

    def name() -> str:
        topic = f"planned-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        topics.adopt(topic)
        return topic

    return name


def test_partitions_are_counted_as_they_are_now(topics: Topics, system: KafkaSystem) -> None:
    topic = topics.create(3)
    assert system.partition_count(topic) == 3
    # A broker hears of changes a moment after they were answered.
    topics.expand(topic, 6)
    until(lambda: system.partition_count(topic) == 6, "6 partitions", within_s=WAIT_S)
    topics.delete(topic)
    until(lambda: system.partition_count(topic) is None, "the topic is gone", within_s=WAIT_S)
    assert system.kind is SystemKind.KAFKA


def test_describing_creates_no_topic(system: KafkaSystem) -> None:
    assert system.partition_count("absent") is None
    assert system.partition_count("absent") is None


def test_a_created_topic_has_what_was_asked_for(
    topics: Topics, system: KafkaSystem, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    system.create(topic, 5)
    assert system.partition_count(topic) == 5
    assert topics.config(topic)["retention.ms"] == "86400000"


def test_a_topic_that_fills_tables_keeps_its_records(
    topics: Topics, kafka_broker: KafkaBroker, new_topic: Callable[[], str]
) -> None:
    system = KafkaSystem(
        kafka_broker.options,
        topic_config={"retention.ms": "86400000", "min.insync.replicas": "1"},
        table_topic_config={"cleanup.policy": "compact"},
    )
    config = {}
    for use in StreamUse:
        topic = new_topic()
        system.create(topic, 1, use=use)
        config[use] = topics.config(topic)
    assert {use: one["retention.ms"] for use, one in config.items()} == {
        StreamUse.EVENTS: "86400000",
        StreamUse.TABLE: "-1",
        StreamUse.BOTH: "-1",
    }
    # Of a topic that is read for more than a table every record counts.
    assert {use: one["cleanup.policy"] for use, one in config.items()} == {
        StreamUse.EVENTS: "delete",
        StreamUse.TABLE: "compact",
        StreamUse.BOTH: "delete",
    }
    assert {one["min.insync.replicas"] for one in config.values()} == {"1"}


def test_compaction_of_topics_whose_every_record_counts_is_refused() -> None:
    for policy in ("compact", "compact,delete"):
        with pytest.raises(InvalidOptionsError, match=r"topic_config cleanup\.policy") as caught:
            KafkaSystem(LOCAL, topic_config={"cleanup.policy": policy})
        (problem,) = caught.value.problems
        assert problem.next_step.startswith("set it in table_topic_config")
        KafkaSystem(LOCAL, table_topic_config={"cleanup.policy": policy})


def test_a_topic_that_is_there_is_left_as_it_is(topics: Topics, system: KafkaSystem) -> None:
    topic = topics.create(3)
    with pytest.raises(StreamExistsError, match=f"stream {topic}: found a topic of that name"):
        system.create(topic, 5)
    assert system.partition_count(topic) == 3
    assert topics.config(topic)["retention.ms"] != "86400000"


def test_of_several_who_create_one_does(
    kafka_broker: KafkaBroker, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()

    def create(_: int) -> bool:
        try:
            KafkaSystem(kafka_broker.options).create(topic, 2)
        except StreamExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, range(4))) == [False, False, False, True]
    assert KafkaSystem(kafka_broker.options).partition_count(topic) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ({"topic_config": {"no.such.setting": "1"}}, "INVALID_CONFIG"),
    ],
)
def test_a_rejection_of_the_broker_is_reported(
    kafka_broker: KafkaBroker, more: dict[str, object], said: str
) -> None:
    system = KafkaSystem(kafka_broker.options, **more)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=f"topic refused: found {said}"):
        system.create("refused", 2)
    assert system.partition_count("refused") is None


def test_a_pipeline_is_planned_applied_recorded_and_expanded(
    kafka_broker: KafkaBroker,
    topics: Topics,
    new_topic: Callable[[], str],
    tmp_path: object,
) -> None:
    orders, payments, out, made = topics.create(4), topics.create(2), topics.create(1), new_topic()
    root = f"file://{tmp_path}"

    def pipeline() -> Pipeline:
        flow = Pipeline("flow")
        moved = flow.input("kafka", payments).partition_by("id", stream=made, name="payments-by-id")
        flow.input("kafka", orders).join(moved, both).output("kafka", out)
        return flow

    def planned(_: int = 0) -> tuple[int, int]:
        services = Services({"kafka": KafkaSystem(kafka_broker.options)})
        applied = pipeline().plan(services, root=root).apply(services)
        return len(applied.created), len(applied.found)

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(planned, range(3))) == [(0, 1), (0, 1), (1, 0)]
    topics.expand(orders, 8)
    until(
        lambda: KafkaSystem(kafka_broker.options).partition_count(orders) == 8,
        "8 partitions",
        within_s=WAIT_S,
    )
    assert planned() == (0, 1)
    recorded = newest(root)
    assert recorded is not None
    counts = {s.stream.stream: (s.partitions, s.tasks) for s in recorded.plan.streams}
    assert counts == {orders: (8, 4), payments: (2, 2), made: (4, 4), out: (1, None)}


# --- How Spark reads and writes it ----------------------------------------------------------------


def test_a_topic_is_read_with_the_options_of_the_system() -> None:
    reader = {"maxOffsetsPerTrigger": "10", "startingTimestamp": "1", "STARTINGOFFSETS": "latest"}
    system = KafkaSystem(LOCAL, reader=reader, writer={"includeRepeatHeaders": "true"})
    plain = system.reader_format("orders")
    assert (plain.format, plain.options) == (
        "kafka-ssp",
        {**LOCAL, **reader, "subscribe": "orders", "onPartitionCountChange": "keep"},
    )
    by_ssp = KafkaSystem({**LOCAL, "GROUPER": "ssp"}).reader_format("orders", keep_tasks=False)
    assert by_ssp.options == {
        **LOCAL,
        "GROUPER": "ssp",
        "subscribe": "orders",
        "onPartitionCountChange": "regroup",
    }
    assert system.reader_format("orders", from_start=True).options == {
        **LOCAL,
        "maxOffsetsPerTrigger": "10",
        "startingOffsets": "earliest",
        "subscribe": "orders",
        "onPartitionCountChange": "keep",
    }
    written = system.writer_format("orders")
    assert (written.format, written.options) == (
        "kafka-ssp",
        {**LOCAL, "includeRepeatHeaders": "true", "topic": "orders"},
    )


def test_repeats_are_marked_by_headers_that_reader_and_writer_agree_on() -> None:
    """The format takes them: an option that it did not know would be refused."""
    system = KafkaSystem(LOCAL)
    reader, writer = system.reader_format("orders"), system.writer_format("orders")
    read = parse_options({**reader.options, **system.repeat_reader_options}, QueryKind.STREAM)
    written = parse_sink_options({**writer.options, **system.repeat_writer_options})
    assert (read.include_headers, written.include_repeat_headers) == (True, True)


def test_a_topic_that_is_written_exactly_once_needs_no_headers_and_no_state() -> None:
    system = KafkaSystem(LOCAL, writer={"deliveryguarantee": "Exactly-Once"})
    reader, writer = system.reader_format("orders"), system.writer_format("orders")
    read = parse_options({**reader.options, **system.repeat_reader_options}, QueryKind.STREAM)
    written = parse_sink_options({**writer.options, **system.repeat_writer_options})
    assert read.isolation_level is IsolationLevel.READ_COMMITTED
    assert (written.is_exactly_once, written.include_repeat_headers) == (True, False)
    assert (KafkaSystem(LOCAL).has_duplicates, system.has_duplicates) == (True, False)


@pytest.mark.parametrize(
    "option", ["subscribe", "subscribepattern", "assign", "topic", "markertopic"]
)
def test_options_that_name_a_topic_are_refused(option: str) -> None:
    for more in ({"reader": {option: "orders"}}, {"writer": {option: "orders"}}):
        with pytest.raises(InvalidOptionsError, match=f"{option}: found a topic"):
            KafkaSystem(LOCAL, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "writer", [{"includerepeatheaders": "false"}, {"batchWriteId": "q:1"}], ids=str
)
def test_options_that_decide_on_repeat_headers_are_refused(writer: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionsError, match=f"{next(iter(writer))}: found"):
        KafkaSystem(LOCAL, writer=writer)


def test_a_pipeline_sets_an_option_once_however_it_was_spelled() -> None:
    system = KafkaSystem(LOCAL, writer={"INCLUDEREPEATHEADERS": "True"})
    # Nothing is read, so no session is needed.
    access = StreamAccess(spark=None, services=Services({"kafka": system}))  # type: ignore[arg-type]
    stream = StreamId(system=SystemName("kafka"), stream="orders")
    assert access.writer(stream).options == {
        **LOCAL,
        "includeRepeatHeaders": "true",
        "topic": "orders",
    }
    assert access.batch_write_option(stream) == "batchWriteId"


def test_wrong_options_are_reported_by_the_first_call() -> None:
    with pytest.raises(InvalidOptionsError, match=r"kafka\.bootstrap\.servers"):
        KafkaSystem({}).partition_count("orders")


def test_the_text_shows_names_of_options_alone() -> None:
    system = KafkaSystem({**LOCAL, "kafka.sasl.password": "secret"})
    assert repr(system) == "KafkaSystem(options kafka.bootstrap.servers, kafka.sasl.password)"


# --- Brokers that hear of topics one after another ------------------------------------------------


class _Scripted:
    """Answers to `describe` (partitions, or None) and to `create_topic`, one after the other."""

    def __init__(self, *, create: list[bool], counts: list[int | None]) -> None:
        self.create = create
        self.counts = counts

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        assert isinstance(selection, Subscribe)
        count = self.counts.pop(0)
        return {n: TopicDescription(partition_count=count) for n in selection.topics if count}

    def create_topic(
        self,
        topic: StreamName,
        *,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str] | None,
    ) -> bool:
        return self.create.pop(0)


def _scripted(brokers: _Scripted) -> KafkaSystem:
    def connect(_: KafkaOptions) -> TopicAdmin:
        return brokers

    clock = ManualTime()
    return KafkaSystem(
        LOCAL, timeout_s=1, connect=connect, monotonic=clock.monotonic, sleep=clock.sleep
    )


def test_a_new_topic_is_waited_for_also_where_another_broker_is_asked_later() -> None:
    brokers = _Scripted(create=[True], counts=[None, None, 4, None, 4])
    system = _scripted(brokers)
    system.create("t", 4)
    assert system.partition_count("t") == 4
    assert brokers.counts == []


def test_a_topic_that_is_being_deleted_is_created_once_it_is_gone() -> None:
    brokers = _Scripted(create=[False, False, True], counts=[None, None, 4])
    _scripted(brokers).create("t", 4)
    assert (brokers.create, brokers.counts) == ([], [])


def test_a_topic_that_a_rival_created_is_waited_for() -> None:
    brokers = _Scripted(create=[False, False], counts=[None, 4, None, 4])
    system = _scripted(brokers)
    with pytest.raises(StreamExistsError):
        system.create("t", 4)
    assert system.partition_count("t") == 4
    assert brokers.counts == []


@pytest.mark.parametrize("created", [True, False])
def test_waiting_ends(created: bool) -> None:
    brokers = _Scripted(create=[created] * 20, counts=[None] * 20)
    with pytest.raises(ServiceUnavailableError, match="for 1 s"):
        _scripted(brokers).create("t", 4)
