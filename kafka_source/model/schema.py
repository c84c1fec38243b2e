"""The schema of the source's rows in Spark; `arrow_batches.arrow_schema` is its Arrow counterpart.

The columns are those of Spark's own Kafka source, in its order, and nullable as there. The order is
part of the contract: PySpark compares the Arrow schema field by field.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_RECORD: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
_TASK: Final = (StructField("task", StringType()), StructField("ssp", IntegerType()))


def spark_schema(*, include_headers: bool, include_task: bool) -> StructType:
    """Return the schema for the options `includeHeaders` and `includeTask`.

    `timestamp` has milliseconds. `timestampType` is 0 for the time at which the record was created,
    1 for the time at which the broker appended it, and -1 if there is no time. `headers` is null if
    there are none. `task` is the name of the task that read the row; `ssp` is
    `ranges.TaskRange.number`.
    """
    return StructType(
        [*_RECORD, *((_HEADERS,) if include_headers else ()), *(_TASK if include_task else ())]
    )
