"""The page: its figure, its tables, and what it must never contain."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from spark_ssp.operations.live_page.page import body, page
from spark_ssp.operations.live_page.svg import arrange
from spark_ssp.operations.live_page.timeline import QueryTimeline
from spark_ssp.operations.snapshot import (
    AlignmentSnapshot,
    FanOutCounts,
    LeaseCounts,
    QuerySnapshot,
)
from tests.support.operations.histories import random_history, shard, shard_id, snapshot

_VOID = {"meta", "link"}


class _Checker(HTMLParser):
    """Collects the elements; fails if they are not nested."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> _Checker:
    checker = _Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def query(*snapshots: QuerySnapshot) -> QueryTimeline:
    found = QueryTimeline("etl")
    for each in snapshots:
        found.add(each)
    return found


def test_the_file_is_well_formed_has_no_script_and_no_resource_from_outside() -> None:
    found = checked(page(body([query(*random_history(shards=12, batches=60))])))
    assert "script" not in found.tags
    assert {tag for tag in found.tags if tag in ("img", "iframe", "object", "video")} == set()
    links = [
        value or "" for name, value in found.attributes if name in ("href", "src", "xlink:href")
    ]
    assert links == ["data:,"]
    assert "url(" not in page("")
    assert "@import" not in page("")


@pytest.mark.parametrize("last_ms", [10_000, 86_400_000, 30 * 86_400_000, (1 << 63) - 1, 10**23])
def test_the_axis_has_few_ticks_at_any_length(last_ms: int) -> None:
    later = replace(snapshot(1, {"s": shard(0, 0)}), time_ms=last_ms)
    first = replace(snapshot(0, {"s": shard(0, 0)}), time_ms=0)
    text = page(body([query(first, later)]))
    assert 1 <= text.count('class="tick" x=') <= 9


def test_names_are_escaped() -> None:
    name = '<script>alert("x")</script>\x1b[31m'
    text = page(body([query(snapshot(0, {"s": shard(0, 0)}, label=name))]))
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    checked(text)


def test_every_bar_lies_in_the_lane_of_its_task_and_covers_no_other() -> None:
    (source,) = query(*random_history(shards=40, batches=120)).sources
    tasks = source.latest.tasks if source.latest else ()
    lanes = arrange(source.bars, tasks)
    spans = {lane.task: (lane.top, lane.top + lane.height) for lane in lanes.lanes}
    assert tuple(spans) == tasks
    placed: dict[float, list[tuple[int, int]]] = {}
    for place, bar in enumerate(source.bars):
        top = lanes.tops[place]
        low, high = spans[bar.task]
        assert low <= top < high
        placed.setdefault(top, []).append((bar.start_ms, bar.end_ms))
    for times in placed.values():
        times.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(times))


def test_the_figure_has_a_fork_for_each_parent_that_is_shown() -> None:
    before = snapshot(0, {"a": shard(0, 0), "b": shard(1, 1)})
    after = snapshot(1, {"b": shard(1, 1), "c": shard(2, 0, parents=(0, 9))})
    text = body([query(before, after)])
    assert text.count('class="fork"') == 1
    assert "from 0, 9" in text


def test_leases_and_owners_are_listed() -> None:
    leases = LeaseCounts(by_owner={"anne": 2, "bert": 5}, free=1)
    one = {"a": shard(0, 0, owner="anne"), "b": shard(1, 1, owner="bert")}
    pushed = FanOutCounts(pushed=1, polled=2)
    text = body([query(snapshot(0, one, worker="anne", leases=leases, fan_out=pushed))])
    assert "1 pushed and 2 polled" in text
    assert "anne (this query)" in text
    assert "no owner" in text
    assert "data loss warnings" in text
    assert re.search(r'class="lag1 owner0"', text)
    assert re.search(r'class="lag1 owner1"', text)


def test_the_spread_and_the_rows_that_the_watermark_dropped_are_shown_if_there_are_any() -> None:
    one = {"a": shard(0, 0)}
    aligned = AlignmentSnapshot(spread_ms=0, left_behind=0)
    text = body([query(snapshot(0, one, alignment=aligned))])
    assert not re.search("spread|left behind|others back|dropped", text)
    apart = AlignmentSnapshot(spread_ms=90_000, left_behind=2, holds_back=shard_id(7))
    late = snapshot(1, one, alignment=apart, dropped=3)
    found = query(late, late, snapshot(2, one, alignment=apart, dropped=4))
    assert "spread 1 min 30 s, 7 holds others back, 2 left behind" in body([found])
    assert "7 rows dropped by the watermark" in body([found]), "once for each trigger"


def test_a_thousand_shards_stay_readable_and_small() -> None:
    text = body([query(*random_history(shards=1_000, batches=60, slots=32))])
    assert len(text) < 3_000_000
    assert text.count('class="lane"') == 32
    assert "Shards: 1,0" in text
    assert "the 200 farthest behind" in text
    checked(text)


def test_without_a_report_the_page_says_so() -> None:
    assert "No query" in body([])
    assert "No query" in body([QueryTimeline("etl")])


def test_a_query_that_has_ended_is_marked() -> None:
    ended = query(snapshot(3, {"a": shard(0, 0)}))
    ended.is_running = False
    assert "orders-etl (ended)" in body([ended])
    assert shard_id(0) in body([ended])
