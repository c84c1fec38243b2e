"""Two queries share the shards of one stream: `python -m examples.share_shards`.

Both have the same `applicationName`, which names the lease table. The first one holds all shards
until the second one starts and takes half of them; a shard is split at the same time; then the
second one stops and releases its shards. The table shows the owners in the lease table. In the end
every record must have been read exactly once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from examples.lease_table import LeaseFact, LeaseTable
from spark_ssp import EmbeddedKinesis, stop_gracefully

STREAM = "orders"
APPLICATION = "orders-etl"
SHARDS = 8
PATIENCE_SECONDS = 120.0


class Producer:
    """Puts numbered records, a few hundred a second, until it is stopped."""

    def __init__(self, kinesis: EmbeddedKinesis) -> None:
        self._client = boto3.client("kinesis", **kinesis.client_settings())
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        self.put = 0

    def _run(self) -> None:
        while not self._ending.wait(0.2):
            numbers = range(self.put, self.put + 50)
            self._client.put_records(
                StreamName=STREAM,
                Records=[
                    {"PartitionKey": str(number), "Data": str(number).encode()}
                    for number in numbers
                ],
            )
            self.put += len(numbers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Put records in a thread while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()


class Stage:
    """Spark, Kinesis and the folder of the example, and the rows of the queries."""

    def __init__(self, spark: SparkSession, kinesis: EmbeddedKinesis, folder: Path) -> None:
        self._spark = spark
        self._kinesis = kinesis
        self._folder = folder
        self._leases = LeaseTable(kinesis, APPLICATION)
        self._console = Console(width=100)
        self._began = time.monotonic()
        self.read: Counter[int] = Counter()

    def start(self, worker: str) -> StreamingQuery:
        """Start a query with a separate checkpoint; the queries share only the lease table."""
        settings = self._kinesis.client_settings()

        def collect(frame: DataFrame, batch: int) -> None:
            self.read.update(int(row["data"]) for row in frame.select("data").collect())

        return (
            self._spark.readStream.format("kinesis-ssp")
            .option("streamName", STREAM)
            .option("startingPosition", "trim_horizon")
            .option("slots", "2")
            .option("applicationName", APPLICATION)
            # Required with leases before PySpark 4.2.
            .option("trigger", "processingTime")
            .option("workerId", worker)
            # Leave these out to reach AWS with the machine's own configuration.
            .option("endpointUrl", settings["endpoint_url"])
            .option("dynamodbEndpointUrl", self._kinesis.dynamodb_endpoint_url)
            .option("region", settings["region_name"])
            .option("awsAccessKeyId", settings["aws_access_key_id"])
            .option("awsSecretAccessKey", settings["aws_secret_access_key"])
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self._folder / worker))
            .trigger(processingTime="1 second")
            .start()
        )

    def shown_until(self, what: str, so: Callable[[dict[str, LeaseFact]], bool]) -> None:
        """Wait until the lease table is like that, and show it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not so(rows := self._leases.rows()):
            if time.monotonic() > deadline:
                self._show(rows, f"not so after {PATIENCE_SECONDS:.0f} s: {what}")
                raise SystemExit(1)
            time.sleep(0.25)
        self._show(rows, what)

    def _show(self, rows: dict[str, LeaseFact], what: str) -> None:
        table = Table(title=f"{time.monotonic() - self._began:.0f} s: {what}", title_justify="left")
        for column in ("shard", "owner", "checkpoint"):
            table.add_column(column, no_wrap=True)
        for shard, lease in sorted(rows.items()):
            number = lease.checkpoint
            checkpoint = f"…{number[-12:]}" if number.isdecimal() else number
            table.add_row(shard, lease.owner or "nobody", checkpoint)
        self._console.print(table)


def held(rows: dict[str, LeaseFact], worker: str) -> int:
    """Return the number of unfinished shards that the worker owns."""
    return sum(lease.owner == worker and lease.checkpoint != "SHARD_END" for lease in rows.values())


def main() -> int:
    """0 when every record was read exactly once."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with (
        EmbeddedKinesis(dynamodb=True) as kinesis,
        tempfile.TemporaryDirectory() as folder,
    ):
        kinesis.state.create_stream(STREAM, shards=SHARDS)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.unix.domain.socket.dir", folder)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        producer = Producer(kinesis)
        stage = Stage(spark, kinesis, Path(folder))
        with producer.running():
            first = stage.start("first")
            stage.shown_until("the first query holds all", lambda rows: held(rows, "first") == 8)
            second = stage.start("second")
            stage.shown_until("each holds half", lambda rows: held(rows, "second") == 4)
            # The middle of the first shard's hash keys, which are the lowest eighth of 2 ** 128.
            boto3.client("kinesis", **kinesis.client_settings()).split_shard(
                StreamName=STREAM,
                ShardToSplit="shardId-000000000000",
                NewStartingHashKey=str(1 << 124),
            )
            stage.shown_until(
                "a shard was split, and its children found owners",
                lambda rows: held(rows, "first") + held(rows, "second") == 9,
            )
            stop_gracefully(second)
            stage.shown_until("the second one stopped", lambda rows: held(rows, "first") == 9)
        first.processAllAvailable()
        stop_gracefully(first)
        stage.shown_until("and the first one", lambda rows: held(rows, "first") == 0)
        spark.stop()
    missing = producer.put - len(stage.read)
    repeated = sum(count - 1 for count in stage.read.values())
    print(f"{producer.put} records put, {missing} missing, {repeated} read again")
    return 0 if missing == repeated == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
