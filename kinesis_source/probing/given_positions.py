"""Verifies the positions that a query is given, each once, before its shard is read.

`startingPosition`, a checkpoint or a lease may give a position that the shard cannot have: a typing
error, the number of another shard, a checkpoint or a table of another stream. Every trigger and
every batch read verifies such positions here. A position at which this run has planned an end is
not verified again, so a trigger costs no further call.

A sequence number belongs to one shard of one stream. The service refuses one that cannot be of the
shard (API reference, GetShardIterator: InvalidArgumentException); an emulator may accept it, and
then returns the records above it. So `check_position` opens an iterator *at* the number. If its
record comes first, the position is good. Otherwise the oldest record of the shard decides: the
service trims older records first, so a record cannot have been trimmed while an older one is there.
`judge_position` is this rule, without I/O.

A bad position fails the query. Under `failOnDataLoss=false` one of another shard or stream is
logged, and the shard is read from the oldest record left; a shard whose lease is bad continues at
the query's own checkpoint, if that has an entry. The replacement is the shard's start in the next
offset (`resume_from`), so that a replay reads the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final

from spark_ssp.common.errors import NEW_CHECKPOINT, DataLossError, SspError
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
    sequence_order,
    without_batch,
)
from spark_ssp.kinesis_source.planning.active_shards import Listings
from spark_ssp.kinesis_source.planning.data_loss import (
    Evidence,
    Verdict,
    judge,
    next_step_after_loss,
    trimmed_record,
    warn_position_replaced,
)
from spark_ssp.kinesis_source.probing.probe_protocol import (
    CheckSteps,
    PageView,
    PositionAnswer,
    ShardCursor,
    cached_iterator_after,
    follow_iterator,
    open_iterator,
)
from spark_ssp.kinesis_source.probing.shard_prober import ShardProber

# --- The verdict on a position --------------------------------------------------------------------


class PositionVerdict(Enum):
    """The worth of a position in a shard."""

    ACCEPTED = auto()
    """Its record is there, or every record after it is, by the time of the last proof."""
    SHARD_START = auto()
    """The shard's StartingSequenceNumber: all of the shard follows."""
    SHARD_END = auto()
    """The EndingSequenceNumber of the closed shard: nothing follows."""
    REFUSED = auto()
    """The service refuses the number for this shard."""
    WRONG = auto()
    """The service accepts the number, but the shard never had the record: it has older ones."""
    LOST = auto()
    """The record was trimmed, and records after it may have been."""
    UNKNOWN = auto()
    """The service has not answered, or the record may not be visible yet: check again."""


BAD = frozenset({PositionVerdict.REFUSED, PositionVerdict.WRONG, PositionVerdict.LOST})
"""Verdicts after which reading from the position would leave records out."""


DOUBT_MS = 3000
"""The time for which a record that does not appear in its shard may still become visible: one that
was just put, or one at the end of a closed shard that answers empty pages before it."""


def judge_position(
    state: ShardState,
    shard: Shard,
    answer: PositionAnswer | None,
    *,
    kept_ms: int,
    doubted_ms: int | None = None,
) -> PositionVerdict:
    """Return the verdict on the position of `state`; `answer` None: the service has not answered.
    `doubted_ms`: the time since the first answer about this position."""
    position = state.position
    if not isinstance(position, AfterRecord):
        return PositionVerdict.ACCEPTED
    if answer is None:
        return PositionVerdict.UNKNOWN
    order = sequence_order(position.sequence_number)
    if answer.found is not None and sequence_order(answer.found) == order:
        return PositionVerdict.ACCEPTED
    if position.sequence_number == shard.ending_sequence_number:
        return PositionVerdict.SHARD_END
    if order == sequence_order(shard.first_sequence_number):
        return PositionVerdict.SHARD_START
    if answer.refused:
        return PositionVerdict.REFUSED
    if order < sequence_order(shard.first_sequence_number):
        return PositionVerdict.WRONG
    certain = answer.found is not None or (doubted_ms or 0) >= DOUBT_MS
    if answer.oldest is not None and sequence_order(answer.oldest) < order:
        return PositionVerdict.WRONG if certain else PositionVerdict.UNKNOWN
    evidence = Evidence(found=answer.found, time=answer.time, kept_ms=kept_ms)
    if judge(state, evidence) is not Verdict.LOST:
        return PositionVerdict.ACCEPTED
    # A record that was read from, up to the latest, has been visible.
    certain = certain or state.last_caught_up_ms is not None
    return PositionVerdict.LOST if certain else PositionVerdict.UNKNOWN


