"""Exactly-once delivery of a task's rows, without Spark, against real brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from spark_ssp.common.errors import (
    IncompatibleStateError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.kafka_source.sink import transactions
from spark_ssp.kafka_source.sink.columns import SinkColumns, rows_of
from spark_ssp.kafka_source.sink.markers import CompletedBatch, Write, write_completed
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.table_sink import write_in_transaction
from spark_ssp.kafka_source.sink.transactions import (
    TransactionalTask,
    batches_id,
    record_completed,
    task_id,
)
from tests.support.kafka.topics import KafkaTopics
from tests.support.servers.kafka_broker import KafkaBroker, KafkaBrokers

_VALUE = SinkColumns(value=0)


class Sink:
    """A sink to a topic of one partition."""

    def __init__(self, broker: KafkaBroker | KafkaBrokers, topic: str, **options: str) -> None:
        self.topic = topic
        self.broker = broker
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.options: SinkOptions = parse_sink_options(
            {**broker.options, **given, "topic": topic, "deliveryGuarantee": "exactly-once"}
        )
        self.name = f"{uuid.uuid4().hex}/{topic}"
        self.run = "run"

    def attempt(self, batch: int, task: int = 0) -> Write:
        return Write(sink=self.name, task=task, batch=batch)

    def task(self, batch: int, task: int = 0) -> TransactionalTask:
        return TransactionalTask(
            self.options.client, self.attempt(batch, task), self.topic, self.run
        )

    def write(self, values: Sequence[str], batch: int, task: int = 0) -> int:
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})
        return write_in_transaction(
            [rows], _VALUE, self.options, self.attempt(batch, task), self.run
        )

    def complete(self, batch: int, tasks: int = 1) -> None:
        completed = CompletedBatch(batch=batch, tasks=tasks)
        record_completed(self.options.client, self.name, self.topic, completed)

    def record(self, completed: CompletedBatch) -> None:
        """Write a record over any other."""
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": batches_id(self.name)}
        )
        metadata = write_completed(completed.tasks)
        place = TopicPartition(self.topic, 0, completed.batch, metadata=metadata)
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def committed(self) -> list[str]:
        """Return the values that a reader of committed records gets, up to the end of the log: it
        waits for open transactions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=10)
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[str] = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            message: Any = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                if message.offset() >= end:
                    break
                continue
            found.append(message.value().decode())
        else:
            raise AssertionError("a transaction is open")
        consumer.close()
        return found


@pytest.fixture
def sink(kafka_broker: KafkaBroker, topics: KafkaTopics) -> Sink:
    return Sink(kafka_broker, topics.create(1))


def _send(task: TransactionalTask, topic: str, *values: str) -> None:
    rows = rows_of(pa.RecordBatch.from_pydict({"value": list(values)}), _VALUE, topic)
    task.add(rows)
    if task.writes:
        for row in rows:
            task.producer.send(*row)


def _failure(task: TransactionalTask) -> SspError:
    with pytest.raises(SspError) as caught, task:
        task.commit()
    return caught.value


def test_a_batch_that_runs_again_writes_nothing_twice(sink: Sink) -> None:
    for attempt in range(2):
        assert sink.write(["a", "b"], 0) == 2
        assert sink.write(["c"], 0, task=1) == 1
        if attempt:
            sink.complete(0, tasks=2)
    for _ in range(2):
        sink.complete(0, tasks=2)
        assert sink.write(["d"], 1) == 1
        assert sink.write([], 1, task=1) == 0
    assert sink.write(["e"], 1, task=2) == 1
    assert sorted(sink.committed()) == ["a", "b", "c", "d", "e"]


def test_batches_may_follow_at_once(sink: Sink) -> None:
    """Brokers are still ending a transaction when the next one reads its offset. Every
    third batch is that of another process, which has not the clients of this one."""
    for batch in range(20):
        assert sink.write([str(batch)], batch) == 1
        sink.complete(batch)
        if batch % 3 == 0:
            transactions._clients.clear()
    assert sink.committed() == [str(batch) for batch in range(20)]


