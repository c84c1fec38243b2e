"""Where the assignment of partitions to tasks is kept outside of a query's checkpoint.

One store holds one assignment: the union over all streams of all queries that name it. Every write
is conditional on the version that was read, so that two writers cannot overwrite each other unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

from checkpoint.assignments.uri import Kind, parse_store_uri
from ssp_common.options.endpoints import ConnectionOptions
from task_grouping.assignment import TaskAssignment

Version = NewType("Version", int)
"""Which write it was, counted from 1. For callers: something to hand back, no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAssignment:
    """What a store holds."""

    assignment: TaskAssignment
    version: Version


class AssignmentStore(Protocol):
    """A place for one assignment. To be used by one thread at a time.

    Every method rides out throttling and passing faults within its limits, then raises
    ServiceUnavailableError. AccessError where a permission or credentials are missing;
    AssignmentStoreError where the place cannot be used, or holds something else.
    """

    @property
    def uri(self) -> str:
        """What the user named it by."""
        ...

    def read(self) -> StoredAssignment | None:
        """What is stored, not older than this call; None when nothing ever was."""

    def write(self, assignment: TaskAssignment, expected: Version | None) -> Version:
        """Store it if `expected` is still what is stored (None: nothing), and return its version.

        Raises AssignmentConflictError when somebody else wrote meanwhile. A write whose reply was
        lost is recognised: if what stands there as the next version is what was to be written, it
        is done, whoever did it. After ServiceUnavailableError it is unknown whether it took effect.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The store is not used afterwards."""


def open_assignment_store(uri: str, connection: ConnectionOptions | None = None) -> AssignmentStore:
    """The store that `uri` names, which passes `parse_store_uri`; nothing is asked of it yet.

    `connection` is for S3 and DynamoDB; without it boto3's default chain decides, with AWS_REGION
    and AWS_ENDPOINT_URL. Raises AccessError without credentials, InvalidOptionsError without a
    region or without the package that a scheme needs.
    """
    place = parse_store_uri(uri)
    aws = connection or ConnectionOptions()
    match place.kind:
        case Kind.LOCAL | Kind.FSSPEC:
            from checkpoint.assignments.file_systems import open_files
            from checkpoint.assignments.files import FileAssignmentStore

            return FileAssignmentStore(place, open_files(place))
        case Kind.S3:
            from checkpoint.assignments.aws import open_s3
            from checkpoint.assignments.files import FileAssignmentStore

            return FileAssignmentStore(place, open_s3(place, aws))
        case Kind.DYNAMODB:
            from checkpoint.assignments.dynamodb import open_dynamodb

            return open_dynamodb(place, aws)
