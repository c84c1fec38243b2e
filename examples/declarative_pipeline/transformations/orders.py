"""A streaming table of all orders from Kinesis, and the large ones on a Kafka topic."""

from __future__ import annotations

import pyspark.pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every order, once."""
    return (
        spark.readStream.format("kinesis-ssp")
        .option("streamName", spark.conf.get("orders.stream"))
        .option("region", spark.conf.get("orders.region"))
        .option("startingPosition", "trim_horizon")
        .option("slots", "2")
        .load()
        .select(
            F.col("partitionKey").alias("customer"),
            F.get_json_object(F.col("data").cast("string"), "$.number").cast("int").alias("number"),
        )
    )


dp.create_sink(
    "large_orders",
    "kafka-ssp",
    {
        "kafka.bootstrap.servers": str(spark.conf.get("orders.brokers")),
        "topic": str(spark.conf.get("orders.topic")),
    },
)


@dp.append_flow(target="large_orders")
def large_orders_to_kafka() -> DataFrame:
    """Orders from number 50 on, as they arrive in the table."""
    return (
        spark.readStream.table("orders")
        .where("number >= 50")
        .select(
            F.col("customer").cast("binary").alias("key"),
            F.to_json(F.struct("customer", "number")).cast("binary").alias("value"),
        )
    )
