"""The embedded service's switch for answers that are unusual and allowed."""

from __future__ import annotations

import pytest

from spark_ssp.testing.kinesis import KinesisState, ManualClock, UnusualAnswers
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage

FIRST = "shardId-000000000000"


@pytest.fixture
def state() -> KinesisState:
    service = KinesisState(clock=ManualClock())
    service.create_stream("orders", 1)
    for text in (b"a", b"b", b"c"):
        service.put("orders", "key", text)
    return service


def pages(state: KinesisState, limit: int, *, count: int) -> list[RecordsPage]:
    """The first `count` pages from the beginning, or those up to the end of the shard."""
    body = {"StreamName": "orders", "ShardId": FIRST, "ShardIteratorType": "TRIM_HORIZON"}
    answer = state.call("GetShardIterator", body)
    assert isinstance(answer, dict)
    token: str | None = answer["ShardIterator"]
    found: list[RecordsPage] = []
    while token is not None and len(found) < count:
        page = state.call("GetRecords", {"ShardIterator": token, "Limit": limit})
        assert isinstance(page, RecordsPage)
        found.append(page)
        token = page.next_iterator
    return found


def outline(page: RecordsPage) -> tuple[str, bool]:
    """The data of a page, and whether its lag is 0."""
    text = b"".join(record.data for record in page.records).decode()
    return text, page.millis_behind_latest == 0


def test_nothing_unusual(state: KinesisState) -> None:
    found = [outline(page) for page in pages(state, 2, count=3)]
    assert found == [("ab", False), ("c", True), ("", True)]


def test_a_page_that_its_limit_cut_has_no_lag(state: KinesisState) -> None:
    state.answers = UnusualAnswers(zero_lag=True)
    found = [outline(page) for page in pages(state, 2, count=3)]
    assert found == [("ab", True), ("c", True), ("", True)]


def test_empty_pages_come_before_the_tip(state: KinesisState) -> None:
    state.answers = UnusualAnswers(empty_pages=2)
    empty = ("", False)
    found = [outline(page) for page in pages(state, 2, count=10)]
    tip = ("", True)
    assert found == [
        *(empty, empty, ("ab", False)),
        *(empty, empty, ("c", True)),
        *(empty, empty, tip, tip),
    ]


def test_a_closed_shard_ends_with_an_empty_page(state: KinesisState) -> None:
    state.split("orders", FIRST)
    assert [outline(page)[0] for page in pages(state, 9, count=9)] == ["abc"]
    state.answers = UnusualAnswers(late_shard_end=True)
    last = pages(state, 9, count=9)
    assert [outline(page)[0] for page in last] == ["abc", ""]
    assert [page.child_shards is None for page in last] == [True, False]


def test_all_of_them_together(state: KinesisState) -> None:
    state.split("orders", FIRST)
    state.answers = UnusualAnswers.all()
    found = "".join(outline(page)[0] for page in pages(state, 1, count=99))
    assert found == "abc"
