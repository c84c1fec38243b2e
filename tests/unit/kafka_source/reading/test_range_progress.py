"""Which records of a log are kept, and when a range is done: against logs with any gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.ranges import PartitionRange
from spark_ssp.kafka_source.reading.progress import (
    PartitionStatus,
    RangeProgress,
    StallReason,
    diagnose,
    is_recreated,
    split_generations,
    to_data_loss,
)
from tests.support.kafka.reading import part

ONE, TWO = part("orders", 0, 3, 8), part("orders", 1, 0, 4)


def test_waves_are_the_generations_in_order() -> None:
    parts = [
        part("a", 0, 0, 1),
        part("b", 0, 0, 1),
        part("a", 1, 0, 1, generation=1),
        part("a", 2, 0, 1, generation=3),
    ]
    assert split_generations(parts) == [(parts[0], parts[1]), (parts[2],), (parts[3],)]
    assert split_generations([]) == []


def test_a_range_ends_with_its_last_offset() -> None:
    progress = RangeProgress([ONE])
    assert progress.select(ONE.ssp, [3, 4, 5]) == slice(0, 3)
    assert progress.positions == {ONE.ssp: 6}
    assert progress.select(ONE.ssp, [6, 7]) == slice(0, 2)
    assert progress.done


def test_a_range_ends_with_what_lies_behind_it() -> None:
    progress = RangeProgress([ONE, TWO])
    assert progress.select(ONE.ssp, [4, 9, 12]) == slice(0, 1)
    assert progress.position(ONE.ssp) is None
    progress.reach_end_of_log(TWO.ssp, 3)
    assert progress.positions == {TWO.ssp: 3}
    progress.reach_end_of_log(TWO.ssp, 6)
    assert progress.done


def test_what_was_seen_and_what_is_not_asked_for_is_not_kept() -> None:
    progress = RangeProgress([ONE])
    progress.select(ONE.ssp, [3, 4])
    assert progress.select(ONE.ssp, [2, 3, 4, 5]) == slice(3, 4)
    before = progress.advances
    assert progress.select(ONE.ssp, [2, 3]) == slice(2, 2)
    assert progress.select(TWO.ssp, [0]) == slice(0, 0)
    progress.reach_end_of_log(ONE.ssp, 1)
    progress.skip_to(ONE.ssp, 0)
    progress.abandon(TWO.ssp)
    assert (progress.advances, progress.positions) == (before, {ONE.ssp: 6})


def test_gaps_of_lost_records() -> None:
    progress = RangeProgress([ONE, TWO])
    progress.skip_to(ONE.ssp, 6)
    assert progress.select(ONE.ssp, [5, 6]) == slice(1, 2)
    progress.skip_to(ONE.ssp, 100)
    progress.abandon(TWO.ssp)
    assert progress.done


def test_an_empty_range_is_done_at_once() -> None:
    assert RangeProgress([part("orders", 0, 5, 5)]).done
    assert RangeProgress([]).done


def _pieces(log: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    ends = sorted({cut % (len(log) + 1) for cut in cuts} | {len(log)})
    return [log[begin:end] for begin, end in zip([0, *ends], ends, strict=False) if begin < end]


@given(
    log=st.sets(st.integers(0, 60)).map(sorted),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    back=st.lists(st.integers(0, 5), max_size=6),
)
def test_any_log_however_it_is_cut_is_kept_exactly_once(
    log: list[int], bounds: list[int], cuts: list[int], back: list[int]
) -> None:
    """A client may begin before the position, or hand over again what it handed over."""
    start, end = bounds
    range_ = part("orders", 0, start, end)
    progress = RangeProgress([range_])
    kept: list[int] = []
    place = 0
    for number, piece in enumerate(_pieces(log, cuts)):
        again = log[max(0, place - (back[number] if number < len(back) else 0)) : place]
        offsets = [*again, *piece]
        kept += offsets[progress.select(range_.ssp, offsets)]
        place += len(piece)
        if any(offset >= end - 1 for offset in log[:place]):
            assert progress.done
        elif start < end:
            assert not progress.done
    assert kept == [offset for offset in log if start <= offset < end]
    progress.reach_end_of_log(range_.ssp, 61)
    assert progress.done


# --- What it means that there is no progress ------------------------------------------------------

PLANNED = part("orders", 1, 10, 20, topic_id="one")
SAME = TopicDescription(topic_id=PLANNED.topic_id, partition_count=2)
OTHER = TopicDescription(topic_id=part("x", 0, 0, 1, topic_id="two").topic_id, partition_count=2)
NAMELESS = TopicDescription(partition_count=2)


@pytest.mark.parametrize(
    ("standing", "verdict"),
    [
        (PartitionStatus(topic=None, earliest=None, end=None), StallReason.DELETED),
        (
            PartitionStatus(topic=TopicDescription(partition_count=1), earliest=None, end=None),
            StallReason.DELETED,
        ),
        (
            PartitionStatus(topic=replace(SAME, partition_count=1), earliest=None, end=None),
            StallReason.OK,
        ),
        (PartitionStatus(topic=OTHER, earliest=0, end=50), StallReason.RECREATED),
        (
            PartitionStatus(topic=replace(OTHER, partition_count=1), earliest=None, end=None),
            StallReason.RECREATED,
        ),
        (PartitionStatus(topic=NAMELESS, earliest=0, end=50), StallReason.OK),
        (PartitionStatus(topic=SAME, earliest=13, end=50), StallReason.EXPIRED),
        (PartitionStatus(topic=SAME, earliest=12, end=50), StallReason.OK),
        (PartitionStatus(topic=SAME, earliest=0, end=11), StallReason.TRUNCATED),
        (PartitionStatus(topic=SAME, earliest=0, end=12), StallReason.INCOMPLETE),
        (PartitionStatus(topic=SAME, earliest=0, end=19), StallReason.INCOMPLETE),
        (PartitionStatus(topic=SAME, earliest=0, end=20), StallReason.OK),
        (PartitionStatus(topic=SAME, earliest=None, end=None), StallReason.OK),
    ],
)
def test_verdicts_at_12_of_a_range_up_to_20(
    standing: PartitionStatus, verdict: StallReason
) -> None:
    assert diagnose(PLANNED, 12, standing) is verdict
    is_listed = standing.topic is not None and standing.topic.partition_count > 1
    worse = diagnose(PLANNED, 12, standing, truncated=True)
    assert worse is (
        StallReason.REWRITTEN
        if is_listed and verdict in (StallReason.OK, StallReason.INCOMPLETE)
        else verdict
    )
    loss = to_data_loss(PLANNED, 12, verdict, standing)
    assert loss.subject == "partition orders-1"
    assert "read from 12 up to 20" in loss.found


def test_ids_that_nobody_knows_tell_nothing() -> None:
    unknown: PartitionRange = part("orders", 1, 10, 20)
    assert not is_recreated(unknown, OTHER)
    assert not is_recreated(PLANNED, NAMELESS)
    assert not is_recreated(PLANNED, None)
    assert is_recreated(PLANNED, OTHER)
