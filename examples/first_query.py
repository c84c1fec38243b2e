"""A first query, against a Kinesis on this machine: `python -m examples.first_query`.

Puts a few orders into a stream, splits a shard, puts a few more, and reads all of them: in order
for each customer, on two tasks, before and after the split.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import boto3
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ssp import EmbeddedKinesis

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

with EmbeddedKinesis() as kinesis:
    kinesis.state.create_stream("orders", shards=2)
    producer = boto3.client("kinesis", **kinesis.client_settings())

    def put(numbers: range) -> None:
        for number in numbers:
            order = {"customer": f"customer-{number % 5}", "number": number}
            producer.put_record(
                StreamName="orders", PartitionKey=str(order["customer"]), Data=json.dumps(order)
            )

    put(range(50))
    # The middle of the first shard's hash keys, which are the lower half of 2 ** 128.
    producer.split_shard(
        StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(1 << 126)
    )
    put(range(50, 100))

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
    query = (
        spark.readStream.format("kinesis-ssp")
        .option("streamName", "orders")
        .option("startingPosition", "trim_horizon")
        .option("slots", "2")
        # Leave these out to reach AWS with the machine's own configuration.
        .option("endpointUrl", kinesis.endpoint_url)
        .option("region", "us-east-1")
        .option("awsAccessKeyId", "local")
        .option("awsSecretAccessKey", "local")
        .load()
        .withColumn("number", F.get_json_object(F.col("data").cast("string"), "$.number"))
        .writeStream.format("memory")
        .queryName("orders")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.table("orders").groupBy("ssp", "shardId", "partitionKey").agg(
        F.collect_list("number").alias("numbers in order")
    ).orderBy("partitionKey", "shardId").show(truncate=False)
    count = spark.table("orders").count()
    spark.stop()

print(f"{count} orders read, 100 put")
sys.exit(0 if count == 100 else 1)
