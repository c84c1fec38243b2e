"""A pipeline's frames and checkpoints, as far as they need no JVM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_ssp.common.spark.batch_plan import ADAPTIVE_QUERY, ADAPTIVE_STREAM
from spark_ssp.common.spark.pyspark_api import WRITES_ARROW
from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.planner import InvalidPipelineError, Pipeline
from spark_ssp.planner.graph.operators import OperatorName, StreamId
from spark_ssp.planner.graph.systems import Services, SparkFormat
from spark_ssp.planner.running import SessionSettingError
from spark_ssp.planner.running.dataframes import StreamAccess, Use, _Frames, stage_queries
from spark_ssp.planner.running.start import RunSettings, prepare, root_for_spark, writing
from tests.support.fakes.pipeline_services import MemorySystem
from tests.support.pipelines.examples import both, stream_id

EXACTLY_ONCE: Final = {"deliveryGuarantee": "exactly-once"}


class CountingFrame:
    """A frame that knows how often it was filtered."""

    isStreaming = True
    columns = ("value",)

    def __init__(self, filters: int = 0) -> None:
        self.filters = filters

    def where(self, condition: str) -> CountingFrame:
        return CountingFrame(self.filters + 1)


class CountingSession:
    """A session whose every stream is such a frame. Records the options of each."""

    def __init__(self) -> None:
        self.opened: list[Mapping[str, str]] = []

    @property
    def readStream(self) -> CountingSession:
        return self

    def format(self, name: str) -> CountingSession:
        return self

    def options(self, **options: str) -> CountingSession:
        self.opened.append(options)
        return self

    def load(self) -> CountingFrame:
        return CountingFrame()


def access(session: CountingSession | None = None) -> StreamAccess:
    spark = cast(SparkSession, session or CountingSession())
    return StreamAccess(spark=spark, services=Services({"kafka": MemorySystem()}))


def test_a_line_may_be_longer_than_python_lets_calls_nest(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "rows")
    for _ in range(2_000):
        line = line.filter("x > 0")
    line.output("kafka", "out")
    (query,) = stage_queries(pipeline.build(), access())
    assert cast(Any, query.frame).filters == 2_000


@pytest.mark.parametrize("broadcast", [False, True])
def test_only_a_broadcast_stream_is_read_without_fixed_tasks(
    pipeline: Pipeline, broadcast: bool
) -> None:
    pipeline.input("kafka", "rows", broadcast=broadcast).output("kafka", "out")
    session = CountingSession()
    stage_queries(pipeline.build(), access(session))
    assert [options["keepTasks"] for options in session.opened] == [str(not broadcast).lower()]


class OpenedError(Exception):
    """Raised instead of the rows of an intermediate stream."""


class WithoutRows:
    """Opens no intermediate stream, and records the use of each."""

    def __init__(self) -> None:
        self.uses: list[Use] = []

    def read_own(self, stream: StreamId, use: Use) -> NoReturn:
        self.uses.append(use)
        raise OpenedError


@pytest.mark.parametrize(("bootstrap", "filling"), [(False, Use.TABLE), (True, Use.SIDE_INPUT)])
def test_a_table_is_filled_without_limits_by_the_stages_of_a_bootstrap_input(
    pipeline: Pipeline, bootstrap: bool, filling: Use
) -> None:
    """And only there: the same rows on a line are read within the limits."""
    people = pipeline.input("kafka", "people", bootstrap=bootstrap)
    by_id = people.partition_by("town", name="by-town").partition_by("id", name="by-id")
    table = pipeline.table("people", key="id")
    by_id.send_to_table(table)
    orders = pipeline.input("kafka", "orders").partition_by("id", name="orders-by-id")
    orders.send_to_table(table)
    by_id.join_table(table).output("kafka", "out")
    reading = WithoutRows()
    frames = _Frames(graph=pipeline.build(), access=cast(StreamAccess, reading))
    for name in (OperatorName("by-id"), OperatorName("orders-by-id")):
        frames.written[name] = StructType()
        for use in (Use.LINE, Use.TABLE):
            with pytest.raises(OpenedError):
                frames.rows(name, use)
    assert reading.uses == [Use.LINE, filling, Use.LINE, Use.TABLE]


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", " MaxOffsetsPerTrigger "])
def test_a_side_input_is_read_without_limits_in_any_spelling(name: str) -> None:
    """The sources accept names with blanks around them."""
    session = CountingSession()
    options = {"kafka.bootstrap.servers": "h:1", name: "1"}
    kafka = KafkaSystem(options, writer=EXACTLY_ONCE)
    reading = StreamAccess(spark=cast(SparkSession, session), services=Services({"kafka": kafka}))
    for use in (Use.LINE, Use.SIDE_INPUT):
        reading.read(stream_id("people"), use, keep_tasks=True)
        reading.read_own(stream_id("p-people"), use)
    limits = [[n for n in options if "PerTrigger" in n] for options in session.opened]
    assert limits == [[name], [name], [], []]


def test_an_intermediate_stream_is_read_with_options_that_replace_any_spelling() -> None:
    session = CountingSession()
    options = {"kafka.bootstrap.servers": "h:1", " Kafka.Isolation.Level ": "read_uncommitted"}
    kafka = KafkaSystem(options, writer=EXACTLY_ONCE)
    reading = StreamAccess(spark=cast(SparkSession, session), services=Services({"kafka": kafka}))
    reading.read_own(stream_id("p-people"), Use.LINE)
    (opened,) = session.opened
    levels = {n: opened[n] for n in opened if "isolation" in n.lower()}
    assert levels == {"kafka.isolation.level": "read_committed"}


def test_a_query_of_too_many_sources_is_refused_before_any_is_opened(pipeline: Pipeline) -> None:
    line = pipeline.input("kafka", "rows")
    for _ in range(40):
        line = line.join(line, both)
    line.output("kafka", "out", name="end")
    with pytest.raises(InvalidPipelineError) as caught:
        stage_queries(pipeline.build(), access())
    (problem,) = caught.value.problems
    assert problem.subject == "output end"
    assert problem.found == "a query that would read more than 1000 streams at once"
    assert problem.place is not None


class BatchOfNobody:
    """A batch in whose thread Spark has not said which query it is of; nothing may be written."""

    @property
    def sparkSession(self) -> BatchOfNobody:
        return self

    @property
    def sparkContext(self) -> BatchOfNobody:
        return self

    def getLocalProperty(self, name: str) -> None:
        assert name == "sql.streaming.queryId"


def test_a_batch_of_an_unknown_query_is_not_written() -> None:
    write = writing(SparkFormat("kafka-ssp", {}), "batchWriteId")
    with pytest.raises(SessionSettingError, match="PYSPARK_PIN_THREAD: found a batch without"):
        write(cast(DataFrame, BatchOfNobody()), 0)


def test_intermediate_streams_in_kafka_want_rocksdb(pipeline: Pipeline) -> None:
    """Said as for tables, and before their frames are built, which would fail for want of it."""
    pipeline.input("kafka", "rows").partition_by("key").output("kafka", "out")
    known = Services({"kafka": KafkaSystem({"kafka.bootstrap.servers": "localhost:1"})})
    session = cast(SparkSession, Hadoop(None))
    with pytest.raises(SessionSettingError, match=r"providerClass: found an\.Other; .*RocksDB"):
        prepare(pipeline.build(), session, known, root="/data/p", settings=RunSettings())


@pytest.mark.parametrize(
    ("modes", "setting"),
    [({"to-out": "update"}, ADAPTIVE_QUERY), *([({}, ADAPTIVE_STREAM)] if WRITES_ARROW else [])],
)
def test_a_division_that_may_change_is_refused_before_a_query_starts(
    pipeline: Pipeline, modes: Mapping[str, str], setting: str
) -> None:
    pipeline.input("kafka", "rows").output("kafka", "out")
    cluster = {"kafka.bootstrap.servers": "localhost:1"}
    known = Services({"kafka": KafkaSystem(cluster, writer=EXACTLY_ONCE)})
    settings = RunSettings(output_modes=modes)

    class Session(CountingSession):
        conf: Final = {ADAPTIVE_QUERY: "true", ADAPTIVE_STREAM: "true"}

    session = cast(SparkSession, Session())
    with pytest.raises(SessionSettingError) as caught:
        prepare(pipeline.build(), session, known, root="/data/p", settings=settings)
    assert caught.value.subject == setting


class Hadoop:
    """A session with settings and a default file system."""

    def __init__(self, default: str | None) -> None:
        self._default = default

    @property
    def _jsc(self) -> Hadoop:
        return self

    @property
    def conf(self) -> Mapping[str, str]:
        return {"spark.sql.streaming.stateStore.providerClass": "an.Other"}

    def hadoopConfiguration(self) -> Hadoop:
        return self

    def get(self, name: str) -> str | None:
        assert name == "fs.defaultFS"
        return self._default


def _root(default: str | None, root: str) -> str:
    return root_for_spark(cast(SparkSession, Hadoop(default)), root)


@pytest.mark.parametrize("default", ["file:///", None])
def test_a_path_is_one_of_this_machine_to_spark_too(default: str | None) -> None:
    assert _root(default, "/data/p") == "/data/p"
    assert _root(default, "data/p") == os.path.join(os.getcwd(), "data/p")


def test_a_path_that_is_somewhere_else_to_spark_is_refused() -> None:
    """Checkpoints would be there, and plans here: the next driver would find none to contradict."""
    with pytest.raises(SessionSettingError) as caught:
        _root("hdfs://name:8020", "/data/p")
    assert str(caught.value) == (
        "[session-setting] fs.defaultFS: found hdfs://name:8020, where Spark would write the "
        "checkpoints of root /data/p; expected the location of the plans: this machine, for a "
        "root without a scheme. Next step: pass the root with its scheme, as file:///path or "
        "hdfs://host/path"
    )
    for root in ("hdfs://name:8020/data/p", "file:///data/p", "s3://b/p"):
        assert _root("hdfs://name:8020", root) == root
