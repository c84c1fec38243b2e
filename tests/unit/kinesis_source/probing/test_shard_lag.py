"""The lag of one stream's shards, and what of it a progress report shows."""

from __future__ import annotations

import json

import pytest

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardEnd,
    ShardState,
    StreamDescription,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.position_advance import no_advance
from spark_ssp.kinesis_source.probing.shard_lag import (
    MAX_REPORTED_SHARDS,
    LastProbe,
    ProbeHistory,
    progress_entry,
    stream_lag,
)
from tests.support.kinesis.planning import listed, shard_id
from tests.support.kinesis.shards import key

NOW = EpochMillis(1_700_000_000_000)
RETENTION_MS = 86_400_000
FRESH_MS = 5000
READING = AfterRecord(sequence_number=SequenceNumber("7"))
STREAM = StreamDescription(
    name=StreamName("orders"),
    arn="arn",
    created=EpochMillis(NOW - 2 * RETENTION_MS),
    retention_ms=RETENTION_MS,
)
LISTING = {
    shard.shard_id: shard
    for shard in (
        listed(0, closed=True),
        listed(1),
        listed(2, 0, closed=True),
        listed(3, 2),
        listed(4, 2),
    )
}
"""0 was split into nothing but 2, which was split into 3 and 4; 1 is open."""


def ms(before_now: int) -> EpochMillis:
    return EpochMillis(NOW - before_now)


def probed(before_now: int, behind_ms: int) -> LastProbe:
    return LastProbe(time=ms(before_now), behind_ms=behind_ms, open_at=NOW)


def lag_of(
    states: dict[int, ShardState],
    sights: dict[int, LastProbe],
    *unseen: int,
    planned_at: EpochMillis | None = None,
) -> dict[int, int]:
    lag = stream_lag(
        STREAM,
        {shard_id(n): state for n, state in states.items()},
        LISTING,
        {shard_id(n): replace(sight, is_failing=n in unseen) for n, sight in sights.items()},
        now=NOW,
        planned_at=planned_at,
        fresh_ms=FRESH_MS,
    )
    return {int(shard[-12:]): millis for shard, millis in lag.items()}


def test_a_shard_lags_as_its_last_probe_reported_and_ages_until_the_next() -> None:
    states = {0: ShardState(position=READING), 1: ShardState(position=READING)}
    sights = {0: probed(500, 70), 1: probed(3000, 0)}
    lag = lag_of(states, sights, 1)
    assert (lag[0], lag[1]) == (570, 3000)
    assert lag_of(states, sights)[1] == 0, "it was at its latest record"
    sights[1] = probed(9000, 0)
    assert lag_of(states, sights)[1] == 9000, "others that catch up were probed without it"
    assert lag_of(states, sights, planned_at=ms(9000))[1] == 0, "the probes of others took 9 s"
    assert lag_of(states, sights, 1, planned_at=ms(9000))[1] == 9000


def test_a_probe_is_current_until_a_batch_is_planned_without_the_shard() -> None:
    history = ProbeHistory()
    found = {key(n): no_advance(ShardState(position=READING)) for n in (0, 1)}
    history.record_plan(found, ms(9000), lambda _: NOW)
    assert {one.time for one in history.last_probes(STREAM.name).values()} == {history.planned_at}
    history.record_plan({key(1): found[key(1)]}, NOW, lambda _: NOW)
    probes = history.last_probes(STREAM.name)
    assert [probes[shard_id(n)].time == history.planned_at for n in (0, 1)] == [False, True]


def test_shards_that_wait_lag_with_their_parents() -> None:
    """Their records are younger than whatever the parent holds."""
    states = {0: ShardState(position=READING), 1: ShardState(position=READING)}
    sights = {0: probed(1000, 5000), 1: probed(0, 0)}
    assert lag_of(states, sights) == {0: 6000, 1: 0, 2: 6000, 3: 6000, 4: 6000}


@pytest.mark.parametrize(("opened", "expected"), [(ms(60_000), 60_000), (None, 90_000)])
def test_children_are_younger_than_a_probe_only_if_their_parent_was_open_then(
    opened: EpochMillis | None, expected: int
) -> None:
    states = {
        0: ShardState(position=READING, last_caught_up_ms=ms(90_000)),
        1: ShardState(position=READING),
    }
    sights = {0: replace(probed(1000, 0), open_at=opened), 1: probed(0, 0)}
    lag = lag_of(states, sights)
    assert lag == {0: 0, 1: 0, 2: expected, 3: expected, 4: expected}


def test_a_shard_that_is_planned_to_its_end_leaves_its_lag_to_its_children() -> None:
    states = {0: ShardState(position=ShardEnd()), 1: ShardState(position=READING)}
    sights = {0: probed(1000, 5000), 1: probed(0, 0)}
    assert lag_of(states, sights) == {0: 0, 1: 0, 2: 6000, 3: 6000, 4: 6000}


@pytest.mark.parametrize(
    ("position", "seen", "expected"),
    [
        (TrimHorizon(), None, RETENTION_MS),
        (AtTimestamp(millis=ms(4000)), None, 4000),
        (AtTimestamp(millis=ms(2 * RETENTION_MS)), None, RETENTION_MS),
        (READING, None, RETENTION_MS),
        (READING, ms(3000), 3000),
    ],
)
def test_a_shard_that_was_never_looked_at_lags_as_far_as_is_possible(
    position: Position, seen: EpochMillis | None, expected: int
) -> None:
    states = {
        2: ShardState(position=position, last_caught_up_ms=seen),
        1: ShardState(position=ShardEnd()),
    }
    assert lag_of(states, {}) == {1: 0, 2: expected, 3: expected, 4: expected}


def test_a_report_is_bounded_and_its_totals_are_exact() -> None:
    lag = {shard_id(n): n * 1000 for n in range(500)}
    entry = progress_entry(lag)
    shown = entry["millisBehindLatest"]
    assert isinstance(shown, dict)
    assert list(shown) == [shard_id(n) for n in range(500 - MAX_REPORTED_SHARDS, 500)]
    assert entry["shardsNotShown"] == 400
    assert entry["maxMillisBehindLatest"] == 499_000
    assert entry["sumMillisBehindLatest"] == sum(lag.values())
    assert len(json.dumps(entry)) < 10_000
