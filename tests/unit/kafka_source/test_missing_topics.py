"""Topics that are hidden, denied, deleted and created again while a query with a pattern reads.
Each record is read once, unless its topic is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.common.errors import AccessError, DataLossError, IncompatibleStateError
from spark_ssp.kafka_source.model.offset import Offset
from spark_ssp.kafka_source.model.ranges import plan_ranges
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import ssp

NAMES = ("orders", "orders-eu", "orders-us")
PATTERN = kafka_options(subscribePattern="^orders", failOnDataLoss="false")
ACTIONS = (
    *("put", "hide", "deny", "show", "delete", "create"),
    *("look", "batch", "restart", "to the tip"),
)
Records = set[tuple[str, int, int]]
"""The id of the topic, the partition and the offset."""


@dataclass
class History:
    """A cluster, a query, and the records read. A topic's id identifies one creation of it."""

    kafka: FakeKafka = field(default_factory=FakeKafka)
    options: KafkaOptions = PATTERN
    read: Records = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    """Ids of deleted topics."""
    query: FakeQuery = field(init=False)

    def __post_init__(self) -> None:
        for name in NAMES:
            self.kafka.create(2, name=name)
            self.kafka.fill(name, 2, 2)
        self.query = FakeQuery(self.kafka, self.options)

    def batch(self) -> bool:
        """Read a batch. Return whether there was one."""
        start = self.query.offset
        if self.query.batch() is None:
            return False
        end = self.query.offset
        assert isinstance(start, Offset)
        assert isinstance(end, Offset)
        for task in plan_ranges(start, end):
            for part in task.partitions:
                records = {
                    (str(part.topic_id), part.ssp.partition, offset)
                    for offset in range(part.start, part.end)
                }
                assert not records & self.read, "read a second time"
                self.read |= records
        return True

    def act(self, action: str, name: str) -> None:
        kafka, exists = self.kafka, name in self.kafka.topics
        match action:
            case "put" if exists:
                kafka.fill(name, 1, 2)
            case "hide":
                kafka.hidden.add(name)
            case "deny":
                kafka.denied.add(name)
            case "show":
                kafka.hidden.discard(name)
                kafka.denied.discard(name)
            case "delete" if exists:
                self.gone.add(str(kafka.topics[name].topic_id))
                kafka.delete(name)
            case "create" if not exists:
                kafka.create(2, name=name)
            case "look":
                self.query.pass_time()
                self.batch()
            case "batch":
                self.batch()
            case "restart":
                self.query.restart()
            case "to the tip":
                self.query.restart()
                self.query.planner.stop_at_latest()
                while self.batch():
                    pass
                self.query.restart()

    def existing(self) -> Records:
        return {
            (str(topic.topic_id), number, offset)
            for topic in self.kafka.topics.values()
            for number, log in enumerate(topic.logs)
            for offset in range(len(log.records))
        }

    def finish(self) -> None:
        """Show every topic, read all that is left, and compare."""
        self.kafka.hidden.clear()
        self.kafka.denied.clear()
        self.query.pass_time()
        while self.batch():
            pass
        assert self.existing() <= self.read


actions = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.sampled_from(NAMES),
    ),
    max_size=25,
)


@given(actions)
@example([("look", "orders"), ("hide", "orders"), ("look", "orders"), ("restart", "orders")])
@example([("look", "orders"), ("deny", "orders"), ("look", "orders"), ("to the tip", "orders")])
@example([("batch", "orders"), ("deny", "orders"), ("put", "orders"), ("batch", "orders")])
def test_a_topic_that_comes_back_continues_where_it_was(script: list[tuple[str, str]]) -> None:
    history = History()
    history.batch()
    tasks = _tasks(history)
    for action, name in script:
        history.act(action, name)
    history.finish()
    if not history.gone:
        assert _tasks(history) == tasks


def _tasks(history: History) -> object:
    assert isinstance(history.query.offset, Offset)
    return history.query.offset.assignment


@pytest.mark.parametrize(
    ("state", "error"), [("hide", DataLossError), ("deny", AccessError), ("delete", DataLossError)]
)
def test_a_missing_topic_is_an_error_unless_tolerated(state: str, error: type[Exception]) -> None:
    history = History(options=kafka_options(subscribePattern="^orders"))
    history.batch()
    before = history.query.offset
    history.act(state, "orders")
    history.query.pass_time()
    with pytest.raises(error, match="topic orders"):
        history.batch()
    assert history.query.offset == before
    if state != "delete":
        history.query.restart()
        history.act("put", "orders")
        history.finish()


