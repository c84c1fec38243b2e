"""The queries of a session as its driver observes them, and their health, for metrics and page.

Two things are observed: the report of each trigger (`QuerySnapshot`), and the phase that a query is
in (`Phase`). A batch that hangs sends no report, so a delay is computed for the time at which it is
asked for: a query that committed all records up to a time ten minutes ago is ten minutes behind,
whatever its last report said. That is an upper bound of the age of the oldest record that is in no
committed batch: whether one arrived in these minutes is not known.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final

from spark_ssp.common.logs import count_of
from spark_ssp.common.times import duration_text
from spark_ssp.operations.health import (
    CLOCK_TOLERANCE_MS,
    Behind,
    Finding,
    Health,
    Limits,
    Pace,
    Part,
    Phase,
    Process,
    Query,
    Reader,
    Verdict,
    age_ms,
    assess,
    unknown,
)
from spark_ssp.operations.snapshot import (
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)

MAX_ENDED: Final = 50
"""Beyond it, the queries that ended first are forgotten."""
PHASE_VALID_MS: Final = 30_000
"""The time for which an observed phase counts as the present one."""
UNREAD_AFTER_MS: Final = 60_000
"""Leases that are free or stale for longer have no reader. After a reshard or a handoff they are
free for moments, and those of a worker that has died are stale until another takes them."""
_HISTORY_PERIOD_MS: Final = 10_000
_HISTORY_POINTS: Final = 360
_PACE_POINTS: Final = 30
"""The points of the history by which the pace is measured: at least five minutes."""

PartKey = tuple[str, str]
"""A stream or topic, and a shard or partition of it, in one source: several sources of a query may
read one stream."""
StreamKey = tuple[int, str]
"""The number of a source in the reports, and a stream or topic that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A query's delays after a trigger."""

    time_ms: int
    delays: Mapping[StreamKey, int]
    """The largest planned delay by stream or topic, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A planned delay of a partition. `is_bound`: it is at least so long, and may be longer."""

    ms: int
    is_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedQuery:
    """A query from its start or first report to some time after its end."""

    run_id: str
    query_id: str
    name: str | None
    started_ms: int
    """The time of its start, or of the first report if it ran before."""
    snapshot: QuerySnapshot | None = None
    phase: Phase | None = None
    phase_since_ms: int = 0
    phase_seen_ms: int = 0
    ended_ms: int | None = None
    failure: str | None = None
    """The kind of error that it ended with; None if it did not."""
    failed_starts: int = 0
    """The failed runs before this one since a batch was committed."""
    unread_since: Mapping[tuple[str, Reader], int] = field(default_factory=dict)
    """The streams that have free or stale leases, or leases of which it is not known whether they
    are stale (`Reader.UNKNOWN`), and since when."""
    delays: tuple[Mapping[PartKey, Delay], ...] = ()
    """The planned delays of partitions, from the history, for each source of the snapshot."""

    @property
    def label(self) -> str:
        """The name of the query if it has one, else its id."""
        return self.name or self.query_id

    @property
    def is_running(self) -> bool:
        """Return whether the query has not ended."""
        return self.ended_ms is None

    @property
    def is_ours(self) -> bool:
        """Return whether the query reads a source of this package, or may."""
        return self.snapshot is None or bool(self.snapshot.sources)


