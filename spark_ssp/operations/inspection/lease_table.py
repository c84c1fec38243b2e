"""Reads a lease table, and finds the state of each shard of its application.

A lease row has no time. Its holder increments a counter with every renewal, so the age of the last
renewal follows from several readings: a counter that changed between two of them was renewed in
between, and one that did not was renewed before the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from spark_ssp.checkpoint.leases.dynamodb_calls import connect_calls
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.kcl_tables import connect_tables
from spark_ssp.checkpoint.leases.lease import (
    Lease,
    LeaseTableError,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    StreamIdentifier,
)
from spark_ssp.checkpoint.leases.lease_store import (
    Rows,
    TableSettings,
)
from spark_ssp.checkpoint.leases.worker_metrics import KclRows
from spark_ssp.common.aws.service_calls import Retrier, retry_settings
from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName, WorkerId
from spark_ssp.kinesis_source.leases.lease_decision import Facts, Finished, Waiting, decide
from spark_ssp.kinesis_source.leases.lease_table import STREAM_ATTRIBUTE, LeaseTableView
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    Shard,
    ShardEnd,
    StartingPosition,
    StreamDescription,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from spark_ssp.operations.cli import Environment
from spark_ssp.operations.health import Reader

_THREADS: Final = 8
LeaseId = tuple[StreamIdentifier | None, ShardId]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """All rows of one application."""

    rows: Rows
    kcl: KclRows


class LeaseTable:
    """A lease table in DynamoDB, only to be read. Needs dynamodb:Scan."""

    def __init__(self, application: str, table: str, connection: ConnectionOptions) -> None:
        self._name = table
        self._store, self._kcl = connect_tables(
            application, TableSettings(name=table), connection, retry_settings(connection)
        )

    def read(self) -> TableRows:
        """Scan the tables. Raises LeaseTableError if there is no such lease table."""
        rows = _scan(self._store, self._name)
        return TableRows(rows=rows, kcl=self._kcl.read(rows))

    def close(self) -> None:
        """Release connections."""
        self._store.close()


def streams_of(leases: Iterable[Lease]) -> tuple[StreamName, ...]:
    """Return the streams that the rows name: in their keys (several streams), or in an attribute
    of this project. A KCL that reads one stream does not write its name."""
    names: set[str] = set()
    for lease in leases:
        written = lease.extra_attributes.get(STREAM_ATTRIBUTE, {}).get("S")
        if lease.stream is not None:
            names.add(lease.stream.name)
        elif isinstance(written, str):
            names.add(written)
    return tuple(StreamName(name) for name in sorted(names))


def without_namesakes(
    table: ObservedTable, streams: Mapping[StreamName, StreamDescription]
) -> ObservedTable:
    """Leave out the rows of streams that only have the name of one of these: of another account, or
    of an earlier stream of the name. A query ignores them too."""

    def own(rows: Rows) -> Rows:
        return replace(
            rows,
            leases=tuple(lease for lease in rows.leases if not _is_namesake(lease.stream, streams)),
            malformed=tuple(
                error
                for error in rows.malformed
                if not _is_namesake(_stream_in(error.key), streams)
            ),
        )

    before = None if table.before is None else own(table.before)
    return replace(table, rows=own(table.rows), before=before)


def namesakes_in(
    rows: Rows, streams: Mapping[StreamName, StreamDescription]
) -> tuple[StreamIdentifier, ...]:
    """Return the streams of the rows that `without_namesakes` leaves out, by account, name and
    time."""
    named = {lease.stream for lease in rows.leases}
    named |= {_stream_in(error.key) for error in rows.malformed}
    found = [one for one in named if one is not None and _is_namesake(one, streams)]
    return tuple(sorted(found, key=lambda one: (one.account, one.name, one.created)))


def _is_namesake(
    stream: StreamIdentifier | None, streams: Mapping[StreamName, StreamDescription]
) -> bool:
    """Return whether a row's stream only has the name of one of these."""
    if stream is None or stream.name not in streams:
        return False
    found = streams[stream.name]
    return stream.account != found.arn.split(":")[4] or is_other(stream, found.created)


