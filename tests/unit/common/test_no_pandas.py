"""No path of a source or a sink imports pandas, and neither does what numbers a table's changes. It
costs each new worker process a second, and each task a slower collection of garbage. pyarrow
imports it by itself, for instance to see what a list holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark.watched_imports import PLANNER, WORKER, check_no_pandas, watched

_REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "pandas"

sys.meta_path.insert(0, Refuse())
"""

_PATHS = {
    "modules": """
import spark_ssp.kafka_source.reading.native_consumer
import spark_ssp.kafka_source.sink.table_sink
import spark_ssp.kafka_source.source
import spark_ssp.kinesis_source.reading.shard_reader, spark_ssp.kinesis_source.source
import spark_ssp.planner, spark_ssp.planner.running
""",
    "a page of Kinesis": """
from spark_ssp.common.columns import Column
from spark_ssp.kinesis_source.reading.arrow_batches import (
    Chunk, all_columns, memory_bytes, to_batches
)
from spark_ssp.kinesis_source.client.messages import DECODERS, parse_page
from spark_ssp.grouping.identifiers import ShardId, ShardKey, SlotId, StreamName
answer = DECODERS["GetRecords"](
    b'{"Records":[{"Data":"YQ==","PartitionKey":"k","SequenceNumber":"1",'
    b'"ApproximateArrivalTimestamp":1.5}],"MillisBehindLatest":0}'
)
page = parse_page(answer, 0)
shard = ShardKey(stream=StreamName("orders"), shard=ShardId("a"))
chunk = Chunk(shard, page, memory_bytes(page))
columns = (*all_columns(include_repeat_keys=False), Column("data", is_text=True))
(batch,) = to_batches([chunk], SlotId(0), columns)
assert batch.num_rows == 1
""",
    "records of Kafka": """
from array import array
import numpy as np
import pyarrow as pa
from spark_ssp.common.columns import Column
from spark_ssp.kafka_source.reading.arrow_batches import (
    RecordColumns, all_columns, binary_column, headers_column, headers_from_counts, numeric_column,
    record_batch, string_column
)
from tests.support.kafka.reading import task
from tests.support.kafka.partitions import ssp
headers = headers_from_counts(np.array([1, 0]), string_column(["h"]), binary_column([b"v"]))
for column in (headers_column([[("h", b"v")], None]), headers):
    columns = RecordColumns(
        runs=[(ssp("orders", 3), 2)],
        keys=binary_column([b"a", None]),
        values=binary_column([b"1", b"2"]),
        offsets=numeric_column(pa.int64(), array("q", [5, 9])),
        times_ms=numeric_column(pa.int64(), np.array([1, 2])),
        time_types=numeric_column(pa.int32(), array("i", [0, 1])),
        headers=column,
    )
    requested = (*all_columns(include_headers=True, include_task=True), Column("key", is_text=True))
    assert record_batch(columns, requested, task(number=4)).num_rows == 2
""",
    "rows for Kafka": """
import pyarrow as pa
from spark_ssp.kafka_source.sink.columns import SinkColumns, rows_of
kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
value = pa.Array.from_buffers(
    pa.binary(), 1, [None, pa.py_buffer(bytes(4) + b"\\3\\0\\0\\0"), pa.py_buffer(b"abc")]
)
batch = pa.RecordBatch.from_arrays([value, pa.nulls(1, kind)], names=["value", "headers"])
rows = list(rows_of(batch, SinkColumns(value=0, headers=1), "orders"))
assert rows == [("orders", None, b"abc", None, ())]
""",
    "changes of a table": """
import pyarrow as pa
from spark_ssp.planner.running.table_join import numbered
(batch,) = numbered(iter([pa.RecordBatch.from_arrays([pa.nulls(2)], names=["key"])]))
assert batch["number"].to_pylist() == [0, 1]
""",
}


@pytest.mark.parametrize("path", _PATHS)
def test_pandas_is_not_imported(path: str) -> None:
    subprocess.run([sys.executable, "-c", _REFUSE + _PATHS[path]], check=True)


def test_the_test_would_see_it() -> None:
    code = _REFUSE + "import pyarrow as pa; pa.array(range(3))"
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "AssertionError" in ended.stderr


def test_watched_processes_tell_of_it(tmp_path: Path) -> None:
    """What tests of real queries look at."""
    environment = {**os.environ, **watched(tmp_path)}
    find = "import importlib.util; importlib.util.find_spec('pandas')"
    for kind, code in ((WORKER, "0"), (PLANNER, "0"), (WORKER, find)):
        subprocess.run([sys.executable, "-c", code, kind], env=environment, check=True)
        if code == find:
            with pytest.raises(AssertionError, match="pandas"):
                check_no_pandas(tmp_path)
        elif kind == PLANNER:
            check_no_pandas(tmp_path)
