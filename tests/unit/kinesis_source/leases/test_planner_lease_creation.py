"""Rows of the lease table that others wrote, or that are about what is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.checkpoint.leases.lease import (
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
)
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.common.errors import NEW_CHECKPOINT, DataLossError, IncompatibleStateError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    ShardEnd,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.batch_limits import Limits
from spark_ssp.testing.kinesis.state.faults import InternalFailure
from tests.support.fakes.planner_world import HOUR_MS, World
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key
from tests.support.leases.values import ANNE, BERT, lease
from tests.support.leases.worlds import Company, LeaseWorld, Table, twice

_ROW_0 = "shardId-000000000000"


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path / "marks")


def put_latest_of_a_kcl(company: Company) -> None:
    """Put the rows that a KCL worker creates if it starts at LATEST."""
    for n in range(4):
        row = lease(f"shardId-00000000000{n}", progress=StartAtLatest(), has_entity_type=False)
        company.table.store.put_item(encode(row))


def test_latest_of_a_kcl_means_when_the_shard_is_taken(company: Company) -> None:
    row = lease("shardId-000000000000", progress=StartAtLatest(), has_entity_type=False)
    company.table.store.put_item(encode(row))
    old = company.put(40)
    anne = company.join("anne")
    batch = anne.trigger()
    assert batch is not None
    from_latest = [r.data.decode() for r in company.state.records("orders", row.shard)]
    assert from_latest
    assert sorted(batch.read) == sorted(set(old) - set(from_latest))
    put = company.put(40)
    assert sorted(company.work(anne, rounds=4)) == sorted(put)


@pytest.mark.parametrize("committed", [True, False])
def test_latest_of_a_kcl_is_found_out_once_for_all(company: Company, committed: bool) -> None:
    """A row that says the word alone would start again at the next tip."""
    row = lease("shardId-000000000000", progress=StartAtLatest(), has_entity_type=False)
    company.table.store.put_item(encode(row))
    anne = company.join("anne")
    if committed:
        company.work(anne, rounds=3)
    else:
        assert anne.plan() is not None
    since = company.table.lease(0).progress
    assert isinstance(since, StartAtLatest)
    assert since.since_ms is not None
    anne.die()
    put = company.put(20)
    assert sorted(company.work(company.join("bert"), rounds=60)) == sorted(put)


def test_latest_of_a_kcl_is_not_looked_for_while_leases_are_waited_for(company: Company) -> None:
    put_latest_of_a_kcl(company)
    bert = company.join("bert", leases={"max_leases": 1})
    company.work(bert, rounds=3)
    anne = company.join("anne")
    company.state.calls.reset()
    anne.trigger()
    own = len(anne.offset.states)
    assert own
    assert company.state.calls.count("GetShardIterator") == own


def test_latest_of_a_kcl_for_a_shard_that_has_closed_is_its_end(company: Company) -> None:
    row = lease("shardId-000000000000", progress=StartAtLatest(), has_entity_type=False)
    company.table.store.put_item(encode(row))
    company.put(40)
    company.state.split("orders", row.shard)
    company.clock.advance(60_000)
    anne = company.join("anne")
    batch = anne.trigger()
    assert batch is not None
    assert isinstance(anne.state_of(0).position, ShardEnd)
    anne.offset = batch.start
    assert "00" not in anne.run(batch.end).shards  # replayed
    put = company.put(40)
    read = company.work(anne, rounds=8)
    assert set(put) <= set(read)


def test_a_table_that_was_emptied_loses_nothing(
    company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    latest = StartingPosition(default=Latest())
    anne, bert = (company.join(name, starting_position=latest) for name in ("anne", "bert"))
    company.work(anne, bert, rounds=20)
    company.put(20)
    company.work(anne, bert, rounds=20)
    for world in (anne, bert):
        world.stop()
    company.table = Table()
    put = company.put(40)
    again = company.join("carl", starting_position=latest)
    again.offset = anne.offset
    read = company.work(again, rounds=20)
    assert set(put) <= set(read)
    warned = [one for one in caplog.records if "no leases for shards that are not new" in one.msg]
    assert len(warned) == 1


def test_a_checkpoint_with_leases_is_refused_without_an_application(company: Company) -> None:
    """It would read again what others have read."""
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=2)
    anne.stop()
    plain = World(clock=company.clock, state=company.state)
    plain.offset = anne.offset
    with pytest.raises(IncompatibleStateError, match="applicationName") as raised:
        plain.trigger()
    assert "orders-etl" in raised.value.found
    assert raised.value.next_step == f"set it again, or start on {NEW_CHECKPOINT}"
    put = company.put(40)
    again = company.join("anne")
    again.offset = anne.offset
    assert sorted(company.work(again, rounds=20)) == sorted(put)


def test_another_application_goes_on_from_the_checkpoint_and_says_so(
    company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=2)
    anne.stop()
    company.table = Table()
    put = company.put(8)
    bert = company.join("bert", leases={"table": "orders-new"})
    bert.offset = anne.offset
    assert sorted(company.work(bert, rounds=6)) == sorted(put)
    assert caplog.text.count("by lease table orders-etl, the query uses orders-new") == 1


def expired(company: Company) -> list[str]:
    """A table with a row of a shard that was split, never read, and is gone with its records."""
    anne = company.join("anne")
    assert anne.plan() is not None
    anne.stop()
    company.put(20)
    company.state.split("orders", "shardId-000000000000")
    company.clock.advance(26 * HOUR_MS)
    return company.put(40)


def test_a_shard_that_expired_unread_is_data_loss(company: Company) -> None:
    expired(company)
    with pytest.raises(DataLossError, match="shardId-000000000000"):
        company.work(company.join("bert"), rounds=4)


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP", "LATEST of a KCL"])
def test_records_of_a_shard_that_was_read_but_empty_are_not_lost_silently(
    company: Company, start: str
) -> None:
    """No record says how far it was read, and the next worker has no checkpoint."""
    changes: dict[str, Any] = {}
    if start == "AT_TIMESTAMP":
        began = AtTimestamp(millis=EpochMillis(company.clock.now_ms()))
        changes = {"starting_position": StartingPosition(default=began)}
    elif start == "LATEST of a KCL":
        put_latest_of_a_kcl(company)
    anne = company.join("anne", **changes)
    company.work(anne, rounds=30)
    anne.stop()
    company.put(40)
    company.clock.advance(26 * HOUR_MS)
    company.put(40)
    with pytest.raises(DataLossError, match="shardId-00000000000"):
        company.work(company.join("bert", **changes), rounds=4)


def test_a_shard_that_was_read_but_empty_for_longer_than_the_retention_goes_on(
    company: Company,
) -> None:
    anne = company.join("anne")
    for _ in range(40):
        company.clock.advance(HOUR_MS)
        company.work(anne, rounds=4)
    anne.stop()
    put = company.put(40)
    assert sorted(company.work(company.join("bert"), rounds=10)) == sorted(put)


@pytest.mark.parametrize("advice", ["failOnDataLoss", "delete the row"])
def test_an_empty_shard_that_nobody_has_read_for_too_long_is_dealt_with_as_the_error_advises(
    company: Company, advice: str
) -> None:
    anne = company.join("anne")
    company.work(anne, rounds=30)
    anne.stop()
    company.clock.advance(26 * HOUR_MS)
    bert = company.join("bert")
    with pytest.raises(DataLossError, match="no record read") as raised:
        company.work(bert, rounds=4)
    bert.stop()
    assert "delete the rows of the shards that are named here" in (raised.value.next_step or "")
    assert "shardId-000000000003" in raised.value.found  # all at once
    if advice == "delete the row":
        company.table = Table()
    put = company.put(40)
    carl = company.join("carl", fail_on_data_loss=advice != "failOnDataLoss")
    assert sorted(company.work(carl, rounds=60)) == sorted(put)


def test_records_after_latest_of_a_kcl_are_not_lost_silently_before_the_first_commit(
    company: Company,
) -> None:
    put_latest_of_a_kcl(company)
    anne = company.join("anne")
    assert anne.plan() is not None
    anne.die()
    company.put(40)
    company.clock.advance(26 * HOUR_MS)
    with pytest.raises(DataLossError, match="shardId-00000000000"):
        company.work(company.join("bert"), rounds=40)


def test_an_old_checkpoint_does_not_set_the_time_of_a_lease_back(tmp_path: Path) -> None:
    company = Company(tmp_path / "marks", shards=1)
    anne = company.join("anne")
    read = company.put(4)
    assert sorted(company.work(anne, rounds=10)) == sorted(read)
    anne.die()
    bert = company.join("bert")
    for _ in range(30):
        company.clock.advance(HOUR_MS)
        assert company.work(bert, rounds=4) == []
    bert.stop()
    written = company.table.lease(0).progress
    assert isinstance(written, Processed)
    put = company.put(4)
    company.clock.advance(2_000)
    again = company.join("anne")
    again.offset = anne.offset
    assert sorted(company.work(again, rounds=10)) == sorted(put)  # by tasks, too
    again.stop()
    more = company.put(4)
    assert sorted(company.work(company.join("carl"), rounds=10)) == sorted(more)


def test_the_time_of_a_start_is_none_of_a_record_before_it(company: Company) -> None:
    """The first worker's checkpoint knows a record of which the table never heard."""
    anne = company.join("anne")
    company.put(40)
    anne.trigger()
    assert isinstance(anne.state_of(0).position, AfterRecord)
    anne.die()
    company.table = Table()
    company.put(40)
    company.clock.advance(26 * HOUR_MS)
    bert = company.join("bert")
    company.work(bert, rounds=30)
    bert.stop()
    assert company.table.lease(0).progress != StartAtTrimHorizon()
    again = company.join("anne")
    again.offset = anne.offset
    with pytest.raises(DataLossError, match="shardId-00000000000"):
        company.work(again, rounds=20)


