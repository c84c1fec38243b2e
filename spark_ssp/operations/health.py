"""The health of a query: one verdict from the values known of it, with reasons and remedies.

Commands that look at a query ask here, so that two of them cannot answer one question differently.
All values are passed in, the clock too.

A delay is the age of the oldest record that is in no batch, 0 without such a record: in no
*committed* batch, as readers of the results see it, or in no *planned* one, as the driver does. The
verdict follows the committed one: a batch that hangs has planned its records and delivered none.

An unknown value is None or `UNKNOWN`, and never counts as good: a query is OK only if each of its
shards was measured and has a reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from spark_ssp.common.errors import NEW_CHECKPOINT, InvalidOptionsError, OptionProblem, SspError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.common.options.values import duration
from spark_ssp.common.times import duration_text

FAILING_STARTS: Final = 3
"""A batch that was begun this often without a commit fails again and again."""
_NAMED: Final = 3
"""The most shards that a reason names."""
CLOCK_TOLERANCE_MS: Final = 60_000
"""Clocks of two machines differ by less. A time further in the future says nothing of an age."""


class Verdict(StrEnum):
    """The answer, in order of gravity: a query has the gravest of its findings."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    """Nothing bad is known, and something that would show it is not known."""
    BEHIND = "BEHIND"
    """The committed delay exceeds the limit."""
    STALLED = "STALLED"
    """A batch hangs, none is planned, or a shard has no reader."""
    FAILED = "FAILED"
    """The query has failed, fails again and again at one batch, or would fail at a restart."""
    LOSING = "LOSING"
    """Records expire before they are read, or will before the query catches up."""

    @property
    def gravity(self) -> int:
        """The place in the order."""
        return list(Verdict).index(self)


class State(StrEnum):
    """The state of a query."""

    RUNNING = "running"
    """A batch is in progress, for no longer than the limit."""
    WAITING = "waiting"
    """No batch is in progress: the query waits for its next trigger, or for records."""
    STUCK = "stuck"
    FAILING = "failing"
    """It failed again and again without committing a batch in between."""
    ENDED = "ended"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """A phase of a query. A batch can hang in the first three."""

    PLANNING = "planning"
    TASKS = "tasks"
    SINK = "sink"
    BATCH = "batch"
    """In its tasks or its sink: Spark does not say in which."""
    WAITING = "waiting"
    """For its next trigger, or for records."""


_IN_BATCH: Final = Phase.TASKS, Phase.SINK


class Process(StrEnum):
    """The process of a query, which a checkpoint does not show."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Reader(StrEnum):
    """The reader of a shard or partition, or the reason why it has none: the last four."""

    QUERY = "query"
    """The query itself, which has it without a lease."""
    RENEWED = "renewed"
    """A worker, which has renewed its lease between two readings."""
    UNKNOWN = "unknown"
    """A worker has its lease, and was not observed for long enough to show whether it lives."""
    WAITING = "waiting"
    """Its parents come first, the next batch begins it, or a worker is about to take its lease."""
    ENDED = "ended"
    """It is read to its end, or has expired before (`Part.is_lost`)."""
    FREE = "free"
    STALE = "stale"
    NO_LEASE = "no lease"
    MALFORMED = "malformed lease"

    @property
    def is_missing(self) -> bool:
        """Return whether a shard that could be read has no reader."""
        return self in _MISSING


