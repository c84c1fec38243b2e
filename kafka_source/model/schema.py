"""The rows of the source, as Spark sees them; `arrow.arrow_schema` is the same in Arrow's words.

The columns are those of Spark's own Kafka source in its order, all nullable as there. The order is
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
    """The schema that the options `includeHeaders` and `includeTask` ask for.

    `timestamp` has milliseconds. `timestampType` is 0 for the time at which the record was made, 1
    for the time at which the broker took it, -1 for none. `headers` is null where there are none.
    `task` is the name of the task that read the row; `ssp` is `ranges.TaskRange.number`.
    """
    return StructType(
        [*_RECORD, *((_HEADERS,) if include_headers else ()), *(_TASK if include_task else ())]
    )
