"""The page of a plan: the content of its figure, and that it needs no other file."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_ssp.planner import Pipeline, PlannedPipeline
from spark_ssp.planner.figure import NodeKind, figure, group_letters, shorten
from spark_ssp.planner.graph.operators import Input, OperatorName
from spark_ssp.planner.page import draw, group_colour
from tests.support.pipelines.examples import both, planned, same, stream_id

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = Path(__file__).parents[2] / "golden" / "figure_delays.svg"


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
    latest = pipeline.table("latest", key="k").side_input(pipeline.input("kafka", "first"))
    joined = pipeline.input("kafka", "a").join_table(latest, how="left", name="with-latest")
    joined.partition_by("k", name="back").send_to_table(latest)
    alone = pipeline.input("kafka", "alone")
    alone.join(alone, both, name="pairs").merge(joined).output("kafka", "out")
    return planned(pipeline, {"a": 4, "first": 4, "alone": 3})


def _bare() -> PlannedPipeline:
    """A stage and a filled table without operators, and a table that the pipeline does not fill."""
    pipeline = Pipeline("bare")
    kept = pipeline.table("kept-elsewhere", key="k")
    filled = pipeline.table("filled", key="k")
    a = pipeline.input("kafka", "a")
    a.send_to_table(filled)
    a.output("kafka", "copy")
    joined = pipeline.input("kafka", "b").join_table(kept).join_table(filled)
    joined.output("kafka", "copy", name="again")
    return planned(pipeline, {"a": 2, "b": 2, "copy": 3})


ALL = {make.__name__: make for make in (_delays, _diamond, _loop, _bare)}
all_pipelines = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def _svg(made: PlannedPipeline) -> ElementTree.Element:
    return ElementTree.fromstring(draw(made.graph, made.plan))


def _texts(made: PlannedPipeline) -> list[str]:
    return [text.text or "" for text in _svg(made).iter(f"{SVG}text")]


# --- The figure ----------------------------------------------------------------------------------


def test_the_figure_is_drawn_as_recorded(tmp_path: Path) -> None:
    """After a change, open the new file in a browser; if it is right, copy it over the golden."""
    made = _delays()
    drawn = re.sub(r"[\w/]+\.py:\d+", "here", draw(made.graph, made.plan)) + "\n"
    (tmp_path / "figure.svg").write_text(drawn, encoding="utf-8")
    assert drawn == GOLDEN.read_text(encoding="utf-8"), tmp_path / "figure.svg"


@all_pipelines
def test_every_stream_table_stage_and_operator_is_drawn(
    make: Callable[[], PlannedPipeline],
) -> None:
    made = make()
    operators = {o.name for o in made.graph.operators if not isinstance(o, Input)}
    # A line without operators before a table is an edge.
    edges = ("a-to-filled", "first-into-latest", "back-to-latest")
    operators -= {OperatorName(name) for name in edges}
    ends = [*(s.stream.stream for s in made.plan.streams), *(t.name for t in made.plan.tables)]
    assert sorted({*operators, *ends} - {*_texts(made)}) == []


@all_pipelines
def test_the_same_plan_gives_the_same_page(make: Callable[[], PlannedPipeline]) -> None:
    made = make()
    assert made.page() == made.page() == make().page()


def test_a_line_that_two_stages_share_is_in_both() -> None:
    made = _diamond()
    nodes = figure(made.graph, made.plan).nodes.values()
    rows = [[row.texts[1].text for row in n.rows] for n in nodes if n.kind is NodeKind.STAGE]
    assert rows == [["parse", "orders-filter"], ["parse", "orders-filter-2"], ["match"]]


def test_an_operator_names_the_rows_that_it_takes_unless_they_are_those_above() -> None:
    pipeline = Pipeline("p")
    a, b = (pipeline.input("kafka", name).transform(same, name=f"parse-{name}") for name in "ab")
    a.join(b, both, name="match").filter("x").output("kafka", "out")
    texts = _texts(planned(pipeline, {"a": 1, "b": 1}))
    assert {"transform · of b", "join · of parse-a, parse-b", "filter · x"} <= {*texts}


def test_operators_before_a_table_have_a_node() -> None:
    made = _delays()
    kinds = [node.kind for node in figure(made.graph, made.plan).nodes.values()]
    assert kinds.count(NodeKind.FILLER) == 1
    assert "side input of carriers" in _texts(made)
    assert {"table", "table · filled elsewhere"} <= {*_texts(_bare())}


def test_a_stream_shows_its_count_and_where_it_comes_from() -> None:
    texts = _texts(_delays())
    at = texts.index("delays-flights-by-carrier")
    assert texts[at - 1 : at + 3] == [
        "kafka · intermediate",
        "delays-flights-by-carrier",
        "8 partitions",
        "inferred: as kafka/carriers",
    ]
    assert texts[texts.index("delay-per-carrier") + 1] == "does not exist yet"
    assert {"4 shards", "kafka · input · bootstrap"} <= {*texts}


def test_tasks_are_shown_where_they_differ(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").output("kafka", "out")
    first = planned(pipeline, {"a": 1}).plan
    assert "8 partitions in 1 tasks" in _texts(planned(pipeline, {"a": 8}, recorded=first))
    assert "1 partition" in _texts(planned(pipeline, {"a": 1}))


def test_streams_that_must_agree_share_a_letter() -> None:
    made = _delays()
    assert group_letters(made.plan) == {
        stream_id("carriers"): "A",
        stream_id("delays-flights-by-carrier"): "A",
    }
    assert _texts(made).count("A") == 2
    agreeing = [stream_id(name) for name in ("a", "first", "loop-back")]
    assert group_letters(_loop().plan) == dict.fromkeys(agreeing, "A")
    assert re.search(r">A</span> kafka/carriers, kafka/delays-flights-by-carrier: 8", made.page())


def test_there_are_letters_for_any_number_of_groups() -> None:
    pipeline = Pipeline("many")
    for number in range(30):
        one = pipeline.input("kafka", f"a{number:02}")
        one.join(pipeline.input("kafka", f"b{number:02}"), both).output("kafka", f"o{number:02}")
    counts = {f"{side}{n:02}": 2 for side in "ab" for n in range(30)}
    letters = group_letters(planned(pipeline, counts).plan)
    assert letters[stream_id("a00")] == "A"
    assert letters[stream_id("b27")] == "B1"
    assert len({group_colour(letter) for letter in letters.values()}) == 6


def test_tooltips_have_details_and_the_line_of_code() -> None:
    titles = [title.text or "" for title in _svg(_delays()).iter(f"{SVG}title")]
    plain = [re.sub(r"[\w/]+\.py:\d+", "here", title) for title in titles]
    assert "filter carriers-filter\nname <> ''\nhere" in plain
    assert (
        "intermediate kafka/delays-flights-by-carrier\n"
        "8 partitions (inferred: as kafka/carriers, through table carriers)\n"
        "must agree with the other streams of group A\nhere"
    ) in plain


def test_long_texts_lose_their_middle() -> None:
    assert shorten("a" * 30 + "b" * 30) == "a" * 26 + "…" + "b" * 13
    assert shorten("short") == "short"
    assert shorten("two\nlines\x07") == "two lines"


# --- The page ------------------------------------------------------------------------------------


@all_pipelines
def test_the_page_has_no_script_and_no_external_resource(
    make: Callable[[], PlannedPipeline],
) -> None:
    page = make().page()
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    assert not re.findall(r"\ssrc=|\shref=|@import", page)
    assert set(re.findall(r"url\([^)]*\)", page)) == {"url(#arrow)"}
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_page_has_the_content_of_explain() -> None:
    made = _delays()
    page = unescape(re.sub(r"<[^>]+>", "", made.page()))
    cells = [cell for line in made.explain().splitlines()[1:] for cell in line.split("  ") if cell]
    missing = [cell for cell in cells if cell.strip().removeprefix("- ") not in page]
    assert [cell for cell in missing if not cell.strip().isupper()] == []


def test_a_small_page_has_no_empty_sections(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "a").output("kafka", "out")
    page = planned(pipeline, {"a": 1, "out": 2}).page()
    for heading in ("Tables", "What must agree", "Notes"):
        assert f"<h2>{heading}</h2>" not in page
    assert "1 stage, 2 streams, 0 tables" in page


def test_texts_cannot_break_the_page(pipeline: Pipeline) -> None:
    a = pipeline.input("kafka", "a").filter("x < 1 AND y = '</text><script>\x00\n&amp;'")
    a.partition_by('k"]<b>&\t', name="made").output("kafka", "out")
    made = planned(pipeline, {"a": 1})
    page = made.page()
    assert "<script" not in page
    assert "<b>&" not in page
    assert 'partition by k"]<b>&' in _texts(made)
    assert "\x00" not in page


def test_a_page_is_saved(tmp_path: Path) -> None:
    made = _delays()
    made.save_page(tmp_path / "plan.html")
    made.save_page(str(tmp_path / "plan.html"))
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == made.page()


def test_the_legend_has_a_systems_kind_where_its_name_differs() -> None:
    pipeline = Pipeline("p", systems={"kafka": "kafka", "old": "kafka"})
    pipeline.input("old", "a").output("kafka", "out")
    page = unescape(re.sub(r"<[^>]+>", "\n", planned(pipeline, {"old/a": 1, "out": 2}).page()))
    assert {"kafka", "old (kafka)"} <= {*page.splitlines()}
    assert "kafka (kafka)" not in page
