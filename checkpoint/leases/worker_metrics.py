"""KCL 3's workers: the rows by which they see each other, and our own beside theirs. Pure.

Each KCL 3 worker writes a metric row every 30 s; one of them is the leader, which writes a row of
its own (`DynamoDBLockBasedLeaderDecider`) and assigns leases to workers whose metric row is younger
than 60 s (`LeaseAssignmentManager`). Up to KCL 3.4 these rows stand in two tables of their own,
later in the lease table (`WorkerMetricStatsDAO`, `TableMigrationStatus`): during a migration in
either. So our row is written where living rows of KCL workers are found, and nowhere without any.

Our row says `sspOwner`, so that our workers do not take each other for the KCL's. It also says what
it supports (`sup`, `slu`), or it would hold up a migration from KCL 3.4 to 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from checkpoint.leases.lease import AttributeValue, Item
from checkpoint.leases.lease_serializer import Attribute, EntityType, ForeignRow, number, text
from task_grouping.identifiers import WorkerId

ALIVE_MS: Final = 60_000
"""KCL 3: twice `workerMetricsReporterFreqInMillis`."""
OWN: Final = "sspOwner"

_UPDATED: Final = "lut"
_SUPPORTED: Final = 1
"""KCL 3.5's `SINGLE_TABLE_MIGRATION`: rows are looked for in both places."""
_LEADER: Final = "Leader"
_VERSION: Final = "Migration3.0"
_NO_LEADER_IN: Final = frozenset(
    {"CLIENT_VERSION_INIT", "CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_2X"}
)
"""KCL 3 in the mode that is compatible with KCL 2: workers take leases by themselves."""
_DEFAULT_DURATION_MS: Final = 120_000
_WHOLE: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class RowLocation(StrEnum):
    """Where rows of KCL 3 stand; the value is the attribute that is their key."""

    LEASES = "leaseKey"
    """The lease table: KCL 3.5."""
    METRICS = "wid"
    """`<application>-WorkerMetricStats`: KCL 3.0 to 3.4."""


def metrics_table(application: str) -> str:
    """KCL 3.0 to 3.4's table of metric rows, under the name it has by default."""
    return f"{application}-WorkerMetricStats"


def state_table(application: str) -> str:
    """KCL 3.0 to 3.4's table of the leader's and similar rows, key `key`."""
    return f"{application}-CoordinatorState"


# --- Rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MetricRow:
    """That a worker lives."""

    worker: WorkerId
    location: RowLocation
    updated: int
    """By the worker's clock, in seconds since the epoch."""
    ours: bool
    """Whether the worker is one of this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRow:
    """That a worker is, or was, the leader."""

    worker: WorkerId
    location: RowLocation
    """`METRICS`: beside the metric table of KCL 3.0 to 3.4."""
    version: str
    """Another one with each heartbeat."""
    duration_ms: int
    """After so long without a heartbeat it is the leader no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KclRows:
    """What was found at one moment."""

    metrics: tuple[MetricRow, ...] = ()
    leaders: tuple[LeaderRow, ...] = ()
    """Two during a migration from KCL 3.4 to 3.5: at most one of them lives."""
    client_versions: frozenset[str] = frozenset()


def kcl_rows(
    foreign: Iterable[ForeignRow], metrics: Iterable[Item] = (), states: Iterable[Item] = ()
) -> KclRows:
    """From the rows that are no leases in the lease table, and those of KCL 3.0 to 3.4's tables.
    What cannot be read is left out, as the KCL does it."""
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
    """The attributes of our metric row but for its key. `now`: seconds since the epoch.

    Without measures the leader balances by throughput alone, as for a KCL worker that has none.
    """
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


# --- Who lives -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KclWorkers:
    """What is known of KCL 3's workers, from their leader's and their metric rows."""

    leader: WorkerId | None = None
    """Who assigns leases to workers (KCL 3); None when there is no leader, when it is dead, or when
    the workers are still in the mode that is compatible with KCL 2, in which nobody assigns."""
    graceful: frozenset[WorkerId] = frozenset()
    """Workers with a living metric row: KCL 3's, which can be asked for a hand-over, and ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KclObservation:
    """What has been seen of KCL 3's workers so far."""

    metrics: Mapping[tuple[RowLocation, WorkerId], tuple[int, int | None]] = field(
        default_factory=dict
    )
    """By row: its time, and when on our clock that was seen to change; None: not yet."""
    leaders: Mapping[tuple[RowLocation, WorkerId], tuple[str, int]] = field(default_factory=dict)
    """By row: its heartbeat, and when on our clock that was first seen."""
    kcl_workers: KclWorkers = field(default_factory=KclWorkers)
    location: RowLocation | None = None
    """Where our own row belongs; None: nowhere, since no KCL 3 worker lives."""


def observe_kcl(before: KclObservation, found: KclRows, now: int, wall: int) -> KclObservation:
    """After another look. `now`: this process's monotonic clock in milliseconds; `wall`: seconds
    since the epoch.

    A row that was seen to change lives for 60 s from then on, whatever its clock says. Only at
    first sight clocks are compared.
    """
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
    """A leader lives while its heartbeats come and its metric row lives: the second is seen to end
    much sooner."""
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
    # Whoever writes into the lease table reads both; the last ones to leave read the other alone.
    return next(
        (location for location in (RowLocation.LEASES, RowLocation.METRICS) if location in homes),
        None,
    )
