"""Stops a query between two batches, so that its next start and the next worker of its shards have
as little as possible to repeat."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.common.spark.reader_status import Status, parsed, session_of, source_statuses
from spark_ssp.kinesis_source.leases.drain import (
    DRAIN_ACTION,
    DRAIN_TOKEN,
    DrainAction,
    DrainStatus,
)
from spark_ssp.kinesis_source.model.offset import is_offset

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 2.0
"""Spark plans a read for each poll, and the answer takes until the next trigger."""
_QUICK_POLL_S: Final = 0.05
"""While only the end of a batch is awaited."""


def stop_gracefully(
    query: StreamingQuery,
    *,
    spark: SparkSession | None = None,
    timeout: float = 300.0,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Let a query finish its batch and hand over its shards, then stop it.

    A plain stop ends the running batch, which the next start runs again: a sink that is not
    idempotent gets its rows twice. It also gives back the shards, but a batch that has just been
    finished may be known only to Spark, and the next worker reads it again. This function waits for
    the end of a batch, and first lets each of the query's Kinesis sources with leases write its
    committed checkpoints and give back all leases. That takes until the query's next trigger and a
    moment more, and one trigger longer for a query that has just started with a batch of the
    previous run. A query whose batches follow each other is stopped at the beginning of one, within
    a tenth of a second or so.

    For queries of any source. Works through Spark Connect too; `spark` is needed only without an
    active session. Returns True if the query was stopped after a batch, and all leases were given
    back. Returns False, with a warning, if that took longer than `timeout` seconds: then the query
    is stopped anyway, as by `query.stop()`. Also returns False if the query ended before or has
    failed: `query.exception()` then has the error, which is not raised here.
    """
    session = session_of(query, spark)
    deadline = monotonic() + timeout
    tokens: frozenset[str] = frozenset()
    reported = drained = stopped = False
    last: tuple[Any, ...] | None = None
    pause = _POLL_S
    try:
        while query.isActive and monotonic() < deadline:
            progress: Any = query.lastProgress
            if progress is not None and not drained:
                found = source_statuses(session, progress)
                reported = reported or _has_reported(progress, found)
                tokens |= _tokens(found)
                states = [_step(session, token, DrainAction.ASK) for token in sorted(tokens)]
                drained = reported and all(state == DrainStatus.DRAINED for state in states)
                if drained:
                    last, pause = _batch(progress), _QUICK_POLL_S
            if drained and (not query.status["isTriggerActive"] or _batch(progress) != last):
                stopped = True
                break
            sleep(max(0.0, min(pause, deadline - monotonic())))
            if tokens and not drained:
                pause = min(2 * pause, _LONGEST_POLL_S)
        stopped = stopped or (drained and not query.isActive)
        # Before it is stopped: Spark may turn that into an error.
        failed = not query.isActive and query.exception() is not None
    finally:
        with ExitStack() as ending:  # runs every callback even if one fails; the last one first
            for token in sorted(tokens, reverse=True):
                ending.callback(_step, session, token, DrainAction.CLEAR)
            ending.callback(query.stop)
    if failed:
        _log.warning("the query failed before it was stopped: see its exception()")
    elif not stopped:
        _log.warning("the query ended before its batch, or before it gave back its shards")
    return stopped and not failed


def _batch(progress: Any) -> tuple[Any, ...]:
    """Return the parts of a report that differ from one trigger to the next."""
    return progress["batchId"], progress["timestamp"]


def _has_reported(progress: Any, statuses: Sequence[Sequence[Status]]) -> bool:
    """Return whether all Kinesis readers have reported: after a batch that is replayed, which needs
    no planning, Spark has not called them yet. A source is recognized by its offset; its
    description is the same for all Python sources."""
    return all(
        found or not is_offset(parsed(source["endOffset"]))
        for source, found in zip(progress["sources"], statuses, strict=True)
    )


def _tokens(statuses: Iterable[Iterable[Status]]) -> frozenset[str]:
    """Return the drain tokens of the readers of a query's sources. Readers with leases and equal
    end offsets hold no shard: to drain all of them affects no other query."""
    entries = [
        entry
        for found in statuses
        for status in found
        for entry in status.values()
        if isinstance(entry, dict)
    ]
    return frozenset(entry[DRAIN_TOKEN] for entry in entries if DRAIN_TOKEN in entry)


def _step(session: SparkSession, token: str, step: DrainAction) -> str:
    read = session.read.format("kinesis-ssp").option(DRAIN_TOKEN, token)
    return str(read.option(DRAIN_ACTION, step).load().columns[0])
