"""The position at which a new query continues after the rows of a table, for each shard."""

import json

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def start_after(table: DataFrame) -> str:
    """Return a value for `startingPosition`: after the last row of each shard, and shards without
    rows from their beginning.

    The table has the columns `shardId` and `sequenceNumber`. Without `subSequenceNumber`, or where
    it is null, it also has exactly one row for each user record: with fewer or more, the position
    in an aggregated record would be wrong. Leave out rows that are older than the stream's
    retention: a shard that has expired cannot be named.
    """
    # Sequence numbers are numbers, with more digits than Spark's types have.
    order = F.struct(F.length("sequenceNumber"), "sequenceNumber")
    # Of an aggregated record, the table has a row for each user record.
    index = F.count("*") - 1
    if "subsequencenumber" in map(str.lower, table.columns):
        index = F.coalesce(F.max("subSequenceNumber"), index)
    rows = table.groupBy("shardId", "sequenceNumber").agg(index.alias("index_of_last"))
    last = rows.groupBy("shardId").agg(F.max_by(F.struct("*"), order).alias("last"))
    positions = {
        row.shardId: {
            "after_sequence_number": row.sequenceNumber,
            "sub_sequence_number": row.index_of_last,
        }
        for row in last.select("last.*").collect()
    }
    return json.dumps({**positions, "default": "trim_horizon"})
