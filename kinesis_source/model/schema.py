"""The rows of the source, as a Spark schema; `ARROW_SCHEMA` is the same for Arrow.

The order of the columns is part of the contract: PySpark compares the Arrow schema field by field.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

SPARK_SCHEMA = StructType(
    [
        StructField("partitionKey", StringType()),
        StructField("data", BinaryType()),
        StructField("stream", StringType()),
        StructField("shardId", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("subSequenceNumber", LongType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
        StructField("ssp", IntegerType()),
    ]
)
"""`partitionKey` is null if the producer gave none, which the record distribution strategy AUTO
allows; `subSequenceNumber` counts the user records within an aggregated record and is 0 for any
other; `approximateArrivalTimestamp` is the service's, in milliseconds; `ssp` is the slot that read
it."""