def is_other(stream: StreamIdentifier, created: EpochMillis) -> bool:
    """Return whether a row's stream is another one than that of its name which was created then."""
    return stream.created != created // 1000


def _stream_in(key: str | None) -> StreamIdentifier | None:
    return StreamIdentifier.parse((key or "").rpartition(":")[0])


# --- Renewals -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The readings of one lease's counter. Times are those of a monotonic clock, in milliseconds: a
    clock that is set must not make a lease stale, nor renew it."""

    counter: int
    since_ms: int
    """The first reading with this counter."""
    after_ms: int | None
    """The reading before that, with another counter; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """Bounds of the time since the last renewal, in milliseconds; None: unknown."""

    at_least: int
    at_most: int | None


Renewals = Mapping[LeaseId, Renewal]


def age_of(renewal: Renewal, read_ms: int) -> Age:
    """Return the age of the last renewal at a reading."""
    at_most = None if renewal.after_ms is None else read_ms - renewal.after_ms
    return Age(at_least=read_ms - renewal.since_ms, at_most=at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTable:
    """A lease table after its last reading. The ages of renewals count up to that."""

    rows: Rows
    before: Rows | None
    """Those of the reading before; None if there was none."""
    renewals: Renewals
    read_ms: int
    failover_ms: int


def observe(
    earlier: ObservedTable | None, rows: Rows, monotonic: float, failover_ms: int
) -> ObservedTable:
    """Return a table after another reading, at `monotonic` seconds."""
    read_ms = round(1000 * monotonic)
    before: Renewals = {} if earlier is None else earlier.renewals
    renewals: dict[LeaseId, Renewal] = {}
    for lease in rows.leases:
        key = (lease.stream, lease.shard)
        known = before.get(key)
        if known is not None and known.counter == lease.counter:
            renewals[key] = known
        else:
            renewals[key] = Renewal(
                counter=lease.counter,
                since_ms=read_ms,
                after_ms=None if known is None or earlier is None else earlier.read_ms,
            )
    return ObservedTable(
        rows=rows,
        before=None if earlier is None else earlier.rows,
        renewals=renewals,
        read_ms=read_ms,
        failover_ms=failover_ms,
    )


def observe_tables(
    names: Iterable[str],
    connection: ConnectionOptions,
    environment: Environment,
    *,
    wait_ms: int | None,
    failover_ms: int,
) -> Mapping[str, ObservedTable | SspError]:
    """Read lease tables, twice if there is a wait: a row has a counter and no time. Return the
    error of a table that cannot be read."""
    connected, retry = connect_calls(connection), retry_settings(connection)
    stores = {
        name: DynamoDbLeaseStore(connected(name, Retrier(retry)), TableSettings(name=name))
        for name in sorted(names)
    }
    found: dict[str, ObservedTable | SspError] = {}

    def read(name: str) -> ObservedTable | SspError:
        earlier = found.get(name)
        before = earlier if isinstance(earlier, ObservedTable) else None
        try:
            rows = _scan(stores[name], name)
        except SspError as error:
            return error
        return observe(before, rows, environment.monotonic(), failover_ms)

    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            for pause in (None,) if wait_ms is None or not stores else (None, wait_ms):
                if pause is not None:
                    environment.sleep(pause / 1000)
                found = dict(zip(stores, threads.map(read, stores), strict=True))
    finally:
        for store in stores.values():
            store.close()
    return found


def _scan(store: DynamoDbLeaseStore, name: str) -> Rows:
    """Raises LeaseTableError if there is no such lease table."""
    try:
        return store.scan()
    except LeaseTableError as error:
        raise LeaseTableError(
            f"lease table {name}",
            found=error.found,
            expected="the lease table of an application",
            next_step="check the name (by default applicationName), --table, --region and "
            "--dynamodb-endpoint-url; the first worker of an application creates its table",
        ) from None


# --- States ---------------------------------------------------------------------------------------


class State(StrEnum):
    """The state of a shard for an application."""

    HELD = "held"
    HANDOFF = "handoff"
    """One worker still reads it, another will."""
    STALE = "stale"
    """It has an owner that has not renewed it for longer than the failover time."""
    FREE = "free"
    """Its lease has no owner."""
    ENDED = "ended"
    WAITING = "waiting"
    """Its parents are still being read; so it may have no lease yet."""
    NO_LEASE = "no lease"
    MALFORMED = "malformed"
    """The row of its lease cannot be parsed."""
    EXPIRED = "expired"
    """A lease of a shard that the stream does not have any more."""


_UNUSED: Final = (State.FREE, State.NO_LEASE)
_READERS: Final = {
    State.STALE: Reader.STALE,
    State.FREE: Reader.FREE,
    State.ENDED: Reader.ENDED,
    State.WAITING: Reader.WAITING,
    State.NO_LEASE: Reader.NO_LEASE,
    State.MALFORMED: Reader.MALFORMED,
    State.EXPIRED: Reader.ENDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLease:
    """A shard, with its lease if it has one."""

    stream: StreamName | None
    """None if neither a row nor the caller names it."""
    shard: ShardId
    state: State
    owner: WorkerId | None = None
    """The worker that may read the shard."""
    next_owner: WorkerId | None = None
    is_ours: bool = False
    progress: Progress | None = None
    parents: tuple[ShardId, ...] = ()
    is_closed: bool | None = None
    """None without a listing."""
    age: Age | None = None
    is_new: bool = False
    """True if it has no owner since the last reading only: a worker may be about to take it."""
    lag_ms: int | None = field(default=None)
    """The age of the oldest record that is not processed; 0 without one, None if unknown."""

    @property
    def reader(self) -> Reader:
        """Return its reader. An owner is known to live if a renewal was seen. After a reshard and
        in a handoff, a lease has no owner for moments."""
        if self.is_new:
            return Reader.WAITING
        if self.state in _READERS:
            return _READERS[self.state]
        is_seen = self.age is not None and self.age.at_most is not None
        return Reader.RENEWED if is_seen else Reader.UNKNOWN

    @property
    def position(self) -> Position | None:
        """The next record to process; None if the row does not tell."""
        match self.progress:
            case None | StartAtTrimHorizon():
                return TrimHorizon()
            case Processed(sequence_number=number, sub=sub):
                return AfterRecord(sequence_number=number, sub=sub)
            case StartAtTimestamp(at_ms=int(millis)) | StartAtLatest(since_ms=int(millis)):
                return AtTimestamp(millis=millis)
            case ShardEnded():
                return ShardEnd()
        return None


def shard_leases(
    table: ObservedTable, listings: Mapping[StreamName, Sequence[Shard] | None]
) -> list[ShardLease]:
    """Return the shards of the listings and of the rows, by stream and shard. Listed shards whose
    descendants have a lease, and that have none, are finished: they are left out. A listing that is
    None is that of a stream that does not exist."""
    shown = _states(table, table.rows, listings)
    if table.before is None:
        return shown
    unused = {
        (row.stream, row.shard)
        for row in _states(table, table.before, listings)
        if row.state in _UNUSED
    }
    return [
        replace(row, is_new=row.state in _UNUSED and (row.stream, row.shard) not in unused)
        for row in shown
    ]


def _states(
    table: ObservedTable, reading: Rows, listings: Mapping[StreamName, Sequence[Shard] | None]
) -> list[ShardLease]:
    """Return the shards as one of the readings shows them."""
    leases = reading.leases
    malformed = [error.key or "" for error in reading.malformed]
    # Rows of one application all name their stream in their key, or none does.
    are_plain = all(lease.stream is None for lease in leases)
    only = next(iter(listings)) if are_plain and len(listings) == 1 else None
    rows: list[ShardLease] = []
    by_stream: dict[StreamName | None, list[Lease]] = {}
    for lease in leases:
        name = only if lease.stream is None else lease.stream.name
        by_stream.setdefault(name, []).append(lease)
    for name in sorted({*by_stream, *listings}, key=lambda name: name or ""):
        own = by_stream.get(name, [])
        listing = None if name is None else listings.get(name)
        listed = None if listing is None else {shard.shard_id: shard for shard in listing}
        rows += [_row(name, lease, listed, _age(lease, table), table.failover_ms) for lease in own]
        if listed is not None and name is not None:
            rows += [
                replace(row, state=State.MALFORMED)
                if any(_is_key_of(key, name, row.shard) for key in malformed)
                else row
                for row in _without_lease(name, {lease.shard: lease for lease in own}, listed)
            ]
    return sorted(rows, key=lambda row: (row.stream or "", row.shard))


def _is_key_of(key: str, stream: StreamName, shard: ShardId) -> bool:
    """Return whether the key of a row is that of a shard, by its stream if it names one."""
    named = _stream_in(key)
    return key.rpartition(":")[2] == shard and (named is None or named.name == stream)


def _age(lease: Lease, table: ObservedTable) -> Age | None:
    renewal = table.renewals.get((lease.stream, lease.shard))
    return None if renewal is None else age_of(renewal, table.read_ms)


def _row(
    stream: StreamName | None,
    lease: Lease,
    listed: Mapping[ShardId, Shard] | None,
    age: Age | None,
    failover_ms: int,
) -> ShardLease:
    shard = None if listed is None else listed.get(lease.shard)
    row = ShardLease(
        stream=stream,
        shard=lease.shard,
        state=State.HELD,
        owner=lease.holder,
        next_owner=lease.owner if lease.is_in_handoff else None,
        is_ours=lease.is_held_by_ssp,
        progress=lease.progress,
        parents=lease.parents or (() if shard is None else shard.parents),
        is_closed=None if shard is None else shard.closed,
        age=age,
    )
    if isinstance(lease.progress, ShardEnded):
        return replace(row, state=State.ENDED, age=None)
    if listed is not None and shard is None:
        return replace(row, state=State.EXPIRED)
    if lease.holder is None:
        return replace(row, state=State.FREE, age=None)
    if age is not None and age.at_least > failover_ms:
        return replace(row, state=State.STALE)
    return replace(row, state=State.HELD if row.next_owner is None else State.HANDOFF)


def _without_lease(
    stream: StreamName, leases: Mapping[ShardId, Lease], listed: Mapping[ShardId, Shard]
) -> list[ShardLease]:
    """Return the listed shards that have no lease and need one, by the rule of the source. A table
    does not tell `startingPosition`: TRIM_HORIZON is assumed. Ancestors of leases are finished: a
    KCL that starts AT_TIMESTAMP creates none for shards that were closed by then."""
    rows = {ShardKey(stream=stream, shard=shard): lease for shard, lease in leases.items()}
    table = LeaseTableView(worker=WorkerId(""), rows=rows, held=frozenset(), requested=frozenset())
    facts = Facts(
        option=StartingPosition(default=TrimHorizon()),
        finished={ShardKey(stream=stream, shard=shard) for shard in ancestors(listed, leases)},
    )
    found: list[ShardLease] = []
    for key, verdict in decide(Offset(), table, {stream: listed}, facts).verdicts.items():
        shard = listed.get(key.shard)
        if shard is None or key in rows or isinstance(verdict, Finished):
            continue
        found.append(
            ShardLease(
                stream=stream,
                shard=key.shard,
                state=State.WAITING if isinstance(verdict, Waiting) else State.NO_LEASE,
                parents=shard.parents,
                is_closed=shard.closed,
            )
        )
    return found


def leases_by_worker(rows: Iterable[ShardLease]) -> dict[WorkerId, int]:
    """Return the number of leases of each owner; those at their end do not count. An owner may have
    died: its leases are stale."""
    counts: dict[WorkerId, int] = {}
    for row in rows:
        if row.owner is not None and row.state in (State.HELD, State.HANDOFF, State.STALE):
            counts[row.owner] = counts.get(row.owner, 0) + 1
    return counts
