"""A pipeline of all that there is to build with, on real queries: it is restarted, and right to the
row. Streams are folders here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ssp.planner import Pipeline
from spark_ssp.planner.graph.systems import Services, SparkFormat
from spark_ssp.planner.planned_pipeline import PlannedPipeline
from spark_ssp.planner.running.start import checkpoint
from tests.support.fakes.stream_folders import FolderSystem, register, services
from tests.support.pipelines.runs import patiently, session_for_pipelines

_DEADLINE_S: Final = 400
_FLIGHT: Final = "carrier string, origin string, at timestamp, raw binary, part decimal(10,2)"
_INPUTS: Final = {"airports": 3, "starts": 2, "flights": 2, "more": 2}
"""With their counts of partitions."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session of its own settings on the tests' Spark."""
    own = session_for_pipelines(spark)
    own.conf.set("spark.sql.shuffle.partitions", "1")
    register(own)
    return own


# --- The pipeline --------------------------------------------------------------------------------


def described(called: list[str]) -> Pipeline:
    """Each flight with its gate, and the last flight of its carrier from there as of the last run;
    totals of carriers, and pairs of their flights. Some of its functions say in `called` that they
    were."""
    pipeline = Pipeline("p")
    gates = pipeline.table("gates", key=("code", "airport"))
    # Their count of partitions is of no importance.
    airports = pipeline.input("kafka", "airports", broadcast=True)
    gates.side_input(airports.transform(placed))
    starts = pipeline.input("kafka", "starts", bootstrap=True)
    starts.transform(placed).send_to_table(gates)

    flights = pipeline.input("kafka", "flights").merge(pipeline.input("kafka", "more"))
    parsed = flights.transform(told(flown, called)).filter(lambda frame: frame["part"].isNotNull())
    seen = parsed.join_table(gates, on=("carrier", "origin"), how="left").partition_by(
        "carrier", "origin", name="seen"
    )
    # The next run finds what is sent back here.
    seen.transform(sent_back).send_to_table(gates)
    counted = seen.transform(told(totals, called), state="shuffled")
    counted.output("kafka", "totals", name="totals")
    seen.join(seen, pairs).output("kafka", "pairs", name="pairs")
    return pipeline


def told(
    function: Callable[[DataFrame], DataFrame], called: list[str]
) -> Callable[[DataFrame], DataFrame]:
    """`function`, which says when it is called."""

    def tell(frame: DataFrame) -> DataFrame:
        called.append(function.__name__)
        return function(frame)

    return tell


def flown(frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), _FLIGHT).alias("row")
    return frame.select(F.col("key").cast("string").alias("id"), row).select("id", "row.*")


def placed(frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), "gate string, before string")
    place = F.split(F.col("key").cast("string"), "/")
    named = frame.select(place[0].alias("code"), place[1].alias("airport"), row.alias("row"))
    return named.select("code", "airport", "row.*")


def sent_back(frame: DataFrame) -> DataFrame:
    place = (F.col("carrier").alias("code"), F.col("origin").alias("airport"))
    return frame.select(*place, "gate", F.col("id").alias("before"))


def totals(frame: DataFrame) -> DataFrame:
    sums = frame.groupBy("carrier").agg(F.count("*").alias("flights"), F.sum("part").alias("parts"))
    return sums.withColumnRenamed("carrier", "key")


def pairs(flights: DataFrame, others: DataFrame) -> DataFrame:
    """Each flight with itself and those of its carrier after it."""
    other = others.select(F.col("carrier").alias("its"), F.col("id").alias("then"))
    joined = flights.join(other, F.expr("carrier = its and id <= then"))
    return joined.select("id", "then", "gate")


# --- Its runs ------------------------------------------------------------------------------------


def run(
    describe: Callable[[], Pipeline], known: Services, root: Path, spark: SparkSession
) -> PlannedPipeline:
    """To the end of all streams."""

    def once() -> PlannedPipeline:
        planned = describe().plan(known, root=str(root))
        with planned.run(spark, known, available_now=True) as running:
            assert running.await_termination(_DEADLINE_S)
        return planned

    return patiently(once)