class ObservedQueries:
    """The queries of a session, those that ended last included. Thread-safe."""

    def __init__(self) -> None:
        self.version = 0
        """Increases with each change."""
        self._lock = threading.Lock()
        self._queries: dict[str, ObservedQuery] = {}
        """By run, in the order of their start."""
        self._histories: dict[str, History] = {}
        self._failures: dict[str, int] = {}

    def started(self, run_id: str, query_id: str, name: str | None, now_ms: int) -> None:
        """Take the start of a run, unless it is known."""
        with self._lock:
            if run_id in self._queries:  # its end may have been taken meanwhile
                return
            runs = [one for one in self._queries.values() if one.query_id == query_id]
            failed = runs[-1].failed_starts + (runs[-1].failure is not None) if runs else 0
            self._replace(
                ObservedQuery(
                    run_id=run_id,
                    query_id=query_id,
                    name=name,
                    started_ms=now_ms,
                    failed_starts=failed,
                )
            )

    def publish(self, snapshot: QuerySnapshot) -> bool:
        """Take the state of a query after a trigger, and return whether it was taken: one that is
        older than the last is not, nor one of a run that has ended."""
        with self._lock:
            known = self._queries.get(snapshot.run_id)
            if known is None:
                known = ObservedQuery(
                    run_id=snapshot.run_id,
                    query_id=snapshot.query_id,
                    name=snapshot.name,
                    started_ms=snapshot.time_ms,
                )
            if not known.is_running or is_older(snapshot, known.snapshot):
                return False
            history = self._histories.setdefault(snapshot.run_id, History())
            delays = history.add(snapshot)
            self._replace(
                replace(
                    known,
                    snapshot=snapshot,
                    failed_starts=0 if snapshot.ran_batch else known.failed_starts,
                    delays=delays,
                    unread_since=_unread_since(known, snapshot),
                )
            )
            return True

    def observe(self, run_id: str, phase: Phase | None, now_ms: int) -> None:
        """Take the phase that a query is in; None if Spark's answer is not understood."""
        with self._lock:
            known = self._queries.get(run_id)
            if known is None:
                return
            since = known.phase_since_ms if phase is known.phase else now_ms
            self._queries[run_id] = replace(
                known, phase=phase, phase_since_ms=since, phase_seen_ms=now_ms
            )

    def ended(self, run_id: str, failure: str | None, now_ms: int) -> None:
        """Take the end of a run. `failure`: the kind of its error, without data of records."""
        with self._lock:
            known = self._queries.get(run_id)
            self._histories.pop(run_id, None)
            if known is None:
                return
            if failure is not None:
                self._failures[known.label] = self._failures.pop(known.label, 0) + 1
                for label in list(self._failures)[:-MAX_ENDED]:
                    del self._failures[label]
                self._count_before_later_runs(known)
            self._replace(replace(known, ended_ms=now_ms, failure=failure))
            ended = [run for run, query in self._queries.items() if not query.is_running]
            for run in ended[: max(0, len(ended) - MAX_ENDED)]:
                del self._queries[run]

    def running(self) -> list[str]:
        """Return the runs that have not ended."""
        with self._lock:
            return [run for run, query in self._queries.items() if query.is_running]

    def failures(self) -> dict[str, int]:
        """Return the number of runs of each query that failed, of those that failed last."""
        with self._lock:
            return dict(self._failures)

    def get(self, run_id: str) -> ObservedQuery | None:
        """Return a run; None if it is not known."""
        with self._lock:
            return self._queries.get(run_id)

    def assessed(self, limits: Limits, now_ms: int) -> list[tuple[ObservedQuery, Health]]:
        """Return the queries with their health: of those with one id or one label, the newest."""
        with self._lock:
            found = [query for query in self._newest() if query.is_ours]
            paces = {
                query.run_id: paces_of(history.points)
                for query in found
                if (history := self._histories.get(query.run_id)) is not None
            }
        return [
            (
                query,
                assess(
                    query_facts(query, paces.get(query.run_id, {}), limits, now_ms), limits, now_ms
                ),
            )
            for query in found
        ]

    def _newest(self) -> Iterator[ObservedQuery]:
        """Yield the newest run of those with one id or one label."""
        known: set[str] = set()
        for query in reversed(self._queries.values()):
            if known.isdisjoint((query.query_id, query.label)):
                yield query
            known |= {query.query_id, query.label}

    def _count_before_later_runs(self, failed: ObservedQuery) -> None:
        """Count a failed run in the runs that were started before its end was reported."""
        runs = [one for one in self._queries.values() if one.query_id == failed.query_id]
        for later in runs[runs.index(failed) + 1 :]:
            self._queries[later.run_id] = replace(later, failed_starts=later.failed_starts + 1)

    def _replace(self, query: ObservedQuery) -> None:
        self._queries[query.run_id] = query
        self.version += 1


def is_older(snapshot: QuerySnapshot, known: QuerySnapshot | None) -> bool:
    """Return whether a snapshot of a run is older than one that is known. Batches tell, and times
    only of one batch, an idle query's, unless the clock was set back meanwhile."""
    if known is None or snapshot.batch_id != known.batch_id:
        return known is not None and snapshot.batch_id < known.batch_id
    return 0 < known.time_ms - snapshot.time_ms <= CLOCK_TOLERANCE_MS


def phase_of(message: str) -> Phase | None:
    """Return the phase that Spark's `StreamingQueryStatus.message` names (`MicroBatchExecution` of
    Spark 4); None for one that is not known."""
    for beginning, phase in _PHASES:
        if message.startswith(beginning):
            return phase
    return None


