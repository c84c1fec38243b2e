"""The agent's loop: over a store in memory, with a clock by hand."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from spark_ssp.checkpoint.agent.event_loop import (
    ANSWER_WAIT_MS,
    FIRST_ANSWER_WAIT_MS,
    SHUTDOWN_MS,
    JobFailed,
    ReportReceived,
)
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.conditional_writes import Take
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    LeaseTableError,
    ShardEnded,
    StreamIdentifier,
)
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.checkpoint.leases.worker_metrics import KclRows, MetricRow, RowLocation
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.errors import AccessError, ServiceUnavailableError
from spark_ssp.grouping.identifiers import StreamName
from tests.support.leases.agents import FAILOVER_MS, ManualAgent, World
from tests.support.leases.memory_store import Call, Fault, MemoryLeaseStore
from tests.support.leases.values import ANNE, BERT, CARL, lease, processed

SHARDS = tuple(lease(f"shardId-{number:012d}") for number in range(4))
KEYS = frozenset(row.key for row in SHARDS)
FIRST, SECOND = SHARDS[0].key, SHARDS[1].key
CREATE = Report(create=SHARDS)

DENIED = AccessError("lease table orders", found="no", expected="yes", next_step="allow it")
DOWN = ServiceUnavailableError("lease table orders", found="no", expected="yes", next_step="wait")


def reading(*rows: Lease, **more: object) -> Report:
    return replace(Report(reading=frozenset(row.key for row in rows)), **more)  # type: ignore[arg-type]


ALL = reading(*SHARDS)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def anne(world: World) -> ManualAgent:
    """An agent that holds all leases, while all are read."""
    agent = world.agent(ANNE)
    agent.exchange(CREATE)
    assert set(agent.exchange(ALL).held) == KEYS
    return agent


# --- Answers -------------------------------------------------------------------------------------


def test_the_first_answer_tells_what_was_created_and_taken(world: World) -> None:
    begin = world.now
    status = world.agent(ANNE).exchange(CREATE)
    assert set(status.rows) == KEYS
    assert set(status.held) == KEYS
    assert world.owners() == dict.fromkeys(KEYS, ANNE)
    assert world.now - begin < ANSWER_WAIT_MS


def test_the_first_answer_waits_for_the_table(world: World) -> None:
    agent = world.agent(ANNE, opening_ms=30_000)
    begin = world.now
    status = agent.exchange(CREATE)
    assert 30_000 <= world.now - begin < 30_000 + ANSWER_WAIT_MS
    assert set(status.held) == KEYS


def test_an_answer_does_not_wait_for_slow_writes_for_ever(world: World) -> None:
    agent = world.agent(ANNE)
    agent.write_ms = 20_000
    for most in (FIRST_ANSWER_WAIT_MS, ANSWER_WAIT_MS):
        begin = world.now
        status = agent.exchange(CREATE)
        assert most <= world.now - begin <= most + 50
        assert status.held == {}


def test_later_answers_wait_for_no_renewal(world: World, anne: ManualAgent) -> None:
    anne.write_ms = 3_000
    world.run(FAILOVER_MS // 3 + 10)  # renewals are under way
    begin = world.now
    assert set(anne.exchange(ALL).held) == KEYS
    assert world.now - begin <= 20


def test_an_agent_started_again_first_renews_what_is_its_own(
    world: World, anne: ManualAgent
) -> None:
    anne.die()
    again = world.agent(ANNE)
    again.write_ms = 400
    assert set(again.exchange(ALL).held) == KEYS


def test_an_agent_started_again_counts_only_leases_of_its_streams(world: World) -> None:
    """Those of a stream that is no longer read do not make others surplus."""
    stream = StreamIdentifier(account="1" * 12, name=StreamName("clicks"), created=1)
    left = replace(SHARDS[0], stream=stream)
    world.agent(ANNE).exchange(Report(create=(left,)))
    anne = world.agent(ANNE)
    anne.exchange(Report(create=SHARDS[:1]))
    anne.die()
    listed = Report(reading=frozenset({FIRST}), listed=frozenset({FIRST}))
    again = world.agent(ANNE, max_leases=1).exchange(listed)
    assert set(again.held) == {FIRST}
    assert again.asked_for == frozenset()


@pytest.mark.parametrize("before", [False, True])
def test_an_agent_started_again_deletes_no_row_by_an_old_listing(
    world: World, before: bool
) -> None:
    ended = lease("shardId-new", owner=ANNE, progress=ShardEnded())
    world.store.put_item(encode(ended))
    world.agent(ANNE).exchange(Report(listed=KEYS, listed_before=before))
    world.run(Settings(worker=ANNE).clean_up_interval_ms + FAILOVER_MS)
    assert (ended.key in world.owners()) is before


def test_an_agent_started_again_writes_what_was_committed(world: World, anne: ManualAgent) -> None:
    """Told once, at the beginning of a long batch; then its reader is killed."""
    anne.die()
    again = world.agent(ANNE)
    again.exchange(replace(ALL, progress={FIRST: processed(900)}))
    again.hang_up()
    world.run(1_000)
    assert world.lease(FIRST).progress == processed(900)
    assert world.owners() == dict.fromkeys(KEYS, None)


def test_a_table_that_cannot_be_used_is_an_error_and_nothing_is_written(world: World) -> None:
    agent = world.agent(ANNE)
    agent.opening = DENIED
    for _ in range(2):
        with pytest.raises(AccessError, match="allow it"):
            agent.exchange(CREATE)
    assert world.store.items() == ()
    agent.hang_up()
    world.run(10)
    assert agent.is_over()


def test_a_problem_that_stays_is_in_the_status(world: World, anne: ManualAgent) -> None:
    problem = LeaseTableError("table orders", found="a", expected="b", next_step="c")

    class Gone(MemoryLeaseStore):
        def scan(self) -> Rows:
            raise problem

    again = world.agent(BERT)
    again.wrap = lambda _: Gone()
    again.exchange(Report())
    world.run(FAILOVER_MS)
    status = again.exchange(Report())
    assert status.problem is problem
    assert status.outage_ms == 0


def test_a_job_that_breaks_ends_the_agent(anne: ManualAgent) -> None:
    with pytest.raises(ZeroDivisionError):
        anne.agent.handle(JobFailed(error=ZeroDivisionError()))


# --- Keeping -------------------------------------------------------------------------------------


def test_leases_are_renewed_while_the_reader_says_nothing(world: World, anne: ManualAgent) -> None:
    other = world.agent(BERT, max_leases=4)
    other.exchange(Report())
    before = world.lease(FIRST).counter
    world.run(20 * FAILOVER_MS)
    assert world.owners() == dict.fromkeys(KEYS, ANNE)  # asked for, but still read
    assert 20 * 3 <= world.lease(FIRST).counter - before <= 20 * 3 + 20
    status = anne.exchange(ALL)
    assert len(status.asked_for) == 2
    assert not other.is_over()


def test_slow_scans_keep_no_renewal_waiting(world: World, anne: ManualAgent) -> None:
    anne.read_ms = 5 * FAILOVER_MS
    world.run(10 * FAILOVER_MS)
    assert set(anne.exchange(ALL).held) == KEYS


def test_leases_are_shared_and_handed_over_at_once(world: World, anne: ManualAgent) -> None:
    bert = world.agent(BERT)
    assert bert.exchange(Report()).held == {}
    world.run(FAILOVER_MS)
    asked = anne.exchange(ALL).asked_for
    assert len(asked) == 2
    begin = world.now
    left = reading(*(row for row in SHARDS if row.key not in asked))
    progress = {key: processed(7) for key in asked}
    anne.exchange(replace(left, progress=progress))
    world.run(FAILOVER_MS // 5)
    assert set(bert.exchange(Report()).held) == asked
    assert world.now - begin < FAILOVER_MS // 2
    assert {world.lease(key).progress for key in asked} == {processed(7)}


def test_progress_is_written_now_and_then_and_at_the_end(world: World, anne: ManualAgent) -> None:
    for number in range(1, 101):
        anne.exchange(replace(ALL, progress={FIRST: processed(number)}))
        world.run(90)
    assert world.lease(FIRST).progress != processed(100)
    anne.hang_up()
    world.run(1_000)
    assert anne.is_over()
    assert world.lease(FIRST).progress == processed(100)


def test_a_shard_read_to_its_end(world: World, anne: ManualAgent) -> None:
    child = lease("shardId-000000000009", parents=(SHARDS[0].shard,))
    status = anne.exchange(reading(*SHARDS[1:], ended={FIRST: (child,)}))
    assert world.lease(FIRST).progress == ShardEnded()
    assert child.key in status.rows


# --- Trouble -------------------------------------------------------------------------------------


@pytest.fixture
def faults() -> list[Fault]:
    """While it is not empty, its first entry happens to all calls."""
    return []


def faulty_world(faults: list[Fault]) -> World:
    def happens(_: Call) -> Fault | None:
        return faults[0] if faults else None

    return World(
        store=MemoryLeaseStore(faults=happens, retry=RetrySettings(max_attempts=2, max_backoff=0.1))
    )


@pytest.mark.parametrize("fault", Fault)
def test_an_outage_is_logged_and_passes(faults: list[Fault], fault: Fault) -> None:
    world = faulty_world(faults)
    agent = world.agent(ANNE)
    agent.exchange(CREATE)
    agent.exchange(ALL)
    faults.append(fault)
    world.run(3 * FAILOVER_MS)
    begin = world.now
    status = agent.exchange(ALL)
    assert world.now - begin <= 20  # an answer in an outage waits for nothing
    assert 2 * FAILOVER_MS < status.outage_ms <= 3 * FAILOVER_MS + 20
    assert status.held == {}
    faults.clear()
    world.run(FAILOVER_MS)
    status = agent.exchange(ALL)
    assert status.outage_ms == 0
    assert set(status.held) == KEYS


def test_what_kcl_3_says_not_being_readable_is_no_outage(
    world: World, anne: ManualAgent, caplog: pytest.LogCaptureFixture
) -> None:
    world.kcl.error = DOWN
    world.run(FAILOVER_MS)
    status = anne.exchange(ALL)
    assert (status.outage_ms, status.problem) == (0, None)
    assert set(status.held) == KEYS
    assert "could not read the rows of KCL 3 workers" in caplog.text


def test_a_lost_lease_is_logged(
    world: World, anne: ManualAgent, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.write(Take(lease=world.lease(FIRST), owner=CARL))
    world.run(FAILOVER_MS)
    assert FIRST not in anne.exchange(ALL).held
    assert f"lost leases, now held by {CARL} (1): {FIRST}" in caplog.text


def test_what_happens_to_many_leases_is_one_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="spark_ssp.checkpoint"):
        agent = world.agent(ANNE)
        agent.exchange(CREATE)
        agent.hang_up()
        world.run(1_000)
    keys = ", ".join(sorted(KEYS))
    assert [record.getMessage() for record in caplog.records] == [
        f"anne took leases (4): {keys}",
        "releasing the leases of anne: of a test",
        f"released leases (4): {keys}",
    ]


# --- The end -------------------------------------------------------------------------------------


def test_when_the_reader_goes_everything_is_given_back(world: World, anne: ManualAgent) -> None:
    anne.hang_up()
    world.run(200)
    assert anne.is_over()
    assert world.owners() == dict.fromkeys(KEYS, None)


def test_a_reader_that_goes_before_the_table_is_there(world: World) -> None:
    agent = world.agent(ANNE)
    agent.hang_up()
    world.run(10)
    assert agent.is_over()


def test_giving_back_ends_though_the_table_is_down(
    faults: list[Fault], caplog: pytest.LogCaptureFixture
) -> None:
    world = faulty_world(faults)
    agent = world.agent(ANNE)
    agent.exchange(CREATE)
    faults.append(Fault.UNAVAILABLE)
    agent.hang_up()
    world.run(SHUTDOWN_MS - 100)
    assert not agent.is_over()
    world.run(200)
    assert agent.is_over()
    assert "4 leases could not be released" in caplog.text


def test_leaving_gives_everything_back_and_the_agent_stays(world: World, anne: ManualAgent) -> None:
    status = anne.exchange(Report(leave=True))
    assert status.released
    assert world.owners() == dict.fromkeys(KEYS, None)
    world.run(5 * FAILOVER_MS)
    assert world.owners() == dict.fromkeys(KEYS, None)
    assert not anne.is_over()


# --- Beside KCL 3 --------------------------------------------------------------------------------


def kcl_worker(world: World, home: RowLocation) -> KclRows:
    row = MetricRow(worker=CARL, location=home, updated=world.wall, ours=False)
    return KclRows(metrics=(row,))


def test_without_kcl_3_no_metric_row_is_written(world: World, anne: ManualAgent) -> None:
    world.run(100_000)
    assert world.kcl.own == {}


def test_a_metric_row_is_written_beside_kcls_moves_with_them_and_is_removed(
    world: World, anne: ManualAgent
) -> None:
    world.kcl.rows = kcl_worker(world, RowLocation.METRICS)
    world.run(45_000)
    times = world.kcl.own[RowLocation.METRICS, ANNE]
    assert len(times) == 2
    assert 30 <= times[1] - times[0] <= 36
    world.kcl.rows = kcl_worker(world, RowLocation.LEASES)
    world.run(FAILOVER_MS)
    assert set(world.kcl.own) == {(RowLocation.LEASES, ANNE)}
    anne.hang_up()
    world.run(1_000)
    assert anne.is_over()
    assert world.kcl.own == {}


def test_who_leaves_hides_at_once_and_shows_itself_no_more(world: World, anne: ManualAgent) -> None:
    world.kcl.rows = kcl_worker(world, RowLocation.METRICS)
    world.run(FAILOVER_MS)
    assert set(world.kcl.own) == {(RowLocation.METRICS, ANNE)}
    anne.exchange(replace(ALL, leave=True))  # still being read
    world.run(10)
    assert world.kcl.own == {}
    for _ in range(20):
        world.kcl.rows = kcl_worker(world, RowLocation.METRICS)
        world.run(FAILOVER_MS)
        assert world.kcl.own == {}


def test_a_metric_row_that_is_just_written_does_not_come_back(world: World) -> None:
    world.kcl.rows = kcl_worker(world, RowLocation.METRICS)
    anne = world.agent(ANNE)
    anne.read_ms = 300
    anne.agent.handle(ReportReceived(report=Report(leave=True)))
    world.run(250)
    assert world.kcl.own == {}
    world.run(2_000)
    assert world.kcl.own == {}
    anne.hang_up()
    world.run(1_000)
    assert anne.is_over()


def test_a_metric_row_that_cannot_be_written_is_reported(
    world: World, anne: ManualAgent, caplog: pytest.LogCaptureFixture
) -> None:
    world.kcl.refusal = DENIED
    world.kcl.rows = kcl_worker(world, RowLocation.METRICS)
    world.run(FAILOVER_MS)
    assert "the metric row" in caplog.text
    assert set(anne.exchange(ALL).held) == KEYS
