"""JSON whose schema changes, with bad records set aside."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"streamName": "departures", "region": "eu-west-1", "startingPosition": "trim_horizon"}

COLUMNS = {
    "index": "bigint",
    "carrier": "string",
    # Version 1 of the producer writes 2, version 2 writes "2.0".
    "dep_delay": "double",
    # New in version 2; null for records without it.
    "tailnum": "string",
}
REQUIRED = ("index", "carrier")


def parse(records: DataFrame) -> DataFrame:
    """Add the columns, all other fields, and the reason to set a record aside, or null."""
    text = F.col("data").cast("string")
    # Spark ignores text after the end of the value: no text ends both an object and an array.
    nested = F.concat(F.lit('{"record":'), text, F.lit("}"))
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    record = F.from_json(nested, "map<string,map<string,string>>")["record"]
    fields = F.when(values == 1, record)
    columns = {name: fields[name].try_cast(kind) for name, kind in COLUMNS.items()}
    reason = F.coalesce(
        F.when(~F.is_valid_utf8(text), "not UTF-8"),
        F.when(fields.isNull(), "not one JSON object"),
        *(F.when(fields[name].isNull(), f"{name} is missing") for name in REQUIRED),
        *(
            F.when(fields[name].isNotNull() & value.isNull(), f"{name}: not {COLUMNS[name]}")
            for name, value in columns.items()
        ),
    )
    others = F.map_filter(fields, lambda name, _: ~name.isin(*COLUMNS))
    return records.withColumns({**columns, "others": others, "reason": reason})


def start(spark: SparkSession, folder: str, **trigger: Any) -> StreamingQuery:
    """Write good records to `folder`/departures and bad ones to `folder`/rejected."""

    def write(records: DataFrame, batch: int) -> None:
        rows = parse(records).persist()
        good = rows.where("reason IS NULL").select(*COLUMNS, "others", "sequenceNumber")
        bad = rows.where("reason IS NOT NULL").select(*records.columns, "reason")
        # A batch that is run again replaces its own files.
        try:
            good.write.mode("overwrite").parquet(f"{folder}/departures/batch={batch}")
            bad.write.mode("overwrite").parquet(f"{folder}/rejected/batch={batch}")
        finally:
            rows.unpersist()

    records = spark.readStream.format("kinesis-ssp").options(**SOURCE).load()
    writer = records.writeStream.foreachBatch(write).trigger(**trigger)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()
