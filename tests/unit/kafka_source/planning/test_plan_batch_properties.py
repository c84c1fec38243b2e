"""What holds of every history of batches: exactly once, in order through expansions, replayable.

A small Kafka: producers put numbered records under keys, a key's partition is hash(key) mod count,
and a producer learns of an expansion when it likes. The query's driver lists ends, newest
partitions first, while records go on arriving; its tasks read the ranges in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import StreamName, WorkerId
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kafka_source.model.ranges import plan_ranges
from spark_ssp.kafka_source.model.topic import TopicId
from spark_ssp.kafka_source.planning.plan_batch import BatchRules
from spark_ssp.kafka_source.planning.rate_limit import ReadLimits
from spark_ssp.kafka_source.planning.topic_metadata import Metadata, PartitionOffsets, TopicMetadata
from tests.support.kafka.partitions import ssps
from tests.support.kafka.planning import Planned, planned

TOPICS = ("clicks", "orders")
KEYS = range(5)


@dataclass(slots=True)
class Topic:
    """Logs of (key, number) by partition; `known` is the count that each key's producer knows."""

    logs: list[list[tuple[int, int]]]
    known: dict[int, int] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)

    def put(self, key: int, number: int) -> None:
        count = self.known.setdefault(key, len(self.logs))
        self.logs[key % count].append((key, number))


@dataclass(slots=True)
class World:
    topics: dict[str, Topic]
    numbered: int = 0

    def put(self, topic: str, key: int) -> None:
        self.topics[topic].put(key, self.numbered)
        self.numbered += 1

    def expand(self, topic: str, factor: int) -> None:
        logs = self.topics[topic].logs
        self.topics[topic].history.append(len(logs))
        logs.extend([] for _ in range(len(logs) * (factor - 1)))

    def learn(self, topic: str, key: int) -> None:
        """The key's producer notices how many partitions there are."""
        self.topics[topic].known[key] = len(self.topics[topic].logs)

    def found(self, meanwhile: Iterator[int]) -> Metadata:
        """The ends, newest generation first; after each generation more records arrive."""
        ends: dict[tuple[str, int], int] = {}
        for name, topic in sorted(self.topics.items()):
            borders = [0, *topic.history, len(topic.logs)]
            for first, last in zip(borders[-2::-1], borders[:0:-1], strict=True):
                for number in range(first, last):
                    ends[name, number] = len(topic.logs[number])
                arriving = next(meanwhile, None)
                if arriving is not None:  # A producer notices the expansion just now.
                    self.put(name, arriving)
                    self.learn(name, arriving)
                    self.put(name, arriving)
        return {
            StreamName(name): TopicMetadata(
                topic_id=TopicId(name),
                partitions={
                    number: PartitionOffsets(earliest=0, end=ends[name, number])
                    for number in range(len(topic.logs))
                },
            )
            for name, topic in self.topics.items()
        }


@dataclass(slots=True)
class Reading:
    """What the tasks have read: by task, (topic, key, number) in order."""

    offset: Offset = BEFORE_FIRST_BATCH
    tasks: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)

    def run(self, world: World, plan: Planned) -> None:
        for task_range in plan.ranges:
            for part in task_range.partitions:
                log = world.topics[part.ssp.stream].logs[part.ssp.partition]
                assert part.end > part.start
                self.tasks.setdefault(task_range.task, []).extend(
                    (part.ssp.stream, key, number) for key, number in log[part.start : part.end]
                )
        self.offset = plan.end


topics = st.sampled_from(TOPICS)
keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=8)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), topics, keys),
        # Producers that notice an expansion at once; others go on as before.
        st.tuples(st.just("expand"), topics, keys),
        st.tuples(st.just("learn"), topics, keys),
        st.tuples(
            st.just("batch"),
            st.none() | st.integers(1, 12),
            st.just([]) | keys,
        ),
    ),
    max_size=16,
)
groupers: st.SearchStrategy[Grouper] = st.one_of(
    st.builds(GroupByPartition, tasks=st.none() | st.integers(1, 3)),
    st.builds(GroupBySystemStreamPartition),
    st.builds(AllSspToSingleTask, worker=st.just(WorkerId("w"))),
)


