"""A program whose queries fail, with what its user sees on standard error, in sections. Arguments:
`local[2]`, or `connect` for Spark Connect with a server of its own; the folder of the checkpoint.
Each section begins with a line `--- name`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from pyspark.sql import SparkSession

_UNREACHABLE = {
    "streamName": "nowhere",
    "region": "us-east-1",
    "endpointUrl": "http://127.0.0.1:1",
    "retry.maxAttempts": "1",
    "awsAccessKeyId": "local",
    "awsSecretAccessKey": "local",
}


def _session(kind: str) -> SparkSession:
    builder = SparkSession.builder
    builder = builder.remote("local") if kind == "connect" else builder.master(kind)
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _section(name: str, run: Callable[[], None]) -> None:
    """Show an error as Python shows the one that ends a program."""
    print(f"--- {name}", file=sys.stderr, flush=True)
    try:
        run()
    except SystemExit as error:
        print(error, file=sys.stderr, flush=True)
    except Exception:  # noqa: BLE001
        traceback.print_exc()


def main() -> None:
    kind, checkpoint = sys.argv[1:]
    spark = _session(kind)
    if kind == "connect":
        spark.conf.set("spark.sql.connect.serverStacktrace.enabled", "false")
        # Its default, unless SPARK_TESTING is set.
        spark.conf.set("spark.sql.pyspark.jvmStacktrace.enabled", "false")

    def run(**more: str) -> None:
        frame = spark.readStream.format("kinesis-ssp").options(**_UNREACHABLE, **more).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.start().awaitTermination()

    def run_as_in_the_guide() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001
            raise SystemExit(str(error).split("\n=== Streaming Query ===")[0]) from None

    _section("option", lambda: run(slots="many"))
    _section("query", run)
    _section("query, as in the guide", run_as_in_the_guide)
    print("---", file=sys.stderr, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