_PHASES: Final = (
    ("Waiting for", Phase.WAITING),
    ("Getting offsets", Phase.PLANNING),
    ("Initializing", Phase.PLANNING),
    ("Processing new data", Phase.BATCH),
)


# --- Facts ----------------------------------------------------------------------------------------


def query_facts(
    query: ObservedQuery, paces: Mapping[StreamKey, Pace], limits: Limits, now_ms: int
) -> Query:
    """Return the values by which the health of a query is assessed."""
    process = Process.RUNNING
    if not query.is_running:
        process = Process.ENDED if query.failure is None else Process.FAILED
    is_seen = query.is_running and now_ms - query.phase_seen_ms <= PHASE_VALID_MS
    phase = query.phase if is_seen else None
    snapshot = query.snapshot
    if snapshot is None:
        return Query(
            process=process,
            phase=phase,
            failed_starts=query.failed_starts,
            findings=_first(query, phase, limits, now_ms),
        )
    is_in_batch = phase is Phase.BATCH
    parts = tuple(
        part
        for number, source in enumerate(snapshot.sources)
        for stream in source.streams
        for part in _parts(query, number, stream, paces.get((number, stream.name)), limits, now_ms)
    )
    reads_nothing = not parts and not _is_spare(snapshot)
    return Query(
        process=process,
        failed_starts=query.failed_starts,
        findings=(
            *_not_known(query, snapshot, has_parts=bool(parts)),
            *((_READS_NOTHING,) if reads_nothing else ()),
        ),
        committed=_committed(snapshot),
        committed_at_ms=snapshot.end_ms,
        in_progress=snapshot.batch_id + snapshot.ran_batch if is_in_batch else None,
        # The phase between two batches may be too short to be seen: the report shows it.
        planned_at_ms=max(query.phase_since_ms, snapshot.end_ms)
        if is_in_batch
        else snapshot.time_ms,
        phase=phase,
        parts=parts,
        is_spare=not parts and _is_spare(snapshot),
    )


_READS_NOTHING: Final = unknown(
    "the query reads no shard and no partition",
    "check that its streams and topics exist, and that subscribePattern matches a topic",
)


def _is_spare(snapshot: QuerySnapshot) -> bool:
    """Return whether other workers hold all leases of the streams of a query without shards."""
    every = [stream.leases for source in snapshot.sources for stream in source.streams]
    return bool(every) and all(one is not None and (one.by_owner or one.others) for one in every)


def _committed(snapshot: QuerySnapshot) -> int | None:
    """Return the last committed batch: a report without one has the id of the next."""
    batch = snapshot.batch_id - (not snapshot.ran_batch)
    return batch if batch >= 0 else None


def _first(
    query: ObservedQuery, phase: Phase | None, limits: Limits, now_ms: int
) -> tuple[Finding, ...]:
    """Return the finding of a query whose first batch is not reported yet, or takes long."""
    age = now_ms - query.started_ms
    if not query.is_running:
        return ()
    if age <= limits.stuck_after_ms or phase is Phase.WAITING:
        return (
            unknown(
                f"the query was started {duration_text(age)} ago and has reported no batch",
                "look again when it has run one",
            ),
        )
    return (
        Finding(
            verdict=Verdict.STALLED,
            reason=f"the query was started {duration_text(age)} ago and has committed no batch"
            + ("" if phase is None else f": stuck in its {phase}"),
            remedy="look at the threads of the driver and, in Spark's UI, at the running tasks",
        ),
    )


def _parts(
    query: ObservedQuery,
    number: int,
    stream: StreamSnapshot,
    pace: Pace | None,
    limits: Limits,
    now_ms: int,
) -> Iterator[Part]:
    snapshot = query.snapshot
    assert snapshot is not None
    format_ = snapshot.sources[number].format
    since_ms = age_ms(snapshot.time_ms, now_ms) if query.is_running else None
    for shard in stream.shards:
        if shard.state is ReadState.ENDED:
            continue
        delay = (
            query.delays[number].get((stream.name, shard.shard))
            if format_ is SourceFormat.KAFKA
            else _planned(stream, shard)
        )
        offsets = shard.lag if format_ is SourceFormat.KAFKA else None
        yield Part(
            name=part_name(format_, stream.name, shard.shard),
            reader=Reader.WAITING if shard.state is ReadState.WAITING else Reader.QUERY,
            committed=Behind(ms=_committed_ms(delay, since_ms, limits), offsets=offsets),
            planned=Behind(ms=_committed_ms(delay, 0, limits), offsets=offsets),
            retention_ms=stream.retention_ms,
            pace=None if pace is None or delay is None else replace(pace, backlog=delay.ms),
        )
    if stream.leases is None:
        return
    for reader, count in _without_reader(stream).items():
        if count and _is_unread(query, snapshot, stream, reader):
            yield _unread(stream.name, count, reader)
    if stream.leases.not_read:
        yield _unread(stream.name, stream.leases.not_read, Reader.MALFORMED)


