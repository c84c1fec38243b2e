"""Bars and their spans, from the snapshots of batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ssp.operations.live_page.timeline import (
    MAX_BATCHES,
    LagLevel,
    QueryTimeline,
    SourceTimeline,
    lag_level,
)
from spark_ssp.operations.snapshot import QuerySnapshot, ReadState, ShardSnapshot, SourceFormat
from tests.support.operations.histories import (
    PERIOD_MS,
    START_MS,
    random_history,
    shard,
    shard_id,
    snapshot,
)


def timeline(*snapshots: QuerySnapshot) -> SourceTimeline:
    query = QueryTimeline("etl")
    for each in snapshots:
        query.add(each)
    (source,) = query.sources
    return source


def by_id(*shards: ShardSnapshot) -> dict[str, ShardSnapshot]:
    return {each.shard: each for each in shards}


def test_a_bar_has_a_span_for_each_level_of_lag_and_each_owner() -> None:
    lags = [100, 200, 20_000, 30_000, 30_000]
    owners = ["anne", "anne", "anne", "anne", "bert"]
    (bar,) = timeline(
        *(
            snapshot(n, by_id(shard(0, 1, lag, owner=owner)))
            for n, (lag, owner) in enumerate(zip(lags, owners, strict=True))
        )
    ).bars
    assert [(span.level, span.owner) for span in bar.spans] == [
        (LagLevel.LOW, "anne"),
        (LagLevel.MODERATE, "anne"),
        (LagLevel.MODERATE, "bert"),
    ]
    assert [(span.start_ms - START_MS) // PERIOD_MS for span in bar.spans] == [0, 2, 4]
    assert [one.end_ms for one in bar.spans[:-1]] == [one.start_ms for one in bar.spans[1:]]
    assert (bar.lag, bar.task, bar.is_current) == (30_000, "1", True)


def test_a_split_ends_one_bar_and_starts_two() -> None:
    before = by_id(shard(0, 0), shard(1, 1))
    closed = before | by_id(shard(0, 0, 0, ReadState.ENDED))
    waiting = closed | by_id(shard(2, None, 5, ReadState.WAITING, parents=(0,)))
    after = by_id(shard(1, 1), shard(2, 0, parents=(0,)), shard(3, 1, parents=(0,)))
    found = timeline(snapshot(0, before), snapshot(1, waiting), snapshot(2, after))
    bars = {bar.shard: bar for bar in found.bars}
    assert set(bars) == {shard_id(n) for n in range(4)}
    parent = bars[shard_id(0)]
    assert (parent.is_current, parent.state) == (False, ReadState.ENDED)
    for child in (bars[shard_id(2)], bars[shard_id(3)]):
        assert child.parents == (shard_id(0),)
        assert parent.end_ms <= child.start_ms


def test_parents_are_kept_when_later_reports_leave_them_out() -> None:
    later = replace(shard(2, 0), parents=None)
    (bar,) = timeline(
        snapshot(0, by_id(shard(2, 0, parents=(0, 1)))), snapshot(1, by_id(later))
    ).bars
    assert bar.parents == (shard_id(0), shard_id(1))


def test_a_shard_that_another_task_takes_gets_a_second_bar() -> None:
    found = timeline(snapshot(0, by_id(shard(0, 0))), snapshot(1, by_id(shard(0, 3))))
    assert [(bar.task, bar.is_current) for bar in found.bars] == [("0", False), ("3", True)]


def test_a_report_repeated_with_its_status_replaces_the_first_and_an_older_one_is_ignored() -> None:
    first = snapshot(1, by_id(shard(0, 0, None)))
    again = snapshot(1, by_id(shard(0, 0, 70_000)))
    found = timeline(first, again, snapshot(0, by_id(shard(5, 2))))
    assert [batch.batch_id for batch in found.batches] == [1]
    (bar,) = found.bars
    assert [span.level for span in bar.spans] == [LagLevel.HIGH]
    assert found.batches[0].max_lag == 70_000


def test_only_the_last_batches_are_kept_however_long_the_query_runs() -> None:
    found = timeline(*random_history(shards=20, batches=4 * MAX_BATCHES))
    assert len(found.batches) == MAX_BATCHES
    assert all(bar.end_ms >= found.start_ms for bar in found.bars)
    assert all(len(bar.spans) <= 40 for bar in found.bars)
    assert {bar.shard for bar in found.bars if bar.is_current} == {
        each.shard
        for each in found.latest.streams[0].shards  # type: ignore[union-attr]
    }
    for bar in found.bars:
        times = [time for span in bar.spans for time in (span.start_ms, span.end_ms)]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("lag", "level"),
    [
        (None, LagLevel.UNKNOWN),
        (0, LagLevel.LOW),
        (10_000, LagLevel.LOW),
        (10_001, LagLevel.MODERATE),
        (600_000, LagLevel.HIGH),
        (600_001, LagLevel.SEVERE),
    ],
)
def test_levels(lag: int | None, level: LagLevel) -> None:
    assert lag_level(SourceFormat.KINESIS, lag) is level
