"""The protocol of lease tables, their settings, and the parsing of the rows that they return."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from spark_ssp.checkpoint.leases.conditional_writes import Outcome, Write
from spark_ssp.checkpoint.leases.lease import Item, Lease, LeaseTableError, MalformedLeaseError
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, ForeignRow, decode
from spark_ssp.common.errors import SspError


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

    @property
    def batch_size(self) -> int:
        """The number of writes to pass to `write_all`; 1 if batches have no advantage."""

    def write_all(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        """Apply writes of different rows, each as `write` does, and return in order what it would
        return or raise. A new row is returned as far as it is known from the write and from the row
        that the writer had observed."""

    def close(self) -> None:
        """Release connections. The store cannot be used afterwards."""


Decode = Callable[[Item], Lease | ForeignRow]


class LeaseCache:
    """Parses the leases of one table, with a cache of the last form of each. Thread-safe. Most rows
    of a scan are those that the scan before, or the answer to a write, has returned, and comparing
    two is cheaper than parsing one; most others have another counter and nothing else. The items
    must not be changed afterwards."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Item, Lease]] = {}

    def decode(self, item: Item) -> Lease | ForeignRow:
        """Parse a row. Raises MalformedLeaseError."""
        known = self._known.get(item.get(Attribute.KEY, {}).get("S"))
        if known is not None:
            if known[0] == item:
                return known[1]
            counter = _other_counter(known[0], item)
            if counter is not None:
                renewed = replace(known[1], counter=counter)
                self._known[renewed.key] = (item, renewed)
                return renewed
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


def _other_counter(known: Item, item: Item) -> int | None:
    """Return the counter of a row that has only another counter than a known one, else None."""
    value = item.get(Attribute.COUNTER, {})
    digits = value.get("N")
    if len(value) != 1 or not isinstance(digits, str) or not _PLAIN_NUMBER.fullmatch(digits):
        return None
    return int(digits) if {**known, Attribute.COUNTER.value: value} == item else None


_PLAIN_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
"""A number that certainly fits into 63 bits."""


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