def _is_unread(
    query: ObservedQuery, snapshot: QuerySnapshot, stream: StreamSnapshot, reader: Reader
) -> bool:
    """Return whether leases had no owner for longer than `UNREAD_AFTER_MS` when last known."""
    begun_ms = query.unread_since.get((stream.name, reader))
    return begun_ms is not None and snapshot.time_ms - begun_ms >= UNREAD_AFTER_MS


def _not_known(
    query: ObservedQuery, snapshot: QuerySnapshot, *, has_parts: bool
) -> Iterator[Finding]:
    """Yield a finding for each stream of which it has not been known for long whether the leases of
    other workers are stale; at once if the query has no shard, and is healthy only by others."""
    for source in snapshot.sources:
        for stream in source.streams:
            if not _is_liveness_unknown(source, stream):
                continue
            if _is_unread(query, snapshot, stream, Reader.STALE):
                state = f"shards of {stream.name} had no reader when the lease table was last read"
            elif not has_parts or _is_unread(query, snapshot, stream, Reader.UNKNOWN):
                state = f"it is not known whether the other workers of {stream.name} live"
            else:
                continue
            yield unknown(state, "see the driver's log for why it does not read the lease table")


def _is_liveness_unknown(source: SourceSnapshot, stream: StreamSnapshot) -> bool:
    """Return whether other workers have leases of which it is not known whether they are stale."""
    leases = stream.leases
    if leases is None or leases.stale is not None:
        return False
    return bool(leases.others or leases.by_owner.keys() - {source.worker})


def _without_reader(stream: StreamSnapshot) -> Mapping[Reader, int | None]:
    """Return the number of leases that nobody uses, None if it is not known, by the reason."""
    leases = stream.leases
    return {} if leases is None else {Reader.FREE: leases.free, Reader.STALE: leases.stale}


def _unread_since(
    known: ObservedQuery, snapshot: QuerySnapshot
) -> Mapping[tuple[str, Reader], int]:
    """Return since when leases are unused. A number that is not known changes nothing."""
    found: dict[tuple[str, Reader], int] = {}
    for source in snapshot.sources:
        for stream in source.streams:
            for reader, count in _without_reader(stream).items():
                begun_ms = known.unread_since.get((stream.name, reader))
                if count or (count is None and begun_ms is not None):
                    found[stream.name, reader] = min(begun_ms or snapshot.time_ms, snapshot.time_ms)
            if _is_liveness_unknown(source, stream):
                begun_ms = known.unread_since.get((stream.name, Reader.UNKNOWN), snapshot.time_ms)
                found[stream.name, Reader.UNKNOWN] = min(begun_ms, snapshot.time_ms)
    return found


def _unread(stream: str, count: int, reader: Reader) -> Part:
    """Return shards without a reader, of which the report has only the number."""
    return Part(name=f"{count_of(count, 'shard')} of {stream}", reader=reader, is_own=False)


def part_name(format_: SourceFormat, stream: str, shard: str) -> str:
    """Return the name of a shard or partition, as `spark-ssp status` shows it."""
    return f"{stream}/{shard}" if format_ is SourceFormat.KINESIS else f"{stream}-{shard}"


def _committed_ms(delay: Delay | None, since_ms: int | None, limits: Limits) -> int | None:
    """Return a planned delay some time later, if nothing was committed since. One that is at least
    so long is known if that is too long already."""
    if delay is None or since_ms is None:
        return None
    found = delay.ms + since_ms
    return None if delay.is_bound and found <= limits.max_delay_ms else found


def _planned(stream: StreamSnapshot, shard: ShardSnapshot) -> Delay | None:
    """Return the planned delay of a shard of Kinesis."""
    lag = stream.not_shown_max_lag if shard.lag is None else shard.lag  # an upper bound
    return None if lag is None else Delay(ms=lag)


# --- History --------------------------------------------------------------------------------------