def _play(
    grouper: Grouper, counts: dict[str, int], script: list[tuple[str, object, object]]
) -> tuple[World, Reading]:
    """Act out `script`, then read everything that is there."""
    world = World({name: Topic([[] for _ in range(count)]) for name, count in counts.items()})
    rules = BatchRules(grouping=FixedTasks(grouper=grouper))
    reading = Reading()
    _batch(world, reading, rules, None, iter(()))
    for action, what, how in script:
        match action, what, how:
            case "put", str(topic), list(given_keys):
                for key in given_keys:
                    world.put(topic, key)
            case "expand" | "learn", str(topic), list(given_keys):
                if action == "expand" and len(world.topics[topic].logs) < 20:
                    world.expand(topic, 2 + given_keys[0] % 2)
                for key in given_keys:
                    world.learn(topic, key)
            case "batch", limit, list(arriving):
                _batch(world, reading, rules, limit, iter(arriving))
    _batch(world, reading, rules, None, iter(()))
    return world, reading


def _batch(
    world: World,
    reading: Reading,
    rules: BatchRules,
    limit: object,
    arriving: Iterator[int],
) -> None:
    offsets = limit if isinstance(limit, int) else None
    start = reading.offset
    found = world.found(arriving)
    plan = planned(start, found, replace(rules, limits=ReadLimits(max_offsets=offsets)))
    _check(start, found, plan, offsets)
    reading.run(world, plan)


def _check(start: Offset, found: Metadata, plan: Planned, limit: int | None) -> None:
    """A batch is planned again from its two offsets, moves forward, and keeps to its limit."""
    texts = [json.dumps(encode(offset)) for offset in (start, plan.end)]
    again = [decode(json.loads(text)) for text in texts]
    assert again == [start, plan.end]
    assert plan_ranges(again[0], again[1]) == plan.ranges
    assert (texts[0] == texts[1]) is (plan.end is start)
    read = [part for task_range in plan.ranges for part in task_range.partitions]
    for part in read:
        assert part.end <= found[part.ssp.stream].partitions[part.ssp.partition].end
    if limit is not None:
        assert sum(part.end - part.start for part in read) <= limit + len(read)
        backlog = any(
            found[ssp.stream].partitions[ssp.partition].end > position
            for ssp, position in start.positions.items()
        )
        assert not backlog or read
    _check_generations(found, plan)


def _check_generations(found: Metadata, plan: Planned) -> None:
    """Whatever advanced had nothing left to read in the older partitions of its task and topic."""
    assignment = plan.end.assignment
    for task_range in plan.ranges:
        for part in task_range.partitions:
            for older in assignment.tasks[task_range.task]:
                if older.stream != part.ssp.stream:
                    continue
                if assignment.generation(older) < assignment.generation(part.ssp):
                    end = found[older.stream].partitions[older.partition].end
                    assert plan.end.positions[older] == end


counted = st.fixed_dictionaries({name: st.integers(1, 3) for name in TOPICS})


# Two expansions between two batches: key 3 goes from 0 by 1 to 3.
AT_ONCE: list[tuple[str, object, object]] = [
    ("expand", "orders", [4, 3]),
    ("put", "orders", [3] * 6),
    ("expand", "orders", [4, 3]),
    ("put", "orders", [3] * 6),
    ("batch", 4, []),
    ("batch", 4, []),
]


@given(groupers, counted, actions)
@example(GroupByPartition(tasks=None), {"clicks": 1, "orders": 1}, AT_ONCE)
def test_every_record_is_read_once_by_the_task_that_owns_its_key_and_in_order(
    grouper: Grouper, counts: dict[str, int], script: list[tuple[str, object, object]]
) -> None:
    """A key's records are in order although its producer switches whenever it likes, since it
    switches at once: from one record to the next."""
    world, reading = _play(grouper, counts, script)
    everything = sorted(
        (name, key, number)
        for name, topic in world.topics.items()
        for log in topic.logs
        for key, number in log
    )
    assert sorted(one for own in reading.tasks.values() for one in own) == everything
    owner: dict[tuple[str, int], str] = {}
    last: dict[tuple[str, int], int] = {}
    for task, own in reading.tasks.items():
        for name, key, number in own:
            assert owner.setdefault((name, key), task) == task
            assert last.get((name, key), -1) < number
            last[name, key] = number
    _check_tasks(grouper, counts, world, reading)


def _check_tasks(grouper: Grouper, counts: dict[str, int], world: World, reading: Reading) -> None:
    """The tasks at the end are those of the beginning."""
    beginning = FixedTasks(grouper=grouper).group(NO_ASSIGNMENT, ssps(counts))
    assert reading.offset.assignment.tasks.keys() == beginning.tasks.keys()
    for stream, history in reading.offset.assignment.counts.items():
        assert history[-1] == len(world.topics[stream.stream].logs)
