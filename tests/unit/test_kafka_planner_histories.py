"""Whole histories of a query, from what brokers answer on: runs to the tip and restarts among them,
stale brokers, partitions that come while ends are being listed. Each record is read once, in the
order of its key, by the task of its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from kafka_source.model import Subscribe
from kafka_source.service import TopicDescription
from task_grouping.identifiers import StreamName
from tests.support.kafka_driving import FakeQuery, Read, kafka_options
from tests.support.kafka_fake import FakeKafka
from tests.support.kafka_topics import Record

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
        record = Record(key=b"%d" % key, value=b"%d" % self.numbered, partition=key % count)
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

    def described(self) -> Mapping[StreamName, TopicDescription]:
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
                stale = world.described()
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
            query.planner.stop_at_tip()
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
    actions,
)
@example(
    {"clicks": 1, "orders": 1}, None, None, [("expand", ("clicks", 3)), ("put", [("clicks", 1)])]
)
def test_each_record_is_read_once_and_in_order_by_the_task_of_its_key(
    counts: dict[str, int], limit: int | None, tasks: int | None, script: list[tuple[str, object]]
) -> None:
    world = World()
    for topic, count in counts.items():
        world.kafka.create(count, name=topic)
    options = {"subscribe": ",".join(TOPICS)}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    if tasks is not None:
        options["tasks"] = str(tasks)
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
