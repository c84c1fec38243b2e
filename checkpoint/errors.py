"""Errors of the lease table."""

from __future__ import annotations

from ssp_common.errors import IncompatibleStateError


class LeaseTableError(IncompatibleStateError):
    """The table named for leases cannot be used as one: name another, or mend it."""

    kind = "lease-table"


class MalformedLeaseError(IncompatibleStateError):
    """A row that should be a lease cannot be read as one: mend or delete it."""

    kind = "malformed-lease"

    def __init__(
        self, subject: str, *, key: str | None = None, found: str, expected: str, next_step: str
    ) -> None:
        """`key`: the row's own, where it can be told."""
        super().__init__(subject, found=found, expected=expected, next_step=next_step)
        self.key = key

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.subject, self.key, self.found, self.expected, self.next_step))


def _rebuild(
    subject: str, key: str | None, found: str, expected: str, next_step: str
) -> MalformedLeaseError:
    return MalformedLeaseError(
        subject, key=key, found=found, expected=expected, next_step=next_step
    )
