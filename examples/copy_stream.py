"""Kinesis written: `python -m examples.copy_stream`.

The departures of New York's airports in January 2013 are written to a stream by a batch query. A
streaming query copies them to a second stream while that one is resharded. In the end a batch read
of the copy must find every departure once, those of each plane in order.

Needed: pip install '.[demo]' in a checkout.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from pyspark.sql import Row, SparkSession

from examples.flights.data import departures, partition_keys
from spark_ssp import EmbeddedKinesis

DEPARTURES: Final = 27_004
"""All of January."""
PATIENCE_SECONDS: Final = 180.0


def verdict(rows: Iterable[Row], put: list[tuple[str, int]]) -> list[str]:
    """Return the broken promises, as sentences."""
    expected: dict[str, list[int]] = defaultdict(list)
    for plane, index in put:
        expected[plane].append(index)
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row["plane"]].append(row["departure"])
    problems = []
    missing = {index for _, index in put} - {index for of in found.values() for index in of}
    if missing:
        problems.append(f"{len(missing)} departures are missing")
    if disordered := [plane for plane in expected if found[plane] != expected[plane]]:
        problems.append(f"{len(disordered)} planes have departures twice, or in another order")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.copy_stream")
    parser.add_argument("--departures", type=int, default=DEPARTURES, help=f"({DEPARTURES:,})")
    table = departures(parser.parse_args().departures)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    put = list(zip(partition_keys(table).to_pylist(), table["index"].to_pylist(), strict=True))
    with tempfile.TemporaryDirectory(prefix="copy-stream-") as folder, EmbeddedKinesis() as kinesis:
        # The sink keeps to the 1,000 records per second of each shard.
        for stream in ("departures", "copy"):
            kinesis.state.create_stream(stream, shards=4)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.unix.domain.socket.dir", folder)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        # Leave these out to reach AWS with the machine's own configuration.
        endpoint = {
            "endpointUrl": kinesis.endpoint_url,
            "region": "us-east-1",
            "awsAccessKeyId": "local",
            "awsSecretAccessKey": "local",
        }

        (
            spark.createDataFrame(put, "partitionKey string, data long")
            .selectExpr("partitionKey", "CAST(data AS STRING) AS data")
            .coalesce(1)  # the order is kept within a task
            .write.format("kinesis-ssp").mode("append").options(**endpoint)
            .option("streamName", "departures")
            .option("ordering", "key")
            .save()
        )  # fmt: skip
        print(f"{len(kinesis.state.records('departures')):,} departures were written")

        query = (
            spark.readStream.format("kinesis-ssp").options(**endpoint)
            .option("streamName", "departures")
            .option("startingPosition", "trim_horizon")
            .load()
            .select("partitionKey", "data")
            .writeStream.format("kinesis-ssp").options(**endpoint)
            .option("streamName", "copy")
            .option("ordering", "key")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_SECONDS
        shards = iter((8, 16, 6))
        while (copied := len(kinesis.state.records("copy"))) < len(put):
            if (error := query.exception()) is not None:
                raise error
            if time.monotonic() > deadline:
                raise TimeoutError(f"{copied:,} of {len(put):,} departures were copied")
            if copied and (target := next(shards, None)) is not None:
                kinesis.state.scale("copy", target)
                print(f"{copied:,} copied; the copy is resharded to {target} shards")
            time.sleep(0.5)
        query.stop()

        copy = (
            spark.read.format("kinesis-ssp").options(**endpoint)
            .option("streamName", "copy")
            .option("slots", "1")  # one task reads a plane's departures in order
            .load()
            .selectExpr("partitionKey AS plane", "CAST(CAST(data AS STRING) AS LONG) AS departure")
            .collect()
        )  # fmt: skip
        spark.stop()
    problems = verdict(copy, put)
    for problem in problems:
        print(f"WRONG: {problem}")
    if not problems:
        planes = len({plane for plane, _ in put})
        print(f"{len(copy):,} departures of {planes:,} planes: each once, each plane's in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
