"""Decides about every shard of a query whose shards are shared by leases. One pure function,
`decide`, from the lease table, the listings, the offset and a few known facts.

Each listed shard, and each row or offset entry of a shard that is not listed, gets one verdict:

* `Read` here, `AtEnd` here, held `Elsewhere`, `Waiting` for ancestors, or `Finished`;
* `Create`: it needs a lease; `Hole`: it will need one, once the hole is confirmed;
* `NotRead`: nobody reads it until someone repairs the table;
* `Lost` or `Unlisted`: it is not listed, and expired, or may be new.

Everything else follows from the verdicts (`lease_session.py`): the next offset, the reports to the
lease agent, what to wait for, data loss, log lines and the status.

**Shards with a row.** A shard is read here if this worker holds its lease, no other worker has
requested it, and its ancestors are done; from the further one of two positions: the offset's, and
the checkpoint. A shard read to its end stays in the offset, at SHARD_END, until its row records the
end, so a restart does not read it again. A row that cannot be parsed is not known to be done: the
shard is `NotRead`, and its descendants wait, also those of another owner: if it is dead, nobody
takes over.

**Listed shards without a row.** A row is deleted normally only once a child is being read, and a
child's row is created normally only once a parent has been read. So a shard without a row is

1. finished, if a descendant *accounts* for it: it has a row, or an entry in the offset. Rows that a
   start may have created together with those of their ancestors (AT_TIMESTAMP, and TRIM_HORIZON
   with a start by shard) account only for ancestors that the start skips (LATEST). The row of a
   merged shard at TRIM_HORIZON accounts for none: the first of its parents to end creates it. A
   row that cannot be parsed may be one of these: then the shard is `NotRead`;
2. created at the position of its entry, if the offset has one;
3. created at `startingPosition`, if the application has never read the stream: the offset does not
   have the stream, and no row has ended or ever had an owner;
4. waiting, while an ancestor is not done;
5. created at TRIM_HORIZON, if the row of a parent has ended;
6. otherwise a **hole**: nobody accounts for its history. It is read from TRIM_HORIZON (from the
   application's start, if it is an ancestor of rows at a time). Records may be read a second time,
   by another owner; none is skipped. An open shard has no descendants, so the hash keys of the
   stream are always covered: an open shard is never finished without a row at SHARD_END.

Another worker may be creating the row, and the listing may lack a child that accounts for the
shard. So the positions of 2 and 6 are used only once the hole is confirmed: it was seen for a
failover time, and a new listing has it too. With no row at all there is nothing to confirm.

**Shards without a listing.** An entry without a row is finished: its row was cleaned up. It is lost
if the offset was not shared by this table, or if its children are listed and none has a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from spark_ssp.checkpoint.leases.lease import (
    Lease,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
)
from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName, WorkerId
from spark_ssp.kinesis_source.leases.lease_table import LeaseTableView
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    Position,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
    is_behind,
    without_batch,
)
from spark_ssp.kinesis_source.planning.active_shards import Listings, ancestors, children_of
from spark_ssp.kinesis_source.probing.initial_positions import start_points

V = TypeVar("V")

_BEGINNING: Final = ShardState(position=TrimHorizon())


# --- Verdicts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read here. `state` None: from LATEST, which is still to be resolved."""

    state: ShardState | None
    takes_over: bool = False
    """Not where the offset's shards, being read, continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtEnd:
    """Read to its end here. `children` None: they are still to be discovered."""

    state: ShardState
    children: tuple[ShardKey, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """It has a lease that this worker does not hold, or that it gives away; nobody's if `holder` is
    None."""

    holder: WorkerId | None
    handed_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not to be read before these ancestors are done."""

    ancestors: tuple[ShardKey, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """All of its records were read, or are not wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Its lease is to be created at `state`; None: at `startingPosition`."""

    state: ShardState | None
    is_hole: bool = False
    """The application has read the stream, and nobody accounts for the shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A row seems to be missing, seen first at `since_ms`."""

    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRead:
    """No worker reads it: the row of `row` cannot be parsed."""

    row: ShardKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Expired with unread records; `at_end`: only its children's. `children`: those to be named in
    the row of the shard, if this worker holds it."""

    at_end: bool
    children: tuple[ShardKey, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlisted:
    """It has a lease, and may be new or expired: ignored for now."""

    is_held: bool


Verdict = Read | AtEnd | Elsewhere | Waiting | Finished | Create | Hole | NotRead | Lost | Unlisted


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on each shard, sorted, and its consequences."""

    verdicts: Mapping[ShardKey, Verdict]
    dropped: Mapping[ShardKey, str] = field(default_factory=dict)
    """Shards that leave the offset, with the reason."""

    def _each(self, kind: type[V]) -> Iterator[tuple[ShardKey, V]]:
        return (
            (key, verdict) for key, verdict in self.verdicts.items() if isinstance(verdict, kind)
        )

    @property
    def states(self) -> dict[ShardKey, ShardState]:
        """The entries of the next offset, before their positions have advanced."""
        return {
            key: verdict.state
            for key, verdict in self.verdicts.items()
            if isinstance(verdict, Read | AtEnd) and verdict.state is not None
        }

    @property
    def resume_from(self) -> dict[ShardKey, ShardState]:
        """The starts of those that do not continue from the previous offset."""
        return {
            key: replace(without_batch(verdict.state), first=None)
            for key, verdict in self._each(Read)
            if verdict.takes_over and verdict.state is not None
        }

    @property
    def unresolved(self) -> list[ShardKey]:
        """Shards to be added once LATEST is resolved for them."""
        return [key for key, verdict in self._each(Read) if verdict.state is None]

    @property
    def reading(self) -> frozenset[ShardKey]:
        """The shards that are read, or about to be."""
        undiscovered = {key for key, verdict in self._each(AtEnd) if verdict.children is None}
        return frozenset({key for key, _ in self._each(Read)} | undiscovered)

    @property
    def ended(self) -> dict[ShardKey, tuple[ShardKey, ...]]:
        """Held shards that were read to the end, or have expired, with their children."""
        return {
            key: verdict.children
            for key, verdict in self.verdicts.items()
            if isinstance(verdict, AtEnd | Lost) and verdict.children is not None
        }

    @property
    def undiscovered(self) -> list[StreamName]:
        """The streams of shards at their end whose children are not listed yet."""
        return [key.stream for key, verdict in self._each(AtEnd) if verdict.children is None]

    @property
    def lost(self) -> dict[ShardKey, Lost]:
        """Shards with records that expired unread."""
        return dict(self._each(Lost))

    @property
    def unlisted(self) -> list[ShardKey]:
        """Held shards that may be new or expired."""
        return [key for key, verdict in self._each(Unlisted) if verdict.is_held]

    @property
    def creations(self) -> dict[ShardKey, Create]:
        """Shards that need a lease now."""
        return dict(self._each(Create))

    @property
    def holes(self) -> dict[ShardKey, int]:
        """Unconfirmed holes, with the times when they were seen first."""
        return {key: verdict.since_ms for key, verdict in self._each(Hole)}

    @property
    def not_read(self) -> dict[ShardKey, ShardKey]:
        """The shards that no worker reads before the table is repaired, with the one whose row is
        to be repaired: itself, or a relative."""
        found = {key: verdict.row for key, verdict in self._each(NotRead)}
        if not found:
            return {}
        waiting = dict(self._each(Waiting))
        blocked = True
        while blocked:  # once for each generation that waits
            blocked = False
            for key, verdict in waiting.items():
                row = next((found[one] for one in verdict.ancestors if one in found), None)
                if row is not None and key not in found:
                    found[key] = row
                    blocked = True
        return dict(sorted(found.items()))


# --- The decision ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The inputs of a decision besides the table, the listings and the offset."""

    option: StartingPosition
    """Also the start of a KCL's lease without a time."""
    table: str | None = None
    """The name of the table."""
    created: Mapping[StreamName, EpochMillis] = field(default_factory=dict)
    """The creation times of the streams."""
    now_ms: int = 0
    """The time of this process."""
    expired: Collection[ShardKey] = frozenset()
    """Unlisted shards that are known to have expired."""
    proposed: Mapping[ShardKey, Lease] = field(default_factory=dict)
    """Leases whose creation was decided, as long as the table does not have them."""
    holes: Mapping[ShardKey, int] = field(default_factory=dict)
    """The holes of the previous decision, with the times when they were seen first."""
    confirmed: Collection[ShardKey] = frozenset()
    """Holes that are confirmed."""
    finished: Collection[ShardKey] = frozenset()
    """Shards that a newer listing has shown to be finished, or expired."""


def decide(start: Offset, table: LeaseTableView, listings: Listings, facts: Facts) -> Decision:
    """Return the verdict on every shard. `start` is committed.

    Raises UnnamedShardError as `start_points`, InvalidOptionsError as `from_checkpoint`.
    """
    verdicts: dict[ShardKey, Verdict] = {}
    dropped: dict[ShardKey, str] = {}
    for name in sorted(listings):
        stream = _Stream(name, start, table, listings[name], facts)
        for key in stream.shards():
            verdict = verdicts[key] = stream.verdict(key)
            if key in start.states and not isinstance(verdict, Read | AtEnd | Lost):
                dropped[key] = _drop_reason(key, table, verdict)
    return Decision(verdicts=verdicts, dropped=dropped)


def offset_entries(start: Offset) -> dict[ShardKey, ShardState]:
    """Return all entries of the query's own offset."""
    return {**start.lost_shards, **start.waiting, **start.states}


class _Stream:
    """One stream in one decision."""

    def __init__(
        self,
        name: StreamName,
        start: Offset,
        table: LeaseTableView,
        listing: Mapping[ShardId, Shard],
        facts: Facts,
    ) -> None:
        self._name = name
        self._start = start
        self._table = table
        self._listing = listing
        self._facts = facts
        self._written = _of(name, table.rows)
        self._rows = {**_of(name, facts.proposed), **self._written}
        self._entries = _of(name, offset_entries(start))
        self._parents_of_rows = {one for row in self._written.values() for one in row.parents}
        self._unreadable = {key.shard for key in table.unreadable if key.stream == name}
        self._children = children_of(listing.values())
        self._open_ancestors: dict[ShardId, tuple[ShardId, ...]] = {}
        self._missing = listing.keys() - self._rows.keys() - self._unreadable
        self._accounted: set[ShardId] = set()
        self._accounted_by_rows: set[ShardId] = set()
        self._unclear: dict[ShardId, ShardId] = {}
        self._since: EpochMillis | None = None
        self._timed: set[ShardId] = set()
        self._points: Mapping[ShardId, object] = {}
        self._skipped: frozenset[ShardId] = frozenset()
        self._is_new = bool(self._missing) and self._was_never_read()
        if self._missing:
            self._account()
        self._blocking = self._unreadable | (self._unclear.keys() & self._missing)
        """Shards that are not read, since a row cannot be parsed."""

    def shards(self) -> list[ShardKey]:
        """Return all shards of the stream that get a verdict."""
        shards = {*self._listing, *self._rows, *self._entries, *self._unreadable}
        return self._keys(shards)

    def verdict(self, key: ShardKey) -> Verdict:
        """Return the verdict on a shard."""
        shard = key.shard
        if shard in self._unreadable:
            return NotRead(row=key)
        if shard not in self._listing:
            return self._unlisted(key)
        if shard in self._written:
            return self._with_row(key)
        if shard in self._rows:
            return Create(state=None)
        return self._without_row(key)

    def _keys(self, shards: Collection[ShardId]) -> list[ShardKey]:
        return [ShardKey(stream=self._name, shard=shard) for shard in sorted(shards)]

    # --- What is done ----------------------------------------------------------------------------

    def _is_done(self, shard: ShardId) -> bool:
        """Return whether all records of the shard were read, as far as known. An expired shard is
        done if it has no row."""
        row = self._rows.get(shard)
        if row is not None:
            return row.has_ended
        if shard in self._unreadable:
            return False
        return shard not in self._listing or self._is_finished(shard)

    def _is_finished(self, shard: ShardId) -> bool:
        """Return whether a listed shard without a row needs none."""
        if shard in self._accounted_by_rows or self._key(shard) in self._facts.finished:
            return True
        if shard in self._entries:
            return False
        return shard in self._accounted or (self._is_new and self._is_skipped_by_start(shard))

    def _key(self, shard: ShardId) -> ShardKey:
        return ShardKey(stream=self._name, shard=shard)

    def _open(self, shard: ShardId) -> tuple[ShardId, ...]:
        """Return the nearest ancestors of a listed shard that are not done, past those that are: a
        start by shard may skip a generation."""
        pending = [shard]
        while pending:
            current = pending[-1]
            parents = self._listing[current].parents
            todo = [
                parent
                for parent in parents
                if parent in self._listing and parent not in self._open_ancestors
            ]
            if todo and current not in self._open_ancestors:
                pending += todo
                continue
            pending.pop()
            found: set[ShardId] = set()
            for parent in parents:
                found |= (
                    set(self._open_ancestors.get(parent, ())) if self._is_done(parent) else {parent}
                )
            self._open_ancestors[current] = tuple(sorted(found))
        return self._open_ancestors[shard]

    # --- Shards with a row -----------------------------------------------------------------------

    def _with_row(self, key: ShardKey) -> Verdict:
        row, entry, table = self._written[key.shard], self._entries.get(key.shard), self._table
        if row.has_ended:
            return Finished()
        at_end = entry is not None and isinstance(entry.position, ShardEnd)
        if not (key in table.held or (at_end and row.holder == table.worker)):
            if row.holder in (None, table.worker) or self._is_blocked(row):
                open_ancestors = self._open(key.shard)
                if open_ancestors:
                    return Waiting(ancestors=tuple(self._keys(open_ancestors)))
            return Elsewhere(holder=row.holder)
        if entry is not None and at_end:
            children = tuple(self._keys(self._children.get(key.shard, ())))
            return AtEnd(state=entry, children=children or None)
        if key in table.requested:
            return Elsewhere(holder=row.owner, handed_over=True)
        if key not in self._start.states and (open_ancestors := self._open(key.shard)):
            return Waiting(ancestors=tuple(self._keys(open_ancestors)))
        if entry is not None and not is_behind(entry.position, reached(row.progress)):
            state = entry
            if proves(row.progress, entry.position):
                state = with_caught_up(entry, caught_up_ms(row.progress))
            # Tasks need the later time too.
            takes_over = state is not entry or self._start.entry(key) is None
            return Read(state=state, takes_over=takes_over)
        return self._from_checkpoint(key, row, inherits=entry is None)

    def _is_blocked(self, row: Lease) -> bool:
        """Return whether no other worker takes the lease from its owner, who may be dead: an
        ancestor is not read, since a row cannot be parsed."""
        return bool(self._blocking) and not self._blocking.isdisjoint(self._open(row.shard))

    def _from_checkpoint(self, key: ShardKey, row: Lease, *, inherits: bool) -> Read:
        position, streams = from_checkpoint(row.progress, self._facts.option), self._start.streams
        if isinstance(position, Latest):
            return Read(state=None, takes_over=True)
        state = ShardState(position=position)
        if inherits and not isinstance(row.progress, Processed) and self._name in streams:
            inherited = self._inherited(key.shard, streams[self._name].created)
            state = replace(state, last_caught_up_ms=inherited)
        return Read(state=with_caught_up(state, caught_up_ms(row.progress)), takes_over=True)

    def _inherited(self, shard: ShardId, created: EpochMillis | None) -> EpochMillis | None:
        return inherited_caught_up_ms(self._name, shard, self._listing, self._start, created)

    # --- Listed shards without a row -------------------------------------------------------------

    def _was_never_read(self) -> bool:
        """Return whether no worker of the application has read the stream, as far as known."""
        return (
            self._name not in self._start.streams
            and not self._unreadable
            and not any(row.counter or row.has_ended for row in self._written.values())
        )

    def _account(self) -> None:
        """Find the shards that their descendants account for."""
        by_shard = any(key.stream == self._name for key in self._facts.option.by_shard)
        certain: set[ShardId] = set()
        ambiguous: set[ShardId] = set()
        merged = {shard for shard in self._listing if len(self._listing[shard].parents) > 1}
        times: set[EpochMillis | None] = set()
        for shard, row in self._rows.items():
            match row.progress:
                case StartAtTimestamp(at_ms=millis):
                    times.add(millis)
                    self._timed.add(shard)
                    ambiguous.add(shard)
                case StartAtTrimHorizon() if by_shard:
                    ambiguous.add(shard)
                case StartAtTrimHorizon() if shard in merged:
                    pass
                case _:
                    certain.add(shard)
        timed = bool(times) or isinstance(self._facts.option.default, AtTimestamp)
        (ambiguous if by_shard or timed else certain).update(self._unreadable - merged)
        self._since = self._start_time(times)
        self._timed = ancestors(self._listing, self._timed)
        skipped = {
            shard
            for shard in ancestors(self._listing, ambiguous)
            if isinstance(self._point(shard), Latest)
        }
        self._accounted_by_rows = (ancestors(self._listing, certain) | skipped) & self._missing
        own = ancestors(self._listing, self._entries)
        self._accounted = (own & self._missing) | self._accounted_by_rows
        for shard in sorted(self._unreadable & (ambiguous | merged)):
            for above in ancestors(self._listing, [shard]):
                self._unclear.setdefault(above, shard)
        if self._is_new:
            listed = list(self._listing.values())
            self._points = start_points(self._name, listed, self._facts.option)
            self._skipped = find_skipped(self._listing, self._points)

    def _point(self, shard: ShardId) -> object:
        return self._facts.option.by_shard.get(self._key(shard), self._facts.option.default)

    def _start_time(self, times: Collection[EpochMillis | None]) -> EpochMillis | None:
        """Return the time at which the application started, if it did at a time."""
        option = self._facts.option.default
        known = {millis for millis in times if millis is not None}
        if None in times and isinstance(option, AtTimestamp) and not option.is_relative:
            known.add(option.millis)
        return min(known, default=None)

    def _is_skipped_by_start(self, shard: ShardId) -> bool:
        """Return whether a start at LATEST leaves out a closed shard of a new stream."""
        return (
            shard not in self._points
            and shard not in self._skipped
            and isinstance(self._point(shard), Latest)
        )

    def _without_row(self, key: ShardKey) -> Verdict:
        shard = key.shard
        if self._is_finished(shard):
            return Finished()
        if shard in self._entries:
            return self._fill(key, self._entries[shard])
        if self._is_new and shard in self._points:
            return Create(state=None)
        if self._is_new and shard in self._skipped:
            return Create(state=ShardState(position=ShardEnd()))
        if open_ancestors := self._open(shard):
            return Waiting(ancestors=tuple(self._keys(open_ancestors)))
        if shard in self._unclear:
            return NotRead(row=self._key(self._unclear[shard]))
        parents = self._listing[shard].parents
        if any(parent in self._written and self._written[parent].has_ended for parent in parents):
            inherited = self._inherited(shard, self._facts.created.get(self._name))
            return Create(state=replace(_BEGINNING, last_caught_up_ms=inherited))
        if shard in self._timed and self._since is not None:
            return self._fill(key, ShardState(position=AtTimestamp(millis=self._since)))
        return self._fill(key, _BEGINNING)

    def _fill(self, key: ShardKey, state: ShardState) -> Create | Hole:
        if not self._written and not self._unreadable:
            return Create(state=state, is_hole=key.shard not in self._entries)
        if key in self._facts.confirmed:
            return Create(state=state, is_hole=key.shard not in self._entries)
        return Hole(since_ms=self._facts.holes.get(key, self._facts.now_ms))

    # --- Shards without a listing ----------------------------------------------------------------

    def _unlisted(self, key: ShardKey) -> Verdict:
        shard = key.shard
        row, entry = self._written.get(shard), self._entries.get(shard)
        at_end = entry is not None and isinstance(entry.position, ShardEnd)
        if row is None:
            lost = entry is not None and self._expired_unread(shard)
            return Lost(at_end=at_end) if lost else Finished()
        if row.has_ended:
            return Finished()
        if not (key in self._table.held or (at_end and row.holder == self._table.worker)):
            return Unlisted(is_held=False)
        if entry is None and key not in self._facts.expired:
            return Unlisted(is_held=True)
        children = tuple(self._keys(self._children.get(shard, ())))
        return Lost(at_end=at_end, children=children)

    def _expired_unread(self, shard: ShardId) -> bool:
        """Return whether an unlisted shard with an entry and without a row expired before another
        worker could read it to its end."""
        if shard in self._parents_of_rows:
            return False
        stream = self._start.streams.get(self._name)
        shared = stream is not None and stream.leases == self._facts.table
        if not shared or not (self._written or self._unreadable):
            return True
        children = self._children.get(shard, ())
        return bool(children) and not any(
            child in self._rows
            or child in self._unreadable
            or child in self._entries
            or self._is_finished(child)
            for child in children
        )


def _of(stream: StreamName, by_key: Mapping[ShardKey, V]) -> dict[ShardId, V]:
    return {key.shard: value for key, value in by_key.items() if key.stream == stream}


def find_skipped(
    listing: Mapping[ShardId, Shard], points: Collection[ShardId]
) -> frozenset[ShardId]:
    """Return the shards that a start by shard skips: LATEST of a closed one, between an ancestor
    and a descendant that are read. Their rows are created at SHARD_END; otherwise they would be
    taken for new once the ancestor is read."""
    children = children_of(listing.values())
    below: set[ShardId] = set()
    pending = list(points)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in below:
                below.add(child)
                pending.append(child)
    return frozenset(ancestors(listing, points) & below - set(points))


def overtaken(rows: Mapping[ShardKey, Lease], listings: Listings) -> set[ShardKey]:
    """Return the shards that are done because the row of a descendant, which the listing may lack,
    has a processed record or the end: a shard is read after its ancestors. (A start may create such
    a row too, but after those of the ancestors.)"""
    found: set[ShardKey] = set()
    for name, listing in listings.items():
        begun = {
            shard: row
            for shard, row in _of(name, rows).items()
            if isinstance(row.progress, Processed | ShardEnded)
        }
        parents = {parent for row in begun.values() for parent in row.parents}
        above = parents | ancestors(listing, begun.keys() | parents)
        found |= {ShardKey(stream=name, shard=shard) for shard in above}
    return found


def _drop_reason(key: ShardKey, table: LeaseTableView, verdict: Verdict) -> str:
    row = table.rows.get(key)
    if isinstance(verdict, NotRead):
        return "its lease cannot be read"
    if isinstance(verdict, Hole | Create):
        return "its lease is missing from the table"
    if row is None:
        return "finished; its lease is cleaned up"
    if row.has_ended:
        return "finished"
    if isinstance(verdict, Elsewhere) and verdict.handed_over:
        to_other = verdict.holder not in (None, table.worker)
        return f"handed over to {verdict.holder}" if to_other else "its lease is released"
    if row.holder == table.worker:
        return "its lease may have expired"
    return f"its lease is held by {row.holder or 'no worker'}"


# --- Positions and checkpoints --------------------------------------------------------------------


def from_checkpoint(progress: Progress, start: StartingPosition) -> Position | Latest:
    """Return the position of a checkpoint, or LATEST, which the caller must resolve.

    The KCL keeps the time of AT_TIMESTAMP only in its configuration, so for a lease made by a KCL
    it is the query's own `start`; InvalidOptionsError if that is not a time, or is relative to the
    query's start: after a restart, records between the two times would be left out.
    """
    match progress:
        case Processed(sequence_number=number, sub=sub):
            return AfterRecord(sequence_number=number, sub=sub)
        case ShardEnded():
            return ShardEnd()
        case StartAtTrimHorizon():
            return TrimHorizon()
        case StartAtLatest(since_ms=None):
            return Latest()
        case StartAtLatest(since_ms=millis) | StartAtTimestamp(at_ms=millis) if millis is not None:
            return AtTimestamp(millis=millis)
    if isinstance(start.default, AtTimestamp) and not start.default.is_relative:
        return start.default
    raise InvalidOptionsError(
        "kinesis-ssp",
        [
            OptionProblem(
                option="startingPosition",
                found="a lease that starts at a time which a KCL worker kept in its configuration",
                expected="the time as a startingPosition, not relative to the query's start",
                next_step="give the worker's time as at_timestamp",
            )
        ],
    )


def inherited_caught_up_ms(
    stream: StreamName,
    shard: ShardId,
    listing: Mapping[ShardId, Shard],
    start: Offset,
    created: EpochMillis | None,
) -> EpochMillis | None:
    """Return `last_caught_up_ms` of a listed shard that is read from its beginning: its records are
    younger than that of its parents, and than the stream, which was `created` empty."""
    parents = listing[shard].parents
    entries = [start.states.get(ShardKey(stream=stream, shard=parent)) for parent in parents]
    proofs = [entry.last_caught_up_ms for entry in entries if entry is not None]
    if any(parent in listing for parent in parents):
        proofs.append(created)
    return max((proof for proof in proofs if proof is not None), default=None)


def caught_up_ms(progress: Progress) -> EpochMillis | None:
    """Return the time after which all records arrived that follow a checkpoint, if it has one."""
    if isinstance(progress, ShardEnded):
        return None
    known = [progress.last_caught_up_ms]
    if isinstance(progress, StartAtLatest):
        known.append(progress.since_ms)
    return max((time for time in known if time is not None), default=None)


def proves(progress: Progress, position: Position) -> bool:
    """Return whether the records after a position that is not behind a checkpoint arrived after the
    checkpoint's `last_caught_up_ms`: those after a record are younger than those after an earlier
    one, but a start says nothing about another start."""
    match progress:
        case Processed():
            return True
        case StartAtTrimHorizon():
            return isinstance(position, TrimHorizon)
        case StartAtTimestamp(at_ms=millis) | StartAtLatest(since_ms=millis):
            return isinstance(position, AtTimestamp) and millis in (None, position.millis)
    return False


def with_caught_up(state: ShardState, seen: EpochMillis | None) -> ShardState:
    """Return a state with another `last_caught_up_ms`, if that is later than its own."""
    own = state.last_caught_up_ms
    if seen is None or (own is not None and own >= seen):
        return state
    return replace(state, last_caught_up_ms=seen)


def reached(progress: Progress) -> Position:
    """Return the position that a checkpoint proves to be reached. A start proves nothing: it is
    TRIM_HORIZON here."""
    match progress:
        case Processed(sequence_number=number, sub=sub):
            return AfterRecord(sequence_number=number, sub=sub)
        case ShardEnded():
            return ShardEnd()
    return TrimHorizon()