def offsets(root: Path, stage: str) -> list[list[int]]:
    """Of each batch, up to which file it has read the stage's sources."""
    paths = (Path(checkpoint(str(root), stage)) / "offsets").iterdir()
    batches = sorted((path for path in paths if path.name.isdigit()), key=lambda p: int(p.name))
    lines = [path.read_text().splitlines()[2:] for path in batches]
    return [[json.loads(line)["files"] for line in of_batch] for of_batch in lines]


def test_every_operator_is_right_to_the_row_through_a_restart(
    session: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    known, kafka = services(tmp_path / "streams")
    for name, partitions in _INPUTS.items():
        kafka.create(name, partitions)
    for name in ("totals", "pairs"):
        kafka.create(name, 2)
    # Flights are read file by file; what fills the table is there before them.
    kafka.put("airports", ("AA/JFK", {"gate": "B2"}))
    kafka.put("airports", ("UA/EWR", {"gate": "C1"}), ("AA/EWR", {"gate": "A1"}))
    kafka.put("airports", ("AA/JFK", {"gate": "B7"}), ("XX/EWR", {"gate": "D1"}))
    for number in range(2):
        kafka.put("starts", ("UA/EWR", {"before": f"start {number}"}))
    first = {
        "carrier": "AA",
        "origin": "JFK",
        "at": "2013-01-01T05:00:00.123456Z",
        "raw": "AP8=",
        "part": 1.25,
    }
    kafka.put(
        "flights",
        ("1", first),
        ("2", {"carrier": "XX", "origin": "JFK", "part": 2}),
        ("3", {"origin": "JFK", "part": 3}),
        ("4", {"carrier": "AA", "origin": "JFK"}),
    )
    kafka.put("more", ("5", {"carrier": "UA", "origin": "EWR", "part": 5}))
    called: list[str] = []
    run(lambda: described(called), known, root, session)

    between = {record.key: json.loads(record.value or b"") for record in kafka.records("p-seen")}
    assert between.keys() == {b'["AA","JFK"]', b'["XX","JFK"]', b'[null,"JFK"]', b'["UA","EWR"]'}
    assert between[b'["AA","JFK"]'] == first | {"id": "1", "gate": "B7", "before": None}
    assert of_seen(kafka) == {
        "1": ("AA", "B7", None),
        "2": ("XX", None, None),
        "3": (None, None, None),
        "5": ("UA", None, "start 1"),
    }
    assert of_totals(kafka) == {"AA": (1, 1.25), "XX": (1, 2), None: (1, 3), "UA": (1, 5)}
    paired = {("1", "1", "B7"), ("2", "2", None), ("5", "5", None)}
    assert of_pairs(kafka) == sorted(paired)

    # One gate is deleted and one is kept; what came back is a row of the table like any other.
    kafka.put("airports", ("AA/EWR", None))
    kafka.put("starts", ("B6/JFK", {"before": "start 2"}))
    kafka.put(
        "flights",
        ("6", {"carrier": "AA", "origin": "EWR", "part": 6}),
        ("7", {"carrier": "AA", "origin": "JFK", "part": 7}),
        ("8", {"carrier": "XX", "origin": "EWR", "part": 8}),
        ("9", {"carrier": "B6", "origin": "JFK", "part": 9}),
    )
    planned = run(lambda: described(called), known, root, session)
    # Only the stage that fills its own table is built twice.
    assert called[-3:] == ["flown", "totals", "flown"]

    assert dict([*of_seen(kafka).items()][4:]) == {
        "6": ("AA", None, None),
        "7": ("AA", "B7", "1"),
        "8": ("XX", "D1", None),
        "9": ("B6", None, "start 2"),
    }
    # Each has those that have changed, and the last one of a key holds.
    assert len(kafka.records("totals")) == 4 + 3
    assert of_totals(kafka) == {
        "AA": (3, 14.25),
        "XX": (2, 10),
        None: (1, 3),
        "UA": (1, 5),
        "B6": (1, 9),
    }
    paired |= {("1", "6", "B7"), ("1", "7", "B7"), ("2", "8", None)}
    paired |= {("6", "6", None), ("6", "7", None), ("7", "7", "B7"), ("8", "8", "D1")}
    assert of_pairs(kafka) == sorted(paired | {("9", "9", None)})

    if len(called) > 6:
        return  # Where it was run again, see `patiently`, it is open in how many batches.
    # Each run was one batch of each stage. Offsets are counts of files, which tell streams apart:
    # sources are numbered as the plan says, each as often as its rows are used.
    files = {"airports": 4, "starts": 3, "flights": 2, "more": 1, "p-seen": 2}
    stages = {stage.name: stage for stage in planned.plan.stages}
    assert sorted(stages) == ["pairs", "seen", "totals"]
    for name, stage in stages.items():
        # What it wrote itself in this run is for the next one.
        read = files | {"p-seen": 1} if name == "seen" else files
        expected = [read[source.stream] for source in stage.sources or ()]
        found = offsets(root, name)
        assert (len(found), found[-1]) == (2, expected), name


def of_seen(kafka: FolderSystem) -> dict[str, tuple[Any, ...]]:
    rows = kafka.values("p-seen")
    found = {row["id"]: (row["carrier"], row["gate"], row["before"]) for row in rows}
    assert len(found) == len(rows)
    return found


def of_totals(kafka: FolderSystem) -> dict[str | None, tuple[int, float]]:
    """The last record of each key holds."""
    return {row["key"]: (row["flights"], row["parts"]) for row in kafka.values("totals")}


def of_pairs(kafka: FolderSystem) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in kafka.values("pairs"))