def test_the_time_of_a_lease_is_not_much_older_than_that_of_the_offset(company: Company) -> None:
    """Batches of other shards renew the offset's time at any moment."""
    anne = company.join("anne")
    company.work(anne, rounds=30)
    oldest = 0
    for _ in range(18):
        company.put(1, keys=1)
        company.work(anne, rounds=4)
        company.clock.advance(50 * 60_000)
        company.work(anne, rounds=4)
        rows = [company.table.lease(n).progress for n in range(4)]
        times = [one.last_caught_up_ms for one in rows if not isinstance(one, ShardEnded)]
        oldest = max(oldest, *(company.clock.now_ms() - (time or 0) for time in times))
    assert oldest < 5 * HOUR_MS


def test_records_of_a_child_that_no_worker_has_read_are_not_lost_silently(tmp_path: Path) -> None:
    company = Company(tmp_path / "marks", shards=1)
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=10)
    company.state.split("orders", _ROW_0)
    company.clock.advance(60_000)
    while company.table.lease(0).progress != ShardEnded():
        anne.trigger()
        company.pass_time(500)
    anne.die()
    company.put(40)
    company.clock.advance(50 * HOUR_MS)  # the parent is gone too
    with pytest.raises(DataLossError, match=r"shardId-00000000000[12]"):
        company.work(company.join("bert"), rounds=40)