_MISSING: Final = {
    Reader.FREE: (
        "the lease has no owner",
        "start another worker of the application, or check the log of those that run",
    ),
    Reader.STALE: (
        "the owner has not renewed the lease for longer than the failover time",
        "restart the owner's query; if others run, check their logs for why they do not take it",
    ),
    Reader.NO_LEASE: (
        "the stream has the shard, and the lease table does not",
        "check that a worker of the application runs: it creates the lease in its next trigger",
    ),
    Reader.MALFORMED: (
        "the row of its lease cannot be parsed",
        "restore or delete the row; spark-ssp leases shows it",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """The distance of a position from the newest record. None: unknown."""

    ms: int | None = None
    offsets: int | None = None
    """Of Kafka only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The speed of the last batches, in one unit: the amount that remains to be read, and those
    read and written in a millisecond."""

    backlog: float
    read: float
    written: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A shard or a partition."""

    name: str
    source: int | None = None
    """The number of the source that reads it; None outside of a checkpoint. Two sources of a query
    may read a shard of one name."""
    reader: Reader
    committed: Behind = field(default_factory=Behind)
    planned: Behind = field(default_factory=Behind)
    retention_ms: int | None = None
    pace: Pace | None = None
    """None if it is not known."""
    is_lost: bool = False
    """True if records may have expired before they were read."""
    is_own: bool = True
    """False if other workers of the application read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A reason for a verdict, and its remedy."""

    verdict: Verdict
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The values known of a query. Times are in milliseconds since the epoch."""

    process: Process = Process.UNKNOWN
    committed: int | None = None
    """The last committed batch; None if there is none."""
    committed_at_ms: int | None = None
    in_progress: int | None = None
    """The batch that is planned and not committed; None if there is none."""
    planned_at_ms: int | None = None
    """The time at which the newest batch was planned, committed or not."""
    failed_starts: int = 0
    """The number of runs in a row that are known to have failed without committing a batch."""
    phase: Phase | None = None
    """The phase that the query is in."""
    parts: tuple[Part, ...] = ()
    is_spare: bool = False
    """True if it has no part since other workers hold the leases of all shards."""
    has_batches: bool = True
    """False for an application of which only its leases are known: they do not show batches."""
    findings: tuple[Finding, ...] = ()
    """Those of its reading, such as a stream that was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a healthy query."""

    max_delay_ms: int
    stuck_after_ms: int
    """Longer than the interval of the trigger, and than the longest usual batch."""


DEFAULT_LIMITS: Final = Limits(max_delay_ms=600_000, stuck_after_ms=900_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The future of a delay: milliseconds until the newest record is reached (0: the delay is
    within the limit), and until records expire unread. `math.inf`: never; None: unknown."""

    until_caught_up_ms: float | None = None
    until_expiry_ms: float | None = None
    is_losing: bool = False
    """True if records expire before the query catches up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The answer. Delays are the largest known ones; None: none is known."""

    verdict: Verdict
    state: State
    stuck_in: tuple[Phase, ...]
    """The phases in which it may be stuck; several if it is not known in which of them."""
    findings: tuple[Finding, ...]
    """The gravest first."""
    committed: Behind
    planned: Behind
    unmeasured: int
    """Parts that have a reader, and whose committed delay is unknown."""
    trigger_age_ms: int | None
    """The time since the newest batch was planned."""
    commit_age_ms: int | None
    outlook: Outlook
    """Of the part that takes longest, and of the one whose records expire first."""
    not_read: Mapping[Reader, tuple[str, ...]]
    """The parts without a reader, by the reason."""


def assess(query: Query, limits: Limits, now_ms: int) -> Health:
    """Return the health of a query."""
    read = [part for part in query.parts if part.reader is not Reader.ENDED or part.is_lost]
    state, stuck_in = _state(query, read, limits, now_ms)
    if state not in (State.RUNNING, State.WAITING):
        read = [replace(part, pace=None) for part in read]  # its pace is a past one
    outlooks = [outlook(part, limits) for part in read]
    not_read = {
        reader: tuple(part.name for part in read if part.reader is reader)
        for reader in Reader
        if reader.is_missing and any(part.reader is reader for part in read)
    }
    findings = [
        *query.findings,
        *_state_findings(query, state, stuck_in, limits, now_ms),
        *(_unread(reader, names) for reader, names in not_read.items()),
        *_delay_findings(read, outlooks, limits, query, age_ms(query.planned_at_ms, now_ms)),
        *_unknown_findings(query, read, state),
    ]
    findings.sort(key=lambda finding: -finding.verdict.gravity)
    return Health(
        verdict=findings[0].verdict if findings else Verdict.OK,
        state=state,
        stuck_in=stuck_in,
        findings=tuple(findings),
        committed=_largest(part.committed for part in read),
        planned=_largest(part.planned for part in read),
        unmeasured=len(_unmeasured(read)),
        trigger_age_ms=age_ms(query.planned_at_ms, now_ms),
        commit_age_ms=age_ms(query.committed_at_ms, now_ms),
        outlook=Outlook(
            until_caught_up_ms=max(_known(o.until_caught_up_ms for o in outlooks), default=None),
            until_expiry_ms=min(_known(o.until_expiry_ms for o in outlooks), default=None),
            is_losing=any(o.is_losing for o in outlooks),
        ),
        not_read=not_read,
    )


def not_the_same(
    what: str, change: str, otherwise: str, *, check: str, option: str, is_certain: bool = True
) -> Finding:
    """Return the finding for a stream or topic that is not there, or not the one that the query
    has read. `otherwise`: the other explanation, and `check`: the settings to look at before
    `option` leaves it out. `is_certain`: it is known to belong there."""
    return Finding(
        verdict=Verdict.FAILED if is_certain else Verdict.UNKNOWN,
        reason=f"{what} was {change} since the query read it, so that its next start fails, or "
        f"{otherwise}",
        remedy=f"check {check} first; if it is gone, {option} takes it out of the checkpoint, and "
        f"to read the new one, start the query on {NEW_CHECKPOINT}",
    )


def exceeds(delay_ms: int | None, limit_ms: int) -> bool | None:
    """Return whether a delay is too large; None if it is unknown."""
    return None if delay_ms is None else delay_ms > limit_ms


def delay_text(behind: Behind, unmeasured: int = 0) -> str:
    """Return the text of the largest known delay, which says so if others are unknown."""
    if behind.ms is None and behind.offsets is None:
        return "unknown"
    delay = "unknown" if behind.ms is None else duration_text(behind.ms)
    offsets = "" if behind.offsets is None else f" ({behind.offsets} offsets)"
    return f"{'at least ' if unmeasured and behind.ms is not None else ''}{delay}{offsets}"


def outlook(part: Part, limits: Limits) -> Outlook:
    """Return the future of a part's delay.

    If its pace is not known, it is expected to read twice as fast as writers write, and so to catch
    up in as long as it is behind: records expire before that from half of the retention on. The
    same limit is set for a query that reads no faster than writers write: after a burst it may do
    so for a while.
    """
    delay, pace = part.committed.ms, part.pace
    if delay is None:
        return Outlook()
    left: float | None = None if part.retention_ms is None else part.retention_ms - delay
    if not exceeds(delay, limits.max_delay_ms):
        is_over = left is not None and left <= 0
        return Outlook(until_caught_up_ms=0, until_expiry_ms=left, is_losing=is_over)
    catches_up = pace is not None and pace.read > pace.written
    needed: float = delay
    if pace is not None and pace.read > pace.written:
        needed = pace.backlog / (pace.read - pace.written)
    is_losing = left is not None and (left <= 0 or left < needed)
    if pace is None or catches_up:
        return Outlook(until_caught_up_ms=needed, until_expiry_ms=left, is_losing=is_losing)
    if left is not None and left > 0 and pace.read < pace.written:
        left /= 1 - pace.read / pace.written  # the delay grows by that part of the time
    return Outlook(until_caught_up_ms=math.inf, until_expiry_ms=left, is_losing=is_losing)


def age_ms(time_ms: int | None, now_ms: int) -> int | None:
    """Return how long ago a time was; None if it is not known, as by a clock that is ahead."""
    if time_ms is None or time_ms - now_ms > CLOCK_TOLERANCE_MS:
        return None
    return max(0, now_ms - time_ms)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _largest(all_behind: Iterable[Behind]) -> Behind:
    found = list(all_behind)
    return Behind(
        ms=max((one.ms for one in found if one.ms is not None), default=None),
        offsets=max((one.offsets for one in found if one.offsets is not None), default=None),
    )


# --- State ----------------------------------------------------------------------------------------


def _state(
    query: Query, parts: Sequence[Part], limits: Limits, now_ms: int
) -> tuple[State, tuple[Phase, ...]]:
    if query.process is Process.FAILED:
        return State.FAILED, ()
    if not query.has_batches:
        return State.UNKNOWN, ()
    if query.process is not Process.ENDED and query.failed_starts >= FAILING_STARTS:
        return State.FAILING, ()
    if query.process is Process.ENDED:
        return State.ENDED, ()
    if query.in_progress is not None:
        age = age_ms(query.planned_at_ms, now_ms)
        if age is None:
            return State.UNKNOWN, ()
        if age <= limits.stuck_after_ms:
            return State.RUNNING, ()
        return State.STUCK, _IN_BATCH if query.phase in (None, Phase.BATCH) else (query.phase,)
    if query.committed is None:
        return State.UNKNOWN, ()
    return _between_batches(query, parts, limits, now_ms)


def _between_batches(
    query: Query, parts: Sequence[Part], limits: Limits, now_ms: int
) -> tuple[State, tuple[Phase, ...]]:
    """Return the state of a query without a batch in progress. It is stuck if it has planned none
    although a record has waited for one: without records, Spark plans none."""
    if query.phase is Phase.WAITING:
        return State.WAITING, ()
    idle = exceeds(age_ms(query.committed_at_ms, now_ms), limits.stuck_after_ms)
    waits = [exceeds(part.committed.ms, limits.stuck_after_ms) for part in parts if part.is_own]
    if idle is False or (query.parts and all(wait is False for wait in waits)):
        return State.WAITING, ()
    if idle and any(waits):
        return State.STUCK, (Phase.PLANNING,)
    return State.UNKNOWN, ()


def _state_findings(
    query: Query, state: State, stuck_in: tuple[Phase, ...], limits: Limits, now_ms: int
) -> Iterable[Finding]:
    if state is State.FAILED:
        yield Finding(
            verdict=Verdict.FAILED,
            reason="the query has failed",
            remedy="look at its exception (query.exception(), the driver's log), then start it",
        )
    elif state is State.FAILING:
        yield Finding(
            verdict=Verdict.FAILED,
            reason=f"the query has failed {query.failed_starts} times in a row, and has committed "
            "no batch in between",
            remedy="look at the exception of the last run: each start runs the same records again, "
            "which spark-ssp tail --checkpoint shows",
        )
    elif state is State.ENDED:
        yield Finding(
            verdict=Verdict.STALLED,
            reason="the query has ended",
            remedy="start it, unless it was to end",
        )
    elif state is State.STUCK:
        yield _stuck(query, stuck_in, limits, now_ms)


def _stuck(query: Query, stuck_in: tuple[Phase, ...], limits: Limits, now_ms: int) -> Finding:
    limit = f"longer than {duration_text(limits.stuck_after_ms)}"
    if query.in_progress is not None:
        age = duration_text(age_ms(query.planned_at_ms, now_ms) or 0)
        what = f"batch {query.in_progress} was planned {age} ago and is not committed, {limit}"
    else:
        age = duration_text(age_ms(query.committed_at_ms, now_ms) or 0)
        what = (
            f"no batch was planned since batch {query.committed} was committed {age} ago, {limit}, "
            "while records wait"
        )
    where = f"stuck in its {' or its '.join(stuck_in)}"
    if query.process is Process.RUNNING:
        return Finding(
            verdict=Verdict.STALLED,
            reason=f"{what}: {where}",
            remedy="look at the threads of the driver and, in Spark's UI, at the running tasks",
        )
    return Finding(
        verdict=Verdict.STALLED,
        reason=f"{what}: {where}, or stopped; which of them is not known",
        remedy="see whether the driver's process runs: if it does, look at the running tasks in "
        "Spark's UI, else start the query",
    )


# --- Readers and delays ---------------------------------------------------------------------------


def _unread(reader: Reader, names: Sequence[str]) -> Finding:
    why, remedy = _MISSING[reader]
    return Finding(
        verdict=Verdict.STALLED,
        reason=f"no reader for {abbreviate(names, _NAMED)}: {why}",
        remedy=remedy,
    )


def _delay_findings(
    parts: Sequence[Part],
    outlooks: Sequence[Outlook],
    limits: Limits,
    query: Query,
    trigger_age_ms: int | None,
) -> Iterable[Finding]:
    lost = [part.name for part in parts if part.is_lost]
    if lost:
        yield Finding(
            verdict=Verdict.LOSING,
            reason=f"records have expired, or may have, before they were read: "
            f"{abbreviate(lost, _NAMED)}",
            remedy="they are gone: with failOnDataLoss=false the query reads on after them, and "
            "a longer retention keeps those that follow",
        )
    pairs = list(zip(parts, outlooks, strict=True))
    losing = [(part, future) for part, future in pairs if future.is_losing]
    late = [
        (part, future)
        for part, future in pairs
        if not future.is_losing and exceeds(part.committed.ms, limits.max_delay_ms)
    ]
    if losing:
        yield _losing(losing)
    if late:
        yield _behind(late, limits, query, trigger_age_ms)


def _losing(found: Sequence[tuple[Part, Outlook]]) -> Finding:
    part, future = min(found, key=lambda pair: pair[1].until_expiry_ms or 0)
    left = max(0, round(future.until_expiry_ms or 0))
    when = f"in {duration_text(left)}" if left else "now"
    return Finding(
        verdict=Verdict.LOSING,
        reason=f"records expire unread {when}: {_names(found)} {_by(part)}, of a retention of "
        f"{duration_text(part.retention_ms or 0)}; {_pace(part, future)}",
        remedy="raise the retention now, then make the query read faster than writers write",
    )


def _behind(
    found: Sequence[tuple[Part, Outlook]],
    limits: Limits,
    query: Query,
    trigger_age_ms: int | None,
) -> Finding:
    part, future = max(found, key=lambda pair: pair[0].committed.ms or 0)
    planned = part.planned.ms
    # While a batch runs, none is planned: the delay when it was planned shows whether it has all.
    left = None if planned is None else planned - (trigger_age_ms or 0)
    if exceeds(left, limits.max_delay_ms) is not False:
        remedy = "give the query more cores, larger limits of a batch, or more shards or partitions"
    elif query.in_progress is not None or not query.has_batches:
        remedy = "a batch has read all up to its planning, and takes long: look at its tasks and "
        remedy += "its sink"
    else:
        remedy = "no batch was planned since the last one was committed: see whether the driver "
        remedy += "runs, or give a --max-delay that is longer than the trigger's interval"
    return Finding(
        verdict=Verdict.BEHIND,
        reason=f"{_names(found)} {_by(part)}, more than {duration_text(limits.max_delay_ms)}; "
        f"{_pace(part, future)}",
        remedy=remedy,
    )


def _names(found: Sequence[tuple[Part, Outlook]]) -> str:
    worst = sorted(found, key=lambda pair: (-(pair[0].committed.ms or 0), pair[0].name))
    verb = "is" if len(found) == 1 else "are"
    return f"{abbreviate([part.name for part, _ in worst], _NAMED)} {verb}"


def _by(part: Part) -> str:
    offsets = part.committed.offsets
    more = "" if offsets is None else f" ({offsets} offsets)"
    return f"{duration_text(part.committed.ms or 0)}{more} behind by the last commit"


def _pace(part: Part, future: Outlook) -> str:
    pace, needed = part.pace, future.until_caught_up_ms
    if needed == math.inf and pace is not None:
        ratio = f"{pace.read / pace.written:.2f}" if pace.written else "0"
        return f"the last batches read {ratio} times as fast as writers write"
    if needed is None or pace is None:
        return "how fast it reads is not known"
    return f"at the pace of the last batches it catches up in {duration_text(round(needed))}"


# --- The unknown ----------------------------------------------------------------------------------


def _unknown_findings(query: Query, parts: Sequence[Part], state: State) -> Iterable[Finding]:
    if not query.has_batches:
        pass
    elif query.committed is None and query.in_progress is None:
        yield unknown("no batch was planned yet", "look again when the query has run a batch")
    elif state is State.UNKNOWN:
        yield unknown(
            "it is not known whether the query makes progress: a delay is missing, or the time of "
            "its last batch, or that is in the future",
            "look at the query's driver, and at its clock",
        )
    unmeasured = [part.name for part in _unmeasured(parts) if not part.is_lost]
    if unmeasured:
        yield unknown(
            f"the delay of {abbreviate(unmeasured, _NAMED)} is not known",
            "look again after the next batch; if it stays so, check that the shards and the "
            "leaders of the partitions answer",
        )
    if not query.parts and not query.is_spare and not query.findings:
        yield unknown(
            "nothing that it reads could be measured",
            "name the checkpoint of a query of kinesis-ssp or kafka-ssp",
        )
    unseen = [part.name for part in parts if part.reader is Reader.UNKNOWN]
    if unseen:
        yield unknown(
            f"it is not known whether the owners of {abbreviate(unseen, _NAMED)} live: no renewal "
            "was seen, and not for long enough to be stale",
            "read again with a longer --wait than --failover",
        )


def _unmeasured(parts: Iterable[Part]) -> list[Part]:
    """Return the parts whose delay is unknown. One without a reader is a finding already."""
    return [part for part in parts if part.committed.ms is None and not part.reader.is_missing]


def unknown(reason: str, remedy: str) -> Finding:
    """Return the finding for something that is not known."""
    return Finding(verdict=Verdict.UNKNOWN, reason=reason, remedy=remedy)


def unreadable(error: SspError, missing: str = "") -> Finding:
    """Return the finding for something that could not be read. `missing`: the beginning of its
    reason, with what is not known for that."""
    return unknown(f"{missing}{error.subject}: found {error.found}", error.next_step)


# --- Limits as a program gives them --------------------------------------------------------------


YEAR_MS: Final = 365 * 24 * 3_600_000


def limits_of(subject: str, **given: str) -> Limits:
    """Return the limits by their names without the unit. Raises InvalidOptionsError, which names
    the subject."""
    found: dict[str, int] = {}
    problems: list[OptionProblem] = []
    for name, text in given.items():
        try:
            found[f"{name}_ms"] = duration(1, YEAR_MS)(text)
        except BadValueError as error:
            problems += error.problems(name)
    if problems:
        raise InvalidOptionsError(subject, problems)
    return Limits(**found)
