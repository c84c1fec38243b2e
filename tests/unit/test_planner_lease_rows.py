"""Rows of the lease table that others wrote, or that are about what is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.codec import encode
from checkpoint.progress import StartAtLatest
from ssp_common.errors import DataLossError, IncompatibleStateError
from tests.support.lease_worlds import Company
from tests.support.leases import lease
from tests.support.planner_world import HOUR_MS


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path / "marks")


def test_latest_of_a_kcl_means_when_the_shard_is_taken(company: Company) -> None:
    row = lease("shardId-000000000000", progress=StartAtLatest(), marked=False)
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
        company.join("bert").trigger()


def test_the_children_of_a_shard_that_expired_are_read_where_that_is_tolerated(
    company: Company,
) -> None:
    put = expired(company)
    bert = company.join("bert", fail_on_data_loss=False)
    assert sorted(company.work(bert, rounds=30)) == sorted(put)
    shards = sorted(entry.shard[-2:] for entry in bert.offset.states)
    assert shards == ["01", "02", "03", "04", "05"]


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
