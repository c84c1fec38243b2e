"""A pipeline of two stages, planned and run: `python -m examples.two_stage_pipeline`.

Departures from New York's airports come out of Kinesis. The first stage looks up where they go and
writes them to a topic by carrier; the second one looks up the airline and keeps totals of each
carrier in an output topic. Airlines and airports are tables, filled from compacted topics. The plan
shows how many partitions the topic in between needs, and why; its page shows the pipeline. In the
end the output is compared with the same totals computed by pyarrow.

Needed: pip install '.[demo]' in a checkout. Kafka itself is fetched the first time, 43 MB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import boto3
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from examples.flights import data
from examples.flights.session import output_to
from spark_ssp import (
    EmbeddedKinesis,
    KafkaSystem,
    KinesisSystem,
    LocalKafka,
    Pipeline,
    Services,
    disconnect_kafka,
)

FLIGHTS: Final = "flights"
AIRLINES: Final = "airlines"
AIRPORTS: Final = "airports"
TOTALS: Final = "carrier-totals"

DEPARTURES: Final = 5_000
PATIENCE_SECONDS: Final = 600.0
LATE: Final = 15
"""Minutes from which a departure counts as late."""

_COMPACTED: Final = {"cleanup.policy": "compact"}
_AT_ONCE: Final = 500
_DEPARTURE: Final = "index long, carrier string, dest string, distance long, dep_delay long"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Totals = dict[str, dict[str, Any]]
"""By carrier, its row of the output."""


# --- The pipeline --------------------------------------------------------------------------------


def describe() -> Pipeline:
    """Declare the pipeline; nothing is computed here."""
    pipeline = Pipeline("delays")
    airports = pipeline.table("airports", key="dest")
    airports.side_input(
        # A broadcast table may have another number of partitions than the stream.
        pipeline.input("kafka", AIRPORTS, broadcast=True).transform(
            names_of("dest", "airport"), name="airport-names"
        ),
        name="fill-airports",
    )
    airlines = pipeline.table("airlines", key="carrier")
    airlines.side_input(
        pipeline.input("kafka", AIRLINES).transform(
            names_of("carrier", "airline"), name="airline-names"
        ),
        name="fill-airlines",
    )
    (
        pipeline.input("kinesis", FLIGHTS)
        .transform(departures, name="departures")
        .join_table(airports, how="left", name="destination")
        .partition_by("carrier")
        .join_table(airlines, name="airline")
        .transform(totals, state="shuffled", name="totals")
        .output("kafka", TOTALS)
    )
    return pipeline


def names_of(key: str, value: str) -> Callable[[DataFrame], DataFrame]:
    """Reads records whose key and value are text."""
    return lambda frame: frame.select(
        F.col("key").cast("string").alias(key), F.col("value").cast("string").alias(value)
    )


def departures(frame: DataFrame) -> DataFrame:
    """The columns of `_DEPARTURE`, out of the JSON in Kinesis."""
    row = F.from_json(F.col("data").cast("string"), _DEPARTURE).alias("row")
    return frame.select(row).select("row.*")


def totals(frame: DataFrame) -> DataFrame:
    """Of each carrier so far. The key makes a compacted topic keep the newest."""
    return (
        frame.groupBy("carrier", "airline")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.count_if(F.col("dep_delay") >= LATE).alias("late"),
            F.sum("dep_delay").alias("delay"),
            # Any flight that is lost, or counted twice, shows.
            F.sum("index").alias("index_sum"),
            F.max(F.struct("distance", F.coalesce("airport", "dest").alias("name"))).alias("far"),
        )
        .select(F.col("carrier").alias("key"), "*")
    )


def expected(flights: pa.Table, airlines: Mapping[str, str]) -> Totals:
    """The same without Spark."""
    airports = dict(zip(*data.airports().select(["faa", "name"]).to_pydict().values(), strict=True))
    found: Totals = {}
    for carrier in sorted(set(flights["carrier"].to_pylist())):
        own = flights.filter(pc.equal(flights["carrier"], carrier))
        places = [airports.get(dest, dest) for dest in own["dest"].to_pylist()]
        distance, place = max(zip(own["distance"].to_pylist(), places, strict=True))
        found[carrier] = {
            "carrier": carrier,
            "airline": airlines[carrier],
            "flights": own.num_rows,
            "cancelled": own["dep_delay"].null_count,
            "late": pc.sum(pc.greater_equal(own["dep_delay"], LATE), min_count=0).as_py(),
            "delay": pc.sum(own["dep_delay"]).as_py(),
            "index_sum": pc.sum(own["index"]).as_py(),
            "far": {"distance": distance, "name": place},
        }
    return found


# --- Services ------------------------------------------------------------------------------------


def services(kinesis: EmbeddedKinesis, kafka: LocalKafka) -> Services:
    """Both systems, under the names that the pipeline gives them."""
    reader = {"startingOffsets": "earliest"}
    settings = {
        "endpointUrl": kinesis.endpoint_url,
        "region": "us-east-1",
        "awsAccessKeyId": "local",
        "awsSecretAccessKey": "local",
        "startingPosition": "trim_horizon",
    }
    return Services(
        {"kafka": KafkaSystem(kafka.options, reader=reader), "kinesis": KinesisSystem(settings)}
    )


def session(folder: Path, log: Path) -> SparkSession:
    """Start a session whose processes write to the file `log`. RocksDB holds the tables and the
    state of deduplication."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.unix.domain.socket.dir", str(folder))
    )
    with output_to(log):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def put_tables(kafka: LocalKafka) -> None:
    """Fill the topics that the tables are made of, and make the one of the totals."""
    for topic, partitions in ((AIRLINES, 2), (AIRPORTS, 1), (TOTALS, 1)):
        kafka.create_topic(topic, partitions, _COMPACTED)
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        # As Java's producer, and this project's sink, map a key to a partition.
        "partitioner": "murmur2_random",
    }
    producer = Producer(settings)
    for topic, rows in ((AIRLINES, data.airlines()), (AIRPORTS, data.airports())):
        for key, value in zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True):
            producer.produce(topic, key=key, value=value)
            producer.poll(0)
    producer.flush()


