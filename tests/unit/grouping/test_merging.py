"""What is taken over from another assignment, what is merged, and what contradicts."""

from __future__ import annotations

import pytest

from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    SINGLE,
    AllSspToSingleTask,
    Contradiction,
    GroupByPartition,
    GroupBySystemStreamPartition,
    TaskAssignment,
    contradiction,
    decode_assignment,
    inherit,
    merged,
    replaced,
    restrict_to,
    up_to,
)
from spark_ssp.grouping.assignment import encode_assignment as encode
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.kafka.partitions import BY_PARTITION, assigned, grown, ssp, ssps, stream


def single(worker: str, name: str, count: int) -> TaskAssignment:
    fixed = FixedTasks(grouper=AllSspToSingleTask(worker=WorkerId(worker)))
    return grown(name, count, fixed=fixed)


def chosen(*partitions: int) -> TaskAssignment:
    return BY_PARTITION.group(NO_ASSIGNMENT, [ssp("orders", number) for number in partitions])


BOTH = merged(grown("orders", 2, 4), grown("clicks", 3))


# --- Parts ----------------------------------------------------------------------------------------


def test_streams_are_picked() -> None:
    assert restrict_to(BOTH, [stream("orders")]) == grown("orders", 2, 4)
    assert restrict_to(BOTH, [stream("orders"), stream("clicks"), stream("other")]) == BOTH
    assert restrict_to(BOTH, [stream("other")]) == restrict_to(BOTH, ()) == NO_ASSIGNMENT


def test_what_is_known_is_kept_and_the_rest_taken_over() -> None:
    assert inherit(NO_ASSIGNMENT, BOTH) == BOTH
    assert inherit(BOTH, NO_ASSIGNMENT) == BOTH
    assert inherit(grown("orders", 2), BOTH) == merged(grown("orders", 2), grown("clicks", 3))
    ours = grown("orders", 2, fixed=FixedTasks(grouper=GroupBySystemStreamPartition()))
    assert inherit(ours, BOTH) == ours


def test_a_querys_only_task_stays_the_only_one() -> None:
    assert AllSspToSingleTask(worker=WorkerId("a")).label == SINGLE
    others = merged(single("b", "orders", 2), single("a", "clicks", 1))
    assert len(others.tasks) == 2
    assert list(inherit(NO_ASSIGNMENT, others).tasks) == ["Task-a"]
    ours = single("c", "other", 1)
    assert inherit(ours, others) == ours


@pytest.mark.parametrize(
    ("counts", "seen", "expected"),
    [
        ((1, 2, 4), 4, (1, 2, 4)),
        ((1, 2, 4), 2, (1, 2)),
        ((1, 2, 4), 1, (1,)),
        ((2, 8), 4, (2, 4)),
        # Seen at once, 12 may have come from 2 by 4 or by 6.
        ((2, 12), 4, (2, 4)),
        ((2, 4, 12), 4, (2, 4)),
        ((2, 4, 12), 6, (2, 4, 12)),
        ((1, 16), 8, (1, 2, 4, 8)),
        # These cannot lie in between, so they are for the grouper to refuse.
        ((2, 8), 3, (2, 8)),
        ((2, 8), 6, (2, 8)),
        ((4,), 2, (4,)),
        ((2, 4), 8, (2, 4)),
    ],
)
def test_an_expansion_that_is_not_seen_yet_is_left_out(
    counts: tuple[int, ...], seen: int, expected: tuple[int, ...]
) -> None:
    cut = up_to(both_of(counts), ssps({"orders": seen}))
    assert cut == merged(grown("orders", *expected), grown("clicks", 3))


def test_each_count_that_may_lie_between_may_be_seen_late() -> None:
    cut = up_to(grown("orders", 2, 12), ssps({"orders": 6}))
    assert cut.tasks == grown("orders", 2, 6).tasks
    assert cut.counts == {stream("orders"): (2, 4, 6)}
    by_partition = FixedTasks(grouper=GroupByPartition())
    assert by_partition.group(cut, ssps({"orders": 12})) == grown("orders", 2, 12)


