"""Items of a DynamoDB table, kept current in a Delta table by records that repeat and overtake."""

from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {
    "streamName": "plane-changes",
    "region": "eu-west-1",
    "startingPosition": "trim_horizon",
    # The driver merges: its memory holds the newest change of each item of a batch.
    "maxRecordsPerTrigger": "100000",
    # PySpark 4.0 and 4.1 allow a limit only with this, and not with availableNow or once.
    "trigger": "processingTime",
}
# The stream may carry the changes of other tables too.
TABLE = "planes"
# DynamoDB names the type of each value, and writes numbers as text.
KEYS = "tailnum struct<S: string>"
IMAGE = "model struct<S: string, NULL: boolean>, seats struct<N: string, NULL: boolean>"
TIME = "ApproximateCreationDateTime bigint, ApproximateCreationDateTimePrecision string"
CHANGE = f"dynamodb struct<{TIME}, Keys struct<{KEYS}>, NewImage struct<{IMAGE}>>"
RECORD = f"change struct<tableName string, eventName string, {CHANGE}>, malformed string"
NUMBERS = ("sequenceNumber", "subSequenceNumber")


def newest(records: DataFrame) -> DataFrame:
    """Return the newest state of each item, by the time of its change."""
    text = F.col("data").cast("string")
    # Spark ignores text after the end of the value: no text ends both an object and an array.
    nested = F.concat(F.lit('{"change":'), text, F.lit("}"))
    parsed = F.from_json(nested, RECORD, {"columnNameOfCorruptRecord": "malformed"})
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    change = parsed["change"]
    event, of_item = change["eventName"], change["dynamodb"]
    key, image = of_item["Keys"]["tailnum"]["S"], of_item["NewImage"]
    model, seats = image["model"]["S"], image["seats"]["N"].try_cast("bigint")
    precision = F.coalesce(of_item["ApproximateCreationDateTimePrecision"], F.lit("MILLISECOND"))
    time = of_item["ApproximateCreationDateTime"]
    micros = time * F.when(precision == "MICROSECOND", 1).when(precision == "MILLISECOND", 1000)
    removed = event == "REMOVE"
    valid = F.is_valid_utf8(text) & parsed["malformed"].isNull() & (values == 1)
    valid &= key.isNotNull() & micros.isNotNull()
    # Of its type, null or absent: a value of another type would be read as null.
    for name, value in (("model", model), ("seats", seats)):
        valid &= image[name].isNull() | image[name]["NULL"].isNotNull() | value.isNotNull()
    valid &= removed | (event.isin("INSERT", "MODIFY") & image.isNotNull())
    # Any other record fails the query, so that no change is lost.
    fail = F.raise_error(F.format_string("not a change: %s, %s, %d", "shardId", *NUMBERS))
    item = F.struct(
        key.alias("tailnum"),
        model.alias("model"),
        seats.alias("seats"),
        F.timestamp_micros(micros).alias("changed"),
        removed.alias("removed"),
    )
    of_table = F.coalesce(change["tableName"] == TABLE, F.lit(True))
    items = records.where(of_table).withColumn("item", F.when(valid, item).otherwise(fail))
    order = F.struct("item.changed", F.length("sequenceNumber"), *NUMBERS)
    last = items.groupBy("item.tailnum").agg(F.max_by("item", order).alias("last"))
    return last.select("last.*")


def start(spark: SparkSession, table: str, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """Merge each batch into the table, whose columns are those of `newest`."""

    def merge(records: DataFrame, batch: int) -> None:
        delta = DeltaTable(table)
        columns = {field.name: f"change.{field.name}" for field in delta.schema().fields}
        (
            delta.merge(
                newest(records).toArrow(),
                "item.tailnum = change.tailnum",
                source_alias="change",
                target_alias="item",
            )
            # Also an item that is removed: its time makes older changes recognizable.
            .when_matched_update(columns, "change.changed >= item.changed")
            .when_not_matched_insert(columns)
            .execute()
        )

    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = records.writeStream.foreachBatch(merge).trigger(**trigger)
    return writer.option("checkpointLocation", checkpoint).start()
