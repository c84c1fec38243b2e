"""Rules that every query must satisfy in all circumstances, checked while it runs.

The judge knows every record that was put (`World`) and sees the plans, reads and commits of the
query (`Witness`). It knows nothing about the planner. Its rules, by number:

1. No record is lost: a record put after the start is committed, or was trimmed before it could be
   and was reported (an error, or a warning of the data-loss log). User records may be left out only
   of an aggregate whose producer puts them again.
2. No record is committed twice.
3. Parents before children: records of a shard are committed only after all those of its ancestors.
   In the same batch, they are in the same slot, and the ancestors' come first there.
4. The records of a shard, and so of a key, are committed in their order.
5. The limits hold, except that one record is always admitted.
6. At most N tasks, N constant within a run; each shard in one slot.
7. A replayed batch gives the same rows.
8. Offsets: equal text if nothing is new, decoded and encoded again the same, only forward.

10. No batch contains a record that arrived after an unread record of another shard by more than the
    tolerance: a watermark would make that one late.
11. Neither credentials nor data of a record are in an offset.
12. An entry is caught up as of a time only if no record arrived before it that follows the entry,
    in its shard or in a descendant, and was not trimmed: no later plan would know of it.

(9, liveness, and the budget of calls are checked by the driver of the query.)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.offset import Offset, decode, encode
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Latest,
    Position,
    ShardEnd,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.kinesis_source.planning.data_loss import START_MARGIN_MS
from spark_ssp.kinesis_source.probing.alignment import TOLERANCE_MS
from tests.support.simulation.query import Row
from tests.support.simulation.world import (
    KEYS,
    LONGEST_HIDDEN_MS,
    PAYLOAD,
    RETENTION_MS,
    Entry,
    ShardLife,
    World,
)

SECRETS = {
    "awsAccessKeyId": "AKIACANARY",
    "awsSecretAccessKey": "canary-secret-key",
    "awsSessionToken": "canary-session-token",
}

HIDDEN_MS = LONGEST_HIDDEN_MS + 1_000
"""The time for which the service hides a record, and the error of its arrival times."""
ALIGNED_MS = TOLERANCE_MS + 400 + HIDDEN_MS
"""The tolerance, the default of minFetchPeriod, and the time until a record is seen."""
SMALLEST_RECORD = len("payload-0") + len("key-0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a shard, by index of its entries: no record before `allowed` may come, all from
    `required` on must. After it, those that claim to have arrived before `time` need not."""

    allowed: int = 0
    required: int = 0
    time: int | None = None