def _write_in_two_processes(sink: Sink) -> None:
    """Write `a` in batch 0, and `b` in batch 1 by another process; the first has kept its
    client."""
    sink.write(["a"], 0)
    sink.complete(0)
    kept = dict(transactions._clients)
    transactions._clients.clear()
    sink.write(["b"], 1)
    transactions._clients.clear()
    transactions._clients.update(kept)


def test_a_kept_client_reads_nothing_and_is_ended_by_any_other_attempt(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_in_two_processes(sink)
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_read_offset", None)
        with pytest.raises(ServiceUnavailableError):
            sink.write(["b"], 1)
    sink.write(["b"], 1)  # compared only
    sink.complete(1)
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_read_offset", None)
        sink.write(["c"], 2)
    assert sink.committed() == ["a", "b", "c"]


def test_another_run_does_not_use_the_clients_of_an_earlier_one(sink: Sink) -> None:
    """Another process has written the batch since, and only the record of it was lost."""
    _write_in_two_processes(sink)
    sink.run = "another run"
    assert sink.write(["b"], 1) == 1  # compared only
    assert sink.committed() == ["a", "b"]


def test_rows_that_differ_from_the_committed_ones_are_an_error_and_not_written(sink: Sink) -> None:
    sink.write(["a", "b"], 0)
    sink.write(["b", "a"], 0)  # A shuffle is read in any order.
    for values in (["a"], ["a", "c"], ["a", "b", "b"], []):
        with pytest.raises(IncompatibleStateError):
            sink.write(values, 0)
    assert sink.committed() == ["a", "b"]


def test_a_later_attempt_ends_an_earlier_one(sink: Sink) -> None:
    """Whether the earlier one comes back before or after the later one has committed."""
    first, second = sink.task(0), sink.task(0)
    first.begin()
    _send(first, sink.topic, "a", "b")
    second.begin()
    assert "another attempt" in _failure(first).found
    _send(second, sink.topic, "a", "b")
    assert second.commit() == 2
    assert sink.committed() == ["a", "b"]


def test_rows_of_a_task_that_died_are_not_visible_and_do_not_block_readers(sink: Sink) -> None:
    dead = sink.task(0)
    dead.begin()
    _send(dead, sink.topic, "a")
    dead.producer.flush()
    assert sink.write(["a", "b"], 0) == 2
    assert sink.committed() == ["a", "b"]


def _send_until_it_fails(task: TransactionalTask, topic: str) -> None:
    for _ in range(200):
        _send(task, topic, "b")
        task.producer.flush()
        time.sleep(0.05)


def test_rows_that_are_sent_after_the_end_of_a_transaction_explain_it(sink: Sink) -> None:
    first, second = sink.task(0), sink.task(0)
    first.begin()
    _send(first, sink.topic, "a")
    first.producer.flush()
    second.begin()
    with pytest.raises(ServiceUnavailableError), first:
        _send_until_it_fails(first, sink.topic)


def test_a_topic_that_was_expanded_is_written_to_all_its_partitions(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    sink = Sink(kafka_broker, topics.create(1))
    values = [str(number) for number in range(100)]
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})
    for batch in range(2):
        # The value is the key, too.
        columns = SinkColumns(key=0, value=0)
        write_in_transaction([rows], columns, sink.options, sink.attempt(batch), sink.run)
        sink.complete(batch)
        if batch == 0:
            topics.expand(sink.topic, 4)
    assert 100 < len(sink.committed()) < 150


def test_a_missing_marker_topic_is_named(sink: Sink) -> None:
    task = TransactionalTask(sink.options.client, sink.attempt(0), "no-such-topic", sink.run)
    with pytest.raises(StreamNotFoundError) as caught:
        task.begin()
    assert "markerTopic" in caught.value.subject
    assert sink.committed() == []


def test_a_missing_marker_topic_is_not_created() -> None:
    """Where brokers create topics that producers ask for."""
    with KafkaBroker(settings={"auto.create.topics.enable": "true"}) as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers}
        with KafkaTopics(options) as topics:
            sink = Sink(broker, topics.create(1))
            task = TransactionalTask(
                sink.options.client, sink.attempt(0), "no-such-topic", sink.run
            )
            with pytest.raises(StreamNotFoundError):
                task.begin()
        assert "no-such-topic" not in AdminClient(options).list_topics(timeout=10).topics