@pytest.mark.parametrize("fail", [True, False])
def test_shards_that_expired_before_the_query_had_leases_are_data_loss(
    company: Company, fail: bool
) -> None:
    latest = StartingPosition(default=Latest())
    plain = World(clock=company.clock, state=company.state, starting_position=latest)
    plain.trigger()
    company.put(20)
    company.state.split("orders", _ROW_0)
    company.state.split("orders", "shardId-000000000001")
    company.clock.advance(26 * HOUR_MS)
    put = company.put(40)
    anne = company.join("anne", starting_position=latest, fail_on_data_loss=fail)
    anne.offset = plain.offset
    if fail:
        with pytest.raises(DataLossError, match=_ROW_0) as raised:
            anne.trigger()
        # The rows of all of them are to be deleted.
        assert "shardId-000000000001" in raised.value.found
    else:
        assert sorted(company.work(anne, rounds=10)) == sorted(put)


@pytest.mark.parametrize("advice", ["failOnDataLoss", "delete the row"])
def test_the_row_of_a_shard_that_expired_unread_is_dealt_with_as_the_error_advises(
    company: Company, advice: str
) -> None:
    expired(company)
    with pytest.raises(DataLossError, match=_ROW_0) as raised:
        company.work(company.join("bert"), rounds=4)
    assert advice in (raised.value.next_step or "")
    company.agents[-1].close()
    if advice == "delete the row":
        assert "from lease table orders-etl" in (raised.value.next_step or "")
        _with_row_0(company, None)
        carl = company.join("carl")
    else:
        carl = company.join("carl", fail_on_data_loss=False)
    children = {
        record.data.decode()
        for shard in ("shardId-000000000004", "shardId-000000000005")
        for record in company.state.records("orders", shard)
    }
    assert children <= set(company.work(carl, rounds=60))
    carl.stop()
    last = company.join("dora")  # and the row does not come back
    put = company.put(40)
    assert sorted(company.work(last, rounds=20)) == sorted(put)


