"""The rows by which KCL 3 workers detect each other, and our metric row among them.

Each KCL 3 worker writes a metric row every 30 s. One of them is the leader: it writes a leader row
(`DynamoDBLockBasedLeaderDecider`) and assigns leases to workers whose metric row is younger than 60
s (`LeaseAssignmentManager`). Up to KCL 3.4 these rows are stored in two other tables, later in the
lease table (`WorkerMetricStatsDAO`, `TableMigrationStatus`), during a migration in either. So our
row is written where live KCL workers have theirs, and not at all without any.

Our row contains `sspOwner`, by which our workers distinguish each other from the KCL's. It also
declares its features (`sup`, `slu`); otherwise it would block a migration from KCL 3.4 to 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from spark_ssp.checkpoint.leases.lease import AttributeValue, Item
from spark_ssp.checkpoint.leases.lease_serializer import (
    Attribute,
    EntityType,
    ForeignRow,
    number,
    text,
)
from spark_ssp.grouping.identifiers import WorkerId

ALIVE_MS: Final = 60_000
"""KCL 3: twice `workerMetricsReporterFreqInMillis`."""
OWN: Final = "sspOwner"

_UPDATED: Final = "lut"
_SUPPORTED: Final = 1
"""KCL 3.5's `SINGLE_TABLE_MIGRATION`: rows are read from both locations."""
_LEADER: Final = "Leader"
_VERSION: Final = "Migration3.0"
_NO_LEADER_IN: Final = frozenset(
    {"CLIENT_VERSION_INIT", "CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_2X"}
)
"""KCL 3 in the mode compatible with KCL 2: workers take leases by themselves."""
_DEFAULT_DURATION_MS: Final = 120_000
_WHOLE: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class RowLocation(StrEnum):
    """A location of KCL 3's rows; the value is their key attribute."""

    LEASES = "leaseKey"
    """The lease table: KCL 3.5."""
    METRICS = "wid"
    """`<application>-WorkerMetricStats`: KCL 3.0 to 3.4."""


def metrics_table(application: str) -> str:
    """Return the default name of KCL 3.0 to 3.4's table of metric rows."""
    return f"{application}-WorkerMetricStats"


def state_table(application: str) -> str:
    """Return the default name of KCL 3.0 to 3.4's table of leader and similar rows, key `key`."""
    return f"{application}-CoordinatorState"


# --- Rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MetricRow:
    """A worker's sign of life."""

    worker: WorkerId
    location: RowLocation
    updated: int
    """By the worker's clock, in seconds since the epoch."""
    ours: bool
    """True if the worker is from this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRow:
    """The current or last leader."""

    worker: WorkerId
    location: RowLocation
    """`METRICS`: beside the metric table of KCL 3.0 to 3.4."""
    version: str
    """Changes with each heartbeat."""
    duration_ms: int
    """Without a heartbeat for this long, the worker is no longer the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KclRows:
    """The rows of KCL 3 workers at one time."""

    metrics: tuple[MetricRow, ...] = ()
    leaders: tuple[LeaderRow, ...] = ()
    """Two during a migration from KCL 3.4 to 3.5, of which at most one is alive."""
    client_versions: frozenset[str] = frozenset()


def kcl_rows(
    foreign: Iterable[ForeignRow], metrics: Iterable[Item] = (), states: Iterable[Item] = ()
) -> KclRows:
    """Parse the rows of other types in the lease table, and those of KCL 3.0 to 3.4's tables.
    Malformed rows are skipped, as in the KCL."""
    found = [_metric_row(item, RowLocation.METRICS) for item in metrics]
    of_state = [(_text(item, "key"), item, RowLocation.METRICS) for item in states]
    for row in sorted(foreign, key=lambda row: row.key):
        if row.entity_type == EntityType.WORKER_METRIC_STATS:
            found.append(_metric_row(row.attributes, RowLocation.LEASES))
        elif row.entity_type in (EntityType.LEADER, EntityType.CLIENT_VERSION_MIGRATION):
            of_state.append((row.key, row.attributes, RowLocation.LEASES))
    leaders = [_leader_row(item, location) for key, item, location in of_state if key == _LEADER]
    versions = [_text(item, "cv") for key, item, _ in of_state if key == _VERSION]
    return KclRows(
        metrics=tuple(sorted(row for row in found if row is not None)),
        leaders=tuple(row for row in leaders if row is not None),
        client_versions=frozenset(version for version in versions if version),
    )


def _metric_row(item: Item, location: RowLocation) -> MetricRow | None:
    worker, updated = _text(item, location.value), _whole(item, _UPDATED)
    if not worker or updated is None:
        return None
    return MetricRow(worker=WorkerId(worker), location=location, updated=updated, ours=OWN in item)