def test_what_is_missing_is_logged_and_counted_once_in_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History()
    history.batch()
    history.act("hide", "orders")
    for _ in range(3):
        history.act("look", "")
    assert history.query.planner.losses == 1
    assert caplog.text.count("missing from the brokers' answers: topic orders ") == 1
    for count, name in enumerate(NAMES[1:], start=2):
        history.act("hide", name)
        history.act("look", "")
        assert history.query.planner.losses == count
        assert caplog.text.count(f"missing from the brokers' answers: topic {name} ") == 1
    history.act("show", "orders")
    history.act("look", "")
    assert history.query.planner.losses == len(NAMES)
    assert caplog.text.count("no longer missing") == 1


# --- Topics that the user drops -------------------------------------------------------------------


def dropped(topics: str, **options: str) -> KafkaOptions:
    return kafka_options(dropTopics=topics, **options)


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"subscribePattern": "^orders"},
        {"subscribe": "orders-eu,orders-us"},
        {"assign": '{"orders-eu": [0, 1], "orders-us": [0, 1]}'},
    ],
)
def test_a_topic_that_is_dropped_leaves_the_checkpoint(
    deleted: bool, options: dict[str, str]
) -> None:
    history = History(options=kafka_options(subscribe=",".join(NAMES)))
    history.batch()
    history.kafka.fill("orders-eu", 1)
    if deleted:
        history.act("delete", "orders")
    history.query.restart(kafka_options(**options))
    if deleted or "subscribePattern" not in options:
        with pytest.raises(DataLossError) as caught:
            history.batch()
        assert "set dropTopics to orders" in caught.value.next_step
    history.query.restart(dropped("orders", **options))
    assert history.batch()
    assert isinstance(history.query.offset, Offset)
    assert list(history.query.offset.topics) == ["orders-eu", "orders-us"]
    history.query.restart()  # The option may stay set.
    history.act("put", "orders-us")
    assert history.batch()
    assert not history.batch()


def test_dropping_reads_no_record_twice() -> None:
    """The first offset of a query contains where its partitions begin."""
    history = History(options=kafka_options(subscribe=",".join(NAMES)))
    history.batch()
    history.query.restart(dropped("orders", subscribe="orders-eu,orders-us"))
    assert history.batch()
    assert not history.batch()


def test_a_batch_that_was_planned_before_is_read_without_the_dropped_topic() -> None:
    history = History(options=kafka_options(subscribe=",".join(NAMES)))
    start = history.query.offset
    end = history.query.planner.next_offset(start, None)
    assert end is not None
    history.query.restart(dropped("orders", subscribe="orders-eu,orders-us"))
    ranges = history.query.planner.ranges(start, end)
    assert _streams(ranges) == {"orders-eu", "orders-us"}


def test_a_task_keeps_its_number_without_the_dropped_topic() -> None:
    """Sinks recognize the rows of a batch that runs again by the number of their task."""
    history = History(options=kafka_options(subscribe=",".join(NAMES), grouper="ssp"))
    start = history.query.offset
    end = history.query.planner.next_offset(start, None)
    assert end is not None
    planned = history.query.planner.ranges(start, end)
    options = dropped("orders", subscribe="orders-eu,orders-us", grouper="ssp")
    history.query.restart(options)
    again = history.query.planner.ranges(start, end)
    assert _streams(again) == {"orders-eu", "orders-us"}
    for before, after in zip(planned, again, strict=True):
        kept = [part for part in before.partitions if part.ssp.stream != "orders"]
        assert after.partitions == tuple(kept)
        assert (after.task, after.number) == (before.task, before.number)


def _streams(ranges: Sequence[object]) -> set[str]:
    return {part.ssp.stream for task in ranges for part in task.partitions}  # type: ignore[attr-defined]


def test_not_all_topics_can_be_dropped() -> None:
    history = History(options=kafka_options(subscribe="orders"))
    history.batch()
    history.query.restart(dropped("orders", subscribe="orders-eu"))
    with pytest.raises(IncompatibleStateError, match="every topic of the checkpoint: orders"):
        history.batch()


def test_a_topic_that_is_removed_from_the_options_leaves_with_a_warning_if_tolerated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History(options=kafka_options(subscribe=",".join(NAMES)))
    history.batch()
    history.query.restart(
        parse_options(
            {
                "kafka.bootstrap.servers": "broker:9092",
                "subscribe": "orders-eu,orders-us",
                "failOnDataLoss": "false",
            }
        )
    )
    assert history.batch()
    assert isinstance(history.query.offset, Offset)
    assert ssp("orders", 0) not in history.query.offset.positions
    assert "no longer among the topics to read" in caplog.text