def test_a_shard_that_expired_unread_is_data_loss_in_an_available_now_run(company: Company) -> None:
    expired(company)
    bert = company.join("bert")
    bert.planner.stop_at_latest()
    with pytest.raises(DataLossError, match="shardId-000000000000"):
        bert.drain()


def test_the_children_of_a_shard_that_expired_are_read_where_that_is_tolerated(
    company: Company,
) -> None:
    put = expired(company)
    bert = company.join("bert", fail_on_data_loss=False)
    assert sorted(company.work(bert, rounds=30)) == sorted(put)
    shards = sorted(entry.shard[-2:] for entry in bert.offset.states)
    assert shards == ["01", "02", "03", "04", "05"]


def test_rows_of_parents_are_created_first(company: Company) -> None:
    """Or a worker that dies between leaves a child whose parent counts as done."""
    put = company.put(40)
    company.state.split("orders", "shardId-000000000000")
    put += company.put(40)
    company.clock.advance(60_000)
    start = StartingPosition(
        default=AtTimestamp(millis=EpochMillis(company.clock.now_ms() - 90_000))
    )
    anne = company.join("anne", starting_position=start)
    assert anne.plan() is not None
    created = [[row.shard[-2:] for row in report.create] for report in anne.agent.reports]
    assert created[:3] == [[], ["00", "01", "02", "03"], ["04", "05"]]
    assert sorted(company.work(anne, rounds=20)) == sorted(put)


@pytest.mark.parametrize("runs_to_the_tip", [True, False])
def test_a_lease_that_could_not_be_created_is_not_created_once_others_have_read_its_shard(
    company: Company, monkeypatch: pytest.MonkeyPatch, runs_to_the_tip: bool
) -> None:
    """In a run to the tip, whose listing is from before the split, and in a query."""
    anne = company.join("anne")
    put = company.put(40)
    if runs_to_the_tip:
        anne.planner.stop_at_latest()
    repair = anne.agent.fail_creations(monkeypatch, _ROW_0)
    company.state.split("orders", _ROW_0)
    end = anne.plan()
    assert end is not None
    repair()
    put += company.put(40)
    bert = company.join("bert")
    read = company.work(bert, rounds=40)
    company.pass_time(300_000)
    read += company.work(bert, rounds=2)
    assert _ROW_0 not in {row.shard for row in company.table.store.scan().leases}
    read += anne.run(end).read
    read += company.work(anne, bert, rounds=30)
    anne.stop()
    read += company.work(bert, rounds=10)
    assert twice(read) == []
    assert set(read) == set(put)
    assert _ROW_0 not in {row.shard for row in company.table.store.scan().leases}


@pytest.mark.parametrize("descendant", ["none", "at a time", "merged, at TRIM_HORIZON"])
def test_a_lease_that_could_not_be_created_is_created_at_its_start_by_the_next_trigger(
    company: Company, monkeypatch: pytest.MonkeyPatch, descendant: str
) -> None:
    """Also beside the row of a descendant that is no sign of a reader."""
    company.put(40)
    anne = company.join("anne", starting_position=StartingPosition(default=Latest()))
    repair = anne.agent.fail_creations(monkeypatch, _ROW_0)
    anne.trigger()
    assert sorted(company.table.owners()) == ["01", "02", "03"]
    put = company.put(40)
    if descendant != "none":
        progress: Progress = StartAtTrimHorizon()
        parents = [shard_id(0)]
        if descendant == "at a time":
            progress = StartAtTimestamp(at_ms=EpochMillis(company.clock.now_ms()))
            company.state.split("orders", _ROW_0)
        else:
            parents.append(shard_id(1))
            company.state.merge("orders", *parents)
        child = lease(shard_id(4), progress=progress, parents=tuple(parents))
        company.table.store.put_item(encode(child))
        put += company.put(40)
    company.pass_time(60_000)
    repair()
    read = company.work(anne, rounds=1)
    assert company.table.lease(0).holder == "anne"
    read += company.work(anne, rounds=20)
    assert sorted(read) == sorted(put)


