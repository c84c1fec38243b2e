"""Offsets of Kafka, versions 1 and 2: what was written once must be read for ever, equal ones be
equal text. The files `tests/golden/kafka_offset_v*.json` are checkpoints as PySpark writes them.
They are never written by a test: a change of one of them is a change of what users have on disk."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupByPartition, TaskAssignment
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Split, decode, encode
from spark_ssp.kafka_source.model.topic import TopicId
from tests.support.edits import edited, shuffled
from tests.support.kafka.partitions import assigned, ssp, ssps

GOLDEN = Path(__file__).parents[2] / "golden"

ORDERS, CLICKS = StreamName("orders"), StreamName("clicks")
ORDERS_ID, CLICKS_ID = TopicId("4mWqrDfgTzqf7-Nr5WBgvg"), TopicId("Qb_0Vf0hSWmJ7bJFSEZ8xA")

EXPECTED: dict[str, Offset] = {
    "empty": BEFORE_FIRST_BATCH,
    "first": Offset(
        topics={ORDERS: ORDERS_ID},
        positions={ssp("orders", 0): 23, ssp("orders", 1): 5},
        explicit_starts={ssp("orders", 0): 0, ssp("orders", 1): 5},
        assignment=assigned(
            "partition",
            {"orders": (2,)},
            {"Partition 0": [ssp("orders", 0)], "Partition 1": [ssp("orders", 1)]},
        ),
    ),
    "plain": Offset(
        topics={ORDERS: ORDERS_ID, CLICKS: CLICKS_ID},
        positions={ssp("orders", 0): 1 << 40, ssp("orders", 1): 0, ssp("clicks", 0): 7},
        assignment=assigned(
            "partition",
            {"orders": (2,), "clicks": (1,)},
            {
                "Partition 0": [ssp("orders", 0), ssp("clicks", 0)],
                "Partition 1": [ssp("orders", 1)],
            },
        ),
    ),
    "expanded": Offset(
        topics={ORDERS: ORDERS_ID},
        positions={ssp("orders", number): 100 - number for number in range(4)},
        explicit_starts={ssp("orders", 2): 0, ssp("orders", 3): 0},
        assignment=assigned(
            "partition",
            {"orders": (2, 4)},
            {
                "Partition 0": [ssp("orders", 0), ssp("orders", 2)],
                "Partition 1": [ssp("orders", 1), ssp("orders", 3)],
            },
        ),
    ),
    "without_ids": Offset(
        topics={ORDERS: None},
        positions={ssp("orders", number): number for number in range(11)},
        assignment=assigned("single", {"orders": (11,)}, {"Task-w": ssps({"orders": 11})}),
    ),
}
"""The values of the golden files of each version."""

ADDED: dict[str, Offset] = {
    "chosen": Offset(
        topics={ORDERS: ORDERS_ID, CLICKS: CLICKS_ID},
        positions={ssp("orders", 2): 9, ssp("orders", 10): 23, ssp("clicks", 0): 7},
        explicit_starts={ssp("orders", 10): 5, ssp("clicks", 0): 0},
        assignment=assigned(
            "ssp",
            {"orders": (2,), "clicks": (1,)},
            {
                "SystemStreamPartition [kafka, orders, 2]": [ssp("orders", 2)],
                "SystemStreamPartition [kafka, orders, 10]": [ssp("orders", 10)],
                "SystemStreamPartition [kafka, clicks, 0]": [ssp("clicks", 0)],
            },
        ),
    ),
    "split": Offset(
        topics={ORDERS: ORDERS_ID},
        positions={ssp("orders", 0): 23},
        assignment=assigned(
            "ssp",
            {"orders": (1,)},
            {"SystemStreamPartition [kafka, orders, 0]": [ssp("orders", 0)]},
        ),
        split=Split(min_tasks=8, max_offsets=100_000),
    ),
}
"""The values of golden files since version 2."""

VALUES = {
    **{("v1", name): value for name, value in EXPECTED.items()},
    **{("v2", name): value for name, value in {**EXPECTED, **ADDED}.items()},
}


def _golden(name: str, version: str = "v2") -> str:
    return (GOLDEN / f"kafka_offset_{version}_{name}.json").read_text().removesuffix("\n")


def test_each_golden_file_has_its_value() -> None:
    files = {path.stem.removeprefix("kafka_offset_") for path in GOLDEN.glob("kafka_offset_*.json")}
    assert files == {f"{version}_{name}" for version, name in VALUES}


@pytest.mark.parametrize(("version", "name"), VALUES)
def test_a_golden_offset_reads_as_it_was_meant(version: str, name: str) -> None:
    assert decode(json.loads(_golden(name, version))) == VALUES[version, name]


@pytest.mark.parametrize("name", [*EXPECTED, *ADDED])
def test_a_golden_offset_is_written_to_the_letter(name: str) -> None:
    # PySpark writes what `latestOffset` gives with json.dumps and its defaults.
    assert json.dumps(encode(VALUES["v2", name])) == _golden(name)


# --- Equal offsets are equal text -----------------------------------------------------------------


@st.composite
def _offsets(draw: st.DrawFn) -> Offset:
    chains = draw(
        st.dictionaries(
            st.sampled_from(["orders", "clicks"]),
            st.tuples(st.integers(1, 6), st.integers(1, 3)),
            max_size=2,
        )
    )
    fixed = FixedTasks(grouper=GroupByPartition())
    assignment = fixed.group(NO_ASSIGNMENT, ssps({name: n for name, (n, _) in chains.items()}))
    assignment = fixed.group(assignment, ssps({name: n * by for name, (n, by) in chains.items()}))
    positions = {one: draw(st.integers(0, (1 << 63) - 1)) for one in assignment.owners()}
    begun = draw(st.sets(st.sampled_from(sorted(positions)))) if positions else set()
    return Offset(
        topics={StreamName(name): draw(st.sampled_from([None, ORDERS_ID])) for name in chains},
        positions=positions,
        explicit_starts={one: draw(st.integers(0, positions[one])) for one in begun},
        assignment=assignment,
        split=draw(
            st.none()
            | st.builds(Split, min_tasks=st.integers(1, 9), max_offsets=st.none() | st.just(5))
        ),
    )


@given(_offsets(), st.randoms(use_true_random=False))
def test_an_offset_survives_and_its_text_knows_no_order_of_insertion(
    offset: Offset, random: Random
) -> None:
    text = json.dumps(encode(offset))
    assert decode(json.loads(text)) == offset

    other = Offset(
        topics=shuffled(offset.topics, random),
        positions=shuffled(offset.positions, random),
        explicit_starts=shuffled(offset.explicit_starts, random),
        assignment=TaskAssignment(
            grouper=offset.assignment.grouper,
            counts=shuffled(offset.assignment.counts, random),
            tasks=shuffled(offset.assignment.tasks, random),
        ),
        split=offset.split,
    )
    assert json.dumps(encode(other)) == text


def test_an_offset_of_10_000_partitions_takes_at_most_16_bytes_a_partition() -> None:
    fixed = FixedTasks(grouper=GroupByPartition())
    assignment = fixed.group(NO_ASSIGNMENT, ssps({"orders": 10_000}))
    offset = Offset(
        topics={ORDERS: ORDERS_ID},
        positions=dict.fromkeys(assignment.owners(), 123_456_789_012),
        assignment=assignment,
    )
    assert len(json.dumps(encode(offset))) <= 16 * 10_000


# --- Offsets that are none of ours ----------------------------------------------------------------


def _refusal(document: object) -> IncompatibleStateError:
    with pytest.raises(IncompatibleStateError) as caught:
        decode(document)
    assert "new checkpoint location" in caught.value.next_step
    return caught.value


@pytest.mark.parametrize(
    "document", [{"orders": {"0": 12, "1": 9}}, {}, [], '{"orders":{"0":12}}', None, 7]
)
def test_another_sources_offset_is_refused(document: object) -> None:
    error = _refusal(document)
    assert error.subject == "checkpoint of a kafka-ssp query"
    assert (error.found, error.expected) == ("no version", 'a kafka-ssp offset with "v": 1 or 2')


@pytest.mark.parametrize("version", [0, 3, "1", None, True, 1.0, {"0": 12}])
def test_an_unknown_version_is_refused_by_its_name(version: object) -> None:
    error = _refusal(json.loads(_golden("plain")) | {"v": version})
    assert (error.found, error.expected) == (f"offset version {version!r}", "version 1 or 2")


TOPIC = ["topics", "orders"]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["topics"], ..., "'topics'"),
        (["topics"], [], "'list' object has no attribute 'items'"),
        ([*TOPIC, "next"], ..., "'next'"),
        ([*TOPIC, "next"], [100, 99, 98, 97], "in topics / orders / next"),
        ([*TOPIC, "id"], 7, "7 is not a topic id"),
        ([*TOPIC, "id"], "", "'' is not a topic id"),
        ([*TOPIC, "next", "0"], "23", "'23' is no position"),
        ([*TOPIC, "next", "0"], -1, "-1 is no position"),
        ([*TOPIC, "next", "0"], True, "True is no position"),
        ([*TOPIC, "next", "0"], 1.5, "1.5 is no position"),
        ([*TOPIC, "next", "00"], 5, "'00' is not a partition"),
        ([*TOPIC, "next", "-1"], 5, "'-1' is not a partition"),
        ([*TOPIC, "next", "x"], 5, "'x'"),
        ([*TOPIC, "next", "4"], 5, "4] is not both in the positions and in the assignment"),
        ([*TOPIC, "next", "3"], ..., "3] is not both in the positions and in the assignment"),
        ([*TOPIC, "begin", "4"], 5, "orders-4 has a start but no position"),
        ([*TOPIC, "begin", "2"], 99, "orders-2 starts after its position"),
        (["topics", "clicks"], {"next": {}}, "clicks has no partitions"),
        (["assignment"], ..., "0] is not both in the positions and in the assignment"),
        (["split"], {"tasks": 8}, "unknown key 'split'"),
    ],
)
def test_a_damaged_offset_of_version_1_is_refused_by_what_is_wrong(
    path: list[str], value: object, found: str
) -> None:
    error = _refusal(edited(_golden("expanded", "v1"), path, value))
    assert error.subject == "checkpoint of a kafka-ssp query"
    assert found in error.found
    assert error.expected == "the layout of version 1"


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ([*TOPIC, "next"], ..., "'next'"),
        ([*TOPIC, "next"], [], "0] is not both in the positions and in the assignment"),
        ([*TOPIC, "next"], 7, "'int' object has no attribute 'items'"),
        ([*TOPIC, "next"], [100, 99, 98], "3] is not both in the positions and in the assignment"),
        ([*TOPIC, "next"], [100, 99, 98, -1], "-1 is no position"),
        ([*TOPIC, "next"], [100, 99, 98, True], "True is no position"),
        (
            [*TOPIC, "next"],
            {"0": 100, "1": 99, "2": 98, "3": 97},
            "another value than this version writes in topics / orders / next",
        ),
        ([*TOPIC, "begin"], [99, 99, 99], "orders-2 starts after its position"),
        (["assignment"], ..., "0] is not both in the positions and in the assignment"),
        (["assignment"], json.loads(_golden("expanded", "v1"))["assignment"], "in assignment"),
        (["split"], {}, "{} is not a split"),
        (["split"], {"tasks": 0}, "{'tasks': 0} is not a split"),
        (["split"], {"tasks": 1.5}, "1.5 is no limit"),
        (["split"], {"tasks": 8, "bytes": 8}, "in split"),
    ],
)
def test_a_damaged_offset_is_refused_by_what_is_wrong(
    path: list[str], value: object, found: str
) -> None:
    error = _refusal(edited(_golden("expanded"), path, value))
    assert error.subject == "checkpoint of a kafka-ssp query"
    assert found in error.found
    assert error.expected == "the layout of version 2"


def test_a_damaged_assignment_is_named() -> None:
    error = _refusal(edited(_golden("expanded"), ["assignment", "v"], 3))
    assert (error.subject, error.found) == ("task assignment", "assignment version 3")