def both_of(counts: tuple[int, ...]) -> TaskAssignment:
    return merged(grown("orders", *counts), grown("clicks", 3))


# --- Merging --------------------------------------------------------------------------------------


def test_either_may_have_come_further() -> None:
    less, more = grown("orders", 2), grown("orders", 2, 4)
    for stored, own in ((less, more), (more, less)):
        assert contradiction(stored, own) is None
        assert merged(stored, own) == more


def test_counts_that_only_one_has_seen_are_kept() -> None:
    some, others = grown("orders", 1, 4), grown("orders", 1, 2, 8)
    assert contradiction(some, others) is None
    assert merged(some, others).counts == {stream("orders"): (1, 2, 4, 8)}


def test_the_counts_of_who_saw_more_expansions_at_once_divide_finer() -> None:
    apart, at_once = grown("orders", 2, 4, 12), grown("orders", 2, 12)
    for stored, own in ((apart, at_once), (at_once, apart)):
        assert contradiction(stored, own) is None
        assert merged(stored, own).counts == {stream("orders"): (2, 4, 6, 12)}
    assert decode_assignment(encode(at_once)) == at_once


def test_others_streams_stay() -> None:
    union = merged(BOTH, grown("orders", 2, 4, 8))
    assert union.counts == {stream("orders"): (2, 4, 8), stream("clicks"): (3,)}
    assert decode_assignment(encode(union)) == union
    assert merged(BOTH, NO_ASSIGNMENT) == BOTH
    assert merged(NO_ASSIGNMENT, BOTH) == BOTH
    assert merged(BOTH, grown("clicks", 3)) == BOTH


def test_streams_that_are_grouped_afresh_replace_what_was_there() -> None:
    union = replaced(BOTH, grown("orders", 3))
    assert union == merged(grown("orders", 3), grown("clicks", 3))
    assert replaced(BOTH, NO_ASSIGNMENT) == BOTH
    assert replaced(NO_ASSIGNMENT, BOTH) == BOTH


# --- Contradictions -------------------------------------------------------------------------------


def test_nothing_contradicts_nothing() -> None:
    assert contradiction(NO_ASSIGNMENT, BOTH) is None
    assert contradiction(BOTH, NO_ASSIGNMENT) is None
    assert contradiction(grown("clicks", 3), grown("orders", 2)) is None


@pytest.mark.parametrize(
    ("stored", "own", "expected"),
    [
        (
            grown("orders", 2),
            grown("orders", 2, fixed=FixedTasks(grouper=GroupByPartition(tasks=2))),
            Contradiction(about="the grouper", stored="partition", own="partition mod 2"),
        ),
        (
            grown("orders", 2, 4),
            grown("orders", 4),
            Contradiction(
                about="the task of SystemStreamPartition [kafka, orders, 2]",
                stored="Partition 0",
                own="Partition 2",
            ),
        ),
        (
            chosen(0, 3),
            chosen(0, 1, 3),
            Contradiction(
                about="the chosen partitions of kafka/orders", stored="0, 3", own="0, 1, 3"
            ),
        ),
        (
            chosen(*range(1, 13)),
            grown("orders", 12),
            Contradiction(
                about="the chosen partitions of kafka/orders",
                stored="1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more",
                own="0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more",
            ),
        ),
        (
            single("a", "orders", 1),
            single("b", "orders", 2),
            Contradiction(
                about="the task of SystemStreamPartition [kafka, orders, 0]",
                stored="Task-a",
                own="Task-b",
            ),
        ),
    ],
)
def test_a_contradiction_says_what_either_has(
    stored: TaskAssignment, own: TaskAssignment, expected: Contradiction
) -> None:
    assert contradiction(stored, own) == expected


def test_the_only_task_may_have_any_partitions() -> None:
    some = assigned("single", {"orders": (2,)}, {"Task-a": [ssp("orders", 0), ssp("orders", 3)]})
    assert contradiction(some, single("a", "orders", 2)) is None
    union = merged(some, single("a", "orders", 2))
    assert union.counts == {stream("orders"): (3,)}
    assert decode_assignment(encode(union)) == union