# --- Many sources ---------------------------------------------------------------------------------


def with_column(name: str) -> Callable[[DataFrame], DataFrame]:
    """A transform to the record's key as `id`, and a column of this name."""

    def transform(frame: DataFrame) -> DataFrame:
        key = F.col("key").cast("string").alias("id")
        return frame.select(key, F.lit(1).alias(name))

    return transform


def nested() -> Pipeline:
    """Lines that are read twice, tables on both sides of a join, one filled through another."""
    pipeline = Pipeline("p")
    codes, first, second, left, right = (
        pipeline.input("kafka", name).transform(with_column(column))
        for name, column in (
            ("codes", "code"),
            ("first", "more"),
            ("second", "more"),
            ("left", "l"),
            ("right", "r"),
        )
    )
    inner = pipeline.table("inner", key="id").side_input(codes)
    outer = pipeline.table("outer", key="id")
    second.join_table(inner, how="left").transform(lambda f: f.drop("code")).send_to_table(outer)
    first.send_to_table(outer)
    joined = (
        left.merge(left)
        .join_table(outer)
        .join(right.join_table(inner), lambda one, other: one.join(other, "id"))
    )
    joined.output("kafka", "out", name="end")
    return pipeline


class WholeFolders(FolderSystem):
    """One batch takes all there is."""

    def reader_format(
        self, stream: str, *, from_start: bool = False, keep_tasks: bool = True
    ) -> SparkFormat:
        found = super().reader_format(stream, from_start=from_start, keep_tasks=keep_tasks)
        return SparkFormat(found.format, {"folder": found.options["folder"]})


def test_sources_are_numbered_as_the_plan_says(session: SparkSession, tmp_path: Path) -> None:
    kafka = WholeFolders(tmp_path / "streams")
    known = Services({"kafka": kafka})
    kafka.create("out", 1)
    # An offset is a number of files, so it tells streams apart.
    sizes = {"codes": 1, "first": 2, "second": 3, "left": 4, "right": 5}
    for name, files in sizes.items():
        kafka.create(name, 1)
        for _ in range(files):
            kafka.put(name, ("k", {}))
    root = tmp_path / "root"
    planned = run(nested, known, root, session)

    (stage,) = planned.plan.stages
    assert stage.sources is not None
    assert len(stage.sources) == 7  # each as often as its rows are used
    expected = [sizes[stream.stream] for stream in stage.sources]
    assert offsets(root, "end")[-1] == expected
    # Lines merged with themselves, joined with the others; each table has one row of the key.
    row = {"id": "k", "l": 1, "more": 1, "r": 1, "code": 1}
    assert kafka.values("out") == [row] * (2 * sizes["left"] * sizes["right"])
