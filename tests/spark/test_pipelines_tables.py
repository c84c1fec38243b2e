"""Pipelines on real queries: tables, streams between stages, restarts. Streams are folders here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline_planner import Pipeline
from pipeline_planner.running.start import checkpoint
from pipeline_planner.services import Services, SparkFormat
from tests.support.pipeline_runs import patiently, session_for_pipelines
from tests.support.stream_folders import FolderSystem, register, services

_DEADLINE_S = 400


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session of its own settings on the tests' Spark."""
    own = session_for_pipelines(spark)
    register(own)
    return own


def parsed(columns: str) -> Any:
    """A transform that reads JSON values, and calls the record's key `id`."""

    def parse(frame: DataFrame) -> DataFrame:
        row = F.from_json(F.col("value").cast("string"), columns)
        named = frame.select(F.col("key").cast("string").alias("id"), row.alias("row"))
        return named.select("id", "row.*")

    return parse


def carrier_of(frame: DataFrame) -> DataFrame:
    return frame.withColumnRenamed("id", "carrier")


def totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("carrier").agg(F.count("*").alias("flights"))


def named_flights() -> Pipeline:
    """Flights with the names of their carriers, and how many each carrier has."""
    pipeline = Pipeline("delays")
    names = pipeline.table("names", key="carrier")
    carriers = pipeline.input("kafka", "carriers")
    names.side_input(carriers.transform(parsed("name string")).transform(carrier_of))
    flights = pipeline.input("kafka", "flights")
    by_carrier = flights.transform(
        parsed("carrier string, delay int, at timestamp, raw binary, part decimal(10,2)")
    ).partition_by("carrier")
    named = by_carrier.join_table(names, how="left")
    named.output("kafka", "named")
    named.filter("name is not null").transform(totals, state="shuffled").output("kafka", "totals")
    return pipeline


def run(pipeline: Pipeline, known: Services, root: Path, spark: SparkSession) -> None:
    """To the end of all streams."""

    def once() -> None:
        planned = pipeline.plan(known, root=str(root))
        with planned.run(spark, known, available_now=True) as running:
            assert running.await_termination(_DEADLINE_S)

    patiently(once)


def streams(folder: Path, *names: str) -> tuple[Services, FolderSystem]:
    known, kafka = services(folder)
    for name in names:
        kafka.create(name, 2)
    return known, kafka


def test_a_table_is_whole_before_it_is_read_and_kept_through_restarts(
    session: SparkSession, tmp_path: Path
) -> None:
    known, kafka = streams(tmp_path / "streams", "carriers", "flights", "named", "totals")
    # The last word on AA comes in a later file than any flight: a batch takes one file of flights,
    # and all of the side input.
    kafka.put("carriers", ("AA", {"name": "American"}))
    kafka.put("carriers", ("UA", {"name": "United"}), ("B6", {"name": "Blue"}))
    kafka.put("carriers", ("AA", {"name": "American Airlines"}))
    moment = "2013-01-01T05:00:00.123456Z"
    full = {"carrier": "AA", "delay": -1, "at": moment, "raw": "AP8=", "part": 1.5}
    kafka.put("flights", ("1", full), ("2", {"carrier": "XX"}))
    kafka.put("flights", ("3", {"delay": 3}), ("4", {"carrier": "AA"}))
    run(named_flights(), known, tmp_path / "root", session)

    first = {value["id"]: value for value in kafka.values("named")}
    assert len(kafka.values("named")) == len(first) == 4
    assert {number: row["name"] for number, row in first.items()} == {
        "1": "American Airlines",
        "2": None,
        "3": None,
        "4": "American Airlines",
    }
    assert first["1"] == full | {
        "id": "1",
        "at": "2013-01-01T05:00:00.123456Z",
        "part": 1.50,
        "name": "American Airlines",
    }
    between = kafka.records("delays-flights-by-carrier")
    assert [record.key for record in between] == [b"AA", b"XX", b"null", b"AA"]
    assert kafka.values("totals")[-1] == {"carrier": "AA", "flights": 2}

    # UA is deleted, B6 is known from the first run, and WN comes with its first flight.
    kafka.put("carriers", ("UA", None), ("WN", {"name": "Southwest"}))
    kafka.put("flights", ("5", {"carrier": "UA"}), ("6", {"carrier": "B6"}))
    kafka.put("flights", ("7", {"carrier": "WN"}), ("8", {"carrier": "AA"}))
    run(named_flights(), known, tmp_path / "root", session)
    second = {value["id"]: value["name"] for value in kafka.values("named")[4:]}
    assert second == {"5": None, "6": "Blue", "7": "Southwest", "8": "American Airlines"}
    assert {v["carrier"]: v["flights"] for v in kafka.values("totals")} == {
        "AA": 3,
        "B6": 1,
        "WN": 1,
    }


def with_column(name: str) -> Any:
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

    def reader_format(self, stream: str, *, from_start: bool = False) -> SparkFormat:
        found = super().reader_format(stream, from_start=from_start)
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
    planned = nested().plan(known, root=str(root))
    run(nested(), known, root, session)

    offsets = Path(checkpoint(str(root), "end")) / "offsets"
    newest = max(
        (path for path in offsets.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    _, _, *lines = newest.read_text().splitlines()
    (stage,) = planned.plan.stages
    assert stage.sources is not None
    assert len(stage.sources) == 7  # each as often as its rows are used
    expected = [sizes[stream.stream] for stream in stage.sources]
    assert [next(iter(json.loads(line).values())) for line in lines] == expected
    # Lines merged with themselves, joined with the others; each table has one row of the key.
    row = {"id": "k", "l": 1, "more": 1, "r": 1, "code": 1}
    assert kafka.values("out") == [row] * (2 * sizes["left"] * sizes["right"])
