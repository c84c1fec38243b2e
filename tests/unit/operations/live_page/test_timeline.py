"""Bars and their spans, from the snapshots of batches; the events between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ssp.operations.live_page.timeline import (
    MAX_BATCHES,
    DelayLevel,
    QueryTimeline,
    SourceTimeline,
    delay_level,
)
from spark_ssp.operations.observed_queries import Delay
from spark_ssp.operations.snapshot import (
    LeaseCounts,
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)
from spark_ssp.testing.kinesis.state.stream import shard_id
from tests.support.operations.histories import PERIOD_MS, START_MS, random_history, shard, snapshot

LIMIT_MS = 600_000


def followed(*snapshots: QuerySnapshot) -> QueryTimeline:
    query = QueryTimeline(1, snapshots[0].run_id)
    for each in snapshots:
        query.add(each, (), LIMIT_MS)
    return query


def timeline(*snapshots: QuerySnapshot) -> SourceTimeline:
    (source,) = followed(*snapshots).sources
    return source


def events(*snapshots: QuerySnapshot) -> list[str]:
    return [event.text for event in followed(*snapshots).events]


def by_id(*shards: ShardSnapshot) -> dict[str, ShardSnapshot]:
    return {each.shard: each for each in shards}


# --- Bars -----------------------------------------------------------------------------------------


def test_a_bar_has_a_span_for_each_level_of_delay_and_each_owner() -> None:
    lags = [100, 200, 200_000, 250_000, 250_000]
    owners = ["anne", "anne", "anne", "anne", "bert"]
    (bar,) = timeline(
        *(
            snapshot(n, by_id(shard(0, 1, lag, owner=owner)))
            for n, (lag, owner) in enumerate(zip(lags, owners, strict=True))
        )
    ).bars
    assert [(span.level, span.owner) for span in bar.spans] == [
        (DelayLevel.LOW, "anne"),
        (DelayLevel.MODERATE, "anne"),
        (DelayLevel.MODERATE, "bert"),
    ]
    assert [(span.start_ms - START_MS) // PERIOD_MS for span in bar.spans] == [0, 2, 4]
    assert [one.end_ms for one in bar.spans[:-1]] == [one.start_ms for one in bar.spans[1:]]
    assert (bar.lag, bar.task, bar.is_current) == (250_000, "1", True)


def test_the_delay_of_a_batch_includes_its_duration() -> None:
    hung = replace(snapshot(0, by_id(shard(0, 0, 0))), phases_ms={"triggerExecution": LIMIT_MS + 1})
    found = timeline(hung)
    assert found.bars[0].spans[0].level is DelayLevel.SEVERE
    assert found.batches[0].delay_ms == LIMIT_MS + 1


def test_a_span_keeps_its_level_however_many_follow() -> None:
    """The past is not painted anew when a bar has many spans."""
    lags = [0 if n % 2 else 700_000 for n in range(2 * MAX_BATCHES)]
    (bar,) = timeline(*(snapshot(n, by_id(shard(0, 0, lag))) for n, lag in enumerate(lags))).bars
    for span in bar.spans:
        batch = (span.start_ms - START_MS) // PERIOD_MS
        assert span.level is (DelayLevel.LOW if batch % 2 else DelayLevel.SEVERE)
    assert MAX_BATCHES <= len(bar.spans) <= MAX_BATCHES + 1


def test_a_shard_that_the_report_leaves_out_is_unknown_whatever_its_bound() -> None:
    first = snapshot(0, by_id(shard(0, 0, 700_000), shard(1, 0, None)))
    (source,) = first.sources
    (stream,) = source.streams
    bounded = replace(stream, not_shown_max_lag=700_000)
    found = timeline(replace(first, sources=(replace(source, streams=(bounded,)),)))
    levels = {bar.shard: bar.spans[-1].level for bar in found.bars}
    assert levels == {shard_id(0): DelayLevel.SEVERE, shard_id(1): DelayLevel.UNKNOWN}


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


def test_each_source_that_reads_a_topic_has_its_own_delay() -> None:
    """The delays of a report come from its history, in the order of its sources."""
    (source,) = snapshot(0, by_id(shard(0, 0, 7))).sources
    topic = replace(source, format=SourceFormat.KAFKA)
    both = replace(snapshot(0, {}), sources=(topic, topic))
    key = topic.streams[0].name, shard_id(0)
    query = QueryTimeline(1, both.run_id)
    query.add(both, ({key: Delay(ms=LIMIT_MS)}, {key: Delay(ms=1)}), LIMIT_MS)
    assert [one.delays[key].ms for one in query.sources] == [LIMIT_MS, 1]


def test_the_time_begins_again_after_the_clock_was_set_back() -> None:
    one = snapshot(50, by_id(shard(0, 1, 100)))
    back = replace(snapshot(2, by_id(shard(0, 1, 200))), batch_id=one.batch_id + 1)
    found = timeline(one, back)
    assert [batch.time_ms for batch in found.batches] == [back.time_ms]
    assert [bar.lag for bar in found.bars] == [200]


def test_a_report_repeated_with_its_status_replaces_the_first_and_an_older_one_is_ignored() -> None:
    zero = snapshot(0, by_id(shard(0, 0, 400_000)))
    first = snapshot(1, by_id(shard(0, 0, None)))
    again = snapshot(1, by_id(shard(0, 0, 400_000)))
    found = timeline(zero, first, again, snapshot(0, by_id(shard(5, 2))))
    assert [batch.batch_id for batch in found.batches] == [0, 1]
    (bar,) = found.bars
    assert [span.level for span in bar.spans] == [DelayLevel.HIGH]
    assert found.batches[1].delay_ms == 401_800


def test_only_the_last_batches_are_kept_however_long_the_query_runs() -> None:
    found = timeline(*random_history(shards=20, batches=4 * MAX_BATCHES))
    assert len(found.batches) == MAX_BATCHES
    assert all(bar.end_ms >= found.start_ms for bar in found.bars)
    assert found.latest is not None
    assert {bar.shard for bar in found.bars if bar.is_current} == {
        each.shard for each in found.latest.streams[0].shards
    }
    assert (
        len(found.numbers)
        == len(set(found.numbers.values()))
        == len(found.bars) - sum(not bar.is_current for bar in found.bars)
    )


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (None, DelayLevel.UNKNOWN),
        (Delay(ms=0), DelayLevel.LOW),
        (Delay(ms=60_000), DelayLevel.LOW),
        (Delay(ms=60_001), DelayLevel.MODERATE),
        (Delay(ms=300_001), DelayLevel.HIGH),
        (Delay(ms=LIMIT_MS), DelayLevel.HIGH),
        (Delay(ms=LIMIT_MS + 1), DelayLevel.SEVERE),
        (Delay(ms=1, is_bound=True), DelayLevel.UNKNOWN),
        (Delay(ms=LIMIT_MS + 1, is_bound=True), DelayLevel.SEVERE),
    ],
)
def test_levels(delay: Delay | None, level: DelayLevel) -> None:
    assert delay_level(delay, LIMIT_MS) is level


# --- Events ---------------------------------------------------------------------------------------


def test_reshards_are_events_once() -> None:
    before = by_id(shard(0, 0), shard(1, 1), shard(2, 0))
    split = before | by_id(shard(3, 0, parents=(0,)), shard(4, 0, parents=(0,)))
    merged = split | by_id(shard(5, 0, parents=(1, 2)))
    assert events(snapshot(0, before), snapshot(1, split), snapshot(2, merged)) == [
        "split of shard 0 into 3 and 4 (orders)",
        "merge of shards 1 and 2 into 5 (orders)",
    ]


def test_many_splits_are_one_event() -> None:
    before = by_id(*(shard(n, 0) for n in range(10)))
    after = by_id(*(shard(10 + n, 0, parents=(n // 2,)) for n in range(20)))
    assert events(snapshot(0, before), snapshot(1, after)) == ["10 splits of orders"]


def test_leases_that_are_handed_over_are_events_and_ended_shards_are_not() -> None:
    both = LeaseCounts(by_owner={"anne": 2, "bert": 2})
    first = snapshot(0, by_id(shard(0, 0), shard(1, 0, 0, ReadState.ENDED)), worker="anne")
    second = snapshot(1, by_id(shard(7, 0)), worker="anne", leases=both)
    third = snapshot(2, by_id(shard(7, 0)), worker="anne", leases=LeaseCounts(by_owner={"anne": 4}))
    assert events(first, second, third) == [
        "1 lease of orders taken over from other workers: shard 7",
        "1 lease of orders handed over to other workers: shard 0",
        "worker bert has no lease of orders any more",
    ]


def test_an_expansion_and_a_restart_are_events() -> None:
    def topic(batch: int, partitions: int, run: str) -> QuerySnapshot:
        shards = tuple(
            ShardSnapshot(shard=str(n), state=ReadState.OPEN, task="Partition 0")
            for n in range(partitions)
        )
        source = SourceSnapshot(
            format=SourceFormat.KAFKA,
            streams=(StreamSnapshot(name="orders", shards=shards),),
            tasks=("Partition 0",),
            rows=1,
        )
        return replace(snapshot(batch, {}), sources=(source,), run_id=run)

    found = followed(topic(0, 4, "a"), topic(1, 8, "a"), topic(2, 8, "b"))
    assert [event.text for event in found.events] == [
        "expansion of topic orders: 4 partitions became 8",
        "restarted",
    ]
    assert len(found.sources[0].batches) == 3, "the time before the restart stays"