def test_a_start_by_shard_that_skips_a_generation_keeps_the_order(company: Company) -> None:
    start = StartingPosition(default=Latest(), by_shard={key(0): TrimHorizon()})
    put = company.put(40)
    first = [r.data.decode() for r in company.state.records("orders", "shardId-000000000000")]
    company.state.split("orders", "shardId-000000000000")
    company.put(40)
    company.state.split("orders", "shardId-000000000004")
    company.clock.advance(60_000)
    anne = company.join("anne", starting_position=start)
    shards: list[set[str]] = []
    read = []
    for n in range(40):
        batch = anne.trigger(Limits(max_records=8))
        if batch is not None and batch.shards:
            shards.append(set(batch.shards))
            read += batch.read
        if n == 1:
            put = company.put(20)
        company.pass_time(500)
    ancestor = [n for n, those in enumerate(shards) if "00" in those]
    grandchildren = [n for n, those in enumerate(shards) if those & {"06", "07"}]
    assert ancestor
    assert grandchildren
    assert max(ancestor) < min(grandchildren)
    assert sorted(read) == sorted(first + put)


def shared_by_two(company: Company, **changes: Any) -> tuple[LeaseWorld, LeaseWorld, list[str]]:
    bert, anne = company.join("bert"), company.join("anne", **changes)
    company.put(40)
    return bert, anne, company.work(bert, anne, rounds=30)


def split_all_of(company: Company, world: LeaseWorld) -> None:
    for shard in sorted(each.shard for each in world.offset.states):
        company.state.split("orders", shard)


@pytest.mark.parametrize("fail", [True, False])
def test_a_new_shard_is_left_to_the_next_available_now_run(company: Company, fail: bool) -> None:
    """Its listing is from before the shard was born."""
    bert, anne, read = shared_by_two(company, fail_on_data_loss=fail)
    put = [*read, *company.put(40)]
    anne.planner.stop_at_latest()
    split_all_of(company, bert)
    put += company.put(40)
    for _ in range(60):
        batch = anne.trigger(Limits(max_records=1))
        if batch is None:
            break
        read += batch.read
        read += company.work(bert, rounds=1)
    assert not any(report.ended for report in anne.agent.reports)
    anne.stop()
    read += company.work(bert, rounds=40)
    assert sorted(read) == sorted(put)


def test_the_row_of_a_shard_that_ended_after_the_listing_is_kept(company: Company) -> None:
    """The run's listing is from before; of its other rows others have created one meanwhile."""
    company.put(40)
    anne = company.join("anne")
    anne.planner.stop_at_latest()
    for shard in (shard_id(0), shard_id(4)):
        company.state.split("orders", shard)
        company.clock.advance(60_000)
    parents = (shard_id(0),)
    left = lease(shard_id(4), parents=parents, owner=BERT, progress=ShardEnded(), counter=5)
    left = replace(left, children=(shard_id(6), shard_id(7)))
    right = lease(shard_id(5), parents=parents, owner=BERT, counter=1)
    child = lease(shard_id(6), parents=(left.shard,), owner=ANNE, counter=1)
    for rows in ((), (right,), (left, child)):
        for row in rows:
            company.table.store.put_item(encode(row))
        company.pass_time(6_000)
        assert anne.trigger(Limits(max_records=1)) is not None
    company.pass_time(300_000)
    assert company.table.lease(6).holder == "anne"
    assert left.shard in {row.shard for row in company.table.store.scan().leases}


