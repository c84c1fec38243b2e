"""Errors of the lease table."""

from __future__ import annotations

from ssp_common.errors import IncompatibleStateError


class LeaseTableError(IncompatibleStateError):
    """The table named for leases cannot be used as one: name another, or mend it."""

    kind = "lease-table"


class MalformedLeaseError(IncompatibleStateError):
    """A row that should be a lease cannot be read as one: mend or delete it."""

    kind = "malformed-lease"
