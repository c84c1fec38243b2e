"""From a Kinesis Client Library (KCL) application to Spark, and ready for the way back:
`python -m examples.from_kcl_to_spark`.

Runs on this machine only. A KCL application has read a part of a stream and was stopped; its lease
table remains. A Spark query with the application's name continues from each lease's checkpoint, not
a record earlier or later. Stopped gracefully, it leaves a table from which the KCL would continue.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import boto3
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp import EmbeddedKinesis, stop_gracefully

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

APPLICATION = "orders-etl"
BEFORE, AFTER = 60, 40
DEADLINE_S = 120.0


def put(producer: Any, numbers: range) -> dict[str, str]:
    """Put orders; the last sequence number of every shard."""
    last: dict[str, str] = {}
    for number in numbers:
        answer = producer.put_record(
            StreamName="orders",
            PartitionKey=f"customer-{number % 11}",
            Data=json.dumps({"number": number}),
        )
        last[answer["ShardId"]] = answer["SequenceNumber"]
    return last


def leave_a_table(dynamodb: Any, shards: list[Any], done: dict[str, str]) -> None:
    """Create the table of a stopped KCL worker: a row for each shard, still with its name."""
    dynamodb.create_table(
        TableName=APPLICATION,
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for shard in shards:
        row = {
            "leaseKey": {"S": shard["ShardId"]},
            "leaseOwner": {"S": "kcl-worker-1"},
            "leaseCounter": {"N": "1234"},
            "checkpoint": {"S": done.get(shard["ShardId"], "TRIM_HORIZON")},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "startingHashKey": {"S": shard["HashKeyRange"]["StartingHashKey"]},
            "endingHashKey": {"S": shard["HashKeyRange"]["EndingHashKey"]},
        }
        dynamodb.put_item(TableName=APPLICATION, Item=row)


def show(dynamodb: Any, title: str) -> dict[str, str]:
    """Print the table; the checkpoint of every shard."""
    print(f"\n{title}")
    rows = dynamodb.scan(TableName=APPLICATION, ConsistentRead=True)["Items"]
    for row in sorted(rows, key=lambda row: str(row["leaseKey"]["S"])):
        owner = row.get("leaseOwner", {"S": "nobody"})["S"]
        print(f"  {row['leaseKey']['S']}  {owner:<14}  {row['checkpoint']['S']}")
    return {row["leaseKey"]["S"]: row["checkpoint"]["S"] for row in rows}


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # Its mode is 0700: anyone who can open the sockets can use Spark's Python workers.
        .config("spark.python.unix.domain.socket.dir", tempfile.mkdtemp(prefix="spark-"))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: SparkSession, service: EmbeddedKinesis, found: Counter[int]) -> StreamingQuery:
    """Start the query that continues, counting how often it reads each order."""

    def collect(frame: DataFrame, batch: int) -> None:
        found.update(json.loads(bytes(row.data))["number"] for row in frame.collect())

    return (
        spark.readStream.format("kinesis-ssp")
        .option("streamName", "orders")
        # The KCL application's name, which is its table's.
        .option("applicationName", APPLICATION)
        # Required with leases before PySpark 4.2.
        .option("trigger", "processingTime")
        .option("workerId", "spark-1")
        # Only for shards without a row, of which there are none here.
        .option("startingPosition", "trim_horizon")
        # A lease is free once its owner has been silent for so long; 10 seconds by default.
        .option("failoverTime", "3s")
        # Leave these out to reach AWS with the machine's own configuration.
        .option("endpointUrl", service.endpoint_url)
        .option("dynamodbEndpointUrl", service.dynamodb_endpoint_url)
        .option("region", "us-east-1")
        .option("awsAccessKeyId", "local")
        .option("awsSecretAccessKey", "local")
        .load()
        .writeStream.foreachBatch(collect)
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def main() -> int:
    with EmbeddedKinesis(dynamodb=True) as service:
        service.state.create_stream("orders", shards=3)
        settings = service.client_settings()
        producer = boto3.client("kinesis", **settings)
        settings["endpoint_url"] = service.dynamodb_endpoint_url
        dynamodb = boto3.client("dynamodb", **settings)

        done = put(producer, range(BEFORE))
        leave_a_table(dynamodb, producer.list_shards(StreamName="orders")["Shards"], done)
        last = done | put(producer, range(BEFORE, BEFORE + AFTER))
        show(dynamodb, f"The KCL application has read {BEFORE} orders and was stopped:")

        spark = session()
        found: Counter[int] = Counter()
        query = start(spark, service, found)
        deadline = time.monotonic() + DEADLINE_S
        while query.isActive and found.total() < AFTER and time.monotonic() < deadline:
            time.sleep(0.2)
        show(dynamodb, f"Spark has read {found.total()} orders:")
        given_back = stop_gracefully(query)
        left = show(dynamodb, "Spark was stopped; a KCL worker of this name would continue here:")
        failure = query.exception()
        spark.stop()

    if failure is not None:
        print(failure, file=sys.stderr)
    exact = found == Counter(range(BEFORE, BEFORE + AFTER))
    ready = given_back and left == last
    print(f"\n{found.total()} orders read, {AFTER} were left; ready for the way back: {ready}")
    return 0 if exact and ready else 1


if __name__ == "__main__":
    sys.exit(main())
