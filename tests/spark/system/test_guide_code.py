"""The code of the guides runs: each block is executed here or by another test, or has a reason."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ssp
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.fakes.clocks import ShiftedClock
from tests.support.guides import GUIDE, PAGES, ROOT, blocks
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.servers.kafka_broker import KafkaBroker

LANGUAGES: Final = "python|sql|bash|sh"
KAFKA: Final = ("kafka", "kafka-batch", "kafka-sink", "kafka-exactly-once", "kafka-duplicates")
"""These pages have one reader, who reads them in this order."""
FRAGMENTS: Final = (
    *("command", "event-time", "fixed-tasks", "kafka-data-loss", "kafka-lag", "kinesis"),
    *("kinesis-data-loss", "kinesis-fan-out", "kinesis-lag", "leases", "live-page", "logs"),
    *("metrics", "migration", "questions"),
)
"""Pages with parts of a job of the reader."""
EXECUTED: Final = (*KAFKA, "kinesis-batch", "kinesis-sink", *FRAGMENTS)
"""The pages whose blocks the tests of this module execute, one after the other."""

NOT_EXECUTED: Final[Mapping[str, Mapping[str, str]]] = {
    "kafka": {
        "with LocalKafka() as kafka:": "starts another broker: tests/contract/kafka",
    },
    "kafka-data-loss": {
        "acceptTopicIds": "the id is that of an old topic: tests/spark/kafka/test_faults.py",
    },
    "migration": {
        "young = ": "the table is that of another connector",
    },
}
"""Blocks of these pages that are not executed, by a part of their text, and the reason."""

ELSEWHERE: Final[Mapping[str, tuple[int, str]]] = {
    "README": (1, "test_orders_job.py runs it"),
    "databricks": (1, "needs Databricks"),
    "declarative-pipelines": (1, "test_declarative_pipeline.py runs the example that it shows"),
    "embedded-kinesis": (10, "tests/unit/testing/kinesis/test_guide.py executes it"),
    "emr": (1, "needs EMR"),
    "format-not-found": (3, "for sessions that do not find the formats"),
    "glue": (1, "needs Glue"),
    "kafka-logins": (11, "the clusters and secrets are those of the reader"),
    "kinesis-permissions": (3, "the account and the modules are those of the reader"),
    "kubernetes": (1, "needs Kubernetes"),
    "performance": (1, "a fragment of a job"),
    "pipelines": (4, "test_guides.py builds its pipeline and services"),
    "recipes": (1, "the rehearsal of json_records makes the same call"),
    "recipes-aws": (2, "the account and the role are those of the reader"),
    "recipes-tables": (2, "test_table_formats.py makes the same settings, with pinned jars"),
    "standalone": (1, "needs a cluster"),
    "troubleshooting": (2, "tests/spark/operations/test_drill.py follows them"),
}
"""The other pages: the number of their blocks that are no recipes, and where they run, or why they
do not. Blocks that are files of `examples/recipes` run in tests/spark/recipes."""


def is_recipe(block: str) -> bool:
    return block in {
        path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "recipes").glob("*.py")
    }


def skipped(page: str, block: str) -> list[str]:
    return [part for part in NOT_EXECUTED.get(page, {}) if part in block]


def test_every_block_is_executed_or_has_a_reason() -> None:
    counts = {
        page.stem: sum(not is_recipe(block) for block in blocks(page, LANGUAGES)) for page in PAGES
    }
    assert {page: count for page, count in counts.items() if count and page not in EXECUTED} == {
        page: count for page, (count, _) in ELSEWHERE.items()
    }
    for page in EXECUTED:
        parts = [part for block in page_blocks(page) for part in skipped(page, block)]
        assert sorted(parts) == sorted(NOT_EXECUTED.get(page, {}))


def page_blocks(page: str) -> list[str]:
    return blocks(GUIDE / f"{page}.md", LANGUAGES)


class Reader:
    """A reader of pages, who runs one block after the other. `before` and `after` are by a part of
    the block: what the reader's job has before it, and a check of the result. Queries that a block
    starts run until they have read everything."""

    def __init__(
        self,
        spark: SparkSession,
        pages: tuple[str, ...],
        replaced: Callable[[str], str],
        **names: Any,
    ) -> None:
        self.spark = spark.newSession()
        self.pages = pages
        self.replaced = replaced
        self.names = {"spark": self.spark, "spark_ssp": spark_ssp, **names}

    def run(
        self, before: Mapping[str, Callable[[], None]], after: Mapping[str, Callable[[], None]]
    ) -> None:
        unused = {*before, *after}
        shown = [(page, block) for page in self.pages for block in page_blocks(page)]
        for page, block in shown:
            if skipped(page, block):
                continue
            for part in before:
                if part in block:
                    before[part]()
                    unused.discard(part)
            self.execute(page, self.replaced(block))
            for query in self.spark.streams.active:
                query.processAllAvailable()
                query.stop()
            for part in after:
                if part in block:
                    after[part]()
                    unused.discard(part)
        assert unused == set()

    def execute(self, page: str, block: str) -> None:
        if block.startswith("CREATE"):
            for statement in filter(str.strip, block.split(";")):
                self.spark.sql(statement).collect()
        else:
            # `run` waits until it has read everything.
            block = re.sub(r"^\w+\.awaitTermination\(\)$", "", block, flags=re.MULTILINE)
            exec(compile(block, f"{page}.md", "exec"), self.names)

    def define(self, name: str, of: str, *columns: str) -> None:
        """Define a DataFrame as columns of another."""
        self.names[name] = self.names[of].selectExpr(*columns)

    def collect(self, name: str, folder: Path) -> list[Any]:
        """The rows of a streaming DataFrame."""
        query = (
            self.names[name]
            .writeStream.format("memory")
            .queryName("rows")
            .option("checkpointLocation", str(folder))
            .start()
        )
        query.processAllAvailable()
        query.stop()
        return self.spark.table("rows").collect()


@pytest.mark.long
def test_kafka(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    for topic in ("orders", "customers", "by-customer"):
        topics.create(2, name=topic, config={"retention.ms": "-1"})
    morning = 1_767_139_200_000
    topics.put(
        "orders",
        [Record(key=b"17", value=b"paid", partition=n % 2, time_ms=morning + n) for n in range(5)],
    )
    topics.put("customers", [Record(key=b"17", value=b"Ada")])

    def replaced(block: str) -> str:
        block = re.sub(r"broker1:9092(,broker2:9092)?", kafka_broker.bootstrap_servers, block)
        return re.sub(r"s3a?://lake", str(tmp_path), block)

    reader = Reader(spark, KAFKA, replaced)

    def orders() -> None:
        frame = reader.spark.readStream.format("kafka-ssp").options(**kafka_broker.options)
        reader.names["stream"] = (
            frame.option("subscribe", "orders").option("startingOffsets", "earliest").load()
        )
        reader.define("orders", "stream", "CAST(key AS STRING) AS customer")

    def has(count: int, folder: str) -> None:
        assert reader.spark.read.parquet(str(tmp_path / folder)).count() == count

    def parsed() -> None:
        reader.define("parsed", "orders", "customer")

    def count_of(topic: str) -> int:
        loaded = reader.spark.read.format("kafka-ssp").options(**kafka_broker.options)
        return int(loaded.option("subscribe", topic).load().count())

    def check(name: str, count: int) -> None:
        assert reader.names[name].count() == count

    def joined() -> None:
        rows = reader.collect("enriched", tmp_path / "joined")
        assert [row.name for row in rows] == ["Ada"] * 5

    def written(topic: str, count: int) -> None:
        assert count_of(topic) == count

    reader.run(
        before={
            "enriched = orders.join": orders,
            "query = (\n    parsed": parsed,
        },
        after={
            "yesterday = ": lambda: check("yesterday", 5),
            "enriched = orders.join": joined,
            "foreachBatch(enrich)": lambda: has(5, "enriched"),
            "INSERT INTO": lambda: written("customers", 2),
            "query = (\n    parsed": lambda: written("by-customer", 5),
        },
    )


@pytest.fixture
def service(clock: ShiftedClock) -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(clock=clock) as kinesis:
        yield kinesis


class Streams:
    """The streams of both pages on a service, whose clock stands after the hour of the guide: five
    orders within it, five after it."""

    def __init__(self, kinesis: EmbeddedKinesis, clock: ShiftedClock, folder: Path) -> None:
        self.feed = EmbeddedFeed(kinesis)
        self.options = options_for(kinesis.endpoint_url)
        self.folder = folder
        for stream in (
            *("orders", "orders-test", "orders-copy", "orders-by-customer"),
            *("customers", "by-customer"),
        ):
            self.feed.create(stream, shards=2)
        self.hour = clock.now_ms()
        for number in range(5):
            self.feed.put_data("orders", "17", b"%d" % number)
        self.feed.put_data("customers", "17", b"Ada")
        clock.advance(7_200_000)
        for number in range(5, 10):
            self.feed.put_data("orders", "17", b"%d" % number)

    def data(self, spark: SparkSession, stream: str) -> list[bytes]:
        """Return the data of all records, in the order of a batch query in one task."""
        loaded = spark.read.format("kinesis-ssp").options(**self.options)
        rows = loaded.option("streamName", stream).option("slots", "1").load().collect()
        return [bytes(row.data) for row in rows]

    def replaced(self, block: str) -> str:
        options = ", ".join(f"{name} '{text}'" for name, text in self.options.items())
        for time, minutes in (("13:00", -1), ("13:55", -1), ("14:00", 60)):
            shown = datetime.fromtimestamp(self.hour // 1000 + 60 * minutes, UTC)
            block = block.replace(f"2026-11-01T{time}:00Z", f"{shown:%Y-%m-%dT%H:%M:%SZ}")
        block = block.replace('.option("region", "eu-west-1")', ".options(**options)")
        block = block.replace('"region": "eu-west-1"', "**options")
        block = block.replace("region 'eu-west-1'", options)
        return re.sub(r"s3a?://lake", str(self.folder), block)


def test_kinesis_batch_reads(
    spark: SparkSession, service: EmbeddedKinesis, clock: ShiftedClock, tmp_path: Path
) -> None:
    streams = Streams(service, clock, tmp_path)
    reader = Reader(spark, ("kinesis-batch",), streams.replaced, options=streams.options)

    data = partial(streams.data, reader.spark)

    def orders() -> None:
        reader.names["live"] = (
            reader.spark.readStream.format("kinesis-ssp")
            .options(**streams.options, streamName="orders", startingPosition="trim_horizon")
            .load()
        )
        reader.define("orders", "live", "partitionKey AS customer")

    def check(condition: Callable[[], bool]) -> Callable[[], None]:
        def checked() -> None:
            assert condition()

        return checked

    first = [b"%d" % number for number in range(5)]
    reader.run(
        before={"enriched = orders.join": orders},
        after={
            "orders = (\n    spark.read.": check(lambda: reader.names["orders"].count() == 5),
            "look = (": check(lambda: reader.names["look"].count() == 10),
            "history.write": check(
                lambda: reader.spark.read.parquet(str(tmp_path / "orders")).count() == 5
            ),
            "orders-test": check(lambda: data("orders-test") == first),
            "enriched = orders.join": check(
                lambda: (
                    [row.name for row in reader.collect("enriched", tmp_path / "joined")]
                    == ["Ada"] * 10
                )
            ),
            "INSERT INTO": check(lambda: b"paid" in data("orders")),
        },
    )


def test_kinesis_sink(
    spark: SparkSession, service: EmbeddedKinesis, clock: ShiftedClock, tmp_path: Path
) -> None:
    streams = Streams(service, clock, tmp_path)
    reader = Reader(spark, ("kinesis-sink",), streams.replaced, options=streams.options)
    reader.names["orders"] = (
        reader.spark.readStream.format("kinesis-ssp")
        .options(**streams.options, streamName="orders", startingPosition="trim_horizon")
        .load()
    )

    data = partial(streams.data, reader.spark)

    def written(stream: str, expected: list[bytes]) -> Callable[[], None]:
        def check() -> None:
            assert data(stream) == expected

        return check

    numbers = [b"%d" % number for number in range(10)]
    # The time descends, so the rows are stored in the reverse order.
    time = "timestamp_seconds(-CAST(CAST(data AS STRING) AS INT)) AS time"
    reader.run(
        before={
            "query = (\n    parsed": lambda: reader.define(
                "parsed", "orders", "partitionKey AS customer"
            ),
            "foreachBatch(put)": lambda: reader.define(
                "rows", "orders", "partitionKey", "data", time
            ),
        },
        after={
            "query = (\n    parsed": written("by-customer", [b'{"customer":"17"}'] * 10),
            "foreachBatch(put)": written("orders-by-customer", numbers[::-1]),
            "orders-copy": written("orders-copy", numbers),
        },
    )


class Fragments:
    """The services of a reader who puts the parts of a job on many pages into a job."""

    def __init__(self, spark: SparkSession, kinesis: EmbeddedKinesis, broker: KafkaBroker) -> None:
        self.kinesis = options_for(kinesis.endpoint_url)
        self.dynamodb = {"dynamodbEndpointUrl": kinesis.dynamodb_endpoint_url}
        self.kafka = broker.options
        self.reader = Reader(spark, FRAGMENTS, self.replaced, SparkSession=SparkSession)
        self.reader.names |= {
            "kinesis_options": self.kinesis,
            "shared_options": self.kinesis | self.dynamodb,
            "kafka_options": self.kafka,
        }

    def replaced(self, block: str) -> str:
        brokers = self.kafka["kafka.bootstrap.servers"]
        block = re.sub(r"broker1:9092(,broker2:9092)?", brokers, block)
        block = block.replace("9464", "0").replace("/var/log/spark/", "")
        block = block.replace("s3://lake", f"file:{Path.cwd()}")
        block = re.sub(r'\.option\("region", "[\w-]+"\)', "", block)
        for service in ("kinesis", "kafka"):
            name = f'.format("{service}-ssp")'
            given = "shared" if "applicationName" in block else service
            block = block.replace(name, f"{name}.options(**{given}_options)")
        if block.startswith(".option"):
            return f"(spark.readStream.format('rate')\n{block})"
        return block

    def frame(self, form: str, **options: str) -> DataFrame:
        connection = self.kinesis if form == "kinesis-ssp" else self.kafka
        if "applicationName" in options:
            connection = connection | self.dynamodb
        reading = self.reader.spark.readStream.format(form).options(**connection)
        return reading.options(**options).load()

    def start(self, frame: DataFrame, folder: str) -> StreamingQuery:
        # Spark's working directory is another one.
        place = str(Path(folder).absolute())
        query = frame.writeStream.format("noop").option("checkpointLocation", place).start()
        query.processAllAvailable()
        return query

    def give(self, form: str, **options: str) -> Callable[[], None]:
        """Have `orders`, and a `query` of it that runs."""

        def given() -> None:
            self.reader.names["orders"] = frame = self.frame(form, **options)
            self.reader.names["query"] = self.start(frame, f"given-{next(self._numbers)}")

        return given

    def reads(self, count: int, name: str = "orders") -> Callable[[], None]:
        """Check the number of rows of the frame that a block has defined."""

        def check() -> None:
            rows = self.reader.collect(name, Path(f"read-{next(self._numbers)}").absolute())
            assert len(rows) == count

        return check

    def goes_on(self, form: str, streams: str, **options: str) -> Callable[[], None]:
        """Check that the frame continues a query of more streams."""

        def check() -> None:
            self.start(self.frame(form, **options), streams).stop()
            self.start(self.reader.names["orders"], streams).stop()

        return check

    _numbers = itertools.count()


@pytest.fixture
def fragments(
    spark: SparkSession,
    clock: ShiftedClock,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Fragments]:
    monkeypatch.chdir(tmp_path)
    with EmbeddedKinesis(clock=clock, dynamodb=True) as kinesis:
        feed = EmbeddedFeed(kinesis)
        for stream in ("orders", "orders-eu", "orders-us", "orders-test"):
            feed.create(stream, shards=2)
            feed.put_data(stream, "17", b"paid")
        yield Fragments(spark, kinesis, kafka_broker)


@pytest.mark.long
def test_fragments(fragments: Fragments, topics: KafkaTopics) -> None:
    for topic in ("orders", "orders-eu", "orders-us", "orders-test"):
        topics.create(2, name=topic)
        topics.put(topic, [Record(key=b"17", value=b"paid")] * 3)
    names, reads = fragments.reader.names, fragments.reads
    kafka = {"subscribe": "orders", "startingOffsets": "earliest"}
    kinesis = {"streamName": "orders", "startingPosition": "trim_horizon"}
    Path("start.json").write_text(json.dumps(kinesis), encoding="utf-8")

    def grouped() -> None:
        groups = names["BlockExpansion"]()
        assert [groups.partition_before_expansion(n, 6, 2) for n in range(6)] == [0, 1, 0, 0, 1, 1]

    def shown(url: str, part: str) -> None:
        assert part in urllib3.request("GET", url, timeout=30).data.decode()

    def served() -> None:
        shown(names["metrics"].url, "# TYPE ssp_")
        names["metrics"].stop()

    def written() -> None:
        names["metrics"].stop()
        assert Path("metrics.log").exists()

    def live() -> None:
        shown(names["page"].url, "<html")
        names["page"].stop()

    def identified() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOSTNAME", "pod-1")
            assert names["PodName"]().generate_processor_id() == "pod-1"

    def ended() -> None:
        assert names["query"].isActive is False

    def ends() -> None:
        fragments.give("kinesis-ssp", **kinesis)()
        names["query"].stop()

    several = "orders-eu,orders-us,orders-test"
    fragments.reader.run(
        before={
            "numbered = ": fragments.give("kafka-ssp", **kafka),
            '# [{"topics"': fragments.give("kafka-ssp", **kafka),
            '# [{"orders"': fragments.give("kinesis-ssp", **kinesis),
            "stop_gracefully(query)": fragments.give(
                "kinesis-ssp", **kinesis, applicationName="orders-etl"
            ),
            "query.awaitTermination()": ends,
            "publish_metrics": fragments.give("kinesis-ssp", **kinesis),
            "spark.streams.active": fragments.give("kinesis-ssp", **kinesis),
        },
        after={
            "numbered = ": reads(3, "numbered"),
            "class BlockExpansion": grouped,
            "start.json": reads(1),
            "alignBatches": reads(0),
            "commitOffsetsToGroup": reads(0),
            "dropTopics": fragments.goes_on("kafka-ssp", "kafka", subscribe=several),
            "dropStreams": fragments.goes_on("kinesis-ssp", "kinesis", streamName=several),
            '"trim_horizon")\n    .load()': reads(1),
            "consumerName": reads(0),
            "stop_gracefully(query)": ended,
            "class PodName": identified,
            "serve_live_page": live,
            "prometheus=": served,
            "cloudwatch_namespace": written,
            "spark.streams.active": ended,
        },
    )


def test_a_cell_that_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    """As the table in `questions` says."""
    rows = spark.newSession().readStream.format("rate").load()

    def start(sink: str, name: str | None, checkpoint: str | None) -> Any:
        writer = rows.writeStream.format(sink)
        if name is not None:
            writer = writer.queryName(name)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        return writer.start()

    first, again = (start("noop", None, "unnamed") for _ in range(2))
    assert (first.id, first.isActive, again.isActive) == (again.id, False, True)
    again.stop()
    for name, sink, checkpoint in (("orders", "noop", "named"), ("table", "memory", None)):
        query = start(sink, name, checkpoint)
        with pytest.raises(IllegalArgumentException) as refused:
            start(sink, name, checkpoint)
        assert "as a query with that name is already active" in str(refused.value)
        query.stop()
        start(sink, name, checkpoint).stop()
    first, again = (start("console", None, None) for _ in range(2))
    assert (first.id != again.id, first.isActive, again.isActive) == (True, True, True)
    for query in (first, again):
        query.stop()
