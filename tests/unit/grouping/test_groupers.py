"""The groupers and their fixed-task form by example: Samza's names, SEP-5's cases, the refusals."""

from __future__ import annotations

import pickle

import pytest

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
)
from spark_ssp.grouping.fixed_tasks import (
    FixedTasks,
    ModuloExpansion,
    OnPartitionCountChange,
    PartitionCountError,
    PartitionExpansionError,
    load_expansion_algorithm,
)
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.kafka.partitions import BY_PARTITION, assigned, ssp, ssps, stream

TWO_STREAMS = ssps({"orders": 2, "clicks": 3})
BY_SSP = FixedTasks(grouper=GroupBySystemStreamPartition())
SINGLE = FixedTasks(grouper=AllSspToSingleTask(worker=WorkerId("worker-1")))
REGROUP = FixedTasks(grouper=GroupByPartition(), on_count_change=OnPartitionCountChange.REGROUP)


# --- The plain groupers ---------------------------------------------------------------------------


def test_by_partition_a_task_has_its_partition_of_every_stream() -> None:
    assert GroupByPartition().group(TWO_STREAMS) == {
        "Partition 0": {ssp("orders", 0), ssp("clicks", 0)},
        "Partition 1": {ssp("orders", 1), ssp("clicks", 1)},
        "Partition 2": {ssp("clicks", 2)},
    }


def test_by_partition_the_number_of_tasks_can_be_bounded() -> None:
    assert GroupByPartition(tasks=2).group(TWO_STREAMS) == {
        "Partition 0": {ssp("orders", 0), ssp("clicks", 0), ssp("clicks", 2)},
        "Partition 1": {ssp("orders", 1), ssp("clicks", 1)},
    }
    with pytest.raises(ValueError, match="at least one task, not 0"):
        GroupByPartition(tasks=0)


def test_by_system_stream_partition_each_is_a_task_of_its_own() -> None:
    assert GroupBySystemStreamPartition().group(TWO_STREAMS) == {
        "SystemStreamPartition [kafka, clicks, 0]": {ssp("clicks", 0)},
        "SystemStreamPartition [kafka, clicks, 1]": {ssp("clicks", 1)},
        "SystemStreamPartition [kafka, clicks, 2]": {ssp("clicks", 2)},
        "SystemStreamPartition [kafka, orders, 0]": {ssp("orders", 0)},
        "SystemStreamPartition [kafka, orders, 1]": {ssp("orders", 1)},
    }


def test_all_to_a_single_task_that_carries_the_workers_id() -> None:
    grouper = AllSspToSingleTask(worker=WorkerId("0"))
    assert grouper.group(TWO_STREAMS) == {"Task-0": TWO_STREAMS}
    assert grouper.group(()) == {}


def test_tasks_are_sorted_by_their_lowest_partition_not_as_text() -> None:
    tasks = list(GroupByPartition().group(ssps({"orders": 12})))
    assert tasks == [f"Partition {number}" for number in range(12)]


# --- Fixed tasks ----------------------------------------------------------------------------------


def test_an_expansion_from_two_to_four_keeps_the_tasks() -> None:
    """SEP-5's own example: 0 and 2 belong together, and so do 1 and 3."""
    first = BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    assert BY_PARTITION.group(first, ssps({"orders": 4})) == assigned(
        "partition",
        {"orders": (2, 4)},
        {
            "Partition 0": [ssp("orders", 0), ssp("orders", 2)],
            "Partition 1": [ssp("orders", 1), ssp("orders", 3)],
        },
    )


def test_expanding_one_of_two_streams_moves_nothing_of_the_other() -> None:
    first = BY_SSP.group(NO_ASSIGNMENT, ssps({"orders": 1, "clicks": 2}))
    expanded = BY_SSP.group(first, ssps({"orders": 3, "clicks": 2}))
    assert expanded == assigned(
        "ssp",
        {"orders": (1, 3), "clicks": (2,)},
        {
            "SystemStreamPartition [kafka, orders, 0]": ssps({"orders": 3}),
            "SystemStreamPartition [kafka, clicks, 0]": [ssp("clicks", 0)],
            "SystemStreamPartition [kafka, clicks, 1]": [ssp("clicks", 1)],
        },
    )