def _leader_row(item: Item, location: RowLocation) -> LeaderRow | None:
    worker, version = _text(item, "ownerName"), _text(item, "recordVersionNumber")
    if not worker or "isReleased" in item:
        return None
    duration = _text(item, "leaseDuration")
    known = duration is not None and _WHOLE.fullmatch(duration)
    return LeaderRow(
        worker=WorkerId(worker),
        location=location,
        version=version or "",
        duration_ms=int(duration or 0) if known else _DEFAULT_DURATION_MS,
    )


def _text(item: Item, name: str) -> str | None:
    value: Any = item.get(name, {}).get("S")
    return value if isinstance(value, str) else None


def _whole(item: Item, name: str) -> int | None:
    value: Any = item.get(name, {}).get("N")
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else None


def own_metric_row(worker: WorkerId, location: RowLocation, now: int) -> dict[str, AttributeValue]:
    """Return the attributes of our metric row without its key. `now` is in seconds since the epoch.
    Without measurements the leader balances only by throughput, as for a KCL worker without any."""
    row: dict[str, AttributeValue] = {
        _UPDATED: number(now),
        "sts": {"M": {}},
        "opr": {"M": {}},
        "sup": number(_SUPPORTED),
        "slu": number(now),
        OWN: text(worker),
    }
    if location is RowLocation.LEASES:
        row[Attribute.ENTITY_TYPE.value] = text(EntityType.WORKER_METRIC_STATS)
    return row


# --- Live workers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KclWorkers:
    """The live KCL 3 workers, by the leader row and the metric rows."""

    leader: WorkerId | None = None
    """The worker that assigns leases (KCL 3); None if there is none, if it is dead, or in the mode
    compatible with KCL 2, in which leases are not assigned."""
    graceful: frozenset[WorkerId] = frozenset()
    """Workers with a live metric row: KCL 3's, which accept handoff requests, and ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KclObservation:
    """The observations of KCL 3 workers so far."""

    metrics: Mapping[tuple[RowLocation, WorkerId], tuple[int, int | None]] = field(
        default_factory=dict
    )
    """By row: its time, and when on our clock it was observed to change; None: not yet."""
    leaders: Mapping[tuple[RowLocation, WorkerId], tuple[str, int]] = field(default_factory=dict)
    """By row: its heartbeat, and when on our clock it was first observed."""
    kcl_workers: KclWorkers = field(default_factory=KclWorkers)
    location: RowLocation | None = None
    """The location for our metric row; None without live KCL 3 workers."""


def observe_kcl(before: KclObservation, found: KclRows, now: int, wall: int) -> KclObservation:
    """Apply newly read rows. `now` is this process's monotonic clock in milliseconds, `wall` is in
    seconds since the epoch. A row that was observed to change is alive for 60 s from then on,
    regardless of its clock. Clocks are compared only at the first observation."""
    seen: dict[tuple[RowLocation, WorkerId], tuple[int, int | None]] = {}
    alive: list[MetricRow] = []
    for row in found.metrics:
        key = (row.location, row.worker)
        updated, changed = before.metrics.get(key, (row.updated, None))
        if updated != row.updated:
            changed = now
        seen[key] = (row.updated, changed)
        if _is_alive(row.updated, changed, now, wall):
            alive.append(row)
    leaders = {
        (row.location, row.worker): _heartbeat(
            before.leaders.get((row.location, row.worker)), row, now
        )
        for row in found.leaders
    }
    workers = frozenset(row.worker for row in alive)
    return KclObservation(
        metrics=seen,
        leaders=leaders,
        kcl_workers=KclWorkers(leader=_find_leader(found, leaders, workers, now), graceful=workers),
        location=_find_location(alive),
    )


def _is_alive(updated: int, changed: int | None, now: int, wall: int) -> bool:
    if changed is not None:
        return now - changed <= ALIVE_MS
    return abs(wall - updated) * 1000 <= ALIVE_MS


def _heartbeat(before: tuple[str, int] | None, row: LeaderRow, now: int) -> tuple[str, int]:
    if before is not None and before[0] == row.version:
        return before
    return (row.version, now)


def _find_leader(
    found: KclRows,
    heartbeats: Mapping[tuple[RowLocation, WorkerId], tuple[str, int]],
    alive: frozenset[WorkerId],
    now: int,
) -> WorkerId | None:
    """Return the live leader: its heartbeats continue and its metric row is alive, which ends much
    sooner."""
    if found.client_versions & _NO_LEADER_IN:
        return None
    living = [
        row.worker
        for row in found.leaders
        if row.worker in alive and now - heartbeats[row.location, row.worker][1] <= row.duration_ms
    ]
    return min(living, default=None)


def _find_location(alive: Iterable[MetricRow]) -> RowLocation | None:
    homes = {row.location for row in alive if not row.ours}
    # Workers that write to the lease table read both; the last to migrate read only the other.
    return next(
        (location for location in (RowLocation.LEASES, RowLocation.METRICS) if location in homes),
        None,
    )
