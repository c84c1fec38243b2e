"""Queries that are asked to drain, by marks that concern nobody else and no later run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.leases.worlds import Company


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path / "marks", shards=2)


def test_a_query_that_is_started_again_drains_no_more(company: Company) -> None:
    anne = company.join("anne")
    company.work(anne, rounds=3)
    anne.marks.request()
    company.work(anne, rounds=3)
    assert anne.marks.is_drained()
    anne.die()  # and so does who asked, with the marks left behind
    put = company.put(10)
    again = company.join("anne")
    assert sorted(company.work(again, rounds=3)) == sorted(put)
    assert set(company.table.owners().values()) == {"anne"}


def test_another_application_s_worker_of_the_same_id_is_not_asked(
    company: Company, tmp_path: Path
) -> None:
    other = Company(tmp_path / "marks", shards=2)
    orders, clicks = company.join("pod-0"), other.join("pod-0")
    company.work(orders, rounds=3)
    other.work(clicks, rounds=3)
    orders.marks.request()
    company.work(orders, rounds=1)
    assert orders.marks.is_drained()
    put = other.put(10)
    assert sorted(other.work(clicks, rounds=3)) == sorted(put)