def test_counts_are_of_partitions_not_of_tasks() -> None:
    """By the number of tasks, partition 3 of 4 would go to the task of 3 mod 1."""
    folded = FixedTasks(grouper=GroupByPartition(tasks=1))
    first = folded.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    second = folded.group(first, ssps({"orders": 4}))
    assert second.counts == {stream("orders"): (2, 4)}
    with pytest.raises(PartitionCountError):
        folded.group(second, ssps({"orders": 6}))


@pytest.mark.parametrize("grouping", [BY_PARTITION, BY_SSP, SINGLE])
@pytest.mark.parametrize(
    ("old", "new", "history"),
    [(2, 4, (2, 4)), (2, 8, (2, 4, 8)), (2, 12, (2, 4, 6, 12)), (3, 9, (3, 9)), (4, 20, (4, 20))],
)
def test_counts_that_may_lie_between_divide_the_generations(
    grouping: FixedTasks, old: int, new: int, history: tuple[int, ...]
) -> None:
    first = grouping.group(NO_ASSIGNMENT, ssps({"orders": old}))
    after = grouping.group(first, ssps({"orders": new}))
    assert after.counts == {stream("orders"): history}
    step = first
    for count in history[1:]:
        if count % len(step.owners()) == 0:
            step = grouping.group(step, ssps({"orders": count}))
    assert step.tasks == after.tasks, "the same tasks as one by one"
    for way in (count for count in history if new % count == 0):
        for partition in range(way, new):
            origin = after.generation(ssp("orders", partition % way))
            assert origin < after.generation(ssp("orders", partition))


def test_a_new_stream_gets_the_plain_grouping_and_a_removed_one_is_dropped() -> None:
    first = BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": 1}))
    expanded = BY_PARTITION.group(first, ssps({"orders": 2}))
    joined = BY_PARTITION.group(expanded, ssps({"orders": 2, "clicks": 2}))
    assert joined.tasks == {
        "Partition 0": {ssp("orders", 0), ssp("orders", 1), ssp("clicks", 0)},
        "Partition 1": {ssp("clicks", 1)},
    }
    left = BY_PARTITION.group(joined, ssps({"clicks": 2}))
    assert left == assigned(
        "partition",
        {"clicks": (2,)},
        {"Partition 0": [ssp("clicks", 0)], "Partition 1": [ssp("clicks", 1)]},
    )


def test_a_single_task_keeps_its_name_under_another_worker_whatever_the_count() -> None:
    first = SINGLE.group(NO_ASSIGNMENT, ssps({"orders": 4}))
    other = FixedTasks(grouper=AllSspToSingleTask(worker=WorkerId("worker-2")))
    for count, history in ((4, (4,)), (5, (4, 5)), (3, (3,))):
        after = other.group(first, ssps({"orders": count}))
        assert after.tasks == {"Task-worker-1": ssps({"orders": count})}
        assert after.counts == {stream("orders"): history}


@pytest.mark.parametrize(("old", "new"), [(2, 3), (4, 2), (4, 1), (3, 7)])
def test_a_count_that_would_misroute_keys_names_stream_counts_and_remedy(
    old: int, new: int
) -> None:
    first = BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": old, "clicks": 1}))
    with pytest.raises(PartitionCountError) as caught:
        BY_PARTITION.group(first, ssps({"orders": new, "clicks": 1}))
    error = caught.value
    assert error.subject == "stream kafka/orders"
    assert error.found == f"{new} partitions, {old} before"
    assert f"a multiple of {old}" in error.expected
    assert "onPartitionCountChange to regroup" in error.next_step
    assert "on a new checkpoint location" in error.next_step
    assert ("copy the stream by key into a new one" in error.next_step) is (new > old)
    assert "up to" not in error.next_step, "records written with this count stay where they are"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_regroup_starts_a_changed_stream_afresh_and_leaves_the_others() -> None:
    first = REGROUP.group(NO_ASSIGNMENT, ssps({"orders": 2, "clicks": 4}))
    for count in (1, 3, 4):
        after = REGROUP.group(first, ssps({"orders": count, "clicks": 4}))
        assert after.tasks == GroupByPartition().group(ssps({"orders": count, "clicks": 4}))
        assert after.counts == {stream("orders"): (count,), stream("clicks"): (4,)}


def test_regroup_gives_an_expanded_stream_the_plain_tasks_though_its_count_stays() -> None:
    first = BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": 2, "clicks": 4}))
    expanded = BY_PARTITION.group(first, ssps({"orders": 4, "clicks": 4}))
    fresh = REGROUP.group(expanded, ssps({"orders": 4, "clicks": 4}))
    assert fresh == BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": 4, "clicks": 4}))
    assert REGROUP.group(fresh, ssps({"orders": 4, "clicks": 4})) == fresh


