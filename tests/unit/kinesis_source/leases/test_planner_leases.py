"""Planning where shards are shared by leases: queries with a table, an agent each, and no Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ssp.checkpoint.leases.lease import LeaseKey, Processed, ShardEnded
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.common import structs
from spark_ssp.common.errors import IncompatibleStateError, ServiceUnavailableError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.leases.lease_session import to_checkpoint
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Latest,
    SequenceNumber,
    Shard,
    ShardEnd,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.data_loss import tolerated_losses
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED
from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.support.fakes.planner_world import HOUR_MS, World, hide_shard
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key
from tests.support.leases.worlds import FAILOVER_MS, Company, LeaseWorld, Table, twice


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path / "marks")


def shards_of(world: LeaseWorld) -> list[str]:
    return sorted(entry.shard[-2:] for entry in world.offset.states)


# --- One query ------------------------------------------------------------------------------------


def test_one_query_takes_all_shards_with_its_first_batch(company: Company) -> None:
    put = company.put(40)
    anne = company.join("anne")
    batch = anne.trigger()
    assert batch is not None
    assert sorted(batch.read) == sorted(put)
    assert company.table.owners() == dict.fromkeys(("00", "01", "02", "03"), "anne")


def test_what_is_committed_is_written_and_nothing_earlier(company: Company) -> None:
    company.put(40)
    anne = company.join("anne")
    end = anne.plan()
    assert end is not None
    assert not any(isinstance(company.table.lease(n).progress, Processed) for n in range(4))
    anne.run(end)
    company.pass_time(FAILOVER_MS)
    assert not any(isinstance(company.table.lease(n).progress, Processed) for n in range(4))
    assert anne.plan() is None
    for n in range(4):
        assert company.table.lease(n).progress == to_checkpoint(end.states[key(n)])


def test_an_idle_query_asks_its_agent_once_per_trigger(company: Company) -> None:
    company.put(10)
    anne = company.join("anne")
    company.work(anne, rounds=3)
    before = anne.agent.exchanges
    assert anne.trigger() is None
    assert anne.agent.exchanges == before + 1
    assert anne.agent.reports[-1].listed is None
    assert anne.agent.reports[-1].create == ()


def test_a_new_query_of_the_application_goes_on_where_it_stopped(company: Company) -> None:
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=3)
    anne.stop()
    assert company.table.owners() == dict.fromkeys(("00", "01", "02", "03"))
    put = company.put(8)
    bert = company.join("bert", starting_position=StartingPosition(default=Latest()))
    assert sorted(company.work(bert, rounds=3)) == sorted(put)


def test_a_restart_goes_on_where_spark_is_when_that_is_further(company: Company) -> None:
    company.put(40)
    anne = company.join("anne")
    anne.trigger()
    anne.die()  # before anything was reported
    put = company.put(8)
    company.pass_time(FAILOVER_MS + 1000)
    anne.restart()
    assert sorted(company.work(anne, rounds=30)) == sorted(put)


@pytest.mark.parametrize("throttled", [0, 1, 3])
def test_restarts_after_a_crash_repeat_nothing(
    throttled: int, company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    """The dead one's leases last longer than the first restart, and its rows are behind; and at
    last the position of a shard cannot be verified at once."""
    anne = company.join("anne-1")
    put = company.put(40)
    read = company.work(anne, rounds=4)
    for _ in range(3):
        put += company.put(20)
        read += company.work(anne, rounds=1)
    anne.die()
    again = company.join("anne-2")
    again.offset = anne.offset
    read += company.work(again, rounds=1)
    assert again.offset.states == {}
    assert again.offset.lost_shards.keys() == anne.offset.states.keys()
    again.stop()
    company.pass_time(FAILOVER_MS)
    last = company.join("anne-3")
    last.offset = again.offset
    put += company.put(20)
    company.state.faults.add(
        Throttle(), operation="GetShardIterator", shard=shard_id(0), count=throttled
    )
    with caplog.at_level(logging.INFO, "spark_ssp.kinesis_source"):
        read += company.work(last, rounds=30)
    resumed = caplog.text.count("reading resumes at the checkpoint, which is further: orders/")
    assert resumed == 1
    assert sorted(read) == sorted(put)
    assert last.offset.lost_shards == {}


def test_a_query_that_had_no_leases_goes_on_from_its_checkpoint(company: Company) -> None:
    company.put(40)
    plain = World(clock=company.clock, state=company.state)
    plain.drain()
    put = company.put(8)
    anne = company.join("anne")
    anne.offset = plain.offset
    assert sorted(company.work(anne, rounds=3)) == sorted(put)


def test_latest_is_fixed_once_for_all(company: Company) -> None:
    company.put(20)
    anne = company.join("anne", starting_position=StartingPosition(default=Latest()))
    batch = anne.trigger()
    assert batch is not None
    assert batch.read == []
    anne.stop()
    put = company.put(20)
    bert = company.join("bert", starting_position=StartingPosition(default=Latest()))
    assert sorted(company.work(bert, rounds=3)) == sorted(put)


# --- Several --------------------------------------------------------------------------------------


def test_a_second_query_gets_half_and_nothing_is_read_twice(company: Company) -> None:
    read: list[str] = []
    put: list[str] = []
    anne = company.join("anne")
    for _ in range(5):
        put += company.put(20)
        read += company.work(anne, rounds=2)
    bert = company.join("bert")
    for _ in range(20):
        put += company.put(20)
        read += company.work(anne, bert, rounds=2)
    read += company.work(anne, bert, rounds=6)
    assert sorted(company.table.owners().values(), key=str) == ["anne"] * 2 + ["bert"] * 2
    assert not set(shards_of(anne)) & set(shards_of(bert))
    assert twice(read) == []
    assert sorted(read) == sorted(put)


def test_a_query_that_is_killed_leaves_its_shards_to_others(company: Company) -> None:
    anne, bert = company.join("anne"), company.join("bert")
    put = company.put(40)
    read = company.work(anne, bert, rounds=40)
    put += company.put(40)
    read += anne.trigger().read if anne.plan() else []  # type: ignore[union-attr]
    anne.die()
    put += company.put(40)
    read += company.work(bert, rounds=60)
    assert set(company.table.owners().values()) == {"bert"}
    assert set(read) == set(put)


def test_a_query_that_ends_gives_its_shards_back_at_once(company: Company) -> None:
    anne, bert = company.join("anne"), company.join("bert")
    put = company.put(40)
    read = company.work(anne, bert, rounds=60)
    anne.stop()
    put += company.put(40)
    read += company.work(bert, rounds=14)
    assert sorted(read) == sorted(put)


def test_the_shards_move_over_a_reshard(company: Company) -> None:
    anne, bert = company.join("anne"), company.join("bert")
    put = company.put(40)
    read = company.work(anne, bert, rounds=60)
    company.state.split("orders", "shardId-000000000000")
    company.state.merge("orders", "shardId-000000000002", "shardId-000000000003")
    put += company.put(60)
    read += company.work(anne, bert, rounds=120)
    put += company.put(60)
    read += company.work(anne, bert, rounds=20)
    assert sorted(read) == sorted(put)
    assert sorted(shards_of(anne) + shards_of(bert)) == ["01", "04", "05", "06"]
    assert isinstance(company.table.lease(0).progress, ShardEnded)


def test_two_streams_are_shared_as_one(company: Company) -> None:
    company.state.create_stream("clicks", 2)
    both = (StreamRef(name=StreamName("clicks")), StreamRef(name=StreamName("orders")))
    anne, bert = company.join("anne", streams=both), company.join("bert", streams=both)
    put = company.put(40) + company.put(20, stream="clicks")
    read = company.work(anne, bert, rounds=60)
    put += company.put(40) + company.put(20, stream="clicks")
    read += company.work(anne, bert, rounds=10)
    assert sorted(read) == sorted(put)
    assert (len(anne.offset.states), len(bert.offset.states)) == (3, 3)
    created = anne.offset.streams[StreamName("clicks")].created // 1000
    keys = [lease.key for lease in company.table.store.scan().leases]
    assert f"000000000000:clicks:{created}:shardId-000000000000" in keys


def test_a_second_stream_needs_another_application(company: Company) -> None:
    anne = company.join("anne")
    company.work(anne, rounds=2)
    anne.stop()
    company.state.create_stream("clicks", 2)
    both = (StreamRef(name=StreamName("clicks")), StreamRef(name=StreamName("orders")))
    with pytest.raises(IncompatibleStateError, match="written for a single stream"):
        company.join("bert", streams=both).trigger()


def test_slots_are_free_again_when_their_shard_leaves(company: Company) -> None:
    anne = company.join("anne", slots=4)
    company.work(anne, rounds=3)
    bert = company.join("bert", slots=4)
    company.work(anne, bert, rounds=60)
    for world in (anne, bert):
        assert world.offset.slots == 4
        assert len(set(world.offset.assignment.values())) == len(world.offset.states) == 2


def test_at_most_as_many_leases_as_said(company: Company) -> None:
    anne = company.join("anne", leases={"max_leases": 3})
    company.put(20)
    company.work(anne, rounds=10)
    assert len(anne.offset.states) == 3


def test_a_pause_repeats_nothing(company: Company) -> None:
    """The agent stands still for longer than the failover time, before it has written what was
    read last; nobody else takes anything."""
    anne = company.join("anne", leases={"checkpoint_interval_ms": 600_000})
    put = company.put(40)
    read = company.work(anne, rounds=4)
    put += company.put(40)
    read += company.work(anne, rounds=1)
    anne.agent.busy = True
    read += company.work(anne, rounds=2 * FAILOVER_MS // 1000 + 2)
    assert anne.offset.states == {}
    anne.agent.busy = False
    put += company.put(40)
    read += company.work(anne, rounds=10)
    assert sorted(read) == sorted(put)


def test_a_quiet_shard_changes_hands_without_a_false_alarm(company: Company) -> None:
    """Its last record has expired, and nothing came since: the proof is in the lease."""
    anne = company.join("anne")
    put = company.put(40)
    read = company.work(anne, rounds=4)
    for _ in range(9):
        company.clock.advance(3 * HOUR_MS)
        read += company.work(anne, rounds=4)
    anne.stop()
    bert = company.join("bert")
    put += company.put(40)
    read += company.work(bert, rounds=4)
    assert sorted(read) == sorted(put)


# --- Listings that are behind ---------------------------------------------------------------------


@pytest.mark.parametrize("tolerated", [False, True])
@pytest.mark.parametrize("to_latest", [False, True])
def test_a_shard_that_is_missing_from_a_listing_or_two_is_not_gone(
    company: Company, monkeypatch: pytest.MonkeyPatch, tolerated: bool, to_latest: bool
) -> None:
    """By the same rule as without leases. Nor is the end of its lease written."""
    anne = company.join("anne")
    put = company.put(40)
    read = company.work(anne, rounds=3)
    anne.stop()
    put += company.put(10)
    again = company.join("anne", fail_on_data_loss=not tolerated)
    again.offset = anne.offset
    hide_shard(again.service, monkeypatch, times=2)
    if to_latest:
        again.planner.stop_at_latest()
    read += company.work(again, rounds=30)
    assert sorted(read) == sorted(put)
    assert sorted(company.table.owners()) == ["00", "01", "02", "03"]


@pytest.mark.parametrize("answers", [2, 3])
def test_a_shard_that_is_still_listed_as_open_after_its_end_is_not_recreated(
    company: Company, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    anne = company.join("anne")
    put = company.put(20)
    read = company.work(anne, rounds=3)
    company.state.split("orders", "shardId-000000000000")
    read += company.work(anne, rounds=5)
    assert isinstance(company.table.lease(0).progress, ShardEnded)
    bert = company.join("bert")
    list_shards, left = bert.service.list_shards, [True] * answers

    def behind(stream: StreamRef) -> tuple[Shard, ...]:
        shards = list_shards(stream)
        if not left:
            return shards
        left.pop()
        return tuple(
            structs.replace(shard, closed=shard.closed and shard.shard_id != key(0).shard)
            for shard in shards
        )

    monkeypatch.setattr(bert.service, "list_shards", behind)
    put += company.put(20)
    read += company.work(anne, bert, rounds=30)
    assert sorted(read) == sorted(put)


def test_a_loss_is_logged_and_counted_once_however_long_its_row_takes(
    company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    anne = company.join("anne", fail_on_data_loss=False)
    company.put(20)
    company.work(anne, rounds=2)
    company.state.split("orders", "shardId-000000000000")
    while not isinstance(anne.state_of(0).position, ShardEnd):
        company.work(anne, rounds=1)
    anne.agent.busy = True
    company.clock.advance(25 * HOUR_MS)
    before = tolerated_losses()
    anne.planner.next_offset(anne.offset, UNLIMITED)
    anne.planner.next_offset(anne.offset, UNLIMITED)
    assert caplog.text.count("data loss in children of shard orders/shardId-000000000000") == 1
    assert tolerated_losses() == before + 1


# --- Draining -------------------------------------------------------------------------------------


def test_a_query_that_drains_hands_over_without_reading_anything_twice(company: Company) -> None:
    anne, bert = company.join("anne"), company.join("bert")
    put = company.put(40)
    read = company.work(anne, bert, rounds=60)
    put += company.put(40)
    batch = anne.trigger()
    read += batch.read if batch else []
    anne.marks.request()
    put += company.put(40)
    assert anne.trigger() is None
    assert anne.marks.is_drained()
    anne.die()
    read += company.work(bert, rounds=14)
    assert sorted(read) == sorted(put)


@pytest.mark.parametrize("interval_ms", [0, 3_600_000])
def test_a_query_that_drains_at_the_end_of_a_shard_says_that_it_has_ended(
    company: Company, interval_ms: int
) -> None:
    put = company.put(40)
    anne = company.join("anne", shard_discovery_interval_ms=interval_ms)
    read = company.work(anne, rounds=1)
    company.state.split("orders", "shardId-000000000000")
    batch = anne.trigger()
    assert batch is not None
    assert isinstance(anne.state_of(0).position, ShardEnd)
    read += batch.read
    anne.marks.request()
    for _ in range(10):
        assert anne.trigger() is None
        company.pass_time(500)
    assert anne.marks.is_drained()
    assert isinstance(company.table.lease(0).progress, ShardEnded)
    bert = company.join("bert")
    read += company.work(bert, rounds=4)
    assert sorted(read) == sorted(put)


# --- To the tip -----------------------------------------------------------------------------------


def test_an_available_now_run_ends_and_leaves_its_progress(company: Company) -> None:
    put = company.put(40)
    anne = company.join("anne")
    anne.planner.stop_at_latest()
    company.put(5)
    read = anne.drain()
    assert sorted(read) == sorted(put)
    anne.stop()
    bert = company.join("bert")
    bert.planner.stop_at_latest()
    assert len(bert.drain()) == 5


def test_an_available_now_run_reads_closed_shards_and_then_their_children(company: Company) -> None:
    put = company.put(40)
    company.state.split("orders", "shardId-000000000000")
    put += company.put(40)
    company.state.merge("orders", "shardId-000000000002", "shardId-000000000003")
    put += company.put(40)
    anne = company.join("anne")
    anne.planner.stop_at_latest()
    assert sorted(anne.drain()) == sorted(put)


def test_an_available_now_run_waits_for_the_leases_of_a_dead_one(company: Company) -> None:
    put = company.put(40)
    anne = company.join("anne")
    anne.trigger()
    anne.die()
    bert = company.join("bert")
    bert.planner.stop_at_latest()
    assert sorted(bert.drain()) == sorted(put)


def test_an_available_now_run_does_not_read_leases_of_others(company: Company) -> None:
    put = company.put(40)
    anne = company.join("anne", leases={"max_leases": 2})
    read = company.work(anne, rounds=30)
    bert = company.join("bert")
    bert.planner.stop_at_latest()
    read += bert.drain()
    assert sorted(read) == sorted(put)
    assert twice(read) == []


# --- Streams that the query no longer reads -------------------------------------------------------


def of_streams(*names: str) -> tuple[StreamRef, ...]:
    return tuple(StreamRef(name=StreamName(name)) for name in sorted(names))


def test_a_stream_is_dropped_where_several_are_left(company: Company) -> None:
    for name in ("clicks", "views"):
        company.state.create_stream(name, 1)
    company.pass_time(60_000)
    anne = company.join("anne", streams=of_streams("orders", "clicks", "views"))
    put = company.put(20)
    anne.put(5, stream="clicks")
    anne.put(5, stream="views")
    company.work(anne, rounds=5)
    anne.put(5, stream="clicks")
    company.state.delete_stream("clicks")
    anne.stop()
    anne.restart(streams=of_streams("orders", "views"))
    with pytest.raises(IncompatibleStateError, match="set dropStreams to clicks"):
        anne.trigger()
    anne.stop()
    anne.restart(drop_streams=(StreamName("clicks"),))
    put = company.put(8)
    assert sorted(company.work(anne, rounds=30)) == sorted(put)
    assert sorted(anne.offset.streams) == ["orders", "views"]


def test_a_stream_is_dropped_where_one_is_left_with_another_application(company: Company) -> None:
    """The keys of leases contain the stream only if there are several."""
    company.state.create_stream("clicks", 1)
    company.pass_time(60_000)
    anne = company.join("anne", streams=of_streams("orders", "clicks"))
    company.put(20)
    company.work(anne, rounds=5)
    company.state.delete_stream("clicks")
    anne.stop()
    dropped = {"streams": of_streams("orders"), "drop_streams": (StreamName("clicks"),)}
    anne.restart(**dropped)
    with pytest.raises(IncompatibleStateError, match="choose another applicationName"):
        anne.trigger()
    anne.stop()
    company.table = Table()
    anne.restart(leases={"application": "orders-2", "table": "orders-2"})
    put = company.put(8)
    assert sorted(company.work(anne, rounds=30)) == sorted(put)
    assert sorted(anne.offset.streams) == ["orders"]


# --- When the table is out of reach ---------------------------------------------------------------


def test_a_short_outage_stops_nothing(company: Company) -> None:
    anne = company.join("anne", leases={"max_outage_ms": 3 * FAILOVER_MS})
    put = company.put(40)
    read = company.work(anne, rounds=10)
    company.table.down = True
    for _ in range(2 * FAILOVER_MS // 1000):
        put += company.put(4)
        read += company.work(anne, rounds=2)
    company.table.down = False
    read += company.work(anne, rounds=10)
    assert sorted(read) == sorted(put)
    assert len(anne.offset.states) == 4


def test_a_long_outage_ends_the_query_which_says_why(company: Company) -> None:
    anne = company.join("anne")
    company.put(40)
    company.work(anne, rounds=10)
    company.table.down = True
    with pytest.raises(ServiceUnavailableError, match="leaseMaxOutage") as raised:
        company.work(anne, rounds=60)
    assert raised.value.subject == "lease table orders-etl"
    # As the error advises: once the table can be reached, start the query again.
    anne.die()
    company.table.down = False
    put = company.put(40)
    again = company.join("anne")
    again.offset = anne.offset
    assert sorted(company.work(again, rounds=60)) == sorted(put)


# --- What is logged -------------------------------------------------------------------------------


def test_the_log_says_what_comes_and_goes(
    company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    anne, bert = company.join("anne"), company.join("bert")
    company.put(40)
    with caplog.at_level(logging.INFO, "spark_ssp.kinesis_source"):
        company.work(anne, bert, rounds=60)
    assert "now read: orders/shardId-000000000000 (slot 0)" in caplog.text
    assert "(handed over to bert)" in caplog.text


def test_an_ended_shard_leaves_once_its_row_says_so(company: Company) -> None:
    anne = company.join("anne")
    company.state.split("orders", "shardId-000000000000")
    company.work(anne, rounds=40)
    assert not any(isinstance(state.position, ShardEnd) for state in anne.offset.states.values())
    assert isinstance(company.table.lease(0).progress, ShardEnded)


def test_a_shard_at_its_end_is_not_given_away_before_its_children_are_known(
    company: Company,
) -> None:
    """It would be read again from where its row stands."""
    anne = company.join("anne", shard_discovery_interval_ms=3_600_000)
    put = company.put(40)
    read = company.work(anne, rounds=4)
    company.state.split("orders", "shardId-000000000000")
    read += company.work(anne, rounds=20)
    reports = anne.agent.reports
    shard = LeaseKey("shardId-000000000000")
    begun = next(n for n, report in enumerate(reports) if shard in report.reading)
    first = next(report for report in reports[begun:] if shard not in report.reading)
    assert [child.shard[-2:] for child in first.ended[shard]] == ["04", "05"]
    assert isinstance(company.table.lease(0).progress, ShardEnded)
    assert sorted(read) == sorted(put)


def test_the_end_of_a_shard_is_not_forgotten_with_an_agent_that_is_lost(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation of a child fails, a new agent gets the last report, and another query requests
    the lease before the next one."""
    anne = company.join("anne")
    put = company.put(40)
    read = company.work(anne, rounds=4)
    put += company.put(40)
    company.state.split("orders", shard_id(0))
    while not isinstance(anne.state_of(0).position, ShardEnd):
        read += company.work(anne, rounds=1)
    repair = anne.agent.fail_creations(monkeypatch, shard_id(4))
    put += company.put(40)
    end = anne.plan()
    assert end is not None
    assert LeaseKey(shard_id(0)) in anne.agent.reports[-1].ended
    anne.agent.be_replaced()
    repair()
    bert = company.join("bert")
    while company.table.lease(0).owner != "bert":
        read += company.work(bert, rounds=1)
    company.pass_time(FAILOVER_MS // 2)
    read += anne.run(end).read
    read += company.work(anne, bert, rounds=60)
    assert isinstance(company.table.lease(0).progress, ShardEnded)
    assert sorted(read) == sorted(put)


# --- A lease with the position of another shard or stream -----------------------------------------


def _spoil(company: Company, number: str) -> None:
    """Write a sequence number into the row of shard 0, as by hand."""
    row = company.table.lease(0)
    wrong = Processed(sequence_number=SequenceNumber(number), sub=0, last_caught_up_ms=None)
    company.table.store.put_item(encode(replace(row, counter=row.counter + 1, progress=wrong)))


def _above(company: Company) -> str:
    return company.state.records("orders", shard_id(1))[-1].sequence_number


def _above_all(company: Company) -> str:
    latest = company.state.records("orders", shard_id(0))[-1].sequence_number
    return str(int(latest) + (1 << 120))


def _processing_time(world: LeaseWorld) -> list[str]:
    return world.company.work(world, rounds=20)


def _available_now(world: LeaseWorld) -> list[str]:
    world.planner.stop_at_latest()
    return world.drain()


LEASE_POSITIONS = [_above, _above_all]
LEASE_TRIGGERS = [_processing_time, _available_now]


@pytest.mark.parametrize("number", LEASE_POSITIONS)
@pytest.mark.parametrize("trigger", LEASE_TRIGGERS)
@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_foreign_position_of_a_lease_is_refused_and_the_advice_works(
    company: Company,
    trigger: Callable[[LeaseWorld], list[str]],
    number: Callable[[Company], str],
    with_checkpoint: bool,
) -> None:
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=3)
    anne.stop()
    put = company.put(20)
    reader = anne if with_checkpoint else company.join("bert")
    _spoil(company, number(company))
    reader.restart()
    with pytest.raises(InvalidPositionError) as caught:
        trigger(reader)
    assert f"shard {key(0)}" in caught.value.subject
    assert "orders-etl" in caught.value.subject
    assert "delete the shard's row" in caught.value.next_step
    reader.die()
    company.pass_time(FAILOVER_MS + 1000)
    company.table.store.remove_item(company.table.lease(0).key)
    reader.restart()
    older = {r.data.decode() for r in company.state.records("orders", shard_id(0))} - set(put)
    again = set() if with_checkpoint else older
    assert sorted(trigger(reader)) == sorted({*put, *again})


