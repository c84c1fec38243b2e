"""What holds of the groupers for all streams, pasts and chains of expansions."""

from __future__ import annotations

from itertools import accumulate, zip_longest
from operator import mul
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
    TaskAssignment,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks, OnPartitionCountChange
from spark_ssp.grouping.identifiers import SlotId, SystemStreamPartition, TaskName, WorkerId
from tests.support.kafka.partitions import ssp, ssps, stream

groupers: st.SearchStrategy[Grouper] = st.one_of(
    st.builds(GroupByPartition, tasks=st.none() | st.integers(1, 6)),
    st.builds(GroupBySystemStreamPartition),
    st.builds(AllSspToSingleTask, worker=st.text(min_size=1, max_size=5).map(WorkerId)),
)
partitions = st.builds(ssp, st.sampled_from(["a", "b", "c"]), st.integers(0, 20))
partition_sets = st.frozensets(partitions, max_size=30)
stream_counts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 6), max_size=3)
chains = st.tuples(st.integers(1, 5), st.lists(st.integers(1, 3), max_size=4)).map(
    lambda chain: list(accumulate([chain[0], *chain[1]], mul))
)
"""Counts of a stream, each a multiple of the one before."""


class Halving:
    """For producers that go by the bits of a hash from the top, in reverse: a partition's twin is
    found by clearing its highest bits. Another way to say modulo, for powers of two alone."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        while current >= initial_count:
            current_count //= 2
            if current >= current_count:
                current -= current_count
        return current


class Mirrored:
    """For producers that fill new partitions from the other end: of each new block of partitions
    the last one halves partition 0."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        block, place = divmod(current, initial_count)
        return place if block == 0 else initial_count - 1 - place


def _owners(assignment: TaskAssignment) -> dict[SystemStreamPartition, TaskName]:
    return assignment.owners()


@given(groupers, partition_sets)
def test_a_grouping_is_total_and_disjoint(
    grouper: Grouper, given_ssps: frozenset[SystemStreamPartition]
) -> None:
    tasks = grouper.group(given_ssps)
    assert sorted(one for own in tasks.values() for one in own) == sorted(given_ssps)
    assert all(tasks.values())


@given(groupers, partition_sets)
def test_nothing_assigned_before_is_the_plain_grouper(
    grouper: Grouper, given_ssps: frozenset[SystemStreamPartition]
) -> None:
    assignment = FixedTasks(grouper=grouper).group(NO_ASSIGNMENT, given_ssps)
    assert list(assignment.tasks.items()) == list(grouper.group(given_ssps).items())


@given(groupers, partition_sets, st.randoms(use_true_random=False))
def test_an_unchanged_set_restores_the_assignment_whatever_its_order(
    grouper: Grouper, given_ssps: frozenset[SystemStreamPartition], random: Random
) -> None:
    fixed = FixedTasks(grouper=grouper)
    shuffled = random.sample(sorted(given_ssps), len(given_ssps))
    first = fixed.group(NO_ASSIGNMENT, given_ssps)
    assert list(fixed.group(first, shuffled).tasks.items()) == list(first.tasks.items())
    assert fixed.group(first, shuffled) == first


@given(groupers, st.dictionaries(st.sampled_from(["a", "b"]), chains, min_size=1), st.data())
def test_tasks_stay_through_every_chain_of_expansions(
    grouper: Grouper, counts: dict[str, list[int]], draw: st.DataObject
) -> None:
    """Streams are expanded in any order; a key is where hash(key) mod count puts it."""
    fixed = FixedTasks(grouper=grouper)
    at = dict.fromkeys(counts, 0)
    hashes = draw.draw(st.lists(st.integers(0, 1 << 32), min_size=1, max_size=10))
    now = fixed.group(NO_ASSIGNMENT, ssps({name: chain[0] for name, chain in counts.items()}))
    first = now
    while any(at[name] + 1 < len(chain) for name, chain in counts.items()):
        growing = [name for name, chain in sorted(counts.items()) if at[name] + 1 < len(chain)]
        at[draw.draw(st.sampled_from(growing))] += 1
        sizes = {name: chain[at[name]] for name, chain in counts.items()}
        now = fixed.group(now, ssps(sizes))
        owners, before = _owners(now), _owners(first)
        assert owners.keys() == ssps(sizes)
        assert list(now.tasks) == list(first.tasks)
        for name, chain in counts.items():
            for hashed in hashes:
                key_was = before[ssp(name, hashed % chain[0])]
                assert owners[ssp(name, hashed % sizes[name])] == key_was


@given(chains)
def test_a_step_by_step_expansion_ends_where_one_big_step_ends(chain: list[int]) -> None:
    fixed = FixedTasks(grouper=GroupByPartition())
    first = fixed.group(NO_ASSIGNMENT, ssps({"a": chain[0]}))
    slow = first
    for count in chain:
        slow = fixed.group(slow, ssps({"a": count}))
    assert slow.tasks == fixed.group(first, ssps({"a": chain[-1]})).tasks
    grown = [count for n, count in enumerate(chain) if n == 0 or count != chain[n - 1]]
    assert slow.counts == {stream("a"): tuple(grown)}


