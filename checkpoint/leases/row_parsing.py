"""Parses the rows that a store returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from spark_ssp.checkpoint.errors import LeaseTableError, MalformedLeaseError
from spark_ssp.checkpoint.leases.lease import Item, Lease
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, ForeignRow, decode
from spark_ssp.checkpoint.leases.lease_store import Rows

Decode = Callable[[Item], Lease | ForeignRow]


class LeaseCache:
    """Parses the leases of one table, with a cache of the last form of each. Thread-safe.

    Most rows of a scan are those that the scan before, or the answer to a write, has returned, and
    comparing two is cheaper than parsing one. The items must not be changed afterwards.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Item, Lease]] = {}

    def decode(self, item: Item) -> Lease | ForeignRow:
        """Parse a row. Raises MalformedLeaseError."""
        known = self._known.get(item.get(Attribute.KEY, {}).get("S"))
        if known is not None and known[0] == item:
            return known[1]
        row = decode(item)
        if isinstance(row, Lease):
            self._known[row.key] = (item, row)
        return row

    def retain(self, leases: Collection[Lease]) -> None:
        """Drop all other leases than these."""
        kept = {lease.key for lease in leases}
        for key in list(self._known):  # other threads add to it
            if key not in kept:
                self._known.pop(key, None)


def parse_rows(items: Iterable[Item], decode: Decode = decode) -> Rows:
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


def parse_lease(item: Item | None, decode: Decode = decode) -> Lease | None:
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
