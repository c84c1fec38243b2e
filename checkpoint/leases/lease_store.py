"""Where leases are kept, as the rest of the program sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from checkpoint.errors import MalformedLeaseError
from checkpoint.leases.conditional_writes import Outcome, Write
from checkpoint.leases.lease import Lease
from checkpoint.leases.lease_serializer import ForeignRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All rows of a table, each kind sorted by key."""

    leases: tuple[Lease, ...]
    foreign: tuple[ForeignRow, ...]
    """Rows of other kinds; never to be written."""
    malformed: tuple[MalformedLeaseError, ...]
    """One for each row that should be a lease and cannot be read. The others are none the worse."""


class LeaseStore(Protocol):
    """A table of leases. Thread-safe.

    Every method rides out throttling and passing faults within its limits, then raises
    ServiceUnavailableError. AccessError where a permission or credentials are missing;
    LeaseTableError where the table is not there (any more) or no lease table.
    """

    def prepare(self) -> None:
        """Create the table if it is absent, and wait until it can be used."""

    def scan(self) -> Rows:
        """All rows, none older than this call."""

    def write(self, write: Write) -> Outcome:
        """Do it, if the row is as the write expects, and say what became of it.

        A write whose reply was lost is tried again and recognised as done. After
        ServiceUnavailableError it is unknown whether it took effect: read the row.
        """

    def close(self) -> None:
        """Let go of connections. The store is not used afterwards."""