@pytest.mark.parametrize("fail", [True, False])
def test_a_newborn_shard_is_left_alone_while_listing_fails(company: Company, fail: bool) -> None:
    bert, anne, read = shared_by_two(company, fail_on_data_loss=fail)
    put = list(read)
    asks = [bert]
    company.state.faults.add(
        InternalFailure(), operation="ListShards", count=None, when=lambda _: asks == [anne]
    )
    split_all_of(company, bert)
    put += company.put(40)
    for asks[0] in [anne, bert] * 15:
        read += company.work(asks[0], rounds=1)
    assert not any(report.ended for report in anne.agent.reports)
    company.state.faults.clear()
    read += company.work(anne, bert, rounds=60)
    assert sorted(read) == sorted(put)


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("to_the_tip", [True, False])
def test_a_row_at_the_end_of_a_shard_that_is_open_is_refused(
    company: Company, fail: bool, to_the_tip: bool
) -> None:
    """The stream was recreated; such a shard would never be read."""
    anne = company.join("anne")
    company.state.split("orders", "shardId-000000000000")
    company.work(anne, rounds=20)
    anne.stop()
    ended = company.table.lease(0)
    company.table = Table()
    company.table.store.put_item(encode(ended))
    company.state.delete_stream("orders")
    company.pass_time(60_000)
    company.state.create_stream("orders", 4)
    bert = company.join("bert", fail_on_data_loss=fail)
    if to_the_tip:
        bert.planner.stop_at_latest()
    with pytest.raises(IncompatibleStateError, match="new applicationName"):
        bert.trigger()


def test_a_shard_that_closed_since_it_was_listed_is_no_sign_of_another_stream(
    company: Company,
) -> None:
    bert, anne, read = shared_by_two(company, shard_discovery_interval_ms=3_600_000)
    put = list(read)
    split_all_of(company, bert)
    put += company.put(40)
    read += company.work(bert, anne, rounds=60)
    assert sorted(read) == sorted(put)


def test_two_streams_need_two_applications(company: Company) -> None:
    company.work(company.join("anne"), rounds=2)
    company.state.create_stream("clicks", 4)
    company.clock.advance(60_000)
    bert = company.join("bert", streams=(StreamRef(name=StreamName("clicks")),))
    with pytest.raises(IncompatibleStateError, match="applicationName") as raised:
        bert.trigger()
    assert "written for stream orders" in raised.value.found


def test_a_stream_that_was_recreated_is_refused_with_its_old_leases(company: Company) -> None:
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=4)
    company.state.delete_stream("orders")
    company.pass_time(60_000)
    company.state.create_stream("orders", 4)
    with pytest.raises(IncompatibleStateError, match="new applicationName"):
        company.work(anne, rounds=60)
    bert = company.join("bert")
    with pytest.raises(IncompatibleStateError, match="new applicationName"):
        bert.trigger()


def test_a_stream_that_was_recreated_is_refused_without_a_processed_record(
    company: Company,
) -> None:
    """The same shards have closed in both lives, so no row shows the difference by itself."""
    anne = company.join("anne")
    company.state.split("orders", _ROW_0)
    company.work(anne, rounds=20)
    anne.stop()
    company.state.delete_stream("orders")
    company.pass_time(60_000)
    company.state.create_stream("orders", 4)
    company.clock.advance(60_000)
    company.put(40)
    company.state.split("orders", _ROW_0)
    company.clock.advance(60_000)
    with pytest.raises(IncompatibleStateError, match="new applicationName"):
        company.join("bert").trigger()


# --- What to do about it --------------------------------------------------------------------------


def _with_row_0(company: Company, row: dict[str, Any] | None) -> None:
    """Replace the row of the first shard, or delete it."""
    items = [item for item in company.table.store.items() if item["leaseKey"] != {"S": _ROW_0}]
    company.table = Table()
    for item in [*items, *([] if row is None else [row])]:
        company.table.store.put_item(item)