def check_position(position: AfterRecord, now: EpochMillis) -> CheckSteps:
    """Request the evidence: the first record at `position` or after it, and unless that is its
    record, the oldest record of the shard. The cursor continues after the position, and has the
    size of the record there: the next page need not be one record wide to learn it."""
    try:
        iterator = yield from open_iterator(position, inclusive=True)
    except InvalidPositionError as error:
        return PositionAnswer(refused=error.found, time=now)
    page = yield from follow_iterator(iterator, 1, persistent=True)
    found = _first(page)
    if found is not None and sequence_order(found) == sequence_order(position.sequence_number):
        (record,) = page.records[:1]
        cursor = ShardCursor()
        if len(page.records) == 1 and record.last_sub <= position.sub:
            cursor = ShardCursor(
                position=position,
                cached_iterator=cached_iterator_after(page),
                record_bytes=float(record.size_bytes),
                proven=True,
                reached_ms=record.arrival,
            )
        return PositionAnswer(found=found, time=page.time, cursor=cursor)
    iterator = yield from open_iterator(TrimHorizon())
    horizon = yield from follow_iterator(iterator, 1, persistent=True)
    return PositionAnswer(found=found, oldest=_first(horizon), time=page.time)


def _first(page: PageView) -> SequenceNumber | None:
    return page.records[0].sequence_number if page.records else None


# --- The positions of a query ---------------------------------------------------------------------

_OLDEST: Final = ShardState(position=TrimHorizon())


class Giver(Enum):
    """The origin of a position."""

    OPTION = auto()
    CHECKPOINT = auto()
    LEASE = auto()


def giver_of(key: ShardKey, state: ShardState, start: Offset, table: str | None) -> Giver:
    """Return the origin of a shard's position in the plan of the batch after `start`; `table`: the
    lease table, if shards are shared."""
    entries = (start.states.get(key), start.waiting.get(key), start.lost_shards.get(key))
    if any(entry is not None and entry.position == state.position for entry in entries):
        return Giver.CHECKPOINT
    return Giver.OPTION if table is None else Giver.LEASE


@dataclass(slots=True, kw_only=True)
class VerifiedStates:
    """The shards of a plan at verified positions."""

    states: dict[ShardKey, ShardState]
    starts: dict[ShardKey, ShardState | None] = field(default_factory=dict)
    """The starts of shards that do not start at the position given; None: at the checkpoint's."""
    pending: set[ShardKey] = field(default_factory=set)
    """Shards of `states` that are not verified yet, and cannot be read."""
    cursors: dict[ShardKey, ShardCursor] = field(default_factory=dict)


