"""Partitions are split as by Spark's source, and every offset is read once, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.kafka_source.model.offset import Split
from spark_ssp.kafka_source.model.ranges import split_ranges
from tests.support.kafka.reading import part, task

SIZES = st.lists(st.integers(1, 60) | st.integers(1, 1_000_000), min_size=1, max_size=8)
LIMITS = st.none() | st.integers(1, 40) | st.integers(1, 100_000)
TASKS = st.none() | st.integers(1, 40)


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a partition. The partition's number stands for its name."""

    partition: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def _split(sizes: Sequence[int], least: int | None, most: int | None) -> list[Range]:
    """Return the ranges of partitions of these sizes, which start at 100."""
    tasks = [
        task(part("orders", number, 100, 100 + size), number=number)
        for number, size in enumerate(sizes)
    ]
    found = split_ranges(tasks, Split(min_tasks=least, max_offsets=most))
    assert all(one.number == piece.ssp.partition for one in found for piece in one.partitions)
    return [Range(piece.ssp.partition, piece.start, piece.end) for (piece,) in map(_parts, found)]


_parts = attrgetter("partitions")


# --- Spark's rules --------------------------------------------------------------------------------


def _divided(one: Range, count: int) -> list[Range]:
    found, left, begin = [], one.size, one.begin
    for index in range(count):
        size = left // (count - index)
        left -= size
        found.append(Range(one.partition, begin, begin + size))
        begin += size
    return found


def _round(value: float) -> int:
    """Round as Java's Math.round."""
    return math.floor(value + 0.5)


def _count(size: int, total: int, least: int) -> int:
    return max(_round(float(size) / float(total) * float(least)), 1)


def _sparks(ranges: list[Range], least: int | None, most: int | None) -> list[Range]:
    """`KafkaOffsetRangeCalculator.getRanges` of Spark 4.2, step by step."""
    if most is not None:
        ranges = [
            piece for one in ranges for piece in _divided(one, math.ceil(float(one.size) / most))
        ]
        ranges = [one for one in ranges if one.size > 0]
    if least is None or least <= len(ranges):
        return ranges
    total = sum(one.size for one in ranges)
    unsplit = [one for one in ranges if _count(one.size, total, least) == 1]
    partitions = {one.partition for one in unsplit}
    split_total = total - sum(one.size for one in unsplit)
    split_least = max(least - len(unsplit), 1)
    found = []
    for one in ranges:
        keeps = one.partition in partitions
        found += _divided(one, 1 if keeps else _count(one.size, split_total, split_least))
    return [one for one in found if one.size > 0]


@given(sizes=SIZES, least=TASKS, most=LIMITS)
@example(sizes=[3], least=None, most=2)
@example(sizes=[1, 1, 10], least=5, most=None)
@example(sizes=[7, 7], least=40, most=3)
def test_the_ranges_are_those_of_sparks_source(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    if most is not None:
        most = max(most, sum(sizes) // 500)
    whole = [Range(number, 100, 100 + size) for number, size in enumerate(sizes)]
    found = _split(sizes, least, most)
    assert found == _sparks(whole, least, most)
    for partition, pieces in groupby(found, attrgetter("partition")):
        ordered = list(pieces)
        assert ordered[0].begin == 100
        assert ordered[-1].end == 100 + sizes[partition]
        assert all(one.end == after.begin for one, after in pairwise(ordered))
        assert most is None or all(0 < one.size <= most for one in ordered)
    assert len({one.partition for one in found}) == len(sizes)


@pytest.mark.parametrize(
    ("sizes", "least", "most", "expected"),
    [
        ([100], None, None, [100]),
        ([100], 3, None, [33, 33, 34]),
        ([2], 3, None, [1, 1]),
        ([100, 100], 2, None, [100, 100]),
        ([1, 1, 1_000], 4, None, [1, 1, 500, 500]),
        ([100, 90], None, 50, [50, 50, 45, 45]),
        ([101], None, 50, [33, 34, 34]),
        ([100, 10], 6, 50, [16, 17, 17, 16, 17, 17, 10]),
    ],
)
def test_examples(
    sizes: list[int], least: int | None, most: int | None, expected: list[int]
) -> None:
    assert [one.size for one in _split(sizes, least, most)] == expected


def test_a_task_of_several_partitions_becomes_a_task_for_each() -> None:
    several = task(part("orders", 0, 0, 4), part("orders", 2, 0, 3, generation=1))
    found = split_ranges([several], Split(max_offsets=2))
    assert [(one.partitions[0].ssp.partition, one.partitions[0].start) for one in found] == [
        (0, 0),
        (0, 2),
        (2, 0),
        (2, 1),
    ]
