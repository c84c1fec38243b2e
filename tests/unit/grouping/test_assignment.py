"""Assignments, versions 1 and 2: what was written once must be read for ever, equal ones be equal
text. The files `tests/golden/assignment_v*.json` are never written by a test: a change of one of
them is a change of what users have stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.assignment import (
    NO_ASSIGNMENT,
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
    Grouper,
    TaskAssignment,
    decode_assignment,
    encode_assignment,
    encode_assignment_v1,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import WorkerId
from tests.support.edits import edited, shuffled
from tests.support.kafka.partitions import assigned, ssp, ssps

GOLDEN = Path(__file__).parents[2] / "golden"

EXPECTED: dict[str, TaskAssignment] = {
    "empty": NO_ASSIGNMENT,
    "expanded": assigned(
        "partition",
        {"orders": (2, 4), "clicks": (1,)},
        {
            "Partition 0": [ssp("orders", 0), ssp("orders", 2), ssp("clicks", 0)],
            "Partition 1": [ssp("orders", 1), ssp("orders", 3)],
        },
    ),
    "ssp_chosen": assigned(
        "ssp",
        {"orders": (2,)},
        {
            "SystemStreamPartition [kafka, orders, 10]": [ssp("orders", 10)],
            "SystemStreamPartition [kafka, orders, 2]": [ssp("orders", 2)],
        },
    ),
    "single": assigned("single", {"orders": (3, 12)}, {"Task-worker-1": ssps({"orders": 12})}),
    "bounded": assigned(
        "partition mod 2",
        {"orders": (3,)},
        {"Partition 0": [ssp("orders", 0), ssp("orders", 2)], "Partition 1": [ssp("orders", 1)]},
    ),
}
"""The values of the golden files of each version."""

ADDED: dict[str, TaskAssignment] = {
    # orders was created again after an expansion; clicks was not.
    "recreated": assigned(
        "partition",
        {"orders": (4,), "clicks": (2,)},
        {
            "Partition 0": [ssp("orders", 0), ssp("orders", 2), ssp("clicks", 0)],
            "Partition 1": [ssp("orders", 1), ssp("orders", 3), ssp("clicks", 1)],
        },
    ),
    "ssp_expanded": assigned(
        "ssp",
        {"orders": (1, 2)},
        {"SystemStreamPartition [kafka, orders, 0]": ssps({"orders": 2})},
    ),
}
"""The values of golden files since version 2."""

VALUES = {
    **{("v1", name): value for name, value in EXPECTED.items()},
    **{("v2", name): value for name, value in {**EXPECTED, **ADDED}.items()},
}
WRITERS = {"v1": encode_assignment_v1, "v2": encode_assignment}


def _golden(name: str, version: str = "v2") -> str:
    return (GOLDEN / f"assignment_{version}_{name}.json").read_text().removesuffix("\n")


def test_each_golden_file_has_its_value() -> None:
    files = {path.stem.removeprefix("assignment_") for path in GOLDEN.glob("assignment_*.json")}
    assert files == {f"{version}_{name}" for version, name in VALUES}


@pytest.mark.parametrize(("version", "name"), VALUES)
def test_a_golden_assignment_reads_as_it_was_meant(version: str, name: str) -> None:
    assert decode_assignment(json.loads(_golden(name, version))) == VALUES[version, name]


@pytest.mark.parametrize(("version", "name"), VALUES)
def test_a_golden_assignment_is_written_to_the_letter(version: str, name: str) -> None:
    assert json.dumps(WRITERS[version](VALUES[version, name])) == _golden(name, version)


@given(
    st.sampled_from(
        [
            GroupByPartition(),
            GroupByPartition(tasks=3),
            GroupBySystemStreamPartition(),
            AllSspToSingleTask(worker=WorkerId("w")),
        ]
    ),
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=2
    ),
    st.randoms(use_true_random=False),
)
def test_an_assignment_survives_and_its_text_knows_no_order(
    grouper: Grouper, counts: dict[str, tuple[int, int]], random: Random
) -> None:
    fixed = FixedTasks(grouper=grouper)
    first = fixed.group(NO_ASSIGNMENT, ssps({name: count for name, (count, _) in counts.items()}))
    now = fixed.group(first, ssps({name: count * by for name, (count, by) in counts.items()}))
    text = json.dumps(encode_assignment(now))
    assert decode_assignment(json.loads(text)) == now
    assert decode_assignment(encode_assignment_v1(now)) == now
    again = replace(
        now,
        counts={one: random.choice([history, history[-1:]]) for one, history in now.counts.items()},
    )
    assert decode_assignment(encode_assignment(again)) == again

    other = TaskAssignment(
        grouper=now.grouper, counts=shuffled(now.counts, random), tasks=shuffled(now.tasks, random)
    )
    assert json.dumps(encode_assignment(other)) == text


# --- Assignments that are none of ours ------------------------------------------------------------


def _refusal(document: object) -> IncompatibleStateError:
    with pytest.raises(IncompatibleStateError) as caught:
        decode_assignment(document)
    assert caught.value.subject == "task assignment"
    return caught.value


@pytest.mark.parametrize("document", [{}, [], None, 7, "Partition 0", {"tasks": {}}])
def test_what_has_no_version_is_refused(document: object) -> None:
    error = _refusal(document)
    assert (error.found, error.expected) == ("no version", 'a task assignment with "v": 1 or 2')


@pytest.mark.parametrize("version", [0, 3, "1", None, True, 1.0])
def test_an_unknown_version_is_refused_by_its_name(version: object) -> None:
    error = _refusal(json.loads(_golden("expanded")) | {"v": version})
    assert (error.found, error.expected) == (f"assignment version {version!r}", "version 1 or 2")


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["grouper"], ..., "'grouper'"),
        (["grouper"], 7, "7 is no grouper"),
        (["tasks"], ..., "'tasks'"),
        (["tasks"], [], "'list' object has no attribute 'items'"),
        (["tasks", "Partition 0"], {}, "Partition 0 has no partitions"),
        (["tasks", "Partition 1", "kafka", "orders"], [0, 3], "0] is in two tasks"),
        (["tasks", "Partition 1", "kafka", "orders"], [1, 1], "listed twice"),
        (["tasks", "Partition 1", "kafka", "orders"], [1, "3"], "'3' is no whole number"),
        (["tasks", "Partition 1", "kafka", "orders"], [1, True], "True is no whole number"),
        (["tasks", "Partition 1", "kafka", "orders"], [1, -3], "-3 is no whole number"),
        (["tasks", "Partition 1", "kafka", "orders"], [1], "has 3 partitions, not (2, 4)"),
        (["tasks", "Partition 1", "kafka", "orders"], [1, 4], "orders lacks partitions below 4"),
        (["counts"], ..., "'counts'"),
        (["counts", "kafka", "orders"], ..., "orders is not both in the counts and in the tasks"),
        (["counts", "kafka", "other"], [1], "other is not both in the counts and in the tasks"),
        (["counts", "kafka", "orders"], [], "orders has 4 partitions, not ()"),
        (["counts", "kafka", "orders"], [4, 4], "the counts of kafka/orders do not grow"),
        (["counts", "kafka", "orders"], 4, "'int' object is not iterable"),
    ],
)
def test_a_damaged_assignment_of_version_1_is_refused_by_what_is_wrong(
    path: list[str], value: object, found: str
) -> None:
    error = _refusal(edited(_golden("expanded", "v1"), path, value))
    assert found in error.found
    assert error.expected == "the layout of version 1"


_ORDERS = "Partition 1", "kafka", "orders"


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["grouper"], ..., "'grouper'"),
        (["grouper"], 7, "7 is no grouper"),
        (["grouper"], "other", "clicks is not in the tasks, which do not follow from its counts"),
        (["grouper"], "partition mod 02", "clicks is not in the tasks"),
        (["tasks"], [], "'list' object has no attribute 'items'"),
        (["tasks", "Partition 0"], {}, "Partition 0 has no partitions"),
        (["tasks", "Partition 2"], {"kafka": {"clicks": [0]}}, "clicks has 1 partitions, not (2,)"),
        (["tasks", *_ORDERS], [0, 3], "0] is in two tasks"),
        (["tasks", *_ORDERS], [1, "3"], "'3' is no whole number"),
        (["tasks", *_ORDERS], [1], "has 3 partitions, not (4,)"),
        (["counts"], ..., "'counts'"),
        (["counts", "kafka", "orders"], ..., "orders is not both in the counts and in the tasks"),
        (["counts", "kafka", "clicks"], [], "clicks is not in the tasks"),
        (["counts", "kafka", "clicks"], [0], "clicks is not in the tasks"),
        (["counts", "kafka", "clicks"], [0, 4], "clicks is not in the tasks"),
        (["counts", "kafka", "clicks"], [4, 2], "clicks is not in the tasks"),
        (["counts", "kafka", "clicks"], [2, 2], "the counts of kafka/clicks do not grow"),
        (["counts", "kafka", "clicks"], [2, 5], "clicks is not in the tasks"),
        (["counts", "kafka", "clicks"], 4, "'int' object is not iterable"),
    ],
)
def test_a_damaged_assignment_is_refused_by_what_is_wrong(
    path: list[str], value: object, found: str
) -> None:
    error = _refusal(edited(_golden("recreated"), path, value))
    assert found in error.found
    assert error.expected == "the layout of version 2"


def test_tasks_that_follow_from_the_counts_are_not_accepted_as_a_list() -> None:
    document = json.loads(_golden("bounded"))
    document["tasks"] = json.loads(_golden("bounded", "v1"))["tasks"]
    assert "the unknown key 'tasks'" in _refusal(document).found
