"""Parses the rows that a store returns."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoint.errors import LeaseTableError, MalformedLeaseError
from checkpoint.leases.lease import Item, Lease
from checkpoint.leases.lease_serializer import ForeignRow, decode
from checkpoint.leases.lease_store import Rows


def parse_rows(items: Iterable[Item]) -> Rows:
    """Return the rows by kind. Raises nothing."""
    leases: list[Lease] = []
    foreign: list[ForeignRow] = []
    malformed: list[MalformedLeaseError] = []
    for item in items:
        try:
            row = decode(item)
        except MalformedLeaseError as error:
            malformed.append(error)
            continue
        if isinstance(row, Lease):
            leases.append(row)
        else:
            foreign.append(row)
    return Rows(
        leases=tuple(sorted(leases, key=lambda lease: lease.key)),
        foreign=tuple(sorted(foreign, key=lambda row: row.key)),
        malformed=tuple(sorted(malformed, key=lambda error: error.subject)),
    )


def parse_lease(item: Item | None) -> Lease | None:
    """Parse the row of a lease's key. Raises MalformedLeaseError, or LeaseTableError for a row of
    another type, which no shard's key can have."""
    if not item:
        return None
    row = decode(item)
    if isinstance(row, Lease):
        return row
    raise LeaseTableError(
        f"row {row.key!r}",
        found=f"a row of kind {row.entity_type}",
        expected="a lease",
        next_step="check the id of the shard; rows of other kinds belong to the KCL's workers",
    )
