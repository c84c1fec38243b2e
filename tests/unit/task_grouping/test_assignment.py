"""Assignments, version 1: what was written once must be read for ever, equal ones be equal text.

The files `tests/golden/assignment_v1_*.json` are never written by a test: a change of one of them
is a change of what users have stored.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssp_common.errors import IncompatibleStateError
from task_grouping.assignment import (
    NO_ASSIGNMENT,
    TaskAssignment,
    decode_assignment,
    encode_assignment,
)
from task_grouping.fixed_tasks import FixedTasks
from task_grouping.groupers import GroupByPartition
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


def _golden(name: str) -> str:
    return (GOLDEN / f"assignment_v1_{name}.json").read_text().removesuffix("\n")


def test_each_golden_file_has_its_value() -> None:
    files = {path.stem.removeprefix("assignment_v1_") for path in GOLDEN.glob("assignment_*.json")}
    assert files == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_assignment_reads_as_it_was_meant(name: str) -> None:
    assert decode_assignment(json.loads(_golden(name))) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_assignment_is_written_to_the_letter(name: str) -> None:
    assert json.dumps(encode_assignment(EXPECTED[name])) == _golden(name)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=2
    ),
    st.randoms(use_true_random=False),
)
def test_an_assignment_survives_and_its_text_knows_no_order(
    counts: dict[str, tuple[int, int]], random: Random
) -> None:
    fixed = FixedTasks(grouper=GroupByPartition())
    first = fixed.group(NO_ASSIGNMENT, ssps({name: count for name, (count, _) in counts.items()}))
    now = fixed.group(first, ssps({name: count * by for name, (count, by) in counts.items()}))
    text = json.dumps(encode_assignment(now))
    assert decode_assignment(json.loads(text)) == now

    def shuffled(mapping: Any) -> Any:
        entries = list(mapping.items())
        random.shuffle(entries)
        return dict(entries)

    other = TaskAssignment(
        grouper=now.grouper, counts=shuffled(now.counts), tasks=shuffled(now.tasks)
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
    assert (error.found, error.expected) == ("no version", 'a task assignment with "v": 1')


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_an_unknown_version_is_refused_by_its_name(version: object) -> None:
    error = _refusal(json.loads(_golden("expanded")) | {"v": version})
    assert (error.found, error.expected) == (f"assignment version {version!r}", "version 1")


def _edited(path: list[str], value: object) -> object:
    """The golden assignment `expanded` with one value replaced, or dropped where it is ..."""
    document: Any = json.loads(_golden("expanded"))
    level = document
    for step in path[:-1]:
        level = level[step]
    if value is ...:
        del level[path[-1]]
    else:
        level[path[-1]] = value
    return document


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
def test_a_damaged_assignment_is_refused_by_what_is_wrong(
    path: list[str], value: object, found: str
) -> None:
    error = _refusal(_edited(path, value))
    assert found in error.found
    assert error.expected == "the layout of version 1"