class GivenPositions:
    """The positions that one run of a query has verified, and those that it has replaced."""

    def __init__(
        self, prober: ShardProber, *, option: StartingPosition, table: str | None, fail: bool
    ) -> None:
        self._prober = prober
        self._option = option
        self._table = table
        self._fail = fail
        self._good: dict[ShardKey, tuple[Position, ...]] = {}
        """The last positions, at most two, that need no verification."""
        self._replaced: dict[ShardKey, dict[Position, ShardState]] = {}
        """Positions that are not read from, each with the start of the shard instead."""
        self._doubted: dict[ShardKey, EpochMillis] = {}

    def accept(self, key: ShardKey, position: Position) -> None:
        """Record a position that needs no verification, also if an earlier one was refused."""
        self._good[key] = (position,)
        self._prober.rejected.discard(key)

    def plan(self, key: ShardKey, end: Position) -> None:
        """Record the end of a batch: a position of this run, as is the one before, from which the
        batch may be planned again."""
        before = self._good.get(key, ())
        if end not in before:
            self._good[key] = (*before[-1:], end)

    def retain(self, keys: Collection[ShardKey]) -> None:
        """Drop the state of shards not among `keys`."""
        for table in (self._good, self._replaced, self._doubted):
            for key in table.keys() - keys:
                del table[key]

    def verify(
        self,
        states: Mapping[ShardKey, ShardState],
        listings: Listings,
        start: Offset,
        created: Mapping[StreamName, EpochMillis],
        *,
        patient: bool,
        repeated: Callable[[AbstractSet[ShardKey]], Collection[ShardKey]],
    ) -> VerifiedStates:
        """Verify the positions of shards; those that may not be probed yet, or whose stream was not
        `created` then, are pending. `patient`: repeat calls that fail; `repeated`: those of some
        shards whose checks are repeated if they were throttled. Raises InvalidPositionError,
        and DataLossError for a trimmed record, under `failOnDataLoss`."""
        for key in self._prober.rejected:
            self._good.pop(key, None)
        self._prober.rejected.clear()
        verified = VerifiedStates(states=dict(states))
        for key in states.keys() & self._replaced.keys():
            self._replace(key, start, verified)
        # A replaced position may be the checkpoint's, which is verified in the next round.
        while unverified := sorted(key for key in states if self._is_unverified(key, verified)):
            now = self._prober.service_time()
            checks = {
                key: partial(check_position, position, now)
                for key in unverified
                if (patient or self._prober.limiter.is_due(key))
                and isinstance(position := verified.states[key].position, AfterRecord)
            }
            answers = self._prober.run_checks(checks, patient=patient, repeated=repeated)
            self._settle(unverified, answers, listings, start, created, verified)
        return verified

    def _is_unverified(self, key: ShardKey, verified: VerifiedStates) -> bool:
        position = verified.states[key].position
        return (
            isinstance(position, AfterRecord)
            and key not in verified.pending
            and position not in self._good.get(key, ())
        )

    def _settle(
        self,
        keys: Collection[ShardKey],
        answers: Mapping[ShardKey, PositionAnswer],
        listings: Listings,
        start: Offset,
        created: Mapping[StreamName, EpochMillis],
        verified: VerifiedStates,
    ) -> None:
        """Judge the answers, and act on the verdicts."""
        verdicts = {
            key: judge_position(
                verified.states[key],
                listings[key.stream][key.shard],
                answer := answers.get(key),
                kept_ms=self._prober.kept_ms(key),
                doubted_ms=self._doubted_for(key, answer),
            )
            for key in keys
        }
        bad = {key for key in keys if verdicts[key] in BAD}
        kept = sorted(self._prober.still_listed(bad, created)) if bad else []
        errors = {
            key: self._error(key, verified.states[key], verdicts[key], answers[key], start)
            for key in kept
        }
        if errors and self._fail:
            raise _first_of(errors)
        for key in keys:
            state, verdict = verified.states[key], verdicts[key]
            if verdict is PositionVerdict.UNKNOWN or (key in bad and key not in errors):
                verified.pending.add(key)
                continue
            self._doubted.pop(key, None)
            if verdict in (PositionVerdict.ACCEPTED, PositionVerdict.LOST):
                # What is left after a trimmed record is read from its position, with a warning by
                # the probe or the task that misses it.
                self.accept(key, state.position)
                verified.cursors[key] = answers[key].cursor
                continue
            instead = _OLDEST
            if verdict is PositionVerdict.SHARD_END:
                instead = replace(state, position=ShardEnd(), first=None, resume_from=None)
            self._replaced.setdefault(key, {})[state.position] = instead
            self._replace(key, start, verified)
            if key in errors:
                warn_position_replaced(errors[key], verified.states[key])

    def _doubted_for(self, key: ShardKey, answer: PositionAnswer | None) -> int | None:
        """Return the milliseconds since the first answer about the shard's position."""
        if answer is None:
            return None
        return answer.time - self._doubted.setdefault(key, answer.time)

    def _replace(self, key: ShardKey, start: Offset, verified: VerifiedStates) -> None:
        """Replace the shard's position, if it is known not to be read from."""
        position = verified.states[key].position
        replaced = self._replaced[key]
        if position not in replaced:
            return
        entry = start.states.get(key)
        if entry is not None and entry.position not in replaced:
            verified.states[key] = without_batch(entry)
            verified.starts[key] = None
        else:
            verified.states[key] = replaced[position]
            # SHARD_END is no start: nothing is read of a shard without a first record.
            verified.starts[key] = _OLDEST

    def _error(
        self,
        key: ShardKey,
        state: ShardState,
        verdict: PositionVerdict,
        answer: PositionAnswer,
        start: Offset,
    ) -> SspError:
        """Return the error of a bad position, with the advice for its giver."""
        giver = giver_of(key, state, start, self._table)
        is_option = giver is Giver.OPTION or state.position == self._option.by_shard.get(key)
        subject = (
            f"shard {key}"
            + {
                Giver.OPTION: ", option startingPosition",
                Giver.CHECKPOINT: "",
                Giver.LEASE: f", lease in table {self._table}",
            }[giver]
        )
        if verdict is PositionVerdict.LOST:
            trimmed = trimmed_record(state, kept_ms=self._prober.kept_ms(key))
            next_step = next_step_after_loss(self._table)
            if is_option:
                next_step = (
                    "set failOnDataLoss to false to continue after the gap, or "
                    f"{_corrected(giver, _LATER)}"
                )
            return DataLossError(
                subject, found=trimmed.found, expected=trimmed.expected, next_step=next_step
            )
        remedy = _corrected(giver, _OWN) if is_option else _FOREIGN[giver]
        if giver is Giver.CHECKPOINT and self._table is not None and not is_option:
            remedy += " and with another applicationName"
        return InvalidPositionError(
            subject,
            found=_found(state, verdict, answer),
            expected="the sequence number of a record of this shard",
            next_step=f"{remedy}; or set failOnDataLoss to "
            "false to read the shard from its oldest record, possibly a second time",
        )


