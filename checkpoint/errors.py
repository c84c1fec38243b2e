"""Errors of the lease table."""

from __future__ import annotations

from spark_ssp.common.errors import IncompatibleStateError


class LeaseTableError(IncompatibleStateError):
    """The table of the option `leaseTable` cannot be used as a lease table."""

    kind = "lease-table"


class MalformedLeaseError(IncompatibleStateError):
    """A row of the lease table has the shape of a lease but cannot be parsed."""

    kind = "malformed-lease"

    def __init__(
        self, subject: str, *, key: str | None = None, found: str, expected: str, next_step: str
    ) -> None:
        """`key` is the row's key, if it has one."""
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