class Judge:
    """Checks the rules of this module. Raises AssertionError."""

    def __init__(self, world: World, *, page: int) -> None:
        """`page`: limits of at most this number of records must be met exactly."""
        self.world = world
        self.losses: list[str] = []
        self.left_behind = False
        """True if this process has warned that a shard no longer holds the others back."""
        self._page = page
        self._options: KinesisOptions | None = None
        self._unlimited = False
        self._run_slots: int | None = None
        self._begun: dict[str, int] = {}  # each stream's life at the start
        self._starts: dict[ShardLife, Start] = {}
        self._first_spared = 0
        """`_spared_before` of the first batch."""
        self._visible: dict[ShardLife, int] = {}
        self._ends: dict[int, Offset] = {}
        self._limits: dict[int, tuple[int | None, int | None]] = {}
        self._seen: dict[int, dict[ShardLife, int]] = {}
        self._aligned: dict[int, bool] = {}
        self._first_read: dict[int, tuple[int, dict[tuple[str, str], list[Row]]]] = {}
        self._done: dict[ShardLife, tuple[int, int]] = {}  # next (entry, user record)

    # --- Events -----------------------------------------------------------------------------------

    def started(self, options: Mapping[str, str], *, unlimited: bool) -> None:
        """Record the start of a process with these options; `unlimited`: by a trigger without
        limits."""
        self._options = parse_options(options)
        self._unlimited = unlimited
        self._run_slots = None
        self.left_behind = False

    def lost(self, message: str) -> None:
        """Record a reported loss."""
        self.losses.append(message)

    def planning(self) -> None:
        """Record the state before a plan."""
        world = self.world
        streams = world.state.stream_names()
        self._visible = {
            life: world.visible_to(life) for stream in streams for life in world.lives(stream)
        }

    def planned(self, batch: int, start: str, end: str) -> None:
        """Check rules 5 (noted), 6, 8, 11."""
        assert self._options is not None
        before, after = decode(json.loads(start)), decode(json.loads(end))
        assert json.dumps(encode(after)) == end, "an offset changes when encoded again"
        self._check_forward(before, after)
        self._check_caught_up(after)
        for secret in (*SECRETS.values(), PAYLOAD, *KEYS):
            assert secret not in end, "an offset contains a secret"
        self._run_slots = self._run_slots or after.slots
        assert after.slots == self._run_slots, "the number of slots changed within a run"
        assert self._options.slots in (None, after.slots), "not the slots that were asked for"
        assert all(0 <= slot < after.slots for slot in after.assignment.values())
        self._ends[batch] = after
        options = self._options
        self._seen[batch] = dict(self._visible)
        self._aligned[batch] = (
            options.align_batches and not self._unlimited and not self.left_behind
        )
        self._limits[batch] = (
            (None, None)
            if self._unlimited
            else (options.max_records_per_trigger, options.max_bytes_per_trigger)
        )
        if batch == 0:
            self._resolve_starts(options)

    def _check_forward(self, before: Offset, after: Offset) -> None:
        for key, state in after.states.items():
            old = before.entry(key)
            same_life = before.streams.get(key.stream)
            if old is None or same_life is None:
                continue
            if same_life.created != after.streams[key.stream].created:
                continue
            assert not is_behind(state.position, old.position), f"{key} moved backwards"
            if state.last_caught_up_ms is not None and old.last_caught_up_ms is not None:
                assert state.last_caught_up_ms >= old.last_caught_up_ms, (
                    f"{key} was seen earlier than before"
                )

    def _check_caught_up(self, end: Offset) -> None:
        """Check rule 12."""
        for key, state in {**end.states, **end.waiting}.items():
            since = state.last_caught_up_ms
            if since is None:
                continue
            life = ShardLife(key.stream, end.streams[key.stream].created, key.shard)
            for other in self.world.entries:
                if other != life and life not in self.world.ancestors(other):
                    continue
                kept = self.world.kept_from(other)
                for entry in self.world.entries[other][kept:]:
                    if other == life and not _follows(entry, state.position):
                        continue
                    assert entry.arrival >= since - HIDDEN_MS, (
                        f"{other} has a record of {entry.arrival}, and {life} was caught up {since}"
                    )
                    self.world.happened["caught up before a record"] += 1

    def read(self, batch: int, tasks: Sequence[tuple[int, Sequence[Row]]]) -> None:
        """Check rules 6 and 7."""
        end = self._ends[batch]
        assert len(tasks) <= end.slots, f"{len(tasks)} tasks for {end.slots} slots"
        assert len({slot for slot, _ in tasks}) == len(tasks), "two tasks for one slot"
        rows: dict[tuple[str, str], list[Row]] = {}
        for slot, of_task in tasks:
            for row in of_task:
                assert row.slot == slot
                rows.setdefault((row.stream, row.shard), []).append(row)
        for of_shard in rows.values():
            assert len({row.slot for row in of_shard}) == 1, "a shard is read in two slots"
        known = self._first_read.get(batch)
        if known is None:
            self._first_read[batch] = (len(self.losses), rows)
        else:
            self.world.happened["replay compared"] += 1
            losses, expected = known
            assert rows == expected or len(self.losses) > losses, "a replay gave other rows"

    def committed(self, batch: int, rows: Sequence[Row]) -> None:
        """Check rules 2 to 5, and 1 as far as gaps show it."""
        by_life: dict[ShardLife, list[Row]] = {}
        for row in rows:
            life, _ = self.world.owners[row.id]
            assert (life.stream, life.shard) == (row.stream, row.shard), "a row of another shard"
            by_life.setdefault(life, []).append(row)
        self._check_lineage(rows, by_life)
        self._check_limits(batch, by_life)
        self._check_alignment(batch, by_life)
        self.world.happened["committed rows"] += len(rows)

    def _check_lineage(
        self, rows: Sequence[Row], by_life: Mapping[ShardLife, Sequence[Row]]
    ) -> None:
        places = {row.id: place for place, row in enumerate(rows)}
        for life in sorted(by_life, key=lambda one: len(self.world.ancestors(one))):
            first = by_life[life][0]
            for ancestor in sorted(self.world.ancestors(life)):
                assert not self._outstanding(ancestor), f"{life} is read before {ancestor}"
                for row in by_life.get(ancestor, ())[-1:]:
                    assert row.slot == first.slot, f"{life} is read beside {ancestor}"
                    assert places[row.id] < places[first.id], f"{life} is read before {ancestor}"
                    self.world.happened["children with their parents"] += 1
            self._check_run(life, by_life[life])

    def _check_run(self, life: ShardLife, rows: Sequence[Row]) -> None:
        entries = self.world.entries[life]
        assert self._is_expected(life), f"{life} is of a life before the query's start"
        for row in rows:
            index = self.world.owners[row.id][1]
            entry = entries[index]
            assert entry.sequence_number == row.sequence_number
            assert entry.arrival == row.arrival
            assert entry.key == row.key
            assert entry.ids[row.sub] == row.id, "the user records of an aggregate are misnumbered"
            place = (index, row.sub)
            assert index >= self._start(life).allowed, f"{row} is before the start"
            done = self._done.get(life)
            assert done is None or place >= done, f"{row} comes twice or too late"
            self._check_gap(life, place)
            self._done[life] = _after(place, len(entry.ids))

    def _check_gap(self, life: ShardLife, place: tuple[int, int]) -> None:
        """Check that the records between the last committed one and `place` are gone, and
        reported."""
        spared = self._spared_before(life)
        missing = [
            one
            for one in takewhile(lambda one: one < place, self._pending(life))
            if self.world.entries[life][one[0]].arrival >= spared
        ]
        if not missing:
            return
        kept = self.world.kept_from(life)
        assert all(index < kept for index, _ in missing), (
            f"{life}: {len(missing)} records were passed over, from {missing[0]}"
        )
        assert self._is_reported(life), f"{life}: {len(missing)} records were lost in silence"
        self.world.happened["loss reported"] += 1

    def _spared_before(self, life: ShardLife) -> int:
        """Return the index before which a limited query may skip records that are about to be
        trimmed."""
        return self._spared_now() if self._begins(life) else 0

    def _begins(self, life: ShardLife) -> bool:
        """Return whether the query starts in the shard, of which it has committed no record."""
        return life in self._starts and life not in self._done

    def _spared_now(self) -> int:
        if self._unlimited:
            return 0
        return self.world.clock.now_ms() - RETENTION_MS + START_MARGIN_MS

    def _check_limits(self, batch: int, by_life: Mapping[ShardLife, Sequence[Row]]) -> None:
        records, size = self._limits[batch]
        places = {
            (life, self.world.owners[row.id][1]) for life, of in by_life.items() for row in of
        }
        if len(places) <= 1:
            return
        if records is not None and records <= self._page:
            assert len(places) <= records, f"{len(places)} records under a limit of {records}"
            self.world.happened["limit met"] += len(places) == records
        if size is not None and size <= self._page * SMALLEST_RECORD:
            total = sum(self.world.entries[life][index].size for life, index in places)
            assert total <= size, f"{total} bytes under a limit of {size}"
            self.world.happened["size limit held"] += 1

    def _check_alignment(self, batch: int, by_life: Mapping[ShardLife, Sequence[Row]]) -> None:
        if not self._aligned[batch]:
            return
        newest = {life: max(row.arrival for row in of_life) for life, of_life in by_life.items()}
        for life, seen in self._seen[batch].items():
            kept, spared = self.world.kept_from(life), self._spared_before(life)
            entries = self.world.entries[life]
            pending = (i for i, _ in self._pending(life) if kept <= i < seen)
            unread = next((i for i in pending if entries[i].arrival >= spared), None)
            if unread is None:
                continue
            arrival = entries[unread].arrival
            for other in newest.keys() - {life}:
                ahead = newest[other] - arrival
                assert ahead <= ALIGNED_MS, (
                    f"batch {batch} read {other} {ahead} ms ahead of an unread record of {life}"
                )
            self.world.happened["aligned with an unread record"] += 1

    # --- Queries ----------------------------------------------------------------------------------

    def visible_now(self) -> dict[ShardLife, int]:
        """Return the entry up to which each shard can be read at this moment."""
        self.planning()
        return dict(self._visible)

    def missing(self, up_to: Mapping[ShardLife, int] | None = None) -> dict[ShardLife, int]:
        """Return the number of uncommitted records that should and can be committed, by shard; up
        to an entry, if given."""
        found: dict[ShardLife, int] = {}
        for life in sorted(self.world.entries):
            end = None if up_to is None else up_to.get(life, 0)
            pending = [one for one in self._pending(life) if end is None or one[0] < end]
            if not pending:
                continue
            kept = self.world.kept_from(life)
            left = sum(index >= kept for index, _ in pending)
            if left:
                found[life] = left
        return found

    def check_silence(self) -> None:
        """Check rule 1 at the end: records that are gone without a commit were reported as lost."""
        for life in sorted(self.world.entries):
            kept, entries = self.world.kept_from(life), self.world.entries[life]
            spared = self._first_spared if self._begins(life) else 0
            gone = [index for index, _ in self._pending(life) if index < kept]
            lost = sum(entries[index].arrival >= spared for index in gone)
            assert not lost or self._is_reported(life), (
                f"{life}: {lost} records were lost in silence"
            )
            self.world.happened["loss reported"] += bool(lost)

    def _is_reported(self, life: ShardLife) -> bool:
        """Return whether a loss was reported for the shard, its stream, or an ancestor: the report
        that a shard expired unread implies that its children were not read either."""
        names = {f"{one.stream}/{one.shard}" for one in {life, *self.world.ancestors(life)}}
        return any(
            f"stream {life.stream}" in said or any(f"shard {name}" in said for name in names)
            for said in self.losses
        )

    def _outstanding(self, life: ShardLife) -> bool:
        if next(self._pending(life), None) is None:
            return False
        kept = self.world.kept_from(life)
        return any(index >= kept for index, _ in self._pending(life))

    def _pending(self, life: ShardLife) -> Iterator[tuple[int, int]]:
        """Return the user records that must still come: (entry, user record)."""
        if not self._is_expected(life):
            return
        entries = self.world.entries[life]
        done = self._done.get(life)
        if done is None:
            start = self._start(life)
            first = start.required
            while start.time and first < len(entries) and entries[first].arrival < start.time:
                first += 1
            done = (first, 0)
        for index in range(done[0], len(entries)):
            if entries[index].straggler:
                continue
            for sub in range(len(entries[index].ids)):
                if (index, sub) >= done:
                    yield index, sub

    # --- The start --------------------------------------------------------------------------------

    def _is_expected(self, life: ShardLife) -> bool:
        begun = self._begun.get(life.stream)
        return begun is not None and life.created >= begun

    def _start(self, life: ShardLife) -> Start:
        return self._starts.get(life, Start())

    def _resolve_starts(self, options: KinesisOptions) -> None:
        """Return the start of each shard that exists now; all others are read completely."""
        self._starts.clear()
        self._first_spared = self._spared_now()
        for ref in options.streams:
            self._begun[ref.name] = self.world.state.stream(ref.name).created_ms
            listed = self.world.lives(ref.name)
            for life, entries in self.world.entries.items():
                if life in listed:
                    self._starts[life] = self._resolve(life, options)
                elif life.stream == ref.name:  # it expired before the query began
                    self._starts[life] = Start(allowed=len(entries), required=len(entries))

    def _resolve(self, life: ShardLife, options: KinesisOptions) -> Start:
        entries = self.world.entries[life]
        kept = self.world.kept_from(life)
        key = ShardKey(stream=StreamName(life.stream), shard=ShardId(life.shard))
        start = options.starting_position
        match start.by_shard.get(key, start.default):
            case TrimHorizon():
                return Start(required=kept)
            case AtTimestamp(millis=millis):
                late = (i for i, entry in enumerate(entries) if entry.arrival >= millis)
                first = next(late, len(entries))
                time = millis if first == len(entries) else None
                return Start(allowed=first, required=max(first, kept), time=time)
            case Latest():
                return Start(
                    allowed=self._visible.get(life, 0),
                    required=len(entries),
                    time=self.world.clock.now_ms(),
                )
            case other:
                raise AssertionError(f"the judge does not know the start {other}")


def _after(place: tuple[int, int], users: int) -> tuple[int, int]:
    index, sub = place
    return (index, sub + 1) if sub + 1 < users else (index + 1, 0)


def _follows(entry: Entry, position: Position) -> bool:
    """Return whether a record of a shard follows a position in it."""
    match position:
        case AfterRecord(sequence_number=number):
            return entry.sequence_number > int(number)
        case AtTimestamp(millis=millis):
            return entry.arrival >= millis
        case TrimHorizon():
            return True
        case ShardEnd():
            return False


class _Ear(logging.Handler):
    def __init__(self, judge: Judge) -> None:
        super().__init__(logging.WARNING)
        self._judge = judge

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name.endswith(".data_loss"):
            self._judge.lost(message)
        if "(alignmentTimeout)" in message:
            self._judge.left_behind = True


@contextmanager
def listening(judge: Judge) -> Iterator[None]:
    """Pass the warnings to the judge only."""
    logger = logging.getLogger("spark_ssp")
    ear = _Ear(judge)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(ear)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = propagate