def test_chosen_partitions_keep_their_tasks_while_the_choice_stays() -> None:
    chosen = {ssp("orders", 2), ssp("orders", 5)}
    first = BY_PARTITION.group(NO_ASSIGNMENT, chosen)
    assert list(first.tasks) == ["Partition 2", "Partition 5"]
    assert BY_PARTITION.group(first, chosen) == first
    with pytest.raises(PartitionCountError) as caught:
        BY_PARTITION.group(first, chosen | {ssp("orders", 6)})
    assert caught.value.found == "partitions 2, 5, 6 chosen, 2, 5 before"


def test_another_grouper_or_number_of_tasks_is_refused_unless_regrouping() -> None:
    first = BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    for grouper in (GroupByPartition(tasks=2), GroupBySystemStreamPartition()):
        with pytest.raises(IncompatibleStateError, match="made by 'partition'"):
            FixedTasks(grouper=grouper).group(first, ssps({"orders": 2}))
        fresh = FixedTasks(grouper=grouper, on_count_change=OnPartitionCountChange.REGROUP)
        assert fresh.group(first, ssps({"orders": 2})).grouper == grouper.label


def test_a_recreated_streams_partitions_are_of_one_generation() -> None:
    first = BY_PARTITION.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    expanded = BY_PARTITION.group(
        BY_PARTITION.group(first, ssps({"orders": 4})), ssps({"orders": 8})
    )
    generations = [expanded.generation(ssp("orders", number)) for number in range(8)]
    assert generations == [0, 0, 1, 1, 2, 2, 2, 2]
    restarted = expanded.restarted(stream("orders"))
    assert restarted.tasks == expanded.tasks
    assert {restarted.generation(ssp("orders", number)) for number in range(8)} == {0}


# --- Expansion algorithms -------------------------------------------------------------------------


class Faulty:
    """An algorithm whose answer a test sets."""

    answer: object = 0

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        return self.answer if current == 3 else current % initial_count  # type: ignore[return-value]


class MovesOld:
    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        return current * initial_count // current_count


@pytest.mark.parametrize("answer", [-1, 2, 1.0, None, True])
def test_an_answer_outside_of_the_contract_is_refused(
    answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "answer", answer)
    grouping = FixedTasks(grouper=GroupByPartition(), expansion=Faulty())
    first = grouping.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    with pytest.raises(PartitionExpansionError) as caught:
        grouping.group(first, ssps({"orders": 4}))
    assert f"{answer!r} for partition 3 of kafka/orders" in caught.value.found
    assert "Faulty" in caught.value.subject


def test_an_algorithm_that_moves_a_partition_that_was_there_is_refused() -> None:
    grouping = FixedTasks(grouper=GroupByPartition(), expansion=MovesOld())
    first = grouping.group(NO_ASSIGNMENT, ssps({"orders": 2}))
    with pytest.raises(PartitionExpansionError, match="expected 1: it was there before"):
        grouping.group(first, ssps({"orders": 4}))


class Demanding(MovesOld):
    """Cannot be made without an argument."""

    def __init__(self, factor: int) -> None:
        self.factor = factor


def test_an_algorithm_is_loaded_by_its_dotted_path() -> None:
    loaded = load_expansion_algorithm("spark_ssp.grouping.fixed_tasks.ModuloExpansion")
    assert isinstance(loaded, ModuloExpansion)
    assert loaded.partition_before_expansion(7, 8, 2) == 1


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("ModuloExpansion", "'ModuloExpansion'"),
        ("not_to_be_had.Modulo", "cannot be imported (ModuleNotFoundError)"),
        ("spark_ssp.grouping.fixed_tasks.Missing", "has no Missing"),
        ("spark_ssp.grouping.identifiers.ShardKey", "no method partition_before_expansion"),
        (f"{__name__}.Demanding", "whose constructor raised TypeError"),
        ("os.abort", "which is not a class"),  # not called
        ("spark_ssp.grouping.assignment.GroupByPartition", "no method partition_before_expansion"),
        ("spark_ssp.grouping.identifiers.MAX_HASH_KEY", "which is not a class"),
    ],
)
def test_a_class_that_is_no_algorithm_is_refused(path: str, found: str) -> None:
    with pytest.raises(BadValueError) as caught:
        load_expansion_algorithm(path)
    assert found in caught.value.faults[0].found
