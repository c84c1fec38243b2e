"""The page: the health of queries, figures, tables, and what it must never contain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import pytest

from spark_ssp.operations.health import Limits, Phase, Verdict
from spark_ssp.operations.live_page.page import Content, changes, page
from spark_ssp.operations.live_page.server import Timelines
from spark_ssp.operations.live_page.svg import (
    TIME,
    Axis,
    arrange,
    arrange_worst,
    axis_of,
    coarse,
    level_counts,
    shortened,
)
from spark_ssp.operations.live_page.timeline import DelayLevel, QueryTimeline, SourceTimeline, Span
from spark_ssp.operations.observed_queries import ObservedQueries
from spark_ssp.operations.snapshot import (
    AlignmentSnapshot,
    FanOutCounts,
    LeaseCounts,
    QuerySnapshot,
)
from spark_ssp.testing.kinesis.state.stream import shard_id
from tests.support.operations.histories import PERIOD_MS, START_MS, random_history, shard, snapshot

MINUTE = 60_000
LIMITS = Limits(max_delay_ms=10 * MINUTE, stuck_after_ms=15 * MINUTE)
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


class Session:
    """The queries of a session and their page."""

    def __init__(self, *snapshots: QuerySnapshot) -> None:
        self.queries = ObservedQueries()
        self.timelines = Timelines(LIMITS)
        self.timelines.attach(self.queries)
        for one in snapshots:
            self.publish(one)

    def publish(self, one: QuerySnapshot, phase: Phase = Phase.WAITING) -> None:
        self.queries.publish(one)
        self.queries.observe(one.run_id, phase, one.end_ms)
        self.timelines.publish(one)

    def end(self, run_id: str, failure: str | None, now_ms: int) -> None:
        self.queries.ended(run_id, failure, now_ms)
        self.timelines.end(run_id)

    def content(self, now_ms: int = START_MS) -> Content:
        return self.timelines.render(now_ms)

    def text(self, now_ms: int = START_MS) -> str:
        return page(self.content(now_ms))


def source_of(*snapshots: QuerySnapshot) -> SourceTimeline:
    query = QueryTimeline(1, "run-1")
    for one in snapshots:
        query.add(one, (), LIMITS.max_delay_ms)
    (source,) = query.sources
    return source


def large_history(batches: int) -> Iterator[QuerySnapshot]:
    """A query of 1,000 shards, of which each report shows the 100 farthest behind."""
    for one in random_history(shards=1_000, batches=batches, slots=32):
        (source,) = one.sources
        (stream,) = source.streams
        ranked = sorted(stream.shards, key=lambda each: -((each.lag or 0) * 31 % 9973))
        hidden = {each.shard for each in ranked[100:]}
        shown = tuple(
            replace(each, lag=None) if each.shard in hidden else each for each in stream.shards
        )
        hiding = replace(stream, shards=shown, not_shown_max_lag=0)
        yield replace(one, sources=(replace(source, streams=(hiding,)),))


# --- The document ---------------------------------------------------------------------------------


def test_the_file_is_well_formed_has_no_script_and_no_resource_from_outside() -> None:
    text = Session(*random_history(shards=12, batches=60)).text()
    found = checked(text)
    assert "script" not in found.tags
    assert {tag for tag in found.tags if tag in ("img", "iframe", "object", "video")} == set()
    links = [
        value or "" for name, value in found.attributes if name in ("href", "src", "xlink:href")
    ]
    assert links == ["data:,"]
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch"}
    assert "@import" not in text


def test_names_are_escaped() -> None:
    name = '<script>alert("x")</script>\x1b[31m'
    text = Session(snapshot(0, {"s": shard(0, 0)}, label=name)).text()
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    checked(text)


def test_texts_are_legible_in_light_and_dark() -> None:
    style = files("spark_ssp.operations.live_page").joinpath("page.css").read_text("utf-8")
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w+, #\w+)\);", style))
    pairs = [("ink", "ground"), ("dim", "ground"), ("dim", "lane"), ("ink", "lane")]
    for text, ground in pairs:
        for one, other in zip(*(colours[name].split(", ") for name in (text, ground)), strict=True):
            assert _contrast(one, other) >= 4.5, (text, ground)
    for ground in ("ok", "unknown", "behind", "bad"):
        assert all(_contrast("#ffffff", each) >= 4.5 for each in colours[ground].split(", "))
    for level in ("lag1", "lag2", "lag3", "lag4"):
        assert all(_contrast("#101820", each) >= 4.5 for each in colours[level].split(", ")), level


def _contrast(one: str, other: str) -> float:
    """Return the ratio that WCAG defines."""

    def light(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


# --- Health ---------------------------------------------------------------------------------------


def test_a_page_without_queries_says_so() -> None:
    assert "No query" in Session().text()


def test_a_query_that_hangs_becomes_stalled_without_a_report() -> None:
    session = Session()
    session.publish(snapshot(0, {"a": shard(0, 0)}), Phase.BATCH)
    before = session.content(START_MS + 5_000)
    assert before.title.startswith(Verdict.OK)
    later = START_MS + 20 * MINUTE
    session.queries.observe("run-1", Phase.BATCH, START_MS + 6_000)
    session.queries.observe("run-1", Phase.BATCH, later)
    after = session.content(later)
    assert after.title.startswith(Verdict.STALLED)
    assert 'class="banner stalled"' in after.parts["q1"]


def test_only_what_the_clock_changes_is_sent_without_a_report() -> None:
    session = Session(*random_history(shards=8, batches=20))
    now = START_MS + 20 * PERIOD_MS
    found = changes(session.content(now).parts, session.content(now + 5_000))
    assert set(found["parts"]) == {"top", "q1"}
    assert not {"all", "gone", "order"} & found.keys()


def test_a_query_without_a_report_is_unknown_and_shown() -> None:
    session = Session()
    session.queries.started("run-9", "query-9", "new", START_MS)
    found = session.content(START_MS + 1_000)
    assert 'class="banner unknown"' in found.parts["q1"]
    session.queries.observe("run-9", Phase.BATCH, START_MS + 20 * MINUTE)
    assert "stalled" in session.content(START_MS + 20 * MINUTE).parts["q1"]


def test_running_queries_come_first_by_gravity_then_failed_ones_and_ended_ones_are_folded() -> None:
    now = START_MS + 30 * MINUTE
    session = Session()
    for name, failure in (("done", None), ("broken", "ARITHMETIC_OVERFLOW")):
        one = replace(snapshot(0, {"a": shard(0, 0)}, run=name, label=name), query_id=name)
        session.publish(one)
        session.end(name, failure, now - MINUTE)
    good = replace(snapshot(0, {"a": shard(0, 0)}, run="good", label="good"), query_id="good")
    session.publish(replace(good, time_ms=now - 1_000))
    late = snapshot(0, {"a": shard(0, 0, 20 * MINUTE)}, run="late", label="late")
    session.publish(replace(late, query_id="late", time_ms=now - 1_000))
    found = session.content(now)
    order = [name for name in found.parts if re.fullmatch(r"q\d+", name)]
    assert [
        next(name for name in ("done", "broken", "good", "late") if name in found.parts[each])
        for each in order
    ] == ["late", "good", "broken", "done"]
    assert "ARITHMETIC_OVERFLOW" in found.parts[order[2]]
    assert "20:29:00" in found.parts[order[2]]
    assert all(found.parts[each].startswith("<details") for each in order[2:])
    assert not any(" open>" in found.parts[each] for each in order)
    checked(page(found))


def test_without_a_running_query_the_one_that_ended_last_is_open() -> None:
    session = Session(snapshot(0, {"a": shard(0, 0)}))
    session.end("run-1", None, START_MS + MINUTE)
    assert " open>" in session.content(START_MS + MINUTE).parts["q1"]


def test_a_failure_stays_among_the_events_after_a_restart() -> None:
    session = Session(snapshot(0, {"a": shard(0, 0)}))
    session.end("run-1", "StreamGone", START_MS + MINUTE)
    session.publish(snapshot(30, {"a": shard(0, 0)}, run="run-2"))
    text = session.content(START_MS + 3 * MINUTE).parts["q1-n"]
    assert "failed: StreamGone" in text
    assert "restarted" in text


# --- Changes --------------------------------------------------------------------------------------


def test_an_update_of_a_thousand_shards_is_small() -> None:
    history = list(large_history(batches=241))
    session = Session(*history[:-1])
    before = session.content(history[-2].end_ms)
    session.publish(history[-1])
    after = session.content(history[-1].end_ms)
    found = changes(before.parts, after)
    sent = len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode())
    assert sent < 50_000
    text = page(after)
    assert len(text) < 300_000
    assert text.count("<tr id=") >= 1_000
    checked(text)


def test_changes_make_one_content_the_other() -> None:
    session = Session(snapshot(0, {"a": shard(0, 0), "b": shard(1, 1)}))
    before = session.content()
    session.publish(snapshot(1, {"b": shard(1, 1, 9), "c": shard(2, 0, parents=(0,))}))
    session.queries.started("run-9", "query-9", "new", START_MS)
    after = session.content(START_MS + PERIOD_MS)
    found = changes(before.parts, after)
    parts = {name: html for name, html in before.parts.items() if name not in found["gone"]}
    for name, cells in found["cells"].items():
        parts[name] = cells + "</td>".join(parts[name].split("</td>")[2:])
    assert parts | found["parts"] == after.parts
    assert found["gone"] == ["q1-t0-1"]
    assert [name for name in after.parts if name in found["order"]] == found["order"]
    assert changes(None, after)["parts"] == after.parts


# --- The figure -----------------------------------------------------------------------------------


@pytest.mark.parametrize("last_ms", [10_000, 86_400_000, 30 * 86_400_000, (1 << 63) - 1, 10**23])
def test_the_axis_has_few_ticks_at_any_length(last_ms: int) -> None:
    later = replace(snapshot(1, {"s": shard(0, 0)}), time_ms=last_ms)
    first = replace(snapshot(0, {"s": shard(0, 0)}), time_ms=0)
    text = Session(first, later).text(last_ms)
    assert 1 <= len(re.findall(r'class="tick[a-z ]*" x="[\d.]+%" y="10"', text)) <= 7


def test_the_newest_is_at_the_right_edge_and_silence_takes_a_third_at_most() -> None:
    source = source_of(*random_history(shards=4, batches=100))
    end = source.end_ms
    assert axis_of(source, end).x(end) == TIME
    assert axis_of(source, None).x(end) == TIME
    for minutes in (1, 5, 60, 10_000):
        axis = axis_of(source, end + minutes * MINUTE)
        assert axis.end_ms <= end + minutes * MINUTE
        assert 2 * TIME // 3 <= axis.x(end) < TIME


def test_every_bar_lies_in_the_lane_of_its_task_and_covers_no_other() -> None:
    source = source_of(*random_history(shards=40, batches=120))
    tasks = source.latest.tasks if source.latest else ()
    lanes = arrange(source, tasks)
    spans = {lane.label: (lane.top, lane.top + lane.height) for lane in lanes.lanes}
    assert tuple(spans) == tuple(f"slot {task}" for task in tasks)
    placed: dict[float, list[tuple[int, int]]] = {}
    for bar, top in zip(lanes.bars, lanes.tops, strict=True):
        low, high = spans[f"slot {bar.task}"]
        assert low <= top < high
        placed.setdefault(top, []).append((bar.start_ms, bar.end_ms))
    for times in placed.values():
        times.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(times))


def test_the_figure_has_a_fork_for_each_parent_that_is_shown() -> None:
    before = snapshot(0, {"a": shard(0, 0), "b": shard(1, 1)})
    after = snapshot(1, {"b": shard(1, 1), "c": shard(2, 0, parents=(0, 9))})
    text = Session(before, after).text()
    assert text.count('class="fork"') == 1
    assert "from 0, 9" in text


def test_of_many_shards_the_worst_have_lanes_and_the_others_are_counted() -> None:
    shards = {shard_id(n): shard(n, n % 8, 100 * n if n > 4 else None) for n in range(150)}
    source = source_of(snapshot(0, shards))
    lanes = arrange_worst(source)
    drawn = {bar.shard for bar in lanes.bars}
    assert shard_id(149) in drawn
    assert shard_id(5) not in drawn
    others = [bar for bar in source.bars if bar.shard not in drawn]
    (counts,) = level_counts(others, [START_MS])
    assert counts[DelayLevel.UNKNOWN] == 5
    assert sum(counts) == len(others) == 150 - len(drawn)


def test_short_spans_share_a_column_with_the_worst_level() -> None:
    spans = [
        Span(start_ms=n * 100, end_ms=(n + 1) * 100, level=DelayLevel(1 + 3 * (n == 5)))
        for n in range(10_000)
    ]
    found = list(coarse(spans, Axis(start_ms=0, end_ms=1_000_000)))
    assert len(found) <= 260
    assert [span.level for span in found].count(DelayLevel.SEVERE) == 1
    assert (found[0].start_ms, found[-1].end_ms) == (0, 1_000_000)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("slot 3", "slot 3"), ("orders-eu-west-production-17", "…west-production-17")],
)
def test_a_long_label_keeps_its_end(name: str, shown: str) -> None:
    assert shortened(name, 19) == shown


# --- The tables -----------------------------------------------------------------------------------


def test_leases_and_owners_are_listed() -> None:
    leases = LeaseCounts(by_owner={"anne": 2, "bert": 5}, free=1)
    one = {"a": shard(0, 0, owner="anne"), "b": shard(1, 1, owner="bert")}
    pushed = FanOutCounts(pushed=1, polled=2)
    text = Session(snapshot(0, one, worker="anne", leases=leases, fan_out=pushed)).text()
    assert "1 pushed and 2 polled" in text
    assert "anne (this query)" in text
    assert "no owner" in text
    assert "data loss warnings" in text
    assert re.search(r'class="lag1 owner0"', text)
    assert re.search(r'class="lag1 owner1"', text)


def test_the_spread_and_the_rows_that_the_watermark_dropped_are_shown_if_there_are_any() -> None:
    one = {"a": shard(0, 0)}
    aligned = AlignmentSnapshot(spread_ms=0, left_behind=0)
    text = Session(snapshot(0, one, alignment=aligned)).text()
    assert not re.search("spread|left behind|others back|dropped", text)
    apart = AlignmentSnapshot(spread_ms=90_000, left_behind=2, holds_back=shard_id(7))
    late = snapshot(1, one, alignment=apart, dropped=3)
    text = Session(late, late, snapshot(2, one, alignment=apart, dropped=4)).text()
    assert "spread 1 min 30 s, 7 holds others back, 2 left behind" in text
    assert "7 rows dropped by the watermark" in text, "once for each trigger"
