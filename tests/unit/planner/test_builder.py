"""The fluent API: its graph, derived names, arguments rejected immediately, the user's lines."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.planner import InvalidPipelineError, Pipeline, Stream
from spark_ssp.planner.builder import shown
from spark_ssp.planner.graph.operators import (
    Filter,
    Input,
    Join,
    JoinTable,
    Merge,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    StateKind,
    Transform,
)
from spark_ssp.planner.graph.operators import OperatorName as called
from tests.support.fakes.pipeline_services import MemorySystem
from tests.support.pipelines.examples import KnownCounts, both, same, stream_id, topics


def _names(pipeline: Pipeline) -> list[str]:
    return [str(operator.name) for operator in pipeline.graph.operators]


# --- What is made --------------------------------------------------------------------------------


def test_every_method_makes_its_operator(pipeline: Pipeline) -> None:
    orders = pipeline.input("kafka", "orders", bootstrap=True)
    rates = pipeline.input("kafka", "rates", broadcast=True)
    table = pipeline.table("customers", key="id").side_input(orders)
    clean = orders.transform(same, state="shuffled").filter("amount > 0").merge(rates)
    by_id = clean.partition_by("id", partitions=4)
    by_id.send_to_table(table)
    joined = by_id.join_table(table, on="customer", how="left").join(orders, both)
    joined.output("kinesis", "out")
    assert pipeline.graph.operators == (
        Input(name=orders.name, stream=stream_id("orders"), bootstrap=True),
        Input(name=rates.name, stream=stream_id("rates"), broadcast=True),
        SideInput(name=called("orders-into-customers"), upstream=orders.name, table=table.name),
        Transform(
            name=called("orders-transform"),
            upstream=orders.name,
            function=same,
            state=StateKind.SHUFFLED,
        ),
        Filter(
            name=called("orders-filter"),
            upstream=called("orders-transform"),
            condition="amount > 0",
        ),
        Merge(name=called("orders-merge"), upstreams=(called("orders-filter"), rates.name)),
        PartitionBy(
            name=called("orders-by-id"),
            upstream=called("orders-merge"),
            columns=("id",),
            stream=stream_id("p-orders-by-id"),
            partitions=4,
        ),
        SendToTable(
            name=called("orders-by-id-to-customers"), upstream=by_id.name, table=table.name
        ),
        JoinTable(
            name=called("orders-by-id-join-customers"),
            upstream=by_id.name,
            table=table.name,
            on=("customer",),
            how="left",
        ),
        Join(
            name=called("orders-by-id-join-orders"),
            left=called("orders-by-id-join-customers"),
            right=orders.name,
            combine=both,
        ),
        Output(name=called("to-out"), upstream=joined.name, stream=stream_id("kinesis/out")),
    )


def test_a_table_is_joined_on_its_own_key_by_default(pipeline: Pipeline) -> None:
    table = pipeline.table("t", key=("a", "b"))
    pipeline.input("kafka", "s").join_table(table)
    (_, join) = pipeline.graph.operators
    assert isinstance(join, JoinTable)
    assert (join.on, join.how) == (("a", "b"), "inner")


def test_a_handle_is_not_changed_by_what_is_made_of_it(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    first, second = orders.filter("x"), orders.filter("y")
    assert len({orders.name, first.name, second.name}) == 3


# --- Names ---------------------------------------------------------------------------------------


def test_lasting_names_do_not_depend_on_what_is_put_in_between() -> None:
    short, long = Pipeline("p"), Pipeline("p")
    short.input("kafka", "orders").partition_by("id").partition_by("day").output("kafka", "out")
    before = long.input("kafka", "orders").filter("x").transform(same)
    before.partition_by("id").transform(same).filter("x").partition_by("day").output("kafka", "out")
    lasting = ["orders", "orders-by-id", "orders-by-id-by-day", "to-out"]
    assert _names(short) == lasting
    assert [name for name in _names(long) if name in lasting] == lasting
    streams = [
        [o.stream for o in p.graph.operators if isinstance(o, PartitionBy)] for p in (short, long)
    ]
    assert streams[0] == streams[1]


def test_a_name_given_to_what_is_only_shown_renames_nothing(pipeline: Pipeline) -> None:
    clean = pipeline.input("kafka", "orders").transform(same, name="clean").filter("x")
    clean.partition_by("id")
    assert _names(pipeline) == ["orders", "clean", "orders-filter", "orders-by-id"]


def test_names_that_are_only_shown_are_numbered(pipeline: Pipeline) -> None:
    (orders,) = topics(pipeline, "orders")
    orders.filter("x")
    orders.filter("y").filter("z")
    assert _names(pipeline) == ["orders", "orders-filter", "orders-filter-2", "orders-filter-3"]


def test_columns_with_other_characters_still_make_a_name(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "orders").partition_by("customer id", "größe")
    assert _names(pipeline)[-1] == "orders-by-customer-id-gr-e"


def test_derived_names_stay_within_their_length(pipeline: Pipeline) -> None:
    stream = pipeline.input("kafka", "o" * 90)
    for _ in range(12):
        stream = stream.join(stream, both).filter("x")
    assert max(len(name) for name in _names(pipeline)) <= 100
    assert len(set(_names(pipeline))) == 25


# --- Places --------------------------------------------------------------------------------------


def _line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_an_operator_knows_its_line_and_its_file() -> None:
    pipeline = Pipeline("p")
    orders, here = pipeline.input("kafka", "orders"), _line()
    orders.filter("x")
    places = [o.place for o in pipeline.graph.operators]
    name = shown(__file__)
    assert [str(place) for place in places] == [f"{name}:{here}", f"{name}:{here + 1}"]


def test_a_refusal_names_the_line_and_survives_pickling() -> None:
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    here = _line() + 2
    with pytest.raises(InvalidPipelineError) as caught:
        orders.partition_by("id", partitions=0)
    assert f"({shown(__file__)}:{here})" in str(caught.value)
    assert str(Path(__file__).parent) not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# --- Refusals ------------------------------------------------------------------------------------


def _other() -> Stream:
    return Pipeline("other").input("kafka", "orders")


REFUSED: dict[str, tuple[Callable[[Pipeline, Stream], object], str]] = {
    "unknown system": (
        lambda p, s: p.input("kinesiss", "x"),
        r"system 'kinesiss' .*: found no such system; expected kafka, kinesis",
    ),
    "stream name": (
        lambda p, s: p.input("kafka", "a b"),
        r"stream of system kafka .*: found 'a b'; expected letters, digits, .* at most 249",
    ),
    "long Kinesis stream": (
        lambda p, s: p.input("kinesis", "x" * 129, name="x"),
        r"stream of system kinesis .*at most 128",
    ),
    "same stream twice": (
        lambda p, s: p.input("kafka", "orders", name="again"),
        r"input again .*: found kafka/orders, which input orders .* reads already",
    ),
    "same derived name": (
        lambda p, s: p.input("kinesis", "orders"),
        r"input orders .*: found a name that input orders .* has already",
    ),
    "broadcast Kinesis": (
        lambda p, s: p.input("kinesis", "x", broadcast=True),
        (
            r"input x .*: found broadcast=True on Kinesis; expected no broadcast stream of "
            r"Kinesis: its shards are distributed among slots, .* through partition_by to Kafka"
        ),
    ),
    "bootstrap Kinesis": (
        lambda p, s: p.input("kinesis", "x", bootstrap=True),
        r"input x .*: found bootstrap=True on Kinesis; .* send it through partition_by to Kafka",
    ),
    "blank name": (lambda p, s: s.filter("x", name=" "), r"name of filter .*: found ' '"),
    "path as a name": (
        lambda p, s: s.output("kafka", "x", name="a/b"),
        r"name of output .*: found 'a/b'",
    ),
    "repartition twice by the same key": (
        lambda p, s: (s.partition_by("id"), s.partition_by("id")),
        (
            r"partition_by orders-by-id .*: found a name that partition_by orders-by-id .* has "
            r"already.* give one of the two another name with name="
        ),
    ),
    "intermediate stream that is an input": (
        lambda p, s: s.partition_by("id", stream="orders"),
        r"partition_by orders-by-id .*: found kafka/orders, which input orders .* reads already",
    ),
    "no column": (lambda p, s: s.partition_by(name="x"), r"columns \(\).*names of columns"),
    "blank column": (lambda p, s: s.partition_by(" ", name="x"), r"columns \(' ',\)"),
    "column twice": (lambda p, s: s.partition_by("a", "a"), r"columns \('a', 'a'\)"),
    "columns in a list": (
        lambda p, s: s.partition_by(["a", "b"]),  # type: ignore[arg-type]
        r"partition_by orders-by .*: found columns \('a list',\); .*as a separate string",
    ),
    "a number as a key": (
        lambda p, s: p.table("u", key=(1,)),  # type: ignore[arg-type]
        r"table u .*: found key \('a int',\)",
    ),
    "a number as a stream": (
        lambda p, s: p.input("kafka", 5),  # type: ignore[arg-type]
        r"stream of system kafka .*: found 5",
    ),
    "an empty intermediate stream": (
        lambda p, s: s.partition_by("a", stream=""),
        r"stream of system kafka .*: found ''",
    ),
    "a name for a table": (
        lambda p, s: s.join_table("t"),  # type: ignore[arg-type]
        r"join_table of orders .*: found a str; expected a Table of this pipeline",
    ),
    "a join with a table that is called like a stream": (
        lambda p, s: s.join(p.table("orders", key="k"), both),  # type: ignore[arg-type]
        r"join of orders .*: found a Table; expected a Stream .*join_table joins with a table",
    ),
    "a table filled from a table": (
        lambda p, s: p.table("orders", key="k").side_input(p.table("u", key="k")),  # type: ignore[arg-type]
        r"side_input of table orders .*: found a Table; expected a Stream",
    ),
    "no partitions": (
        lambda p, s: s.partition_by("id", partitions=0),
        r"partition_by orders-by-id .*: found partitions=0; expected 1 to 2147483647",
    ),
    "more partitions than Kafka's protocol has numbers for": (
        lambda p, s: s.partition_by("id", partitions=2**31),
        r"partition_by orders-by-id .*: found partitions=2147483648; expected 1 to 2147483647",
    ),
    "truth as a count": (lambda p, s: s.partition_by("id", partitions=True), "partitions=True"),
    "called function": (
        lambda p, s: s.transform(None),  # type: ignore[arg-type]
        r"transform orders-transform .*: found a NoneType; expected a function of DataFrames",
    ),
    "called join": (
        lambda p, s: s.join(s, "inner"),  # type: ignore[arg-type]
        r"join orders-join-orders .*: found a str; expected a function of DataFrames",
    ),
    "kind of state": (
        lambda p, s: s.transform(same, state="disk"),
        r"found state='disk'; expected none, shuffled, task",
    ),
    "blank condition": (lambda p, s: s.filter(" "), "found a blank condition"),
    "merge with nothing": (lambda p, s: s.merge(), "found no other stream"),
    "table twice": (
        lambda p, s: (p.table("t", key="k"), p.table("t", key="k")),
        r"table t .*: found a name that table t .* has already",
    ),
    "table without a key": (lambda p, s: p.table("t", key=()), r"table t .*: found key \(\)"),
    "key of another length": (
        lambda p, s: s.join_table(p.table("t", key=("a", "b")), on="a"),
        r"found on a; expected as many columns as the key of table t: a, b",
    ),
    "way to join": (
        lambda p, s: s.join_table(p.table("t", key="a"), how="outer"),  # type: ignore[arg-type]
        r"found how='outer'; expected inner, left",
    ),
    "merge with another pipeline": (
        lambda p, s: s.merge(_other()),
        r"merge orders-merge .*: found orders of pipeline other; expected a part of pipeline p",
    ),
    "join with another pipeline": (lambda p, s: s.join(_other(), both), "of pipeline other"),
    "table of another pipeline": (
        lambda p, s: s.send_to_table(Pipeline("other").table("t", key="k")),
        r"send_to_table of orders .*: found t of pipeline other",
    ),
    "side input of another pipeline": (
        lambda p, s: p.table("t", key="k").side_input(_other()),
        r"side_input of table t .*: found orders of pipeline other",
    ),
    "text as a flag": (
        lambda p, s: p.input("kafka", "x", broadcast="no"),  # type: ignore[arg-type]
        r"input x .*: found broadcast of type str; expected True or False",
    ),
    "a number as a flag": (
        lambda p, s: p.input("kafka", "x", bootstrap=1),  # type: ignore[arg-type]
        r"input x .*: found bootstrap of type int; expected True or False",
    ),
    "a list of systems": (
        lambda p, s: Pipeline("q", systems=["kafka"]),  # type: ignore[arg-type]
        r"pipeline .*: found systems of type list",
    ),
    "unknown intermediate system": (
        lambda p, s: Pipeline("q", intermediate_system="kafkaa"),
        r"system 'kafkaa' .*: found no such system; expected kafka, kinesis",
    ),
    "no intermediate system": (
        lambda p, s: Pipeline("q", intermediate_system=None),  # type: ignore[arg-type]
        r"system None .*: found no such system",
    ),
    "a number as a root": (
        lambda p, s: p.plan(KnownCounts({}), root=5),  # type: ignore[arg-type]
        r"plan .*: found root of type int; expected a path or a URI",
    ),
    "bytes as a root": (
        lambda p, s: p.plan(KnownCounts({}), root=b"s3://user:password@b/p"),  # type: ignore[arg-type]
        r"plan .*: found root of type bytes; expected a path or a URI",
    ),
    "an empty root": (lambda p, s: p.plan(KnownCounts({}), root=""), "plan .*: found a blank root"),
    "a blank root": (lambda p, s: p.plan(KnownCounts({}), root=" "), "plan .*: found a blank root"),
    "text as a recorded plan": (
        lambda p, s: p.plan(KnownCounts({}), recorded="x"),  # type: ignore[arg-type]
        r"plan .*: found recorded of type str; expected a Plan",
    ),
    "a dict of settings": (
        lambda p, s: p.plan(KnownCounts({}), settings={"agreement": "advise"}),  # type: ignore[arg-type]
        r"plan .*: found settings of type dict; expected PlanSettings",
    ),
    "a dict of systems to plan with": (
        lambda p, s: p.plan({"kafka": MemorySystem()}),  # type: ignore[arg-type]
        r"plan .*: found admin of type dict; expected Services",
    ),
    "a system to plan with": (
        lambda p, s: p.plan(MemorySystem()),  # type: ignore[arg-type]
        r"plan .*: found admin of type MemorySystem; expected Services",
    ),
    "pipeline's name": (lambda p, s: Pipeline("a b"), "pipeline .*: found 'a b'"),
    "system's kind": (
        lambda p, s: Pipeline("q", systems={"bus": "rabbit"}),
        "system bus .*: found 'rabbit'; expected kafka, kinesis",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_call_is_refused_at_once(case: str) -> None:
    call, message = REFUSED[case]
    pipeline = Pipeline("p")
    (orders,) = topics(pipeline, "orders")
    with pytest.raises(InvalidPipelineError, match=message) as caught:
        call(pipeline, orders)
    assert len(caught.value.problems) == 1
    assert "test_builder.py:" in str(caught.value)


def test_a_root_may_be_a_path(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.input("kafka", "orders").output("kafka", "out")
    planned = pipeline.plan(KnownCounts({"orders": 4}), root=tmp_path)
    assert planned.root == str(tmp_path)
    planned.record()
    assert pipeline.plan(KnownCounts({"orders": 4}), root=str(tmp_path)).recorded is not None


def test_a_pipeline_without_partition_by_needs_no_intermediate_system() -> None:
    pipeline = Pipeline("p", systems={"aws": "kinesis"})
    pipeline.input("aws", "orders")
    with pytest.raises(InvalidPipelineError, match=r"system 'kafka' .*: found no such system"):
        pipeline.input("aws", "others").partition_by("id")


def test_systems_can_be_named() -> None:
    systems = {"east": "kafka", "west": "kafka", "aws": "kinesis"}
    pipeline = Pipeline("p", systems=systems, intermediate_system="east")
    one = pipeline.input("west", "orders")
    two = pipeline.input("aws", "orders", name="flights")
    one.merge(two).partition_by("id").output("west", "out")
    graph = pipeline.build()
    assert graph.systems == (("aws", "kinesis"), ("east", "kafka"), ("west", "kafka"))
    (made,) = (o for o in graph.operators if isinstance(o, PartitionBy))
    assert str(made.stream) == "east/p-orders-by-id"


def _place(folder: Path) -> str:
    """What is told of an input that a program in this folder asks for."""
    names: dict[str, Any] = {"Pipeline": Pipeline}
    text = "p = Pipeline('p')\np.input('kafka', 'a')\n"
    exec(compile(text, str(folder / "pipeline.py"), "exec"), names)
    return str(names["p"].graph.operators[0].place)


def test_files_of_one_name_are_distinguished_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _place(tmp_path / "orders") == "orders/pipeline.py:2"
    assert _place(tmp_path / "flights") == "flights/pipeline.py:2"
    assert _place(tmp_path) == "pipeline.py:2"


def test_nothing_else_of_the_machine_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert _place(tmp_path / "orders") == "pipeline.py:2"
    assert shown("C:\\flows\\pipeline.py") == "pipeline.py"
    assert shown("pipeline.py") == "pipeline.py"
    assert shown("<stdin>") == "<stdin>"
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("/", tmp_path):
        monkeypatch.chdir(folder)
        assert _place(tmp_path / "orders") == "pipeline.py:2"
    monkeypatch.chdir(tmp_path / "here")
    os.rmdir(tmp_path / "here")
    assert shown(str(tmp_path / "here" / "orders" / "pipeline.py")) == "pipeline.py"
