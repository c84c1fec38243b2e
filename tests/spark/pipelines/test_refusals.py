"""Pipelines rejected when their queries are built, before streams are read, created or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.planner import InvalidPipelineError, Pipeline
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.running import SessionSettingError
from spark_ssp.planner.running.row_serde import (
    columns_of,
    key_bytes,
    key_text,
    lost_types,
    value_of,
)
from spark_ssp.planner.running.start import RunSettings, prepare
from tests.support.fakes.stream_folders import FolderSystem, register, services
from tests.support.pipelines.runs import session_for_pipelines

Describe = Callable[[Pipeline], None]


def parsed(columns: str) -> Callable[[Any], Any]:
    def parse(frame: Any) -> Any:
        row = F.from_json(F.col("value").cast("string"), columns).alias("row")
        return frame.select(row).select("row.*")

    return parse


def attempt(spark: SparkSession, folder: Path, describe: Describe, **settings: Any) -> None:
    register(spark)
    kinesis = FolderSystem(folder / "kinesis", kind=SystemKind.KINESIS, writable=False)
    known, kafka = services(folder, kinesis=kinesis)
    kafka.create("in", 2)
    kafka.create("out", 2)
    kinesis.create("out", 2)
    pipeline = Pipeline("p")
    describe(pipeline)
    planned = pipeline.plan(known, root=str(folder / "root"))
    before = sorted(folder.rglob("*"))
    try:
        planned.run(spark, known, **{"available_now": True, **settings}).stop()
    finally:
        assert sorted(folder.rglob("*")) == before


def a_function_that_returns_nothing(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "in").transform(lambda f: None, name="broken").output("kafka", "out")


def a_filter_that_returns_the_frame(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "in").filter(lambda f: f, name="broken").output("kafka", "out")


def a_condition_over_a_column_that_is_not_there(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "in").filter("delay > 0", name="late").output("kafka", "out")


def a_key_that_is_not_there(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "in").partition_by("carrier").output("kafka", "out")


def a_type_that_does_not_come_back(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(parsed("id string, counts string"))
    wrong = line.transform(lambda f: f.withColumn("counts", F.create_map(F.lit(1), F.lit(2))))
    wrong.partition_by("id").output("kafka", "out")


def a_frame_that_is_no_stream(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in")
    line.transform(lambda f: f.sparkSession.range(1)).output("kafka", "out")


def columns_of_one_name(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in")
    twice = line.transform(lambda f: f.select("key", "value", F.col("value").alias("VALUE")))
    twice.partition_by("key").output("kafka", "out")


def with_map(of: str) -> Callable[[Any], Any]:
    """Adds a column `counts`, a map whose keys are of this type."""
    return lambda f: f.withColumn("counts", F.create_map(F.lit(1).cast(of), F.lit(2)))


def a_key_with_a_map(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(with_map("string"))
    line.partition_by("counts").output("kafka", "out")


def a_type_that_a_table_does_not_give_back(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(parsed("id string"))
    names = pipeline.table("names", key="id")
    line.transform(with_map("int")).send_to_table(names)
    line.join_table(names).output("kafka", "out")


def a_type_that_a_line_does_not_give_back(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(parsed("id string"))
    names = pipeline.table("names", key="id")
    line.send_to_table(names)
    line.transform(with_map("int")).join_table(names).output("kafka", "out")


def columns_that_change_once_rows_come_back(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(parsed("id string, n int"))
    names = pipeline.table("names", key="id")
    line.send_to_table(names)
    made = line.transform(lambda f: f.select("id")).join_table(names).partition_by("id")
    made.transform(lambda f: f.withColumn("n", F.col("n").cast("bigint"))).send_to_table(names)
    made.output("kafka", "out")


def lines_of_different_columns(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in")
    line.merge(line.transform(lambda f: f.drop("key")), name="all").output("kafka", "out")


def a_table_that_nobody_fills(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in")
    line.join_table(pipeline.table("names", key="key")).output("kafka", "out")


def columns_in_both(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(parsed("id string, name string"))
    names = pipeline.table("names", key="id")
    line.send_to_table(names)
    line.join_table(names).output("kafka", "out")


def keys_of_different_types(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in")
    names = pipeline.table("names", key="id")
    line.transform(parsed("id string, name string")).send_to_table(names)
    line.transform(parsed("id int")).join_table(names).output("kafka", "out")


def an_output_that_cannot_be_written(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "in").output("kinesis", "out")


@pytest.mark.parametrize(
    ("describe", "told"),
    [
        (
            a_function_that_returns_nothing,
            r"transform broken \(.*test_.*: found a function that r",
        ),
        (a_filter_that_returns_the_frame, "filter broken .* a function that returns a Column"),
        (a_condition_over_a_column_that_is_not_there, "filter late .*UNRESOLVED_COLUMN"),
        (a_key_that_is_not_there, "partition_by .* no column carrier among key, value"),
        (a_type_that_does_not_come_back, r"counts \(map<int,int>\)"),
        (
            a_frame_that_is_no_stream,
            r"output to-out \(.*test_.* found a frame that is not streaming",
        ),
        (columns_of_one_name, "partition_by .* found columns of one name: value, VALUE"),
        (a_key_with_a_map, r"partition_by .* keys that contain maps: counts \(map<string,int>\)"),
        (a_type_that_a_table_does_not_give_back, "send_to_table .* rows of table names with col"),
        (a_type_that_a_line_does_not_give_back, r"join_table .* found rows with col.*map<int,int>"),
        (
            columns_that_change_once_rows_come_back,
            "partition_by .* columns id string, n bigint, including rows that return to a table",
        ),
        (lines_of_different_columns, "merge all .* only some of the lines have: key"),
        (a_table_that_nobody_fills, "table names, which no line of the pipeline fills"),
        (columns_in_both, "join_table .* both have: name"),
        (keys_of_different_types, r"id \(int\) and names.id \(string\)"),
        (an_output_that_cannot_be_written, "output to-out .* an attempt to write it"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_what_does_not_fit_is_refused_with_its_place(
    spark: SparkSession, tmp_path: Path, describe: Describe, told: str
) -> None:
    with pytest.raises(InvalidPipelineError, match=told) as raised:
        attempt(spark, tmp_path, describe)
    assert "test_refusals.py" in str(raised.value)


def a_table(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "in").transform(parsed("id string, name string"))
    names = pipeline.table("names", key="id")
    line.send_to_table(names)
    line.transform(lambda f: f.select("id")).join_table(names).output("kafka", "out")


def test_a_session_whose_state_store_cannot_hold_tables_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(SessionSettingError, match=r"spark.conf.set\(.*RocksDBStateStoreProvider"):
        attempt(spark, tmp_path, a_table)


def test_output_modes_of_stages_that_are_not_there_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOptionsError, match="'update' for stage 'out'"):
        attempt(spark, tmp_path, a_copy, output_modes={"out": "update"})


def test_a_shuffle_of_many_more_tasks_than_can_run_is_reported(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = session_for_pipelines(spark)
    register(own)
    known, _ = services(tmp_path)
    pipeline = Pipeline("p")
    a_table(pipeline)
    many = "spark.sql.shuffle.partitions is 9, and Spark has cores for 2 tasks"
    for partitions, told in (("8", []), ("9", [many])):
        own.conf.set("spark.sql.shuffle.partitions", partitions)
        prepare(pipeline.build(), own, known, root=str(tmp_path / "root"), settings=RunSettings())
        assert [message[: len(many)] for message in caplog.messages] == told


@pytest.mark.parametrize("time", ["soon", "10", "-1 second", "1 month", " ", 10])
def test_a_time_that_spark_does_not_read_is_refused(
    spark: SparkSession, tmp_path: Path, time: str
) -> None:
    """Before anything is created, as `attempt` looks."""
    with pytest.raises(InvalidOptionsError, match=f"processing_time: found {time!r}; expected a t"):
        attempt(spark, tmp_path, a_copy, available_now=False, processing_time=time)


def test_a_pipeline_without_a_root_is_not_run(spark: SparkSession, tmp_path: Path) -> None:
    known, kafka = services(tmp_path)
    kafka.create("in", 1)
    kafka.create("out", 1)
    pipeline = Pipeline("p")
    a_copy(pipeline)
    with pytest.raises(InvalidPipelineError, match="a plan without a root"):
        pipeline.plan(known).run(spark, known)


def a_copy(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "in").output("kafka", "out")


# --- What lies in intermediate streams -----------------------------------------------------------

_ROWS = """
select 'a"\\u0001\\u00e9\\n' as text, X'00ff10' as bytes, true as yes,
  cast(-128 as tinyint) as byte,
  9223372036854775807 as big, float('1.4e-45') as small, double('-0.0') as zero,
  double('NaN') as nan, float('-Infinity') as low,
  cast('12345678901234567890.123456789012345678' as decimal(38,18)) as exact,
  date'0001-01-01' as day, timestamp'0001-01-02 00:00:00.000001' as old,
  timestamp'9999-12-31 00:59:59.999999' as far, timestamp_ntz'2020-01-01 00:00:00.123456' as wall,
  interval '1 02:03:04.000005' day to second as span, interval '1-2' year to month as months,
  map('x', timestamp'2020-01-01 00:00:00.123456', 'none', null) as by_name,
  array(named_struct('u', cast(1.10 as decimal(5,2)), 'v', X''), null) as list,
  named_struct('a', cast(null as int)) as hollow, cast(null as string) as none
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
  null, null, null, null, 'null'
