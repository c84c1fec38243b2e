"""The protocol of lease tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spark_ssp.checkpoint.errors import MalformedLeaseError
from spark_ssp.checkpoint.leases.conditional_writes import Outcome, Write
from spark_ssp.checkpoint.leases.lease import Lease
from spark_ssp.checkpoint.leases.lease_serializer import ForeignRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All rows of a table, each kind sorted by key."""

    leases: tuple[Lease, ...]
    foreign: tuple[ForeignRow, ...]
    """Rows of other types; never written."""
    malformed: tuple[MalformedLeaseError, ...]
    """One error for each lease that cannot be parsed. The other rows are not affected."""


class LeaseStore(Protocol):
    """A table of leases. Thread-safe.

    Every method retries throttling and transient faults within its limits, then raises
    ServiceUnavailableError. AccessError without a permission or credentials; LeaseTableError if the
    table does not exist or is not a lease table.
    """

    def prepare(self) -> None:
        """Create the table if absent, and wait until it can be used."""

    def scan(self) -> Rows:
        """Return all rows, none older than this call."""

    def write(self, write: Write) -> Outcome:
        """Apply a write if its condition holds, and return the result.

        A write whose reply was lost is retried and recognised as applied. After
        ServiceUnavailableError its effect is unknown.
        """

    def close(self) -> None:
        """Release connections. The store cannot be used afterwards."""
