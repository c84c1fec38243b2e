"""Changes of a database, applied to a Delta table: inserts, updates and deletes."""

from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {
    "streamName": "plane-changes",
    "region": "eu-west-1",
    "startingPosition": "trim_horizon",
    # The driver merges: its memory holds the newest change of each key of a batch.
    "maxRecordsPerTrigger": "100000",
    # PySpark 4.0 and 4.1 allow a limit only with this, and not with availableNow or once.
    "trigger": "processingTime",
}
# One for each checkpoint: the table remembers the last batch that was merged under this name.
APPLICATION = "plane-changes-1"
CHANGE = "op string, tailnum string, model string, seats bigint"
NESTED = f"change struct<{CHANGE}>, malformed string"
NUMBERS = ("sequenceNumber", "subSequenceNumber")


def newest(records: DataFrame) -> DataFrame:
    """Return the newest change of each key, by its position in the stream."""
    text = F.col("data").cast("string")
    # Spark ignores text after the end of the value: no text ends both an object and an array.
    nested = F.concat(F.lit('{"change":'), text, F.lit("}"))
    parsed = F.from_json(nested, NESTED, {"columnNameOfCorruptRecord": "malformed"})
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    change = parsed["change"]
    valid = F.is_valid_utf8(text) & parsed["malformed"].isNull() & (values == 1)
    valid &= change["op"].isin("insert", "update", "delete") & change["tailnum"].isNotNull()
    # Any other record fails the query, so that no change is lost.
    fail = F.raise_error(F.format_string("not a change: %s, %s, %d", "shardId", *NUMBERS))
    changes = records.withColumn("change", F.when(valid, change).otherwise(fail))
    position = F.struct(F.length("sequenceNumber"), *NUMBERS)
    last = changes.groupBy("change.tailnum").agg(F.max_by("change", position).alias("last"))
    return last.select("last.*")


def start(spark: SparkSession, table: str, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """Merge each batch into the table, once."""

    def merge(records: DataFrame, batch: int) -> None:
        delta = DeltaTable(table)
        merged = delta.transaction_version(APPLICATION)
        if merged is not None and merged >= batch:
            return  # The query ended between this commit and Spark's, and runs the batch again.
        transaction = CommitProperties(app_transactions=[Transaction(APPLICATION, batch)])
        columns = {field.name: f"change.{field.name}" for field in delta.schema().fields}
        (
            delta.merge(
                newest(records).toArrow(),
                "plane.tailnum = change.tailnum",
                source_alias="change",
                target_alias="plane",
                commit_properties=transaction,
            )
            .when_matched_delete("change.op = 'delete'")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, "change.op <> 'delete'")
            .execute()
        )

    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = records.writeStream.foreachBatch(merge).trigger(**trigger)
    return writer.option("checkpointLocation", checkpoint).start()
