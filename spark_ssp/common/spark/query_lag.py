"""The lag of a running query, from its progress or, before PySpark 4.2, from its readers."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.common.spark.reader_status import (
    STATUS_OF,
    Status,
    is_status,
    parsed,
    status_request,
)


def query_lag(query: StreamingQuery, *, spark: SparkSession | None = None) -> list[Status | None]:
    """Return the lag of each source of a query after the batch planned last, in the order of
    `query.lastProgress["sources"]`.

    The lag of a source of this package is a dict, the same that Spark 4.2 and newer show in the
    progress under `latestOffset`: for `kinesis-ssp` by stream, for `kafka-ssp` under `topics`. It
    is None for a source of another package, and before a source has planned its first batch. The
    list is empty before the query's first progress report.

    Works through Spark Connect too; `spark` is needed only without an active session. Before
    PySpark 4.2 each call plans a batch read on the driver.
    """
    progress: Any = query.lastProgress
    if progress is None:
        return []
    found = source_statuses(session_of(query, spark), progress)
    return [each[0] if each else None for each in found]


def session_of(query: StreamingQuery, spark: SparkSession | None) -> SparkSession:
    """Return `spark`, else the query's session, else the active one."""
    return spark or getattr(query, "_session", None) or SparkSession.active()


def source_statuses(session: SparkSession, progress: Any) -> list[list[Status]]:
    """Return the statuses of the readers of each source of a progress report: normally one, none if
    it has not reported or is of another package, several if readers have equal end offsets."""
    sources = progress["sources"]
    ends = [parsed(source["endOffset"]) for source in sources]
    latest = [parsed(source["latestOffset"]) for source in sources]
    known = [[one] if is_status(one) else [] for one in latest]
    open_ends = [end for end, status in zip(ends, known, strict=True) if not status and end]
    # From PySpark 4.2 on a source that has reported nothing has no latest offset.
    if not open_ends or not any(one == end for one, end in zip(latest, ends, strict=True) if end):
        return known
    read = session.read.format("kinesis-ssp").option(STATUS_OF, status_request(open_ends))
    found = iter(json.loads(read.load().columns[0]))
    return [status or (next(found) if end else []) for end, status in zip(ends, known, strict=True)]
