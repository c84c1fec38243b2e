"""A query from one topic into another, which can be held up between writing and committing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_ssp.common.spark.batch_plan import ADAPTIVE_STREAM
from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS

_PATIENCE_S: Final = 600
_COLUMNS: Final = "key binary, value binary"


def copying(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """`options`: `brokers`, `from`, `to`, `checkpoint`, and `gate`, a file without which no task
    but the first writes anything. `delivery`: the sink's guarantee; without it, rows are
    identified by headers. `format`: of source and sink, by default kafka-ssp. `harm`: a file with
    which the first attempt of each task but the first fails after half of its rows."""
    gate, harm = options["gate"], options.get("harm")
    kind = options.get("format", "kafka-ssp")
    if "delivery" in options:
        spark.conf.set(ADAPTIVE_STREAM, "false")

    def behind_the_gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        deadline = time.monotonic() + _PATIENCE_S
        while task.partitionId() > 0 and not Path(gate).exists():
            assert time.monotonic() < deadline, "the gate stayed closed"
            time.sleep(0.05)
        is_harmed = harm is not None and Path(harm).exists()
        for batch in batches:
            if is_harmed and task.partitionId() > 0 and task.attemptNumber() == 0:
                yield batch.slice(0, batch.num_rows // 2)
                raise RuntimeError("a task fails")
            yield batch

    source: Any = (
        spark.readStream.format(kind)
        .option("kafka.bootstrap.servers", options["brokers"])
        .option("subscribe", options["from"])
        .option("startingOffsets", "earliest")
        # A PySpark that does not pass limits runs a single batch, and accepts none.
        .options(**({"maxOffsetsPerTrigger": "60"} if PASSES_LIMITS else {}))
        .load()
    )
    writer: DataStreamWriter = (
        source.select("key", "value")
        .mapInArrow(behind_the_gate, _COLUMNS)
        .writeStream.format(kind)
        .option("kafka.bootstrap.servers", options["brokers"])
        .option("topic", options["to"])
        .options(**({} if kind == "kafka" else _guarantee(options.get("delivery"))))
        .option("checkpointLocation", options["checkpoint"])
        .trigger(availableNow=True)
    )
    return writer


def _guarantee(delivery: str | None) -> dict[str, str]:
    return {"includeRepeatHeaders": "true"} if delivery is None else {"deliveryGuarantee": delivery}