"""


def test_rows_come_back_from_an_intermediate_stream_as_they_were(spark: SparkSession) -> None:
    own = spark.newSession()
    # A zone whose old times are off by minutes and seconds, and whose clocks change.
    own.conf.set("spark.sql.session.timeZone", "America/New_York")
    rows = own.sql(_ROWS)
    assert lost_types(rows.schema) == ()
    written = rows.select("*", value_of(rows.schema).alias("value"))
    read = written.select("*", columns_of(F.col("value"), rows.schema).alias("back"))
    compared = [
        F.expr(f"cast({name} as string) <=> cast(back.{name} as string)").alias(name)
        for name in rows.columns
    ]
    told = [row.asDict() for row in read.select(*compared).collect()]
    assert [name for row in told for name, same in row.items() if not same] == []
    types = [field.dataType for field in read.select("back.*").schema]
    assert [t.simpleString() for t in types] == [f.dataType.simpleString() for f in rows.schema]


def test_types_that_do_not_come_back_are_named(spark: SparkSession) -> None:
    rows = spark.sql(
        "select map(1, 2) as m, parse_json('1') as v, "
        "named_struct('x', array(make_interval(1, 2, 3))) as s"
    )
    assert lost_types(rows.schema) == ("m (map<int,int>)", "v (variant)", "s.x[] (interval)")


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        (["text"], b"AA"),
        (["bytes"], b"\x00\xff"),
        (["int"], b"5"),
        (["big"], b"5"),
        (["day"], b"2020-02-29"),
        (["none"], b"null"),
        (["zero"], b"0.0"),
        (["zero_text"], b"-0.0"),
        (["zero", "zero_text"], b'[0.0,"-0.0"]'),
        (["text", "int", "none", "day"], b'["AA",5,null,"2020-02-29"]'),
    ],
    ids=str,
)
def test_keys_are_text(spark: SparkSession, columns: list[str], key: bytes) -> None:
    rows = spark.sql(
        "select 'AA' as text, X'00ff' as bytes, 5 as int, 5L as big, date'2020-02-29' as day, "
        "cast(null as string) as none, -0.0D as zero, '-0.0' as zero_text"
    )
    (row,) = rows.select(key_bytes(rows.schema, columns).alias("key")).collect()
    assert bytes(row.key) == key


@pytest.mark.parametrize(
    "bad",
    [
        "{0}",
        "array('', {0}, null)",
        "map({0}, 1)",
        "map('', named_struct('n', 1, 'list', array(null, {0})))",
    ],
)
def test_a_string_that_is_not_utf8_is_refused_without_quoting_it(
    spark: SparkSession, bad: str
) -> None:
    """JSON would turn it into another string."""
    text = "concat('secret', cast(X'ff' as string))"
    rows = spark.sql(f"select 1 as n, cast(null as string) as none, {bad.format(text)} as a")
    with pytest.raises(Exception, match="column a: found a string that is not UTF-8") as raised:
        rows.select(value_of(rows.schema).alias("value")).collect()
    assert "secret" not in str(raised.value).partition("==")[0]
    with pytest.raises(Exception, match="column a: found a string that is not UTF-8"):
        rows.select(key_text(rows.schema, ["a"]).alias("key")).collect()


def test_columns_may_be_missing_in_what_was_written_and_have_any_name(spark: SparkSession) -> None:
    rows = spark.sql("select 1 as a, 'x' as __ssp_unread, 'y' as __SSP_unread_")
    read = columns_of(F.col("value"), rows.schema).alias("row")
    (whole,) = rows.select(value_of(rows.schema).alias("value")).select(read).collect()
    assert tuple(whole.row) == (1, "x", "y")
    older = spark.createDataFrame([('{"a": 2, "gone": 3}',), ("{}",)], "value string")
    assert [tuple(row.row) for row in older.select(read).collect()] == [
        (2, None, None),
        (None, None, None),
    ]


def test_a_value_that_no_stage_wrote_is_refused_without_quoting_it(spark: SparkSession) -> None:
    schema = spark.sql("select 1 as delay").schema
    for text in ("nonsense", '{"delay": "secret"}', ""):
        frame = spark.createDataFrame([(text,)], "value string")
        with pytest.raises(Exception, match="incompatible-state") as raised:
            frame.select(columns_of(F.col("value"), schema).alias("row")).collect()
        assert "secret" not in str(raised.value)
