"""A query and a store of assignments, in step: by example, and for any history of two queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.assignments.store import (
    AssignmentConflictError,
    AssignmentContradictionError,
    StoredAssignment,
    Version,
)
from spark_ssp.checkpoint.assignments.sync import AssignmentSync, Decision, decide
from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    Contradiction,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
    TaskAssignment,
    contradiction,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks, OnPartitionCountChange, PartitionCountError
from spark_ssp.grouping.identifiers import SystemStreamPartition, TaskName
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH
from tests.support.kafka.partitions import BY_PARTITION, grown, ssps, stream
from tests.support.kafka.planning import RULES, after, found, planned, read

REGROUP = replace(BY_PARTITION, on_count_change=OnPartitionCountChange.REGROUP)
BY_SSP = FixedTasks(grouper=GroupBySystemStreamPartition())


@dataclass(slots=True)
class Fake:
    """A store in memory. `meanwhile` happens once, after a read and before the write."""

    stored: StoredAssignment | None = None
    meanwhile: Callable[[], object] | None = None
    reads: int = 0
    written: list[TaskAssignment] = field(default_factory=list)
    uri: str = "s3://bucket/orders"

    def read(self) -> StoredAssignment | None:
        self.reads += 1
        return self.stored

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        if (self.stored.version if self.stored else None) != expected:
            raise AssignmentConflictError("s", found="a", expected="b", next_step="c")
        version = Version((expected or 0) + 1)
        self.stored = StoredAssignment(assignment=assignment, version=version)
        self.written.append(assignment)
        return version

    def close(self) -> None:
        self.uri = "closed"

    @property
    def counts(self) -> dict[str, tuple[int, ...]]:
        assert self.stored is not None
        return {name.stream: counts for name, counts in self.stored.assignment.counts.items()}


def holding(assignment: TaskAssignment) -> Fake:
    return Fake(StoredAssignment(assignment=assignment, version=Version(1)))


# --- By example -----------------------------------------------------------------------------------


def test_a_new_query_writes_what_it_groups() -> None:
    store = Fake()
    assert AssignmentSync(store, BY_PARTITION).previous(NO_ASSIGNMENT, ssps({"orders": 2})) == (
        NO_ASSIGNMENT
    )
    assert store.written == [grown("orders", 2)]


def test_a_new_query_takes_over_what_is_stored() -> None:
    store = holding(grown("orders", 2, 4))
    keeping = AssignmentSync(store, BY_PARTITION)
    previous = keeping.previous(NO_ASSIGNMENT, ssps({"orders": 8, "clicks": 1}))
    assert previous == grown("orders", 2, 4)
    assert store.counts == {"orders": (2, 4, 8), "clicks": (1,)}
    # It planned from there. Its checkpoint has it from now on.
    world = found({"orders": [5] * 8, "clicks": [5]})
    plan = planned(BEFORE_FIRST_BATCH, world, replace(RULES, stored=previous))
    assert store.written == [plan.end.assignment]
    assert set(read(plan)) == {"Partition 0", "Partition 1"}


def test_a_stream_that_a_running_query_finds_is_taken_over_as_well() -> None:
    store = holding(BY_PARTITION.group(grown("clicks", 1), ssps({"clicks": 4, "orders": 2})))
    start = after({"orders": [5, 5]})
    world = found({"orders": [5, 5], "clicks": [1, 1, 1, 1]})
    previous = AssignmentSync(store, BY_PARTITION).previous(
        start.assignment, ssps({"orders": 2, "clicks": 4})
    )
    plan = planned(start, world, replace(RULES, stored=previous))
    assert plan.end.assignment.counts[stream("clicks")] == (1, 2, 4)
    assert store.written == []


def test_the_store_is_asked_at_the_start_and_when_something_changes() -> None:
    store = holding(grown("orders", 2))
    keeping = AssignmentSync(store, BY_PARTITION)
    assert keeping.stored() == grown("orders", 2)
    for _ in range(3):
        keeping.previous(grown("orders", 2), ssps({"orders": 2}))
    assert (store.reads, store.written) == (1, [])
    keeping.previous(grown("orders", 2), ssps({"orders": 4}))
    keeping.previous(grown("orders", 2, 4), ssps({"orders": 4}))
    assert (store.reads, store.written) == (2, [grown("orders", 2, 4)])
    assert AssignmentSync(Fake(), BY_PARTITION).stored() == NO_ASSIGNMENT
    keeping.close()
    assert store.uri == "closed"


def test_another_query_may_have_seen_the_expansion_first() -> None:
    store = holding(grown("orders", 2, 4))
    keeping = AssignmentSync(store, BY_PARTITION)
    assert keeping.previous(grown("orders", 2), ssps({"orders": 2})) == grown("orders", 2)
    assert keeping.previous(grown("orders", 2), ssps({"orders": 4})) == grown("orders", 2)
    assert store.written == []


def test_a_new_query_that_sees_it_late_begins_with_what_it_sees() -> None:
    store = holding(grown("orders", 2, 4))
    previous = AssignmentSync(store, BY_PARTITION).previous(NO_ASSIGNMENT, ssps({"orders": 2}))
    assert previous == grown("orders", 2)
    assert store.written == []


def test_who_was_overtaken_looks_again() -> None:
    """Both are new; the other one saw the topic before it was expanded."""
    store = Fake()
    store.meanwhile = lambda: AssignmentSync(store, BY_PARTITION).previous(
        NO_ASSIGNMENT, ssps({"orders": 2, "clicks": 1})
    )
    previous = AssignmentSync(store, BY_PARTITION).previous(NO_ASSIGNMENT, ssps({"orders": 4}))
    assert previous == grown("orders", 2)
    assert store.counts == {"orders": (2, 4), "clicks": (1,)}


def test_a_writer_that_is_always_overtaken_gets_an_error_at_last() -> None:
    class Busy(Fake):
        def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
            raise AssignmentConflictError("s", found="a", expected="b", next_step="c")

    store = Busy()
    with pytest.raises(AssignmentConflictError):
        AssignmentSync(store, BY_PARTITION).previous(NO_ASSIGNMENT, ssps({"orders": 4}))
    assert store.reads == 50


def test_a_contradiction_names_the_store_both_sides_and_the_remedy() -> None:
    keeping = AssignmentSync(holding(grown("orders", 2, 4)), BY_PARTITION)
    with pytest.raises(AssignmentContradictionError) as caught:
        keeping.previous(grown("orders", 4), ssps({"orders": 4}))
    error = caught.value
    assert error.subject == "assignment store s3://bucket/orders"
    assert "orders, 2]: 'Partition 0' in the store, 'Partition 2' in this query" in error.found
    assert "another assignmentStore" in error.next_step
    assert "new checkpoint location" in error.next_step
    # Each of the remedies works.
    own, partitions, taken = grown("orders", 4), ssps({"orders": 4}), grown("orders", 2, 4)
    assert AssignmentSync(Fake(), BY_PARTITION).previous(own, partitions) == own
    assert AssignmentSync(holding(taken), BY_PARTITION).previous(NO_ASSIGNMENT, partitions) == taken


@pytest.mark.parametrize(
    ("stored", "own", "about"),
    [
        ((2,), (4,), "the task of SystemStreamPartition [kafka, orders, 2]"),
        ((4,), (2,), "the task of SystemStreamPartition [kafka, orders, 2]"),
        ((2, 4), (4, 8), "the task of SystemStreamPartition [kafka, orders, 2]"),
        ((2,), (3,), "the numbers of partitions of kafka/orders"),
        ((4,), (1, 3), "the task of SystemStreamPartition [kafka, orders, 1]"),
    ],
)
def test_a_contradiction_is_reported_before_it_occurs(
    stored: tuple[int, ...], own: tuple[int, ...], about: str
) -> None:
    found = decide(
        grown("orders", *own), grown("orders", *stored), ssps({"orders": own[-1]}), BY_PARTITION
    )
    assert isinstance(found, Contradiction)
    assert found.about == about


def test_another_grouper_is_a_contradiction_even_over_other_streams() -> None:
    store = holding(grown("orders", 2))
    with pytest.raises(AssignmentContradictionError, match="the grouper: 'partition' in the store"):
        AssignmentSync(store, BY_SSP).previous(NO_ASSIGNMENT, ssps({"clicks": 2}))


@pytest.mark.parametrize(
    ("fixed", "count", "error"),
    [(BY_PARTITION, 3, PartitionCountError), (BY_SSP, 2, IncompatibleStateError)],
)
def test_what_the_store_makes_impossible_names_the_store(
    fixed: FixedTasks, count: int, error: type[Exception]
) -> None:
    keeping = AssignmentSync(holding(grown("orders", 2)), fixed)
    for _ in range(2):
        with pytest.raises(error, match=r"s3://bucket/orders.*another assignmentStore"):
            keeping.previous(NO_ASSIGNMENT, ssps({"orders": count}))
        assert keeping.stored() == grown("orders", 2), "what is known makes no difference"
    # As it advises: a new checkpoint location, and another store with it.
    partitions = ssps({"orders": count})
    assert AssignmentSync(Fake(), fixed).previous(NO_ASSIGNMENT, partitions) == NO_ASSIGNMENT


def test_what_the_checkpoint_makes_impossible_does_not_name_the_store() -> None:
    both = BY_PARTITION.group(grown("orders", 2), ssps({"orders": 2, "clicks": 1}))
    keeping = AssignmentSync(holding(both), BY_PARTITION)
    with pytest.raises(PartitionCountError) as caught:
        keeping.previous(grown("orders", 2), ssps({"orders": 3}))
    assert "s3://" not in str(caught.value)


def test_a_query_that_regroups_replaces_its_streams() -> None:
    both = BY_PARTITION.group(grown("orders", 2), ssps({"orders": 2, "clicks": 1}))
    store = holding(both)
    AssignmentSync(store, REGROUP).previous(grown("orders", 2), ssps({"orders": 3}))
    assert store.counts == {"orders": (3,), "clicks": (1,)}
    by_ssp = replace(BY_SSP, on_count_change=OnPartitionCountChange.REGROUP)
    assert isinstance(decide(NO_ASSIGNMENT, both, ssps({"orders": 3}), by_ssp), Contradiction)
    alone = decide(NO_ASSIGNMENT, grown("orders", 2), ssps({"orders": 3}), by_ssp)
    assert isinstance(alone, Decision)
    assert alone.to_write == grown("orders", 3, fixed=by_ssp)


def test_without_partitions_nothing_is_written() -> None:
    assert decide(NO_ASSIGNMENT, NO_ASSIGNMENT, (), BY_PARTITION) == Decision(
        previous=NO_ASSIGNMENT
    )


# --- Any history of two queries -------------------------------------------------------------------

TOPICS = ("clicks", "orders", "views")
GROUPERS: tuple[Grouper, ...] = (
    GroupByPartition(),
    GroupByPartition(tasks=2),
    GroupBySystemStreamPartition(),
)


@dataclass(slots=True)
class Query:
    """What it reads, what its checkpoint has, how many partitions of each topic it saw last."""

    topics: frozenset[str]
    own: TaskAssignment = NO_ASSIGNMENT
    seen: dict[str, int] = field(default_factory=dict)
    keeping: AssignmentSync | None = None


@dataclass(slots=True)
class Pipeline:
    store: Fake
    fixed: FixedTasks
    draw: Callable[[st.SearchStrategy[int]], int]
    histories: dict[str, list[int]]
    owners: dict[SystemStreamPartition, TaskName] = field(default_factory=dict)

    def step(self, query: Query, *, restarted: bool, dies: bool) -> None:
        """A trigger of a query, which may see counts that are older, and die before Spark has its
        offset."""
        if query.keeping is None or restarted:
            query.keeping = AssignmentSync(self.store, self.fixed)
        for topic in query.topics:
            history = self.histories[topic]
            oldest = query.seen.get(topic, max(0, len(history) - 2))
            query.seen[topic] = self.draw(st.integers(oldest, len(history) - 1))
        counts = {topic: self.histories[topic][query.seen[topic]] for topic in query.topics}
        try:
            previous = query.keeping.previous(query.own, ssps(counts))
        except PartitionCountError:
            # It is new, and sees fewer partitions than were there at any other's start.
            stored = self.store.counts
            late = [name for name in counts if counts[name] < stored.get(name, (0,))[0]]
            assert any(stream(name) not in query.own.counts for name in late)
            return
        assignment = self.fixed.group(previous, ssps(counts))
        for one, task in assignment.owners().items():
            # Every partition has one task, in all queries and for ever.
            assert self.owners.setdefault(one, task) == task
        assert self.store.stored is not None
        assert contradiction(self.store.stored.assignment, assignment) is None
        assert assignment.owners().items() <= self.store.stored.assignment.owners().items()
        if not dies:
            query.own = assignment


@given(st.data())
def test_two_queries_agree_whatever_they_see_and_whenever_they_die(data: st.DataObject) -> None:
    grouper = data.draw(st.sampled_from(GROUPERS))
    some = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    queries = [Query(data.draw(some)), Query(data.draw(some))]
    histories = {topic: [data.draw(st.integers(1, 3))] for topic in TOPICS}
    pipeline = Pipeline(Fake(), FixedTasks(grouper=grouper), data.draw, histories)
    flags = st.booleans()
    for _ in range(data.draw(st.integers(1, 12))):
        topic = data.draw(st.sampled_from(TOPICS))
        if data.draw(flags) and len(histories[topic]) < 4:
            histories[topic].append(histories[topic][-1] * data.draw(st.integers(2, 3)))
        first, second = queries if data.draw(flags) else reversed(queries)
        if data.draw(flags):
            dies = data.draw(flags)
            pipeline.store.meanwhile = lambda who=second, dies=dies: pipeline.step(
                who, restarted=False, dies=dies
            )
        pipeline.step(first, restarted=data.draw(flags), dies=data.draw(flags))
        pipeline.store.meanwhile = None
    # A third query that reads all of it comes to the same, and changes nothing of what was there.
    if pipeline.store.stored is not None:
        last = {topic: len(history) - 1 for topic, history in histories.items()}
        pipeline.step(Query(frozenset(TOPICS), seen=last), restarted=True, dies=False)


def test_the_history_would_show_a_store_that_forgets() -> None:
    """Without the condition, the query that began later would go by its own grouping."""

    class Careless(Fake):
        def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
            self.stored = StoredAssignment(assignment=assignment, version=Version(1))
            return Version(1)

    pipeline = Pipeline(Careless(), BY_PARTITION, lambda _: 1, {"orders": [2, 4]})
    early, late = Query(frozenset({"orders"}), seen={"orders": 0}), Query(frozenset({"orders"}))
    pipeline.store.meanwhile = lambda: AssignmentSync(pipeline.store, BY_PARTITION).previous(
        NO_ASSIGNMENT, ssps({"orders": 2})
    )
    pipeline.step(late, restarted=False, dies=False)
    early.own = grown("orders", 2)
    with pytest.raises(AssignmentContradictionError):
        pipeline.step(early, restarted=False, dies=False)
