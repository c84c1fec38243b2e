"""The health of a query as its driver observes it: a batch that hangs, a query that has failed and
one that nobody reads are never OK, and a delay grows without reports."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.operations.health import (
    FAILING_STARTS,
    Health,
    Limits,
    Phase,
    Reader,
    State,
    Verdict,
)
from spark_ssp.operations.observed_queries import (
    MAX_ENDED,
    PHASE_VALID_MS,
    Delay,
    History,
    ObservedQueries,
    Point,
    paces_of,
    partition_delays,
    phase_of,
)
from spark_ssp.operations.progress import failure_kind
from spark_ssp.operations.snapshot import (
    LeaseCounts,
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
START = 1_795_464_000_000
LIMITS = Limits(max_delay_ms=10 * MINUTE, stuck_after_ms=15 * MINUTE)


def snapshot(
    time_ms: int,
    *lags: int | None,
    batch: int = 7,
    run: str = "run-1",
    idle: bool = False,
    leases: LeaseCounts | None = None,
) -> QuerySnapshot:
    """The report of a trigger over the shards of a Kinesis stream."""
    shards = tuple(
        ShardSnapshot(shard=f"shardId-{n:012}", state=ReadState.OPEN, task="0", lag=lag)
        for n, lag in enumerate(lags)
    )
    known = [lag for lag in lags if lag is not None]
    stream = StreamSnapshot(
        name="orders",
        shards=shards,
        max_lag=max(known, default=None),
        retention_ms=24 * HOUR,
        leases=leases,
    )
    return report(time_ms, SourceFormat.KINESIS, stream, batch=batch, run=run, idle=idle)


def kafka(time_ms: int, *partitions: tuple[int, int]) -> QuerySnapshot:
    """The report of a trigger over the partitions of a topic: position and end of each."""
    topic = StreamSnapshot(
        name="orders",
        shards=tuple(
            ShardSnapshot(
                shard=str(number), state=ReadState.OPEN, lag=end - position, position=position
            )
            for number, (position, end) in enumerate(partitions)
        ),
    )
    return report(time_ms, SourceFormat.KAFKA, topic)


def report(
    time_ms: int,
    format_: SourceFormat,
    stream: StreamSnapshot,
    *,
    batch: int = 7,
    run: str = "run-1",
    idle: bool = False,
) -> QuerySnapshot:
    return QuerySnapshot(
        query_id="query",
        run_id=run,
        name="etl",
        batch_id=batch,
        time_ms=time_ms,
        rows=0 if idle else 40,
        phases_ms={"triggerExecution": 500} | ({} if idle else {"addBatch": 400}),
        sources=(
            SourceSnapshot(format=format_, streams=(stream,), tasks=("0",), rows=0 if idle else 40),
        ),
    )


def observed(*snapshots: QuerySnapshot, phase: Phase | None = None) -> ObservedQueries:
    queries = ObservedQueries()
    for one in snapshots:
        queries.publish(one)
        queries.observe(one.run_id, phase, one.time_ms + 600)
    return queries


def health(queries: ObservedQueries, now_ms: int) -> Health:
    ((_, found),) = queries.assessed(LIMITS, now_ms)
    return found


def test_a_query_in_time_is_ok_and_its_delay_grows_until_the_next_report() -> None:
    queries = observed(snapshot(START, 3_000, 0), phase=Phase.WAITING)
    found = health(queries, START + 2_000)
    assert (found.verdict, found.state) == (Verdict.OK, State.WAITING)
    assert (found.committed.ms, found.planned.ms) == (5_000, 3_000)
    queries.publish(snapshot(START + 4_000, 0, 0, batch=8))
    assert health(queries, START + 4_000).committed.ms == 0


@pytest.mark.parametrize(
    ("phase", "stuck_in"),
    [
        (Phase.BATCH, {Phase.TASKS, Phase.SINK}),
        (Phase.PLANNING, {Phase.PLANNING}),
    ],
)
def test_a_query_that_hangs_is_stalled_although_its_last_report_was_good(
    phase: Phase, stuck_in: set[Phase]
) -> None:
    queries = observed(snapshot(START, 0), phase=phase)
    now = START + 20 * MINUTE
    queries.observe("run-1", phase, now - 1_000)
    found = health(queries, now)
    assert (found.verdict, found.state) == (Verdict.STALLED, State.STUCK)
    assert set(found.stuck_in) == stuck_in
    assert found.committed.ms == 20 * MINUTE


def test_a_query_that_waits_for_its_trigger_is_not_stuck() -> None:
    queries = observed(snapshot(START, 0))
    now = START + 20 * MINUTE
    queries.observe("run-1", Phase.WAITING, now)
    found = health(queries, now)
    assert (found.verdict, found.state) == (Verdict.BEHIND, State.WAITING)
    # Spark no longer answers: what the query does is not known, and that no report came is.
    assert health(queries, now + PHASE_VALID_MS + 1).state is State.STUCK


def test_a_busy_query_is_not_stuck_although_only_its_batches_are_seen() -> None:
    queries = ObservedQueries()
    queries.started("run-1", "query", "etl", START)
    for number in range(200):
        now = START + number * 5 * SECOND
        queries.publish(snapshot(now - SECOND, 0, batch=number))
        queries.observe("run-1", Phase.BATCH, now)
    found = health(queries, now)
    assert (found.verdict, found.state) == (Verdict.OK, State.RUNNING)
    queries.observe("run-1", Phase.BATCH, now + 20 * MINUTE)
    assert health(queries, now + 20 * MINUTE).state is State.STUCK


def test_a_first_batch_that_hangs_is_stalled() -> None:
    queries = ObservedQueries()
    queries.started("run-1", "query", "etl", START)
    queries.observe("run-1", Phase.BATCH, START + 1_000)
    assert health(queries, START + MINUTE).verdict is Verdict.UNKNOWN
    queries.observe("run-1", Phase.BATCH, START + 20 * MINUTE)
    assert health(queries, START + 20 * MINUTE).verdict is Verdict.STALLED


def test_a_failed_query_stays_failed_until_it_is_started_again() -> None:
    queries = observed(snapshot(START, 0))
    queries.ended("run-1", "data-loss", START + MINUTE)
    ((query, found),) = queries.assessed(LIMITS, START + HOUR)
    assert (found.verdict, query.failure) == (Verdict.FAILED, "data-loss")
    queries.started("run-2", "query", "etl", START + HOUR)
    queries.publish(snapshot(START + HOUR, 0, run="run-2"))
    assert health(queries, START + HOUR).verdict is Verdict.OK


def test_a_query_that_fails_at_each_start_is_failed_between_the_failures_too() -> None:
    queries = ObservedQueries()
    for number in range(4):
        run, now = f"run-{number}", START + number * MINUTE
        queries.started(run, "query", "etl", now)
        verdict = health(queries, now).verdict
        assert (verdict is Verdict.FAILED) == (number >= FAILING_STARTS), number
        queries.publish(snapshot(now, 0, run=run, idle=True))
        assert (health(queries, now).verdict is Verdict.FAILED) == (number >= FAILING_STARTS)
        if number < 3:
            queries.ended(run, "error", now)
    queries.publish(snapshot(now + 1, 0, run=run))
    assert health(queries, now + 1).verdict is Verdict.OK


def test_a_failure_that_is_reported_after_the_next_start_counts() -> None:
    queries = ObservedQueries()
    queries.started("run-0", "query", "etl", START)
    for number in range(FAILING_STARTS):
        queries.started(f"run-{number + 1}", "query", "etl", START + number)
        queries.ended(f"run-{number}", "error", START + number)
    assert health(queries, START + MINUTE).verdict is Verdict.FAILED


def test_a_run_that_has_ended_does_not_start_again() -> None:
    queries = observed(snapshot(START, 0))
    queries.ended("run-1", None, START + SECOND)
    queries.started("run-1", "query", "etl", START + SECOND)
    assert not queries.publish(snapshot(START + SECOND, 0, batch=8))
    assert queries.running() == []


def test_of_two_queries_with_one_name_the_one_that_was_started_last_counts() -> None:
    queries = ObservedQueries()
    for number, query in enumerate(("first", "second", "first")):
        queries.started(f"run-{number}", query, "etl", START + number)
        if number < 2:
            queries.ended(f"run-{number}", "error", START + number)
    ((found, _),) = queries.assessed(LIMITS, START)
    assert found.run_id == "run-2"


def test_reports_are_taken_in_order_and_after_the_clock_was_set_back() -> None:
    queries = observed(snapshot(START, 0, batch=7))
    assert not queries.publish(snapshot(START + 1, 0, batch=6))
    assert not queries.publish(snapshot(START - MINUTE, 0, batch=7))
    back = START - HOUR
    assert not queries.publish(snapshot(back, 0, batch=6))
    assert queries.publish(snapshot(back, 11 * MINUTE, batch=7))  # of an idle query
    assert health(queries, back).verdict is Verdict.BEHIND
    back -= HOUR
    assert queries.publish(snapshot(back, 0, batch=8))
    assert health(queries, back).verdict is Verdict.OK


def test_a_backlog_is_not_in_time_after_the_clock_was_set_back() -> None:
    queries = observed(kafka(START, (0, 100)), kafka(START + MINUTE, (0, 100)))
    back = START - HOUR
    assert queries.publish(replace(kafka(back, (0, 100)), batch_id=8))
    assert health(queries, back).verdict is Verdict.UNKNOWN


def test_a_delay_is_not_known_while_the_last_report_is_in_the_future() -> None:
    """The clock was set back after it."""
    queries = observed(snapshot(START, 0))
    queries.observe("run-1", Phase.WAITING, START - HOUR)
    found = health(queries, START - HOUR)
    assert (found.verdict, found.committed.ms, found.unmeasured) == (Verdict.UNKNOWN, None, 1)


def test_a_query_that_ended_without_an_error_is_not_ok() -> None:
    queries = observed(snapshot(START, 0))
    queries.ended("run-1", None, START + MINUTE)
    found = health(queries, START + HOUR)
    assert (found.verdict, found.state) == (Verdict.STALLED, State.ENDED)


def test_queries_that_ended_are_forgotten_in_time() -> None:
    queries = ObservedQueries()
    for number in range(2 * MAX_ENDED):
        queries.started(f"run-{number}", f"query-{number}", None, START)
        queries.ended(f"run-{number}", None, START)
    assert len(queries.assessed(LIMITS, START)) == MAX_ENDED


def test_a_lag_that_is_not_known_is_not_ok() -> None:
    assert health(observed(snapshot(START, None)), START).verdict is Verdict.UNKNOWN
    # A report of many shards has the lag of those farthest behind, which bounds the others'.
    stream = replace(snapshot(START, 900, None).sources[0].streams[0], not_shown_max_lag=900)
    bounded = report(START, SourceFormat.KINESIS, stream)
    assert health(observed(bounded), START).verdict is Verdict.OK


@pytest.mark.parametrize("reader", [Reader.FREE, Reader.STALE])
def test_shards_that_nobody_reads_stall_a_query(reader: Reader) -> None:
    all_read = LeaseCounts(by_owner={"anne": 1, "bert": 2})
    counts: dict[str, Any] = {reader.value: 2}
    unread = replace(all_read, **counts)
    queries = observed(snapshot(START, 0, leases=unread))
    assert health(queries, START).verdict is Verdict.OK  # as after a reshard, or a death
    queries.publish(snapshot(START + 2 * MINUTE, 0, leases=unread))
    found = health(queries, START + 2 * MINUTE)
    assert (found.verdict, set(found.not_read)) == (Verdict.STALLED, {reader})
    queries.publish(snapshot(START + 3 * MINUTE, 0, leases=replace(all_read, not_read=1)))
    assert health(queries, START + 3 * MINUTE).verdict is Verdict.STALLED
    queries.publish(snapshot(START + 4 * MINUTE, 0, leases=all_read))
    assert health(queries, START + 4 * MINUTE).verdict is Verdict.OK
    queries.publish(snapshot(START + 5 * MINUTE, 0, leases=unread))
    assert health(queries, START + 5 * MINUTE).verdict is Verdict.OK
    if reader is Reader.STALE:
        queries.publish(snapshot(START + 5 * MINUTE + 1, 0, leases=replace(unread, stale=None)))
        assert health(queries, START + 5 * MINUTE + 1).verdict is Verdict.OK
        queries.publish(snapshot(START + 6 * MINUTE, 0, leases=replace(unread, stale=None)))
        assert health(queries, START + 6 * MINUTE).verdict is Verdict.UNKNOWN
        queries.publish(snapshot(START + 6 * MINUTE + 1, 0, leases=unread))
        assert health(queries, START + 6 * MINUTE + 1).verdict is Verdict.STALLED


def test_a_worker_that_holds_no_lease_is_ok_if_others_hold_them() -> None:
    queries = observed(snapshot(START, leases=LeaseCounts(by_owner={"bert": 2})))
    assert health(queries, START).verdict is Verdict.OK
    for leases in (None, LeaseCounts(by_owner={})):
        found = health(observed(snapshot(START, leases=leases)), START)
        assert found.verdict is Verdict.UNKNOWN
        assert found.findings[0].reason == "the query reads no shard and no partition"


def test_whether_others_live_is_not_known_for_long() -> None:
    """The table cannot be read: its last view has owners, and not whether they live."""
    others = LeaseCounts(by_owner={"anne": 1, "bert": 2}, stale=None)
    for lags, first in (((0,), Verdict.OK), ((), Verdict.UNKNOWN)):
        queries = observed(snapshot(START, *lags, leases=others))
        assert health(queries, START).verdict is first
        queries.publish(snapshot(START + 2 * MINUTE, *lags, leases=others))
        assert health(queries, START + 2 * MINUTE).verdict is Verdict.UNKNOWN
        # It is read again: since when leases are stale was not known.
        queries.publish(snapshot(START + 3 * MINUTE, *lags, leases=replace(others, stale=1)))
        assert health(queries, START + 3 * MINUTE).verdict is Verdict.OK
        queries.publish(snapshot(START + 4 * MINUTE, *lags, leases=others))
        assert health(queries, START + 4 * MINUTE).verdict is Verdict.UNKNOWN
    # No other worker has a lease.
    one = snapshot(START, 0, leases=LeaseCounts(by_owner={"anne": 1}, stale=None))
    alone = replace(one, sources=(replace(one.sources[0], worker="anne"),))
    queries = observed(alone, replace(alone, time_ms=START + HOUR))
    assert health(queries, START + HOUR).verdict is Verdict.OK


def test_a_query_that_falls_behind_towards_the_retention_is_losing() -> None:
    slower = [snapshot(START + n * MINUTE, 20 * HOUR + n * MINUTE // 2, batch=n) for n in range(9)]
    found = health(observed(*slower), START + 8 * MINUTE)
    assert found.verdict is Verdict.LOSING
    faster = [snapshot(START + n * MINUTE, HOUR - 3 * n * MINUTE, batch=n) for n in range(9)]
    found = health(observed(*faster), START + 8 * MINUTE)
    assert found.verdict is Verdict.BEHIND
    # 36 minutes are left, and each minute takes off three.
    assert found.outlook.until_caught_up_ms == pytest.approx(12 * MINUTE)


# --- Kafka ----------------------------------------------------------------------------------------


def test_a_partitions_delay_is_known_from_earlier_ends() -> None:
    first = kafka(START, (100, 500), (7, 7))
    queries = observed(first)
    # The backlog is older than the first report, by an unknown time.
    assert health(queries, START).verdict is Verdict.UNKNOWN
    assert health(queries, START + 11 * MINUTE).verdict is Verdict.BEHIND
    queries.publish(kafka(START + MINUTE, (500, 900), (7, 7)))
    ((_, found),) = queries.assessed(LIMITS, START + MINUTE)
    assert (found.verdict, found.planned.ms) == (Verdict.OK, MINUTE)
    assert found.committed.offsets == 400


@given(
    written=st.lists(st.integers(0, 50), min_size=2, max_size=30),
    read=st.integers(0, 1_000),
)
def test_the_delay_of_a_partition_bounds_the_age_of_its_oldest_unread_record(
    written: list[int], read: int
) -> None:
    """Records come ten seconds apart, as many as `written`; a report follows each time."""
    history = History()
    end, arrivals = 0, []
    for number, count in enumerate(written):
        now = START + number * 10 * SECOND
        arrivals += [now - SECOND // 2] * count
        end += count
        history.add(kafka(now, (0, end)))
    position = min(read, end)
    (newest,) = kafka(now, (position, end)).sources
    (ends,) = history.ends
    (delay,) = partition_delays(newest, ends, now).values()
    age = now - arrivals[position] if position < end else 0
    if delay.is_bound:
        assert delay.ms <= age or ends["orders", "0"].ends[0] > position
    else:
        assert age <= delay.ms <= age + 11 * SECOND or (age == delay.ms == 0)


def test_the_ends_of_partitions_are_kept_for_so_many_reports() -> None:
    history = History()
    for number in range(400):
        history.add(kafka(START + number * 10 * SECOND, (0, number)))
    ends = history.ends[0]["orders", "0"]
    assert (len(ends.ends), len(ends.times), ends.ends[-1]) == (360, 360, 399)


def test_a_pace_needs_two_reports() -> None:
    one = Point(time_ms=START, delays={(0, "orders"): 0})
    assert paces_of([]) == paces_of([one]) == paces_of([one, one]) == {}


def test_a_delay_that_is_only_bounded_has_no_pace() -> None:
    queries = observed(*(kafka(START + n * MINUTE, (100 + n, 500)) for n in range(12)))
    ((_, found),) = queries.assessed(LIMITS, START + 11 * MINUTE)
    assert (found.verdict, found.outlook.until_caught_up_ms) == (Verdict.BEHIND, 11 * MINUTE)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("offset", [0, 1_000_000])
def test_each_source_that_reads_a_topic_has_its_own_delay(slow: int, offset: int) -> None:
    """Topics of one name on other brokers have other offsets."""
    queries = ObservedQueries()
    queries.started("run-1", "query", "etl", START)
    for number in range(120):
        now, end = START + number * MINUTE, 100 * (number + 1)
        places = [(end + offset, end + offset)]
        # It reads half as fast as writers write, and has all of the first report.
        places.insert(slow, (100 + end // 2, max(end, 100 + end // 2)))
        reports = [kafka(now, place) for place in places]
        both = replace(reports[0], sources=tuple(one.sources[0] for one in reports))
        queries.publish(replace(both, batch_id=number))
        queries.observe("run-1", Phase.WAITING, now)
    ((query, found),) = queries.assessed(LIMITS, now)
    assert (found.verdict, found.unmeasured) == (Verdict.BEHIND, 0)
    assert found.planned.ms == pytest.approx(HOUR, abs=2 * MINUTE)
    assert found.outlook.until_caught_up_ms == math.inf
    assert query.delays[1 - slow] == {("orders", "0"): Delay(ms=0)}


def test_each_source_that_reads_a_stream_has_its_own_pace() -> None:
    queries = ObservedQueries()
    for n in range(9):
        reports = [snapshot(START + n * MINUTE, lag) for lag in (HOUR - 3 * n * MINUTE, 0)]
        both = replace(reports[0], sources=tuple(one.sources[0] for one in reports))
        queries.publish(replace(both, batch_id=n))
    found = health(queries, START + 8 * MINUTE)
    assert found.verdict is Verdict.BEHIND
    assert found.outlook.until_caught_up_ms == pytest.approx(12 * MINUTE)


def test_a_source_without_an_offset_in_the_first_reports_shifts_no_delay() -> None:
    late, both = kafka(START, (100, 500)), kafka(START + MINUTE, (500, 500))
    history = History()
    assert len(history.add(late)) == 1
    other = kafka(START + MINUTE, (200, 900)).sources
    found = history.add(replace(both, sources=(*other, *both.sources)))
    assert found == ({}, {("orders", "0"): Delay(ms=0)})


# --- What Spark says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        ("Waiting for next trigger", Phase.WAITING),
        ("Waiting for data to arrive", Phase.WAITING),
        ("Getting offsets from KinesisStream", Phase.PLANNING),
        ("Initializing sources", Phase.PLANNING),
        ("Processing new data", Phase.BATCH),
        ("Stopped", None),
    ],
)
def test_the_phase_is_in_sparks_message(message: str, phase: Phase | None) -> None:
    assert phase_of(message) is phase


def test_the_kind_of_a_failure_has_no_data() -> None:
    text = "Traceback ...\nspark_ssp.common.errors.DataLossError: [data-loss] shard orders/0: found"
    assert failure_kind(text, "STREAM_FAILED") == "data-loss"
    assert failure_kind("ValueError: [secret] 4711", "STREAM_FAILED") == "STREAM_FAILED"
    assert failure_kind("ValueError: 4711", None) == "error"


def test_queries_of_other_sources_are_left_out() -> None:
    queries = observed(replace(snapshot(START, 0), sources=()))
    assert queries.assessed(LIMITS, START) == []
