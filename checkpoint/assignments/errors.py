"""Errors of the store of assignments."""

from __future__ import annotations

from ssp_common.errors import IncompatibleStateError, SspError


class AssignmentStoreError(IncompatibleStateError):
    """What `assignmentStore` names cannot be used as a store: mend it, or name another."""

    kind = "assignment-store"


class AssignmentConflictError(SspError):
    """Somebody else wrote meanwhile: read again, merge, write again."""

    kind = "assignment-conflict"


class AssignmentContradictionError(IncompatibleStateError):
    """The store gives a partition another task than the query's checkpoint does."""

    kind = "assignment-contradiction"
