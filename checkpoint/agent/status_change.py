"""The part of a status that is sent: the rows that differ from the status before.

A table may have thousands of rows, of which few change between two exchanges. The first answer of
an agent is a whole `Status`; each later one is a `StatusChange`, relative to the answer before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ssp.checkpoint.coordination.protocol import Status
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.common.errors import SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A status without the rows that the one before it has. The other fields are those of
    `Status`."""

    changed: tuple[Lease, ...]
    removed: tuple[LeaseKey, ...]
    held: tuple[LeaseKey, ...]
    asked_for: frozenset[LeaseKey]
    overdue: frozenset[LeaseKey]
    unreadable: frozenset[LeaseKey]
    outage_ms: int
    released: bool
    problem: SspError | None


def to_change(before: Mapping[LeaseKey, Lease], status: Status) -> StatusChange:
    """Return the change to a status from one with the rows `before`."""
    rows = status.rows
    return StatusChange(
        # Most rows are the same objects as before.
        changed=tuple(
            row for key, row in rows.items() if (old := before.get(key)) is not row and old != row
        ),
        removed=tuple(sorted(before.keys() - rows.keys())),
        held=tuple(status.held),
        asked_for=status.asked_for,
        overdue=status.overdue,
        unreadable=status.unreadable,
        outage_ms=status.outage_ms,
        released=status.released,
        problem=status.problem,
    )


def apply_change(before: Mapping[LeaseKey, Lease], change: StatusChange) -> Status:
    """Return the status that a change leads to from one with the rows `before`."""
    changed = {row.key: row for row in change.changed}
    rows = {**before, **changed}
    for key in change.removed:
        del rows[key]
    if changed.keys() - before.keys():
        rows = dict(sorted(rows.items()))
    return Status(
        held={key: rows[key] for key in change.held},
        asked_for=change.asked_for,
        overdue=change.overdue,
        rows=rows,
        unreadable=change.unreadable,
        outage_ms=change.outage_ms,
        released=change.released,
        problem=change.problem,
    )
