"""DataFrames of `spark.read` used more than once: by streaming queries, by later actions, as SQL
tables and views. PySpark 4.1 to 4.3 plan each of them once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader

from spark_ssp.common.spark.batch_plan import REFRESH_SETTING
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.fakes.clocks import ShiftedClock
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import failure_of, running, start, wait_until

PLANS_ONCE = hasattr(DataSourceReader, "pushFilters")
"""PySpark 4.1 to 4.3."""
DAYS_MS = 25 * 3_600_000


@dataclass(kw_only=True)
class Dimension:
    """A topic or a stream of records with the key `k`, read as a table. `condition` is that of the
    guides; `expire` removes all records."""

    format: str
    options: dict[str, str]
    condition: str
    columns: str
    put: Callable[[], None]
    expire: Callable[[], None]

    def load(self, spark: SparkSession, **options: str) -> DataFrame:
        return spark.read.format(self.format).options(**self.options, **options).load()

    def sql(self, kind: str, columns: str = "") -> str:
        """The statement that creates a table or a view `dimension`."""
        options = ", ".join(f"`{name}` '{text}'" for name, text in self.options.items())
        return f"CREATE {kind} dimension {columns} USING `{self.format}` OPTIONS ({options})"


@pytest.fixture
def kafka(kafka_broker: KafkaBroker, topics: KafkaTopics) -> Dimension:
    topic = topics.create(1, config={"retention.ms": "-1"})
    numbers = count(1)

    def put() -> None:
        topics.put(topic, [Record(key=b"k", value=b"%d" % next(numbers))])

    return Dimension(
        format="kafka-ssp",
        options={**kafka_broker.options, "subscribe": topic, "topic": topic},
        condition="offset >= 0",
        columns="key, value",
        put=put,
        expire=lambda: topics.expire(topic, {0: next(numbers) - 1}),
    )


@pytest.fixture
def kinesis() -> Iterator[Dimension]:
    clock = ShiftedClock()
    with EmbeddedKinesis(clock=clock) as service:
        feed = EmbeddedFeed(service)
        feed.create("dimension")
        yield Dimension(
            format="kinesis-ssp",
            options=options_for(feed.endpoint_url) | {"streamName": "dimension"},
            condition="sequenceNumber IS NOT NULL",
            columns="partitionKey, data",
            put=lambda: (feed.put("dimension", keys=1), None)[1],
            expire=lambda: clock.advance(DAYS_MS),
        )


@pytest.fixture(params=["kafka", "kinesis"])
def dimension(request: pytest.FixtureRequest) -> Dimension:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Dimension)
    return found


@dataclass
class Growing:
    """A sink that counts the rows of each micro-batch and then puts a record into the dimension."""

    dimension: Dimension
    static: Callable[[SparkSession], DataFrame] | None = None
    counts: list[int] = field(default_factory=list)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame if self.static is None else self.static(frame.sparkSession)
        self.counts.append(rows.count())
        self.dimension.put()

    def has_counted(self, batches: int) -> bool:
        return len(self.counts) >= batches


def one_row_a_batch(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    return rows.select(F.lit("k").alias("k"))


def joined(spark: SparkSession, static: DataFrame) -> DataFrame:
    value = "value" if "value" in static.columns else "data"
    return one_row_a_batch(spark).join(static.select(F.lit("k").alias("k"), value), "k")


@pytest.mark.core("static side of a stream")
def test_a_static_side_is_current_in_each_micro_batch(
    spark: SparkSession, dimension: Dimension, tmp_path: Path
) -> None:
    """As with Spark's own source: with the setting and the condition of the guides, and with
    `load()` in `foreachBatch`."""
    dimension.put()
    session = spark.newSession()
    session.conf.set(REFRESH_SETTING, "true")
    static = dimension.load(session).where(dimension.condition)
    inside = Growing(dimension, dimension.load)
    for number, (frame, sink) in enumerate(
        [(joined(session, static), Growing(dimension)), (one_row_a_batch(spark), inside)]
    ):
        with running(frame, sink, tmp_path / str(number)) as query:
            wait_until(partial(sink.has_counted, 4), "four micro-batches", query)
        first = sink.counts[0]
        assert first > 0
        assert sink.counts[:4] == list(range(first, first + 4))


@pytest.fixture
def new_workers(spark: SparkSession) -> Iterator[None]:
    """A new Python worker for each task, as for tasks with more than a minute between them."""
    context: Any = spark.sparkContext._jsc
    conf = context.sc().conf()  # that of the executor too, since it is in the same JVM
    conf.set("spark.python.worker.reuse", "false")
    yield
    conf.remove("spark.python.worker.reuse")


@pytest.mark.core("static side of a stream")
@pytest.mark.usefixtures("new_workers")
def test_a_plan_of_an_earlier_micro_batch_is_refused(
    spark: SparkSession, dimension: Dimension, tmp_path: Path
) -> None:
    """Also one without records, whose topic or stream was empty, and in new Python workers. Its
    first micro-batch has the plan to itself, unless an action used it before."""
    sink = Growing(dimension)
    frame = joined(spark, dimension.load(spark))
    if not PLANS_ONCE:
        with running(frame, sink, tmp_path) as query:
            wait_until(partial(sink.has_counted, 4), "four micro-batches", query)
        assert sink.counts[:4] == [0, 1, 2, 3]
        return
    failure = failure_of(start(frame, sink, tmp_path / "first"))
    assert sink.counts == [0]
    assert f"[unsupported] DataFrame of {dimension.format} in a streaming query" in failure
    assert all(advice in failure for advice in (REFRESH_SETTING, dimension.condition, "load()"))
    static = dimension.load(spark)
    assert static.count() == 1
    assert "[unsupported]" in failure_of(start(joined(spark, static), sink, tmp_path / "second"))
    assert sink.counts == [0]


def test_an_old_plan_fails_with_its_time_and_a_new_one_reads_what_is_left(
    spark: SparkSession, dimension: Dimension
) -> None:
    for _ in range(3):
        dimension.put()
    frame = dimension.load(spark)
    assert frame.count() == 3
    dimension.expire()
    dimension.put()
    if PLANS_ONCE:
        with pytest.raises(PySparkException) as raised:
            frame.count()
        assert "[data-loss]" in str(raised.value)
        assert "the DataFrame was planned at 20" in str(raised.value)
        assert "call load() again" in str(raised.value)
    assert dimension.load(spark).count() == 1


def test_a_view_is_read_and_written_and_a_table_is_refused(
    spark: SparkSession, dimension: Dimension, tmp_path: Path
) -> None:
    session = spark.newSession()
    dimension.put()
    session.sql(dimension.sql("TEMPORARY VIEW"))
    columns, values = dimension.columns, "(CAST('k' AS BINARY), CAST('1' AS BINARY))"
    if dimension.format == "kinesis-ssp":
        values = "('k', CAST('1' AS BINARY))"
    rows = session.table("dimension").count()
    assert rows == 1
    session.sql(f"INSERT INTO dimension ({columns}) VALUES {values}")  # noqa: S608
    session.sql(dimension.sql("OR REPLACE TEMPORARY VIEW"))
    assert session.table("dimension").count() == 2
    refused = {
        "create": dimension.sql("TABLE"),
        "select": "SELECT * FROM named",
        "insert": f"INSERT INTO named ({columns}) VALUES {values}",  # noqa: S608
    }
    schema = ", ".join(f"`{name}` {kind}" for name, kind in session.table("dimension").dtypes)
    session.sql(dimension.sql("TABLE", f"({schema})").replace("dimension", "named", 1))
    for statement in refused.values():
        with pytest.raises(PySparkException) as raised:
            session.sql(statement).collect()
        assert f"[unsupported] format {dimension.format}" in str(raised.value)
        assert "CREATE TEMPORARY VIEW" in str(raised.value)
    stream = session.readStream.table("named")
    failure = failure_of(start(stream, Growing(dimension), tmp_path))
    assert f"[unsupported] format {dimension.format}" in failure
    session.sql("DROP TABLE named")
