"""The rows of the source, as a Spark schema; `arrow_batches` builds each column for Arrow, and
PySpark compares the Arrow schema with this one field by field. The order is part of the contract.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_COLUMNS: Final = (
    StructField("partitionKey", StringType()),
    StructField("data", BinaryType()),
    StructField("stream", StringType()),
    StructField("shardId", StringType()),
    StructField("sequenceNumber", StringType()),
    StructField("subSequenceNumber", LongType()),
    StructField("approximateArrivalTimestamp", TimestampType()),
    StructField("ssp", IntegerType()),
)
_REPEAT_KEY: Final = StructField("repeatKey", StringType())


def spark_schema(*, include_repeat_keys: bool) -> StructType:
    """Return the schema for the option `includeRepeatKeys`.

    `partitionKey` is null if the producer gave none, which the record distribution strategy AUTO
    allows; `subSequenceNumber` counts the user records within an aggregated record and is 0 for any
    other; `approximateArrivalTimestamp` is the service's, in milliseconds; `ssp` is the slot that
    read it. `repeatKey` is equal in rows that the sink wrote twice, and never null.
    """
    return StructType([*_COLUMNS, *((_REPEAT_KEY,) if include_repeat_keys else ())])