def put_flights(kinesis: EmbeddedKinesis, flights: pa.Table) -> None:
    """Put departures, keyed by plane."""
    client = boto3.client("kinesis", **kinesis.client_settings())
    columns = [part.split()[0] for part in _DEPARTURE.split(", ")]
    rows = flights.select(columns).to_pylist()
    keys = data.partition_keys(flights).to_pylist()
    records: list[Any] = [
        {"PartitionKey": key, "Data": orjson.dumps(row)}
        for key, row in zip(keys, rows, strict=True)
    ]
    for start in range(0, len(records), _AT_ONCE):
        answer = client.put_records(StreamName=FLIGHTS, Records=records[start : start + _AT_ONCE])
        if answer["FailedRecordCount"]:
            raise RuntimeError(f"{answer['FailedRecordCount']} records were refused")
    client.close()


def read_totals(spark: SparkSession, kafka: LocalKafka) -> Totals:
    """The newest row of each carrier in the output topic."""
    records = (
        spark.read.format("kafka-ssp")
        .options(**kafka.options)
        .option("subscribe", TOTALS)
        .load()
    )  # fmt: skip
    newest = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    rows = [orjson.loads(bytes(row["value"])) for row in newest.collect()]
    return {row["carrier"]: {k: v for k, v in row.items() if k != "key"} for row in rows}


# --- The program ---------------------------------------------------------------------------------


def show(console: Console, found: Totals) -> None:
    table = Table(title="Carriers by departures", title_justify="left")
    for name in ("airline", "farthest destination"):
        table.add_column(name, overflow="fold")
    for name in ("departures", "cancelled", "late", "mean delay"):
        table.add_column(name, justify="right")
    for row in sorted(found.values(), key=lambda row: -row["flights"]):
        left = row["flights"] - row["cancelled"]
        table.add_row(
            row["airline"],
            row["far"]["name"],
            f"{row['flights']:,}",
            f"{row['cancelled']:,}",
            f"{row['late']:,}",
            f"{row['delay'] / left:.1f} min" if left else "",
        )
    console.print(table)


def run(count: int, page: Path, folder: Path) -> tuple[Totals, Totals]:
    """Return the output found and the output expected."""
    flights = data.departures(count)
    names = dict(zip(*data.airlines().to_pydict().values(), strict=True))
    with EmbeddedKinesis() as kinesis, LocalKafka() as kafka:
        kinesis.state.create_stream(FLIGHTS, shards=3)
        put_flights(kinesis, flights)
        put_tables(kafka)
        known = services(kinesis, kafka)

        planned = describe().plan(known, root=str(folder / "root"))
        print(planned.explain())
        page.parent.mkdir(parents=True, exist_ok=True)
        planned.save_page(page)
        print(f"The plan as a page: {page.absolute()}")
        for stream in planned.apply(known).created:
            print(f"Created {stream}")

        print(f"Spark's log: {page.with_suffix('.log').absolute()}")
        spark = session(folder, page.with_suffix(".log"))
        # Each batch writes the totals of all carriers, of which the topic keeps the newest.
        modes = {f"to-{TOTALS}": "complete"}
        with planned.run(spark, known, available_now=True, output_modes=modes) as running:
            if not running.await_termination(PATIENCE_SECONDS):
                raise TimeoutError(f"not through yet: {running.status}")
        print("\n".join(f"Stage {one.stage}: {one.state}" for one in running.status))
        found = read_totals(spark, kafka)
        spark.stop()
        disconnect_kafka()  # or its connection would complain of the Kafka that ends here
    return found, expected(flights, names)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.two_stage_pipeline")
    parser.add_argument("--departures", type=int, default=DEPARTURES, help=f"({DEPARTURES:,})")
    parser.add_argument(
        "--page", type=Path, default=Path("demo-output/plan.html"), help="where the page goes"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    console = Console(width=100)
    with tempfile.TemporaryDirectory(prefix="two-stage-pipeline-") as folder:
        found, wanted = run(options.departures, options.page, Path(folder))
    show(console, found)
    wrong = sorted(c for c in found.keys() | wanted.keys() if found.get(c) != wanted.get(c))
    for carrier in wrong:
        print(f"WRONG: {carrier}: found {found.get(carrier)}, expected {wanted.get(carrier)}")
    if not wrong:
        print(f"{options.departures:,} departures of {len(found)} carriers: all totals are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
