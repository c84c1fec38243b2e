"""The page of a plan: what is drawn, where, and that it needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, reject, settings

from pipeline_planner import PartitionCountConflictError, Pipeline, PlannedPipeline
from pipeline_planner.graph.operators import Input, SideInput
from pipeline_planner.planning.plan import StreamPlan, TablePlan
from pipeline_planner.render.figure import Placed, picture
from pipeline_planner.render.figure_parts import Ender, Section, sections
from pipeline_planner.render.figure_texts import elided, name_width
from pipeline_planner.render.svg import draw, hue_of, set_letters
from tests.support.pipelines.examples import both, planned, same, stream_id
from tests.support.pipelines.random_pipelines import Drawn, pipelines

SVG = "{http://www.w3.org/2000/svg}"


def _delays() -> PlannedPipeline:
    pipeline = Pipeline("delays")
    carriers = pipeline.table("carriers", key="carrier")
    names = pipeline.input("kafka", "carriers", bootstrap=True).filter("name <> ''")
    carriers.side_input(names, name="fill")
    flights = pipeline.input("kinesis", "flights").transform(same, name="parse")
    by_carrier = flights.partition_by("carrier")
    counted = by_carrier.join_table(carriers, name="name").transform(same, state="shuffled")
    counted.output("kafka", "delay-per-carrier")
    return planned(pipeline, {"kinesis/flights": 4, "carriers": 8})


def _diamond() -> PlannedPipeline:
    pipeline = Pipeline("diamond")
    orders = pipeline.input("kafka", "orders").transform(same, name="parse")
    left = orders.filter("amount > 0").partition_by("customer", name="paid")
    right = orders.filter("amount < 0").partition_by("customer", name="refunded")
    left.join(right, both, name="match").output("kafka", "balances")
    return planned(pipeline, {"orders": 12, "balances": 4})


def _loop() -> PlannedPipeline:
    """A join sent back to its own table, and a stream joined with itself."""
    pipeline = Pipeline("loop")
    latest = pipeline.table("latest", key="k")
    joined = pipeline.input("kafka", "a").join_table(latest, how="left", name="with-latest")
    joined.send_to_table(latest)
    joined.join(joined, both, name="pairs").output("kafka", "out")
    return planned(pipeline, {"a": 4})


def _bare() -> PlannedPipeline:
    """Nothing between streams, nothing before a table, and a table that nobody fills."""
    pipeline = Pipeline("bare")
    kept = pipeline.table("kept-elsewhere", key="k")
    filled = pipeline.table("filled", key="k")
    a = pipeline.input("kafka", "a")
    a.send_to_table(filled)
    a.output("kafka", "copy")
    joined = pipeline.input("kafka", "b").join_table(kept).join_table(filled)
    joined.output("kafka", "copy", name="again")
    return planned(pipeline, {"a": 2, "b": 2, "copy": 3})


def _long() -> PlannedPipeline:
    """Some thirty operators, with lines over several layers."""
    pipeline = Pipeline("long")
    line = pipeline.input("kafka", "s0")
    late = pipeline.table("late", key="k")
    line.send_to_table(late)
    for number in range(1, 7):
        line = line.transform(same).filter(f"x > {number}").partition_by("k", name=f"r{number}")
        line = line.join(pipeline.input("kafka", f"s{number}"), both)
        line.output("kafka", f"out{number}")
    line.join_table(late).output("kafka", "last")
    return planned(pipeline, {f"s{n}": 8 for n in range(7)})


ALL: dict[str, Callable[[], PlannedPipeline]] = {
    "delays": _delays,
    "diamond": _diamond,
    "loop": _loop,
    "bare": _bare,
    "long": _long,
}
all_pipelines = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def _svg(made: PlannedPipeline) -> ElementTree.Element:
    return ElementTree.fromstring(draw(made.graph, made.plan))


def _texts(made: PlannedPipeline) -> list[str]:
    return [text.text or "" for text in _svg(made).iter(f"{SVG}text")]


# --- What is drawn -------------------------------------------------------------------------------


@all_pipelines
def test_every_stream_table_stage_and_operator_is_drawn(
    make: Callable[[], PlannedPipeline],
) -> None:
    made = make()
    drawn = {section.ender.name for section in sections(made.graph, made.plan) if _shown(section)}
    expected = {
        *(stream.stream.stream for stream in made.plan.streams),
        *(stage.name for stage in made.plan.stages),
        *(table.name for table in made.plan.tables),
        *(o.name for o in made.graph.operators if not isinstance(o, Input | Ender)),
        *(o.name for o in made.graph.operators if isinstance(o, Ender) and o.name in drawn),
    }
    assert sorted(expected - set(_texts(made))) == []


def _shown(section: Section) -> bool:
    return section.is_stage or bool(section.chains)


@all_pipelines
def test_every_line_is_drawn_and_nothing_overlaps(make: Callable[[], PlannedPipeline]) -> None:
    _holds(make())


@settings(max_examples=30)
@given(pipelines())
def test_any_pipeline_is_drawn_well(drawn: Drawn) -> None:
    try:
        made = planned(drawn.pipeline, drawn.counts, default=2)
    except PartitionCountConflictError:
        reject()
    _holds(made)
    ElementTree.fromstring(draw(made.graph, made.plan))


def _holds(made: PlannedPipeline) -> None:
    """All lines are there; boxes stand apart, rows within their stage."""
    found = picture(made.graph, made.plan)
    # A link between two rows of a chain stands for the flow between them.
    expected = sum(
        len(section.reads) + len(section.looks_into) + 1 + len(section.flows)
        if _shown(section)
        else 1
        for section in sections(made.graph, made.plan)
    )
    assert len(found.lines) == expected
    outer = [b for b in found.boxes if isinstance(b.subject, Section | StreamPlan | TablePlan)]
    rows = [b for b in found.boxes if b not in outer]
    assert not [pair for pair in combinations(outer, 2) if _overlap(*pair)]
    assert not [pair for pair in combinations(rows, 2) if _overlap(*pair)]
    for row in rows:
        (around,) = [b for b in outer if _overlap(b, row)]
        assert isinstance(around.subject, Section)
        assert around.corner.x <= row.corner.x
        assert row.corner.x + row.width <= around.corner.x + around.width
        assert row.corner.y + row.height <= around.corner.y + around.height


def _overlap(one: Placed, other: Placed) -> bool:
    return (
        one.corner.x < other.corner.x + other.width
        and other.corner.x < one.corner.x + one.width
        and one.corner.y < other.corner.y + other.height
        and other.corner.y < one.corner.y + one.height
    )


@all_pipelines
def test_a_plan_is_drawn_the_same_each_time(make: Callable[[], PlannedPipeline]) -> None:
    made = make()
    assert made.page() == made.page() == make().page()


def test_names_fit_their_boxes() -> None:
    made = _delays()
    for box in picture(made.graph, made.plan).boxes:
        if isinstance(box.subject, StreamPlan):
            assert name_width(box.subject.stream.stream, 12.5) + 30 <= box.width


def test_a_line_that_two_stages_go_on_from_is_in_both() -> None:
    made = _diamond()
    names = [[row.name for chain in s.chains for row in chain.rows] for s in _sections(made)]
    assert names == [["parse", "orders-filter"], ["parse", "orders-filter-2"], ["match"]]


def test_what_fills_a_table_has_a_section_unless_nothing_lies_between() -> None:
    found = [s for s in _sections(_delays()) if not s.is_stage]
    assert [(type(s.ender), s.goal, len(s.chains)) for s in found] == [(SideInput, "carriers", 1)]
    texts = _texts(_delays())
    assert "side input of carriers" in texts
    assert "fills table filled" not in _texts(_bare())
    assert {"table", "table · filled by others"} <= set(_texts(_bare()))


def _sections(made: PlannedPipeline) -> tuple[Section, ...]:
    return sections(made.graph, made.plan)


def test_a_stream_says_what_it_has_and_why() -> None:
    texts = _texts(_delays())
    at = texts.index("delays-flights-by-carrier")
    assert texts[at - 1 : at + 3] == [
        "kafka · intermediate",
        "delays-flights-by-carrier",
        "8 partitions",
        "inferred: as kafka/carriers",
    ]
    at = texts.index("delay-per-carrier")
    assert texts[at + 1 : at + 3] == ["not there yet", "the pipeline does not create outputs"]
    assert "4 shards" in texts
    assert "kafka · input · bootstrap" in texts


def test_tasks_are_shown_where_they_differ() -> None:
    pipeline = Pipeline("p")
    pipeline.input("kafka", "a").output("kafka", "out")
    first = planned(pipeline, {"a": 1}).plan
    assert "8 partitions in 1 tasks" in _texts(planned(pipeline, {"a": 8}, recorded=first))
    assert "1 partition" in _texts(planned(pipeline, {"a": 1}))


def test_streams_that_must_agree_share_a_letter() -> None:
    made = _delays()
    assert set_letters(made.plan) == {
        stream_id("carriers"): "A",
        stream_id("delays-flights-by-carrier"): "A",
    }
    assert _texts(made).count("A") == 2
    assert set_letters(_loop().plan) == {}
    assert '<span class="mark badge0">A</span> <code>kafka/carriers</code>' in made.page()


def test_there_are_letters_for_any_number_of_sets() -> None:
    pipeline = Pipeline("many")
    for number in range(30):
        one = pipeline.input("kafka", f"a{number:02}")
        one.join(pipeline.input("kafka", f"b{number:02}"), both).output("kafka", f"o{number:02}")
    counts = {f"{side}{n:02}": 2 for side in "ab" for n in range(30)}
    letters = set_letters(planned(pipeline, counts).plan)
    assert letters[stream_id("a00")] == "A"
    assert letters[stream_id("b27")] == "B1"
    assert {hue_of(letter) for letter in letters.values()} == set(range(6))


def test_a_table_that_its_own_join_fills_is_drawn_with_a_line_that_leads_back() -> None:
    made = _loop()
    found = picture(made.graph, made.plan)
    assert [line.looks for line in found.lines if line.way.back] == [True]


def test_tooltips_tell_all_of_it() -> None:
    titles = [title.text or "" for title in _svg(_delays()).iter(f"{SVG}title")]
    plain = [re.sub(r"[\w/]+\.py:\d+", "here", title) for title in titles]
    assert "Pipeline delays" in plain
    assert "filter carriers-filter\nkeeps name <> ''\nhere" in plain
    assert (
        "intermediate kafka/delays-flights-by-carrier\n"
        "partitions: 8 (inferred: as kafka/carriers, through table carriers)\n"
        "must agree with the other streams of set A\nhere"
    ) in plain


# --- The page ------------------------------------------------------------------------------------


@all_pipelines
def test_the_page_needs_no_script_and_no_net(make: Callable[[], PlannedPipeline]) -> None:
    page = make().page()
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    assert not re.findall(r"\ssrc=|\shref=|@import", page)
    assert set(re.findall(r"url\([^)]*\)", page)) == {"url(#arrow)"}
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_page_says_what_explain_says() -> None:
    made = _delays()
    page = unescape(re.sub(r"<[^>]+>", "", made.page()))
    assert "2 stages, 4 streams, 1 table" in page
    agreeing, _, told = made.explain().partition("MUST AGREE")[2].partition("NOTES")
    for line in [*agreeing.splitlines()[2:], *told.splitlines()]:
        assert line.strip().removeprefix("- ") in page
    for count in ("found", "inferred: as kafka/carriers, through table carriers", "unknown"):
        assert count in page


def test_a_small_page_has_no_empty_sections() -> None:
    pipeline = Pipeline("p")
    pipeline.input("kafka", "a").output("kafka", "out")
    page = planned(pipeline, {"a": 1, "out": 2}).page()
    for heading in ("Tables", "What must agree", "Notes"):
        assert f"<h2>{heading}</h2>" not in page
    assert "1 stage, 2 streams, 0 tables" in page


def test_dark_and_light_have_the_same_colours() -> None:
    page = _delays().page()
    light, dark = page.split("prefers-color-scheme: dark")
    names = set(re.findall(r"(--[a-z0-9-]+):", light))
    assert names == set(re.findall(r"(--[a-z0-9-]+):", dark))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", page)) <= names


def test_texts_cannot_break_the_page() -> None:
    pipeline = Pipeline("p")
    a = pipeline.input("kafka", "a").filter("x < 1 AND y = '</text><script>\x00\n&amp;'")
    a.partition_by('k"]<b>&\t', name="made").output("kafka", "out")
    made = planned(pipeline, {"a": 1})
    page = made.page()
    assert "<script" not in page
    assert "<b>&" not in page
    assert 'partition by k"]<b>&' in _texts(made)
    assert "\x00" not in page


def test_long_names_lose_their_middle() -> None:
    assert elided("a" * 30 + "b" * 30, 21) == "a" * 13 + "…" + "b" * 7
    assert elided("short") == "short"
    assert elided("two\nlines\x07") == "two lines"
    assert name_width("größe", 10) == pytest.approx(30.1)
    assert name_width("大小", 10) == name_width("size", 10)


def test_a_page_is_saved(tmp_path: Path) -> None:
    made = _delays()
    made.save_page(tmp_path / "plan.html")
    made.save_page(str(tmp_path / "plan.html"))
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == made.page()


def test_the_legend_tells_a_systems_kind_where_its_name_does_not() -> None:
    pipeline = Pipeline("p", systems={"kafka": "kafka", "old": "kafka"})
    pipeline.input("old", "a").output("kafka", "out")
    page = unescape(re.sub(r"<[^>]+>", "\n", planned(pipeline, {"old/a": 1, "out": 2}).page()))
    legend = page[page.index("What flows where") : page.index("dashed rim")].splitlines()
    assert {"kafka", "old (kafka)"} <= {*legend}
    assert "kafka (kafka)" not in legend