class Ends:
    """The end of a partition of Kafka, the next offset to be written, at the times of reports.
    Arrays, since a topic may have thousands of partitions."""

    __slots__ = ("ends", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.ends = array("q")

    def add(self, time_ms: int, end: int) -> None:
        """Add the end at a later time."""
        for values, value in ((self.times, time_ms), (self.ends, end)):
            values.append(value)
            del values[:-_HISTORY_POINTS]

    def delay(self, position: int, now_ms: int) -> Delay:
        """Return the delay of a position before the end.

        A report has offsets and no times. A position that was the end of the partition at an
        earlier report is of a record that came after it, so it is at most as old as that report.
        The delay of an older position is at least the time since the first report.
        """
        # The ends grow, but for a topic whose records were deleted.
        at = bisect_right(self.ends, position)
        return Delay(ms=max(0, now_ms - self.times[max(0, at - 1)]), is_bound=at == 0)


class History:
    """The delays of a run's streams, and the ends of its partitions, by the times of reports."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=_HISTORY_POINTS)
        self.ends: list[dict[PartKey, Ends]] = []
        """For each source: two may read topics of one name, also on other brokers."""

    def add(self, snapshot: QuerySnapshot) -> tuple[dict[PartKey, Delay], ...]:
        """Add a report, unless the last one is too near, and return the known planned delays of
        Kafka's partitions in milliseconds, for each source."""
        if self.points and snapshot.time_ms < self.points[-1].time_ms:  # the clock was set back
            self.points.clear()
            self.ends.clear()
        if len(self.ends) != len(snapshot.sources):  # one had no offset before: the numbers change
            self.points.clear()
            self.ends = [{} for _ in snapshot.sources]
        delays = tuple(map(partition_delays, snapshot.sources, self.ends, repeat(snapshot.time_ms)))
        if not self.points or snapshot.time_ms - self.points[-1].time_ms >= _HISTORY_PERIOD_MS:
            self.points.append(_point(snapshot, delays))
            for source, ends in zip(snapshot.sources, self.ends, strict=True):
                for key, _, end in _partitions(source):
                    ends.setdefault(key, Ends()).add(snapshot.time_ms, end)
        return delays


def partition_delays(
    source: SourceSnapshot, ends: Mapping[PartKey, Ends], now_ms: int
) -> dict[PartKey, Delay]:
    """Return the planned delays of a source's partitions of Kafka that are known."""
    found: dict[PartKey, Delay] = {}
    for key, position, end in _partitions(source):
        if position >= end:
            found[key] = Delay(ms=0)
        elif key in ends:
            found[key] = ends[key].delay(position, now_ms)
    return found


def _partitions(source: SourceSnapshot) -> Iterator[tuple[PartKey, int, int]]:
    """Yield each partition of Kafka with its position and its end."""
    if source.format is not SourceFormat.KAFKA:
        return
    for topic in source.streams:
        for shard in topic.shards:
            if shard.position is not None and shard.lag is not None:
                key = topic.name, shard.shard
                yield key, shard.position, shard.position + shard.lag


def _point(snapshot: QuerySnapshot, delays: Sequence[Mapping[PartKey, Delay]]) -> Point:
    found: dict[StreamKey, int] = {}
    for number, (source, of_source) in enumerate(zip(snapshot.sources, delays, strict=True)):
        for stream in source.streams:
            if source.format is SourceFormat.KINESIS:
                largest = stream.max_lag
            else:
                keys = [(stream.name, shard.shard) for shard in stream.shards]
                known = [of_source[key] for key in keys if key in of_source]
                is_bound = any(delay.is_bound for delay in known)
                largest = None if is_bound else max((one.ms for one in known), default=None)
            if largest is not None:
                found[number, stream.name] = largest
    return Point(time_ms=snapshot.time_ms, delays=found)


def paces_of(history: Sequence[Point]) -> dict[StreamKey, Pace]:
    """Return the pace of each stream or topic over the last points, in milliseconds of the stream
    for each millisecond: writers write one, and a query whose delay shrinks reads more."""
    if len(history) < 2:
        return {}
    first, last = history[max(0, len(history) - _PACE_POINTS)], history[-1]
    elapsed = last.time_ms - first.time_ms
    if elapsed <= 0:
        return {}
    return {
        stream: Pace(
            backlog=delay,
            read=max(0.0, 1 - (delay - first.delays[stream]) / elapsed),
            written=1.0,
        )
        for stream, delay in last.delays.items()
        if stream in first.delays
    }
