"""Planning a batch from Kafka by example: ends, limits, expansions, and what is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import DataLossError, IncompatibleStateError, InvalidOptionsError
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks, OnPartitionCountChange, PartitionCountError
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kafka_source.model.ranges import plan_ranges
from spark_ssp.kafka_source.model.topic import (
    Assign,
    AtOffsets,
    AtTimes,
    LogicalOffset,
    Selection,
    Subscribe,
    TopicId,
    is_selected,
)
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.planning.offset_bounds import check_names_exactly
from spark_ssp.kafka_source.planning.plan_batch import BatchRules, create_grouping, plan_batch
from spark_ssp.kafka_source.planning.rate_limit import ReadLimits, TriggerDelay
from spark_ssp.kafka_source.planning.topic_metadata import (
    BatchContext,
    Metadata,
    PartitionOffsets,
    TopicMetadata,
)
from tests.support.kafka.partitions import ssp, stream
from tests.support.kafka.planning import RULES, after, found, planned, read

ORDERS = StreamName("orders")
TOLERANT = replace(RULES, fail_on_data_loss=False)
REGROUP = replace(
    RULES,
    grouping=FixedTasks(grouper=GroupByPartition(), on_count_change=OnPartitionCountChange.REGROUP),
)
O0, O1, O2, O3 = (ssp("orders", number) for number in range(4))


# --- Batches --------------------------------------------------------------------------------------


def test_the_first_batch_reads_from_the_starts_to_the_ends() -> None:
    metadata = found({"orders": [5, 7]})
    plan = planned(BEFORE_FIRST_BATCH, metadata, initial_positions={O0: 3, O1: 7})
    assert read(plan) == {"Partition 0": [(O0, 3, 5)]}
    assert plan.end.positions == {O0: 5, O1: 7}
    assert plan.end.explicit_starts == {O0: 3, O1: 7}
    assert plan.end.topics == {ORDERS: "orders-a"}


def test_started_at_the_latest_the_first_batch_reads_nothing_and_says_where() -> None:
    plan = planned(BEFORE_FIRST_BATCH, found({"orders": [5]}), initial_positions={O0: 5})
    assert plan.ranges == ()
    assert encode(plan.end) != encode(BEFORE_FIRST_BATCH)
    following = planned(plan.end, found({"orders": [6]}), RULES)
    assert read(following) == {"Partition 0": [(O0, 5, 6)]}
    assert following.end.explicit_starts == {}


def test_nothing_new_is_the_start_itself_even_if_it_says_where_partitions_begin() -> None:
    """Another text would make Spark run an empty batch."""
    first = planned(BEFORE_FIRST_BATCH, found({"orders": [5, 5]}), RULES).end
    again = planned(first, found({"orders": [5, 5]}), RULES)
    assert again.end is first
    assert again.ranges == ()
    assert plan_ranges(first, first) == ()


def test_starts_are_for_the_first_batch_alone() -> None:
    starts = {O0: 5, ssp("clicks", 0): 5}
    first = planned(BEFORE_FIRST_BATCH, found({"orders": [5]}), initial_positions=starts).end
    world = found({"orders": [5], "clicks": [9]})
    second = planned(first, world, initial_positions=starts)
    assert read(second) == {"Partition 0": [(ssp("clicks", 0), 0, 9)]}


def test_a_topic_that_is_new_to_the_query_is_read_from_its_oldest_record() -> None:
    first = after({"orders": [5]})
    world = {**found({"orders": [5]}), **found({"clicks": [9]}, earliest=4)}
    plan = planned(first, world, RULES)
    assert read(plan) == {"Partition 0": [(ssp("clicks", 0), 4, 9)]}
    assert plan.losses == ()


def test_idle_tasks_cost_nothing_and_tasks_are_sorted_by_number() -> None:
    first = after({"orders": [5] * 12})
    ends = [5] * 12
    ends[10] = ends[2] = 6
    plan = planned(first, found({"orders": ends}), RULES)
    assert list(read(plan)) == ["Partition 2", "Partition 10"]


def test_a_batch_can_be_planned_again_from_its_two_offsets() -> None:
    first = after({"orders": [5, 5]})
    plan = planned(first, found({"orders": [6, 7, 8, 9]}), RULES)
    texts = [json.dumps(encode(offset)) for offset in (first, plan.end)]
    start, end = (decode(json.loads(text)) for text in texts)
    assert plan_ranges(start, end) == plan.ranges


def test_offsets_that_do_not_follow_each_other_are_refused() -> None:
    first, second = after({"orders": [5]}), after({"orders": [7]})
    with pytest.raises(IncompatibleStateError, match=r"an end \(5\) before its start \(7\)"):
        plan_ranges(replace(second, explicit_starts={}), replace(first, explicit_starts={}))
    with pytest.raises(IncompatibleStateError, match="without an explicit start"):
        plan_ranges(BEFORE_FIRST_BATCH, replace(first, explicit_starts={}))


# --- Limits ---------------------------------------------------------------------------------------


def test_a_limit_is_shared_out_by_backlog() -> None:
    first = after({"orders": [0, 0, 0]})
    rules = replace(RULES, limits=ReadLimits(max_offsets=40))
    plan = planned(first, found({"orders": [300, 100, 0]}), rules)
    assert read(plan) == {"Partition 0": [(O0, 0, 30)], "Partition 1": [(O1, 0, 10)]}


def test_a_batch_is_put_off_until_there_is_enough() -> None:
    first = after({"orders": [0]})
    trigger_delay = TriggerDelay(min_offsets=10, max_delay_ms=1_000, waited_ms=1)
    rules = replace(RULES, trigger_delay=trigger_delay)
    waiting = planned(first, found({"orders": [9]}), rules)
    assert (waiting.end, waiting.ranges, waiting.delayed) == (first, (), True)
    enough = planned(first, found({"orders": [10]}), rules)
    assert read(enough) == {"Partition 0": [(O0, 0, 10)]}
    assert not enough.delayed


# --- Expansions -----------------------------------------------------------------------------------


def test_an_expansion_keeps_the_tasks_and_reads_the_older_partitions_first() -> None:
    first = after({"orders": [5, 5]})
    plan = planned(first, found({"orders": [6, 7, 8, 9]}), RULES)
    assert read(plan) == {
        "Partition 0": [(O0, 5, 6), (O2, 0, 8)],
        "Partition 1": [(O1, 5, 7), (O3, 0, 9)],
    }
    assert plan.end.explicit_starts == {O2: 0, O3: 0}


def test_a_newer_partition_waits_while_a_limit_stops_the_older_one() -> None:
    first = after({"orders": [0, 0]})
    world = found({"orders": [10, 4, 100, 100]})
    rules = replace(RULES, limits=ReadLimits(max_offsets=10))
    second = planned(first, world, rules)
    assert read(second) == {"Partition 0": [(O0, 0, 7)], "Partition 1": [(O1, 0, 2)]}
    assert second.end.positions[O2] == 0
    third = planned(second.end, world, rules)
    # Both older ones are read to their ends, and what is left goes to the newer ones.
    assert read(third) == {
        "Partition 0": [(O0, 7, 10), (O2, 0, 2)],
        "Partition 1": [(O1, 2, 4), (O3, 0, 2)],
    }


def test_a_newer_partition_waits_for_older_ones_of_its_own_task_and_topic_alone() -> None:
    first = after({"orders": [0, 0], "clicks": [0, 0]})
    world = found({"orders": [100, 0, 100, 100], "clicks": [100, 100]})
    plan = planned(first, world, replace(RULES, limits=ReadLimits(max_offsets=40)))
    positions = plan.end.positions
    assert positions[O0] < 100
    assert positions[O2] == 0
    # Its older partition has nothing to read; clicks do not matter.
    assert positions[O3] == 10
    assert positions[ssp("clicks", 0)] == positions[ssp("clicks", 1)] == 10


def test_expanded_twice_the_generations_follow_each_other() -> None:
    first = after({"orders": [1]})
    second = planned(first, found({"orders": [1, 1]}), RULES).end
    plan = planned(second, found({"orders": [2, 2, 2, 2]}), RULES)
    assert read(plan) == {"Partition 0": [(O0, 1, 2), (O1, 1, 2), (O2, 0, 2), (O3, 0, 2)]}
    assert plan.end.assignment.counts == {stream("orders"): (1, 2, 4)}


def test_an_expansion_that_misroutes_keys_is_an_error_unless_regrouping() -> None:
    first = after({"orders": [5, 5]})
    with pytest.raises(PartitionCountError, match="3 partitions, 2 before"):
        planned(first, found({"orders": [5, 5, 5]}), RULES)
    plan = planned(first, found({"orders": [5, 5, 5]}), REGROUP)
    assert read(plan) == {"Partition 2": [(O2, 0, 5)]}


def test_a_new_query_takes_its_tasks_from_a_store() -> None:
    old = planned(after({"orders": [5, 5]}), found({"orders": [5] * 4}), RULES).end
    rules = replace(RULES, stored=old.assignment)
    new = planned(BEFORE_FIRST_BATCH, found({"orders": [5] * 4}), rules)
    assert new.end.assignment == old.assignment
    assert [one for one, _, _ in read(new)["Partition 0"]] == [O0, O2]


def test_another_grouper_than_the_checkpoints_is_refused() -> None:
    other = replace(RULES, grouping=FixedTasks(grouper=GroupBySystemStreamPartition()))
    with pytest.raises(IncompatibleStateError, match="made by 'partition'"):
        planned(after({"orders": [5]}), found({"orders": [6]}), other)


# --- Losses ---------------------------------------------------------------------------------------


def _log(topic: str, number: int, *, earliest: int | None, end: int) -> Metadata:
    return {
        StreamName(topic): TopicMetadata(
            topic_id=TopicId(f"{topic}-a"),
            partitions={number: PartitionOffsets(earliest=earliest, end=end)},
        )
    }


@pytest.mark.parametrize(
    ("world", "subject", "what"),
    [
        ({}, "topic orders", "the topic deleted, or hidden from this user"),
        (
            found({"orders": [9, 9]}, generation="b"),
            "topic orders",
            "deleted and created again (id orders-b)",
        ),
        (found({"orders": [5, 4]}), "partition orders-1", "an end at 4, before the position 5"),
        (
            found({"orders": [9, 9]}, earliest=6),
            "partition orders-0, partition orders-1",
            "its oldest record at 6, after the position 5",
        ),
        (
            {
                ORDERS: TopicMetadata(
                    topic_id=TopicId("orders-a"),
                    partitions={
                        number: PartitionOffsets(earliest=0 if number < 2 else 1, end=5)
                        for number in range(4)
                    },
                )
            },
            "partition orders-2, partition orders-3",
            "a new partition whose oldest record is 1",
        ),
    ],
)
def test_a_loss_fails_the_query_and_names_what_is_gone(
    world: Metadata, subject: str, what: str
) -> None:
    first = after({"orders": [5, 5]})
    with pytest.raises(DataLossError) as caught:
        planned(first, world, RULES)
    assert caught.value.subject == subject
    assert what in caught.value.found
    assert "failOnDataLoss" in caught.value.next_step
    tolerated = planned(first, world, TOLERANT)
    # The positions of a missing topic are not lost yet.
    assert [loss.subject for loss in tolerated.losses] == (subject.split(", ") if world else [])
    assert world or tolerated.end is first


@pytest.mark.parametrize(
    ("read_before", "selection"),
    [
        ((O0, O1), Assign(partitions=(O0, O1, O2, O3))),
        ((O0, O2), Assign(partitions=(O0, O1, O2, O3))),
        ((O1, O2), Subscribe(topics=(ORDERS,))),
    ],
)
def test_a_partition_that_the_options_add_begins_at_its_oldest_record(
    read_before: tuple[SystemStreamPartition, ...], selection: Selection
) -> None:
    """As an added topic does: the records before it were never part of the query."""
    first = Offset(
        topics={ORDERS: TopicId("orders-a")},
        positions=dict.fromkeys(read_before, 7),
        assignment=REGROUP.grouping.group(NO_ASSIGNMENT, read_before),
    )
    world = found({"orders": [9] * 4}, earliest=5)
    plan = plan_batch(BatchContext(start=first, metadata=world, selection=selection), REGROUP)
    assert plan.losses == ()
    added = {O0, O1, O2, O3} - set(read_before)
    assert plan.end.explicit_starts == dict.fromkeys(sorted(added), 5)


def test_many_losses_are_reported_in_short() -> None:
    first = after({"orders": [5] * 8})
    with pytest.raises(DataLossError) as caught:
        planned(first, found({"orders": [4] * 8}), RULES)
    assert caught.value.subject.endswith("partition orders-2 (and 5 more)")


def test_a_recreated_topic_is_read_anew_by_the_same_tasks_if_tolerated() -> None:
    expanded = planned(after({"orders": [5, 5]}), found({"orders": [5] * 4}), RULES).end
    world = found({"orders": [9, 2, 9, 9]}, generation="b", earliest=1)
    plan = planned(expanded, world, TOLERANT)
    assert read(plan) == {
        "Partition 0": [(O0, 1, 9), (O2, 1, 9)],
        "Partition 1": [(O1, 1, 2), (O3, 1, 9)],
    }
    assert plan.end.topics == {ORDERS: "orders-b"}
    # Its partitions came together, so none of them waits for another.
    assert plan.end.assignment.counts == {stream("orders"): (4,)}
    assert [loss.subject for loss in plan.losses] == ["topic orders"]


def test_a_topic_whose_id_is_unknown_is_not_taken_for_another() -> None:
    first = after({"orders": [5]})
    unknown = {ORDERS: TopicMetadata(partitions={0: PartitionOffsets(earliest=0, end=7)})}
    second = planned(first, unknown, RULES)
    assert read(second) == {"Partition 0": [(O0, 5, 7)]}
    assert second.end.topics == {ORDERS: "orders-a"}
    with pytest.raises(DataLossError, match="deleted and created again"):
        planned(second.end, found({"orders": [7]}, generation="b"), RULES)
    from_old_brokers = replace(first, topics={ORDERS: None})
    third = planned(from_old_brokers, found({"orders": [5]}, generation="b"), RULES)
    assert (third.ranges, third.losses) == ((), ())
    assert third.end.topics == {ORDERS: "orders-b"}


def test_a_missing_topic_keeps_its_id_its_positions_and_its_tasks_if_tolerated() -> None:
    first = after({"orders": [5], "clicks": [5]})
    plan = planned(first, found({"clicks": [6]}), TOLERANT)
    assert plan.end.positions == {O0: 5, ssp("clicks", 0): 6}
    assert plan.end.topics == first.topics
    assert plan.end.assignment == first.assignment
    assert read(plan) == {"Partition 0": [(ssp("clicks", 0), 5, 6)]}
    assert decode(json.loads(json.dumps(encode(plan.end)))) == plan.end
    assert planned(first, {}, TOLERANT).end is first
    back = planned(plan.end, found({"clicks": [6], "orders": [8]}), TOLERANT)
    assert read(back) == {"Partition 0": [(O0, 5, 8)]}
    other = planned(plan.end, found({"orders": [8]}, generation="b"), TOLERANT)
    assert read(other) == {"Partition 0": [(O0, 0, 8)]}
    assert [loss.subject for loss in other.losses] == ["topic orders"]


def test_a_log_that_was_cut_goes_on_from_its_new_end_if_tolerated() -> None:
    first = after({"orders": [5]})
    plan = planned(first, found({"orders": [3]}), TOLERANT)
    assert plan.ranges == ()
    assert plan.end.positions == plan.end.explicit_starts == {O0: 3}
    assert read(planned(plan.end, found({"orders": [6]}), RULES)) == {"Partition 0": [(O0, 3, 6)]}


def test_a_position_that_retention_overtook_goes_on_behind_the_gap_if_tolerated() -> None:
    first = after({"orders": [5]})
    plan = planned(first, found({"orders": [9]}, earliest=7), TOLERANT)
    assert read(plan) == {"Partition 0": [(O0, 7, 9)]}


def test_starts_outside_of_the_log_are_losses() -> None:
    metadata = found({"orders": [9]}, earliest=3)
    for at, what in ((2, "after the position 2"), (12, "before the position 12")):
        with pytest.raises(DataLossError, match=what):
            planned(BEFORE_FIRST_BATCH, metadata, initial_positions={O0: at})


@pytest.mark.parametrize("rules", [RULES, TOLERANT, REGROUP])
def test_partitions_that_are_missing_from_a_topic_of_the_same_id_stay(rules: BatchRules) -> None:
    first = after({"orders": [5, 5, 5]}, rules)
    plan = planned(first, found({"orders": [6, 6]}), rules)
    assert plan.end.positions == {O0: 6, O1: 6, O2: 5}
    assert plan.end.assignment == first.assignment
    back = planned(plan.end, found({"orders": [6, 6, 7]}), rules)
    assert read(back) == {"Partition 2": [(O2, 5, 7)]}


def test_partitions_that_are_missing_are_losses_if_the_id_is_unknown() -> None:
    first = replace(after({"orders": [5, 5]}), topics={ORDERS: None})
    with pytest.raises(DataLossError, match="partition orders-1: found the partition deleted"):
        planned(first, found({"orders": [6]}), RULES)
    assert planned(first, found({"orders": [6]}), TOLERANT).end.positions == {O0: 6, O1: 5}


@pytest.mark.parametrize("tolerated", [False, True])
def test_what_the_options_no_longer_name_leaves_the_offset_if_tolerated(tolerated: bool) -> None:
    first = after({"orders": [5, 5], "clicks": [5]})
    context = BatchContext(
        start=first, metadata=found({"orders": [6]}), selection=Assign(partitions=(O0,))
    )
    if not tolerated:
        with pytest.raises(DataLossError, match="topic clicks") as caught:
            plan_batch(context, RULES)
        assert "set dropTopics to clicks" in caught.value.next_step
        return
    plan = plan_batch(context, replace(REGROUP, fail_on_data_loss=False))
    assert plan.end.positions == {O0: 6}
    assert [loss.subject for loss in plan.losses] == ["topic clicks", "partition orders-1"]


def test_known_partitions_need_no_oldest_record_but_new_ones_do() -> None:
    first = after({"orders": [5]})
    assert read(planned(first, _log("orders", 0, earliest=None, end=6), RULES)) == {
        "Partition 0": [(O0, 5, 6)]
    }
    with pytest.raises(ValueError, match="clicks-0 is new"):
        planned(Offset(), _log("clicks", 0, earliest=None, end=6), RULES)


# --- Starts by partition --------------------------------------------------------------------------


def test_starts_by_partition_name_all_partitions() -> None:
    bound = AtOffsets(offsets={O0: 3, O1: LogicalOffset.LATEST})
    check_names_exactly("startingOffsets", bound, [O0, O1])
    with pytest.raises(InvalidOptionsError) as caught:
        check_names_exactly("startingOffsets", bound, [O1, O2, O3])
    assert [(p.option, p.found) for p in caught.value.problems] == [
        ("startingOffsets", "no entry for orders-2, orders-3"),
        ("startingOffsets", "partitions missing or not read: orders-0"),
    ]
    times = AtTimes(times_ms={O0: EpochMillis(3)})
    with pytest.raises(InvalidOptionsError, match="orders-1, orders-2, orders-10"):
        check_names_exactly(
            "startingOffsetsByTimestamp", times, [ssp("orders", n) for n in (0, 1, 10, 2)]
        )


# --- Ranges ---------------------------------------------------------------------------------------


def test_the_number_of_a_partitions_task_is_the_partitions() -> None:
    plan = planned(BEFORE_FIRST_BATCH, found({"a": [5, 0, 5], "b": [5, 5, 5, 5]}), RULES)
    numbers = {one.task: one.number for one in plan.ranges}
    assert numbers == {f"Partition {number}": number for number in range(4)}
    idle = planned(BEFORE_FIRST_BATCH, found({"a": [0, 0, 5]}), RULES)
    assert [(one.task, one.number) for one in idle.ranges] == [("Partition 2", 2)]


def test_tasks_of_other_names_are_numbered_in_order_idle_ones_too() -> None:
    rules = replace(RULES, grouping=FixedTasks(grouper=GroupBySystemStreamPartition()))
    plan = planned(BEFORE_FIRST_BATCH, found({"a": [0, 5], "b": [5]}), rules)
    assert [one.number for one in plan.ranges] == [1, 2]


def test_generations_count_expansions() -> None:
    first = planned(BEFORE_FIRST_BATCH, found({"a": [5, 5]}), RULES)
    second = planned(first.end, found({"a": [6, 6, 3, 3]}), RULES)
    assert [
        [(part.ssp.partition, part.generation) for part in one.partitions] for one in second.ranges
    ] == [[(0, 0), (2, 1)], [(1, 0), (3, 1)]]


# --- Groupers -------------------------------------------------------------------------------------

LEAST: Final = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}
MODULO: Final = "spark_ssp.grouping.fixed_tasks.ModuloExpansion"
BY_PARTITION, BY_SSP = GroupByPartition(), GroupBySystemStreamPartition()
KEEP, ANEW = OnPartitionCountChange


@pytest.mark.parametrize(
    ("options", "label", "grouper", "on_count_change"),
    [
        # As Spark's source, where no option speaks of tasks.
        ({}, "", BY_SSP, ANEW),
        ({"includeTask": "false"}, "", BY_SSP, ANEW),
        ({}, "ssp", BY_SSP, ANEW),
        # What the query did before there was this default.
        ({}, "partition", BY_PARTITION, KEEP),
        ({}, "single", BY_PARTITION, KEEP),
        ({}, "partition mod 4", BY_PARTITION, KEEP),
        # Any option about tasks.
        ({"includeTask": "true"}, "", BY_PARTITION, KEEP),
        ({"assignmentStore": "file:///x"}, "", BY_PARTITION, KEEP),
        ({"onPartitionCountChange": "keep"}, "", BY_PARTITION, KEEP),
        ({"onPartitionCountChange": "regroup"}, "", BY_PARTITION, ANEW),
        ({"partitionExpansionAlgorithm": MODULO}, "", BY_PARTITION, KEEP),
        ({"tasks": "4"}, "", GroupByPartition(tasks=4), KEEP),
        ({"tasks": "4"}, "ssp", GroupByPartition(tasks=4), KEEP),
        ({"grouper": "ssp"}, "", BY_SSP, KEEP),
        ({"grouper": "partition"}, "ssp", BY_PARTITION, KEEP),
        # What such an option leaves open, the checkpoint decides.
        ({"includeTask": "true"}, "ssp", BY_SSP, KEEP),
        ({"onPartitionCountChange": "regroup"}, "ssp", BY_SSP, ANEW),
        ({"onPartitionCountChange": "regroup"}, "partition", BY_PARTITION, ANEW),
    ],
)
def test_the_grouper_that_options_leave_open(
    options: dict[str, str], label: str, grouper: Grouper, on_count_change: OnPartitionCountChange
) -> None:
    found = create_grouping(parse_options({**LEAST, **options}), label)
    assert (found.grouper, found.on_count_change) == (grouper, on_count_change)


@given(
    st.sets(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12)), min_size=1),
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 12)),
)
def test_assigned_partitions_are_selected_and_no_others(
    assigned: set[tuple[str, int]], asked: tuple[str, int]
) -> None:
    selection = Assign(partitions=tuple(sorted(ssp(*one) for one in assigned)))
    assert is_selected(selection, ssp(*asked)) is (asked in assigned)
