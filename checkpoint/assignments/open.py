"""Opens the assignment store that a URI names; each kind is imported when it is first used."""

from __future__ import annotations

from spark_ssp.checkpoint.assignments.store import AssignmentStore
from spark_ssp.checkpoint.assignments.uri import StoreKind, parse_store_uri
from spark_ssp.common.options.endpoints import ConnectionOptions


def open_assignment_store(uri: str, connection: ConnectionOptions | None = None) -> AssignmentStore:
    """Return the store of a URI that passes `parse_store_uri`, without calling it yet.

    `connection` is for S3 and DynamoDB; without it boto3's default chain applies, with AWS_REGION
    and AWS_ENDPOINT_URL. Raises AccessError without credentials, InvalidOptionsError without a
    region or without the package that a scheme needs.
    """
    parsed = parse_store_uri(uri)
    aws = connection or ConnectionOptions()
    match parsed.kind:
        case StoreKind.LOCAL | StoreKind.FSSPEC:
            from spark_ssp.checkpoint.assignments.files import FileAssignmentStore, open_files

            return FileAssignmentStore(parsed, open_files(parsed))
        case StoreKind.S3:
            from spark_ssp.checkpoint.assignments.aws import open_s3
            from spark_ssp.checkpoint.assignments.files import FileAssignmentStore

            return FileAssignmentStore(parsed, open_s3(parsed, aws))
        case StoreKind.DYNAMODB:
            from spark_ssp.checkpoint.assignments.aws import open_dynamodb

            return open_dynamodb(parsed, aws)