@pytest.mark.long
def test_another_coordinator_takes_over() -> None:
    """The broker that coordinates the sink's groups and transactions stops between two batches, and
    is suspended. Spark runs a task again that fails meanwhile."""
    with KafkaBrokers() as brokers:
        sink = Sink(brokers, _replicated(brokers), kafka_delivery_timeout_ms="60000")
        written = 0
        for fault in ("stop", "freeze"):
            for number in brokers.numbers:
                with brokers.away(number, fault):
                    _as_spark_does(partial(sink.write, [str(written)], written))
                    _as_spark_does(partial(sink.complete, written))
                    written += 1
        assert sink.committed() == [str(number) for number in range(written)]


def _as_spark_does(call: Callable[[], object]) -> None:
    for attempt in range(4):
        try:
            call()
            return
        except ServiceUnavailableError:
            assert attempt < 3


def _replicated(brokers: KafkaBrokers) -> str:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    topic = NewTopic("rows", num_partitions=1, replication_factor=3)
    admin.create_topics([topic])["rows"].result()
    return "rows"


def test_lost_or_foreign_markers_are_errors(sink: Sink, kafka_broker: KafkaBroker) -> None:
    sink.write(["a"], 0)
    sink.complete(0)
    sink.write(["b"], 1)
    sink.complete(1)
    sink.complete(0)  # of a driver that was replaced
    refused = 0
    with pytest.raises(IncompatibleStateError):
        sink.write(["a"], 0)  # an older checkpoint
    with pytest.raises(IncompatibleStateError):
        sink.write(["d"], 3)  # batch 2 was written without markers
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for group in (task_id(sink.name, 0), batches_id(sink.name)):
        for future in admin.delete_consumer_groups([group]).values():
            future.result()
        with pytest.raises(IncompatibleStateError):
            sink.write(["c"], 2)
        refused += 1
    assert (refused, sink.committed()) == (2, ["a", "b"])


def test_a_record_that_goes_back_refuses_no_task(sink: Sink) -> None:
    """As one of a driver that was paused, which is written late."""
    for task in range(2):
        sink.write([f"0/{task}"], 0, task=task)
    sink.complete(0, tasks=2)
    sink.write(["1/0"], 1)
    sink.complete(1)
    sink.record(CompletedBatch(batch=0, tasks=2))
    for task in range(3):
        sink.write([f"2/{task}"], 2, task=task)
    sink.complete(2, tasks=3)
    assert sorted(sink.committed()) == ["0/0", "0/1", "1/0", "2/0", "2/1", "2/2"]


def test_a_batch_with_fewer_tasks_than_its_first_attempt_is_an_error_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in range(4):
        sink.write([f"0/{task}"], 0, task=task)
    sink.complete(0, tasks=4)
    sink.write(["b"], 1, task=2)
    sink.write([], 1, task=3)
    for task, row in enumerate(["a", "b"]):  # the attempt with two tasks
        sink.write([row], 1, task=task)
    plain, lost = transactions._commit, [KafkaException(KafkaError(KafkaError._TIMED_OUT))]

    def losing_an_answer(*given: Any) -> None:
        plain(*given)
        if lost:
            raise lost.pop()

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_commit", losing_an_answer)
        with pytest.raises(IncompatibleStateError) as caught:
            sink.complete(1, tasks=2)
    assert caught.value.found.startswith("rows of task 2, ")
    assert not lost
    sink.complete(1, tasks=2)
    sink.write(["c"], 2)
    sink.complete(2, tasks=1)
    assert sorted(sink.committed()) == [*(f"0/{task}" for task in range(4)), "a", "b", "b", "c"]


def test_a_transaction_that_the_brokers_abort_is_named(
    kafka_broker: KafkaBroker, topics: KafkaTopics
) -> None:
    options = {
        "kafka_transaction_timeout_ms": "1000",
        "kafka_delivery_timeout_ms": "1000",
    }
    sink = Sink(kafka_broker, topics.create(1), **options)
    task = sink.task(0)
    task.begin()
    _send(task, sink.topic, "a")
    task.producer.flush()
    time.sleep(13)  # Brokers look for such transactions every ten seconds.
    assert "transaction.timeout.ms" in _failure(task).next_step
    assert sink.committed() == []
