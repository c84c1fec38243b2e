"""The protocol of lease tables, their settings, and the parsing of the rows that they return."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from spark_ssp.checkpoint.leases.conditional_writes import Outcome, Write
from spark_ssp.checkpoint.leases.lease import Item, Lease, LeaseTableError, MalformedLeaseError
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, ForeignRow, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Provisioned capacity, in units."""

    read: int
    write: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The name of a table, and how to create it. An existing table keeps its capacity and tags."""

    name: str
    capacity: Capacity | None = None
    """None: on demand."""
    tags: tuple[tuple[str, str], ...] = ()
    wait_s: float = 600.0
    """Maximum time until it can be used; DynamoDB takes some ten seconds to create one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All rows of a table, each kind sorted by key."""

    leases: tuple[Lease, ...]
    foreign: tuple[ForeignRow, ...]
    """Rows of other types; never written."""
    malformed: tuple[MalformedLeaseError, ...]
    """One error for each lease that cannot be parsed. The other rows are not affected."""


class LeaseStore(Protocol):
    """A table of leases. Thread-safe. Every method retries throttling and transient faults within
    its limits, then raises ServiceUnavailableError. AccessError without a permission or
    credentials; LeaseTableError if the table does not exist or is not a lease table."""

    def prepare(self) -> None:
        """Create the table if absent, and wait until it can be used."""

    def scan(self) -> Rows:
        """Return all rows, none older than this call."""

    def write(self, write: Write) -> Outcome:
        """Apply a write if its condition holds, and return the result. A write whose reply was lost
        is retried and recognised as applied. After ServiceUnavailableError its effect is
        unknown."""

    def close(self) -> None:
        """Release connections. The store cannot be used afterwards."""


Decode = Callable[[Item], Lease | ForeignRow]


class LeaseCache:
    """Parses the leases of one table, with a cache of the last form of each. Thread-safe. Most rows
    of a scan are those that the scan before, or the answer to a write, has returned, and comparing
    two is cheaper than parsing one. The items must not be changed afterwards."""

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
