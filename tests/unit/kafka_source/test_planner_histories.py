"""Whole histories of a query, from what brokers answer on: runs to the tip and restarts among them,
stale brokers, partitions that come while ends are being listed. Each record is read once, in the
order of its key, by the task of its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.grouping.fixed_tasks import PartitionCountError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.topic import Subscribe
from spark_ssp.kafka_source.options.parse import parse_options
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, Read, kafka_options
from tests.support.kafka.topics import Record

TOPICS = ("clicks", "orders")
KEYS = range(4)


@dataclass
class World:
    """Producers that number their records, one for each topic and key. `known` is the number of
    partitions that a producer knows of."""

    kafka: FakeKafka = field(default_factory=FakeKafka)
    known: dict[tuple[str, int], int] = field(default_factory=dict)
    numbered: int = 0
    arriving: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kafka.meanwhile = self.meanwhile

    def put(self, topic: str, key: int) -> None:
        count = self.known.setdefault((topic, key), len(self.kafka.topics[topic].logs))
        record = Record(
            key=b"%d" % key,
            value=b"%d" % self.numbered,
            partition=key % count,
            time_ms=self.numbered // 3,
        )
        self.kafka.put(topic, [record])
        self.numbered += 1

    def learn(self, topic: str, key: int) -> None:
        self.known[topic, key] = len(self.kafka.topics[topic].logs)

    def meanwhile(self) -> None:
        """While an answer is under way, a producer notices an expansion."""
        if self.arriving:
            topic, key = self.arriving.pop()
            self.put(topic, key)
            self.learn(topic, key)
            self.put(topic, key)

    def go_stale(self, answer: Mapping[StreamName, TopicDescription]) -> None:
        """The next answer is an old one; never so many in a row that it counts as the truth."""
        if len(self.kafka.descriptions) < 2:
            self.kafka.descriptions.append(answer)

    def describe_error(self) -> Mapping[StreamName, TopicDescription]:
        calls, meanwhile = len(self.kafka.calls), self.kafka.meanwhile
        self.kafka.meanwhile = None
        answer = self.kafka.describe(Subscribe(topics=tuple(map(StreamName, TOPICS))))
        del self.kafka.calls[calls:]
        self.kafka.meanwhile = meanwhile
        return answer


topics = st.sampled_from(TOPICS)
keys = st.sampled_from(KEYS)
arrivals = st.lists(st.tuples(topics, keys), max_size=6)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(topics, keys), max_size=20)),
        st.tuples(st.just("expand"), st.tuples(topics, st.integers(2, 3))),
        st.tuples(st.just("learn"), st.tuples(topics, keys)),
        st.tuples(st.just("batch"), arrivals),
        st.tuples(st.just("pass time"), st.none()),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("to the tip"), arrivals),
        st.tuples(st.just("stale"), st.none()),
    ),
    max_size=20,
)


def _act(world: World, query: FakeQuery, action: str, detail: object) -> list[Read]:
    """What the batches read."""
    read: list[Read] = []
    match action, detail:
        case "put", list(pairs):
            for topic, key in pairs:
                world.put(topic, key)
        case "expand", (str(topic), int(factor)):
            count = len(world.kafka.topics[topic].logs)
            if count * factor <= 24:
                stale = world.describe_error()
                world.kafka.expand(topic, count * factor)
                if factor == 3:
                    world.go_stale(stale)
        case "learn", (str(topic), int(key)):
            world.learn(topic, key)
        case "batch", list(pairs):
            world.arriving = list(pairs)
            read.append(query.batch() or [])
        case "pass time", None:
            query.pass_time()
        case "restart", None:
            query.restart()
        case "to the tip", list(pairs):
            query.restart()
            query.planner.stop_at_latest()
            world.arriving = list(pairs)
            read += _to_the_end(query)
            query.restart()
        case "stale", None:
            world.go_stale({})
    return read


def _to_the_end(query: FakeQuery) -> list[Read]:
    read = []
    while (batch := query.batch()) is not None:
        read.append(batch)
        assert len(read) < 1_000
    return read


@given(
    st.fixed_dictionaries({topic: st.integers(1, 3) for topic in TOPICS}),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 3),
    st.booleans(),
    actions,
)
@example(
    {"clicks": 1, "orders": 1},
    None,
    None,
    False,
    [("expand", ("clicks", 3)), ("put", [("clicks", 1)])],
)
@example(  # Two generations are unread, and a limit admits a part of one.
    {"clicks": 1, "orders": 1},
    4,
    None,
    False,
    [
        ("put", [("clicks", 1)] * 6),
        ("expand", ("clicks", 2)),
        ("learn", ("clicks", 1)),
        ("put", [("clicks", 1)] * 6),
    ],
)
def test_each_record_is_read_once_and_in_order_by_the_task_of_its_key(
    counts: dict[str, int],
    limit: int | None,
    tasks: int | None,
    aligned: bool,
    script: list[tuple[str, object]],
) -> None:
    world = World()
    for topic, count in counts.items():
        world.kafka.create(count, name=topic)
    options = {"subscribe": ",".join(TOPICS)}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    if tasks is not None:
        options["tasks"] = str(tasks)
    if aligned:
        options["alignBatches"] = "true"
    query = FakeQuery(world.kafka, kafka_options(**options))
    batches: list[Read] = [query.batch() or []]
    for action, detail in script:
        batches += _act(world, query, action, detail)
    world.arriving = []
    world.kafka.descriptions.clear()  # An old answer would only put it off until the next look.
    query.pass_time()
    batches += _to_the_end(query)
    _check(world, batches)


def _check(world: World, batches: list[Read]) -> None:
    read: dict[str, list[tuple[str, bytes, int]]] = {}
    for batch in batches:
        for task, one, start, end in batch:
            for record in world.kafka.log(one).records[start:end]:
                assert record.key is not None
                assert record.value is not None
                read.setdefault(task, []).append((one.stream, record.key, int(record.value)))
    everything = sorted(number for own in read.values() for *_, number in own)
    assert everything == list(range(world.numbered))
    owner: dict[tuple[str, bytes], str] = {}
    last: dict[tuple[str, bytes], int] = {}
    for task, own in read.items():
        for topic, key, number in own:
            assert owner.setdefault((topic, key), task) == task
            assert last.get((topic, key), -1) < number
            last[topic, key] = number


# --- Expansions to counts that are no multiple ----------------------------------------------------

LIKE_SPARK = {
    "kafka.bootstrap.servers": "broker:9092",
    "subscribe": "orders",
    "startingOffsets": "earliest",
}

growth = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, 23), min_size=1, max_size=12)),
        st.tuples(st.just("grow"), st.integers(1, 6)),
        st.tuples(st.just("look"), st.none()),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=16,
)


@dataclass
class Growing:
    """One topic that is expanded to any count, its query, and what lies in the topic: for each
    record its key and the count that decided on its partition."""

    kafka: FakeKafka
    query: FakeQuery
    like_spark: FakeQuery
    """With no option about tasks: any count is right for it."""
    put: list[tuple[int, int]] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    read_like_spark: list[Read] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.kafka.topics["orders"].logs)

    def put_keys(self, keys: list[int], topic: str = "orders") -> None:
        count = len(self.kafka.topics[topic].logs)
        for key in keys:
            record = Record(key=b"%d" % key, value=b"%d" % len(self.put), partition=key % count)
            self.kafka.put(topic, [record])
            self.put.append((key, count))

    def look(self) -> None:
        self.like_spark.pass_time()
        self.read_like_spark += _to_the_end(self.like_spark)
        assert self.owners(self.read_like_spark).keys() == set(range(len(self.put)))
        self.query.pass_time()
        self.read += _to_the_end(self.query)

    def owners(self, read: list[Read]) -> dict[int, str]:
        """The task of each record, by its number; each is read once."""
        found = [
            (int(record.value or b""), task)
            for batch in read
            for task, one, start, end in batch
            for record in self.kafka.log(one).records[start:end]
        ]
        assert len(found) == len({number for number, _ in found})
        return dict(found)


@given(st.integers(1, 4), growth)
@example(4, [("grow", 2), ("put", [*range(24)]), ("look", None)])
@example(4, [("grow", 2), ("put", [*range(24)]), ("grow", 2), ("put", [*range(24)])])
def test_a_count_that_is_no_multiple_is_an_error_if_it_is_seen_and_else_parts_its_own_records_only(
    first: int, script: list[tuple[str, object]]
) -> None:
    kafka = FakeKafka()
    kafka.create(first, name="orders")
    world = Growing(kafka, FakeQuery(kafka), FakeQuery(kafka, parse_options(LIKE_SPARK)))
    world.look()
    seen = first
    for action, detail in [*script, ("look", None)]:
        match action, detail:
            case "put", list(keys):
                world.put_keys(keys)
            case "grow", int(more):
                kafka.expand("orders", world.count + more)
            case "restart", None:
                world.query.restart()
            case "look", None if world.count % seen == 0:
                world.look()
                seen = world.count
            case "look", None:
                _check_error_and_remedies(world)
                return
    owners = world.owners(world.read)
    assert owners.keys() == set(range(len(world.put)))
    for number, (key, count) in enumerate(world.put):
        if count % first == 0:
            assert owners[number] == f"Partition {key % first}"


def _check_error_and_remedies(world: Growing) -> None:
    before = world.query.offset
    with pytest.raises(PartitionCountError):
        world.look()
    assert world.query.offset == before
    # The query keeps nothing by task: each record is read once all the same.
    world.query.restart(kafka_options(onPartitionCountChange="regroup"))
    world.look()
    assert world.owners(world.read).keys() == set(range(len(world.put)))
    # It does: all records in a new topic, each key in one partition and one task.
    world.kafka.create(world.count, name="copied")
    keys = [key for key, _ in world.put]
    world.put.clear()
    world.put_keys(keys, "copied")
    query = FakeQuery(world.kafka, kafka_options(subscribe="copied"))
    owners = world.owners(_to_the_end(query))
    for number, key in enumerate(keys):
        assert owners[number] == f"Partition {key % world.count}"
