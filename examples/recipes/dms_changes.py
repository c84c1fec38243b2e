"""Change records of AWS DMS as rows, each with its operation; control records are left out."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "dms", "region": "eu-west-1", "startingPosition": "trim_horizon"}

# The stream may carry the changes of other tables too.
SCHEMA, TABLE = "public", "planes"
COLUMNS = {"tailnum": "string", "model": "string", "seats": "bigint"}
REQUIRED = ("tailnum",)
OPERATIONS = ("load", "insert", "update", "delete")
# Null unless the task has IncludeTransactionDetails.
TRANSACTION = {"transaction": "transaction-id", "committed": "commit-timestamp"}


def parse(records: DataFrame) -> DataFrame:
    """Add the columns of a change, and the reason to set a record aside, or null. Leave out control
    records and other tables."""
    text = F.col("data").cast("string")
    # Spark ignores text after the end of the value: no text ends both an object and an array.
    nested = F.concat(F.lit('{"record":'), text, F.lit("}"))
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    schema = "record struct<data map<string,string>, metadata map<string,string>>"
    record = F.when(values == 1, F.from_json(nested, schema)["record"])
    fields, metadata = record["data"], record["metadata"]
    record_type, operation = metadata["record-type"], metadata["operation"]
    columns = {name: fields[name].try_cast(kind) for name, kind in COLUMNS.items()}
    reason = F.coalesce(
        F.when(~F.is_valid_utf8(text), "not UTF-8"),
        F.when(metadata.isNull(), "not one JSON object with metadata"),
        F.when(F.coalesce(record_type != "data", F.lit(True)), "not a data record"),
        F.when(~F.coalesce(operation.isin(*OPERATIONS), F.lit(False)), "unknown operation"),
        F.when(fields.isNull(), "no data"),
        *(F.when(fields[name].isNull(), f"{name} is missing") for name in REQUIRED),
        *(
            F.when(fields[name].isNotNull() & value.isNull(), f"{name}: not {COLUMNS[name]}")
            for name, value in columns.items()
        ),
    )
    others = (metadata["schema-name"] != SCHEMA) | (metadata["table-name"] != TABLE)
    left_out = F.coalesce((record_type == "control") | others, F.lit(False))
    details = {name: metadata[field] for name, field in TRANSACTION.items()}
    added = {"operation": operation, **columns, **details, "reason": reason}
    return records.where(~left_out).withColumns(added)


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Write changes to `folder`/changes and bad records to `folder`/rejected."""

    def write(records: DataFrame, batch: int) -> None:
        rows = parse(records).persist()
        position = ("shardId", "sequenceNumber", "subSequenceNumber")
        good = rows.where("reason IS NULL").select("operation", *COLUMNS, *TRANSACTION, *position)
        bad = rows.where("reason IS NOT NULL").select(*records.columns, "reason")
        # A batch that is run again replaces its own files.
        try:
            good.write.mode("overwrite").parquet(f"{folder}/changes/batch={batch}")
            bad.write.mode("overwrite").parquet(f"{folder}/rejected/batch={batch}")
        finally:
            rows.unpersist()

    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = records.writeStream.foreachBatch(write).trigger(**trigger)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()
