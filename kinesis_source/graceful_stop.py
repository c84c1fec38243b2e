"""Stopping a query that shares its shards, so that the next worker repeats nothing."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_source.leases.drain_command import DRAIN_ACTION, DRAIN_TOKEN, DrainAction, DrainStatus
from kinesis_source.model.offset import is_offset

_log = logging.getLogger(f"spark_ssp.{__name__}")

_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 2.0
"""Each time one asks, Spark plans a read, and the answer takes until the next trigger."""


def stop_gracefully(
    query: StreamingQuery,
    *,
    spark: SparkSession | None = None,
    timeout: float = 300.0,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Let a query finish its batch and hand over its shards, then stop it.

    Stopped plainly, a query gives its shards back as well, but a batch that has just been finished
    may be known to Spark alone, and the next worker reads it again. This one first has each of the
    query's Kinesis sources with leases write what is committed and give everything back; sources
    without leases need nothing. It takes until the query's next trigger and a moment more, and one
    trigger longer for a query that has just begun with a batch of the run before.

    Works through Spark Connect too; `spark` is needed only where no session is active. True when
    all was given back. False, with a warning, when that took longer than `timeout` seconds: then it
    is stopped all the same, as `query.stop()` does. False as well when the query ended meanwhile or
    has failed: `query.exception()` then has the error, which is not raised here.
    """
    session = spark or getattr(query, "_session", None) or SparkSession.active()
    deadline = monotonic() + timeout
    tokens: frozenset[str] = frozenset()
    reported = drained = False
    pause = _POLL_S
    try:
        while query.isActive and monotonic() < deadline:
            progress: Any = query.lastProgress
            if progress is not None:
                reported = reported or _tells(progress)
                tokens |= _tokens(progress)
                standings = [_step(session, token, DrainAction.ASK) for token in sorted(tokens)]
                drained = reported and all(
                    standing == DrainStatus.DRAINED for standing in standings
                )
                if drained:
                    break
            sleep(max(0.0, min(pause, deadline - monotonic())))
            if tokens:
                pause = min(2 * pause, _LONGEST_POLL_S)
        # Before it is stopped: Spark may make an error of that.
        failed = not query.isActive and query.exception() is not None
    finally:
        with ExitStack() as ending:  # runs all of it, whatever fails; the last one first
            for token in sorted(tokens, reverse=True):
                ending.callback(_step, session, token, DrainAction.CLEAR)
            ending.callback(query.stop)
    if failed:
        _log.warning("the query failed while it was to give its shards back: see its exception()")
    elif not drained:
        _log.warning("the query ended before it had given its shards back")
    return drained and not failed


def _tells(progress: Any) -> bool:
    """Whether all readers of ours have told of themselves: after a batch that is replayed, which
    needs no planning, Spark has asked none of them yet. A source is known by its offset; its
    description is the same for all that are written in Python."""
    return not any(
        is_offset(_parsed(source["endOffset"])) and not _parsed(source["latestOffset"])
        for source in progress["sources"]
    )


def _tokens(progress: Any) -> frozenset[str]:
    """What the readers of a query's sources are asked by, as `reportLatestOffset` gives it."""
    found: set[str] = set()
    for source in progress["sources"]:
        streams = _parsed(source["latestOffset"])
        if isinstance(streams, dict):
            entries = [entry for entry in streams.values() if isinstance(entry, dict)]
            found |= {entry[DRAIN_TOKEN] for entry in entries if DRAIN_TOKEN in entry}
    return frozenset(found)


def _parsed(offset: Any) -> Any:
    """An offset as a progress report has it: JSON, as text or read already."""
    return json.loads(offset) if isinstance(offset, str) else offset


def _step(session: SparkSession, token: str, step: DrainAction) -> str:
    reading = session.read.format("kinesis-ssp").option(DRAIN_TOKEN, token)
    return str(reading.option(DRAIN_ACTION, step).load().columns[0])