@pytest.mark.parametrize("number", LEASE_POSITIONS)
@pytest.mark.parametrize("trigger", LEASE_TRIGGERS)
@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_tolerated_a_foreign_position_of_a_lease_leaves_nothing_out_and_repeats_once(
    company: Company,
    trigger: Callable[[LeaseWorld], list[str]],
    number: Callable[[Company], str],
    with_checkpoint: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    company.put(40)
    anne = company.join("anne", fail_on_data_loss=False)
    company.work(anne, rounds=3)
    anne.stop()
    put = company.put(20)
    reader = anne if with_checkpoint else company.join("bert", fail_on_data_loss=False)
    _spoil(company, number(company))
    reader.restart()
    older = {r.data.decode() for r in company.state.records("orders", shard_id(0))} - set(put)
    again = set() if with_checkpoint else older
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        assert sorted(trigger(reader)) == sorted({*put, *again})
    told = [r.getMessage() for r in caplog.records if "tolerated by" in r.getMessage()]
    assert len(told) == 1
    put = company.put(20)
    if trigger is _available_now:
        reader.die()
        company.pass_time(FAILOVER_MS + 1000)
        reader.restart()
    assert sorted(trigger(reader)) == sorted(put)


def test_a_foreign_position_of_the_option_is_corrected_in_the_option_and_the_lease(
    company: Company,
) -> None:
    """The lease was created from the option, so both have to be corrected."""
    put = company.put(40)
    foreign = AfterRecord(sequence_number=SequenceNumber(_above(company)))
    wrong = StartingPosition(default=TrimHorizon(), by_shard={key(0): foreign})
    anne = company.join("anne", starting_position=wrong)
    with pytest.raises(InvalidPositionError) as caught:
        company.work(anne)
    assert "startingPosition" in caught.value.next_step
    assert "delete the shard's row" in caught.value.next_step
    anne.die()
    company.pass_time(FAILOVER_MS + 1000)
    company.table.store.remove_item(company.table.lease(0).key)
    anne.restart(starting_position=StartingPosition(default=TrimHorizon()))
    assert sorted(company.work(anne, rounds=40)) == sorted(put)