@given(
    st.sampled_from([Halving(), Mirrored()]),
    st.integers(0, 2),
    st.lists(st.integers(1, 2), max_size=2),
)
def test_with_a_custom_algorithm_tasks_stay_and_follow_it(
    algorithm: Halving | Mirrored, exponent: int, doublings: list[int]
) -> None:
    fixed = FixedTasks(grouper=GroupByPartition(), expansion=algorithm)
    count = 1 << exponent
    now = fixed.group(NO_ASSIGNMENT, ssps({"a": count}))
    first = now
    for doubling in doublings:
        before, grown = _owners(now), count << doubling
        now = fixed.group(now, ssps({"a": grown}))
        assert list(now.tasks) == list(first.tasks)
        for partition in range(grown):
            origin = algorithm.partition_before_expansion(partition, grown, count)
            assert _owners(now)[ssp("a", partition)] == before[ssp("a", origin)]
        count = grown


@given(
    groupers,
    stream_counts,
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 3), max_size=3), max_size=5
    ),
)
def test_streams_come_and_go_without_moving_the_others(
    grouper: Grouper, start: dict[str, int], steps: list[dict[str, int]]
) -> None:
    """Each step names the streams read from then on, and by what each is multiplied."""
    fixed = FixedTasks(grouper=grouper)
    sizes = start
    now = fixed.group(NO_ASSIGNMENT, ssps(sizes))
    for step in steps:
        before, old = now, sizes
        sizes = {name: old.get(name, 1) * factor for name, factor in step.items()}
        now = fixed.group(before, ssps(sizes))
        assert _owners(now).keys() == ssps(sizes)
        stayed = _owners(before)
        for one, task in _owners(now).items():
            if one in stayed:
                assert task == stayed[one]
        for name in sizes.keys() & old.keys():
            assert _tasks_of(now, name) == _tasks_of(before, name)
        plain = fixed.group(NO_ASSIGNMENT, ssps(sizes))
        for name in sizes.keys() - old.keys():
            if not isinstance(grouper, AllSspToSingleTask):
                assert _tasks_of(now, name) == _tasks_of(plain, name)


def _tasks_of(assignment: TaskAssignment, name: str) -> set[TaskName]:
    return {task for one, task in _owners(assignment).items() if one.stream == name}


@given(groupers, stream_counts, stream_counts)
def test_regrouping_takes_any_change_of_counts(
    grouper: Grouper, before: dict[str, int], after: dict[str, int]
) -> None:
    fixed = FixedTasks(grouper=grouper, on_count_change=OnPartitionCountChange.REGROUP)
    first = fixed.group(NO_ASSIGNMENT, ssps(before))
    second = fixed.group(first, ssps(after))
    assert second.tasks == fixed.group(NO_ASSIGNMENT, ssps(after)).tasks
    assert second.counts == {stream(name): (count,) for name, count in after.items()}


@given(st.integers(1, 4), chains, chains, st.integers(0, 2**32 - 1))
def test_equal_keys_of_two_streams_meet_where_the_tasks_divide_both_counts(
    tasks: int, of_a: list[int], of_b: list[int], hashed: int
) -> None:
    """Whatever the counts were and become, if each is a multiple of `tasks` from the start."""
    fixed = FixedTasks(grouper=GroupByPartition(tasks=tasks))
    assignment = NO_ASSIGNMENT
    for a, b in zip_longest(of_a, of_b):
        counts = {"a": (a or of_a[-1]) * tasks, "b": (b or of_b[-1]) * tasks}
        assignment = fixed.group(assignment, ssps(counts))
        owners = _owners(assignment)
        assert len({owners[ssp(name, hashed % count)] for name, count in counts.items()}) == 1


def test_equal_keys_of_two_streams_may_part_where_they_do_not() -> None:
    """What the guide warns of."""
    counts = {"a": 4, "b": 6}
    owners = _owners(
        FixedTasks(grouper=GroupByPartition(tasks=3)).group(NO_ASSIGNMENT, ssps(counts))
    )
    assert owners[ssp("a", 4 % 4)] != owners[ssp("b", 4 % 6)]


@given(stream_counts, st.integers(1, 8))
def test_a_slot_of_kinesis_is_the_task_of_that_partition(
    streams: dict[str, int], slots: int
) -> None:
    """One vocabulary: slot i is partition i of each stream, virtual, and its task "Partition i"."""
    tasks = GroupByPartition().group(ssps(dict.fromkeys(streams, slots)))
    numbered = [TaskName(f"Partition {SlotId(slot)}") for slot in range(slots)] if streams else []
    assert list(tasks) == numbered