def _corrected(giver: Giver, correction: str) -> str:
    """Return the correction of a position in startingPosition. A lease may have been created from
    it, and it may wait in the checkpoint for the shard's parents."""
    if giver is Giver.OPTION:
        return correction
    return f"{correction}; and {_DELETE_ROW if giver is Giver.LEASE else _AFRESH}"


_DELETE_ROW: Final = (
    "stop all workers and delete the shard's row in the table, after which the shard is read from "
    "the query's checkpoint, or from its oldest record"
)
_AFRESH: Final = f"start the query on {NEW_CHECKPOINT}"
_OWN: Final = "correct the shard's position in startingPosition, or leave it out"
_LATER: Final = "choose a later position for the shard in startingPosition, or leave it out"
_FOREIGN: Final = {
    Giver.CHECKPOINT: "make streamName, region and endpointUrl name the stream that the checkpoint "
    f"was written for, or {_AFRESH}",
    Giver.LEASE: _DELETE_ROW,
}
"""The remedy for a position of another shard or stream, by its giver."""


def _found(state: ShardState, verdict: PositionVerdict, answer: PositionAnswer) -> str:
    if not isinstance(state.position, AfterRecord):
        raise TypeError(f"only records are verified, not {state.position}")
    number = f"sequence number {state.position.sequence_number}, of another shard or stream"
    if verdict is PositionVerdict.REFUSED:
        return f"{number}: {answer.refused}"
    return f"{number}: the shard has older records, but not this one"


def _first_of(errors: Mapping[ShardKey, SspError]) -> SspError:
    """Return the error of the first shard, which names the others."""
    (_, error), *others = errors.items()
    if not others:
        return error
    names = abbreviate([str(key) for key, _ in others])
    return type(error)(
        error.subject,
        found=f"{error.found}; the positions of other shards are bad as well: {names}",
        expected=error.expected,
        next_step=error.next_step,
    )