@pytest.mark.parametrize("advice", ["restore the row", "delete it, with a checkpoint", "delete it"])
def test_a_row_that_cannot_be_read_is_restored_or_deleted_as_the_error_advises(
    company: Company, caplog: pytest.LogCaptureFixture, advice: str
) -> None:
    latest = StartingPosition(default=Latest())
    anne = company.join("anne", starting_position=latest)
    company.work(anne, rounds=3)
    put = company.put(40)
    read = company.work(anne, rounds=20)
    anne.stop()
    (good,) = (item for item in company.table.store.items() if item["leaseKey"] == {"S": _ROW_0})
    _with_row_0(company, {name: good[name] for name in good if name != "checkpoint"})
    put += company.put(40)
    unread = {r.data.decode() for r in company.state.records("orders", _ROW_0)} - set(read)
    assert unread
    bert = company.join("bert", starting_position=latest)
    read += company.work(bert, rounds=30)
    assert set(put) - set(read) == unread
    assert bert.planner.leases is not None
    assert bert.planner.leases.not_read(StreamName("orders")) == [_ROW_0]
    warned = [one for one in caplog.records if "cannot be parsed" in one.msg]
    assert [one.levelname for one in warned] == ["WARNING"]
    bert.stop()

    _with_row_0(company, dict(good) if advice == "restore the row" else None)
    carl = company.join("carl", starting_position=latest)
    if advice == "delete it, with a checkpoint":
        carl.offset = anne.offset
    read += company.work(carl, rounds=40)
    assert set(read) == set(put)
    # Without a checkpoint that has the shard, nobody knows how far it was read.
    assert bool(twice(read)) is (advice == "delete it")


@pytest.mark.parametrize("with_checkpoint", [True, False])
@pytest.mark.parametrize("left", [4, 5])
@pytest.mark.parametrize("runs_to_the_tip", [True, False])
def test_a_hole_in_the_table_is_filled(
    company: Company, left: int, with_checkpoint: bool, runs_to_the_tip: bool
) -> None:
    """Of a split shard and its children, only one child has a row."""
    company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=4)
    company.state.split("orders", _ROW_0)
    company.work(anne, rounds=30)
    anne.stop()
    lost = {"shardId-000000000000", "shardId-000000000004", "shardId-000000000005"}
    lost -= {f"shardId-00000000000{left}"}
    items = [item for item in company.table.store.items() if item["leaseKey"]["S"] not in lost]
    company.table = Table()
    for item in items:
        company.table.store.put_item(item)
    put = company.put(40)
    latest = StartingPosition(default=Latest())
    bert = company.join("bert", starting_position=latest)
    if with_checkpoint:
        bert.offset = anne.offset
    if runs_to_the_tip:
        bert.planner.stop_at_latest()
    read = bert.drain() if runs_to_the_tip else company.work(bert, rounds=60)
    assert set(put) <= set(read)
    bert.stop()
    assert company.table.lease(9 - left).progress != StartAtTrimHorizon()


def test_a_hole_is_not_filled_by_an_old_listing(company: Company) -> None:
    """The shard was split and its children are read; the run's listing is from before."""
    bert, anne, read = shared_by_two(company)
    put = list(read)
    anne.planner.stop_at_latest()
    split_all_of(company, bert)
    put += company.put(40)
    for _ in range(4):
        read += company.work(bert, rounds=60)
        company.pass_time(60_000)
    put += company.put(8)
    for _ in range(80):
        batch = anne.trigger()
        read += batch.read if batch else []
        read += company.work(bert, rounds=1)
    anne.stop()
    read += company.work(bert, rounds=40)
    assert sorted(read) == sorted(put)


def test_what_the_other_errors_about_leases_advise_works(company: Company) -> None:
    put = company.put(40)
    anne = company.join("anne")
    company.work(anne, rounds=4)
    company.state.create_stream("clicks", 4)
    company.clock.advance(60_000)
    clicks = (StreamRef(name=StreamName("clicks")),)
    both = (*clicks, StreamRef(name=StreamName("orders")))
    for streams, advice in (
        (clicks, "choose a different applicationName for each stream"),
        (both, "choose another applicationName"),
    ):
        old = company.table
        with pytest.raises(IncompatibleStateError) as raised:
            company.join("bert", streams=streams).trigger()
        assert raised.value.next_step.startswith(advice)
        company.table = Table()
        bert = company.join("bert", streams=streams)
        found = company.work(bert, rounds=20)
        assert sorted(found) == (sorted(put) if streams is both else [])
        bert.stop()
        company.table = old

    company.state.delete_stream("orders")
    company.pass_time(60_000)
    company.state.create_stream("orders", 4)
    with pytest.raises(IncompatibleStateError) as raised:
        company.join("carl").trigger()
    assert raised.value.next_step == f"choose a new applicationName and {NEW_CHECKPOINT}"
    company.table = Table()
    put = company.put(40)
    assert sorted(company.work(company.join("carl"), rounds=20)) == sorted(put)
