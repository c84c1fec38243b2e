"""Logs a query's start and the batches that change its shards: one line each. A batch that changes
nothing logs nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from spark_ssp.common.logs import abbreviate, count_of, versions
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.ranges import MAX_THREADS
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    ShardEnd,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)

_log = logging.getLogger(__name__)


class BatchLog:
    """The log of one run of a query. `position` and `max_bytes_in_flight` are options, `threads`
    those of a task at most, and `worker` is the worker id of a query with leases."""

    def __init__(
        self,
        position: StartingPosition,
        max_bytes_in_flight: int,
        worker: str | None = None,
        *,
        threads: int = MAX_THREADS,
    ) -> None:
        self._position = position
        self._max_bytes_in_flight = max_bytes_in_flight
        self._threads = threads
        self._worker = worker
        self._has_started = False
        self._noted: tuple[Offset, Offset, Mapping[ShardKey, str]] | None = None

    def note(self, start: Offset, end: Offset, dropped: Mapping[ShardKey, str]) -> None:
        """Keep a search for the end of a batch; only the last search of a trigger is written.
        `dropped` has the reasons for which shards left other than by being read to their end."""
        self._noted = (start, end, dropped)

    def write(self) -> None:
        """Log the last search, if it is the first of the run or changes shards or slots."""
        if self._noted is None:
            return
        noted, self._noted = self._noted, None
        if not self._has_started:
            self._has_started = True
            tasks = describe_tasks(noted[1], self._max_bytes_in_flight, self._threads)
            _log.info("%s", describe_start(*noted, self._position, tasks, self._worker))
        elif changes := describe_changes(*noted):
            _log.info("%s", changes)


def describe_start(
    start: Offset,
    end: Offset,
    dropped: Mapping[ShardKey, str],
    position: StartingPosition,
    tasks: str,
    worker: str | None = None,
) -> str:
    """Return the line for the start of a run. `tasks`: the result of `describe_tasks`."""
    shards = [*end.states, *end.waiting]
    streams = describe_streams(end.streams, shards)
    begin = "its checkpoint" if start.streams else describe_position(position)
    parts = [f"query starts from {begin}: {streams}", count_of(end.slots, "slot")]
    if tasks:
        parts.append(tasks)
    if start.streams:
        if changes := describe_changes(start, end, dropped):
            parts.append(changes)
    elif end.waiting:
        parts.append(f"{len(end.waiting)} shards wait for their parents")
    if worker is not None:
        parts.append(f"worker {worker}")
    return "; ".join([*parts, versions()])


def describe_tasks(end: Offset, max_bytes_in_flight: int, threads: int) -> str:
    """Return the most that a task has to read, and may use for it; empty without shards to read."""
    counts = Counter(
        end.assignment[key]
        for key, state in end.states.items()
        if not isinstance(state.position, ShardEnd)
    )
    if not counts:
        return ""
    shards = max(counts.values())
    used = count_of(min(shards, threads), "thread")
    mebibytes = f"{round(max_bytes_in_flight / 2**20, 2):,g}"
    return f"a task has up to {count_of(shards, 'shard')}, {used} and {mebibytes} MiB"


def describe_streams(names: Iterable[StreamName], shards: Collection[ShardKey]) -> str:
    """Return streams with their number of shards: with leases, those of the query's worker."""
    counts = Counter(key.stream for key in shards)
    shards_of = {name: count_of(counts[name], "shard") for name in sorted(names)}
    return abbreviate(
        [
            f"stream {name} with {text if counts[name] else 'no shards yet'}"
            for name, text in shards_of.items()
        ]
    )


def describe_changes(start: Offset, end: Offset, dropped: Mapping[ShardKey, str]) -> str:
    """Return the shards and slots in which a batch's end differs from its start; empty if none."""
    parts = []
    added = sorted(end.states.keys() - start.states.keys())
    if added:
        names = [f"{key} (slot {end.assignment[key]})" for key in added]
        parts.append(f"now read: {abbreviate(names)}")
    waiting = sorted(map(str, end.waiting.keys() - start.waiting.keys()))
    if waiting:
        parts.append(f"waiting for their parents: {abbreviate(waiting)}")
    left = sorted(start.states.keys() - end.states.keys())
    if left:
        removed = [f"{key} ({dropped[key]})" if key in dropped else str(key) for key in left]
        parts.append(f"{'no longer read' if dropped else 'finished'}: {abbreviate(removed)}")
    if start.slots != end.slots:
        parts.append(f"slots: {end.slots} instead of {start.slots}")
    return "; ".join(parts)


def describe_position(position: StartingPosition) -> str:
    """Return an option startingPosition or endingPosition."""
    default = "positions by shard" if position.default is None else _describe(position.default)
    return f"{default}, or positions by shard" if position.by_shard else default


def _describe(point: StartPoint) -> str:
    match point:
        case TrimHorizon():
            return "TRIM_HORIZON"
        case AtTimestamp(millis=millis):
            return f"AT_TIMESTAMP {time_text(millis)}"
        case AfterRecord():
            return "a record"
        case _:
            return "LATEST"


def warn_of_next_batches(ended: Collection[ShardKey]) -> None:
    """Warn if records are left for the next batches, where this one may be the only one: those of
    the shards that follow the shards `ended`."""
    if ended:
        _log.warning(
            "this batch reads the rest of %d shards that were split or merged (%s); shards that "
            "follow them are read by the next batches. This PySpark runs a query with the "
            "trigger availableNow or once as a single batch: start such a query again until it "
            "logs no such warning. For other queries, the option trigger=processingTime turns the "
            "warning off",
            len(ended),
            abbreviate(sorted(map(str, ended))),
        )
