"""Names of AWS stores in errors, and the files of a store in S3."""

from __future__ import annotations

from typing import Literal

from spark_ssp.checkpoint.assignments.errors import AssignmentStoreError, store_subject
from spark_ssp.checkpoint.assignments.uri import StoreUri
from spark_ssp.common.aws.s3_files import S3Calls, S3Files
from spark_ssp.common.aws.s3_names import S3Folder
from spark_ssp.common.aws.store import StoreLocation
from spark_ssp.common.documents.immutable_files import WriteOnceFiles
from spark_ssp.common.options.endpoints import ConnectionOptions


def open_s3(uri: StoreUri, connection: ConnectionOptions) -> WriteOnceFiles:
    """Return the S3 folder of a URI, with the errors of `open_assignment_store`."""
    return S3Files(s3_folder(uri), S3Calls.open(s3_where(uri), connection))


def s3_folder(uri: StoreUri) -> S3Folder:
    """Return the bucket and path of a URI."""
    return S3Folder(bucket=uri.container, path=uri.path)


def s3_where(uri: StoreUri) -> StoreLocation:
    """Return the description of an S3 folder in errors."""
    return _where(uri, "s3", s3_folder(uri).resource)


def dynamodb_where(uri: StoreUri) -> StoreLocation:
    """Return the description of a DynamoDB item in errors."""
    return _where(uri, "dynamodb", f"the table {uri.container}, whose only key is name (a string)")


def _where(uri: StoreUri, service: Literal["dynamodb", "s3"], resource: str) -> StoreLocation:
    return StoreLocation(
        subject=store_subject(uri.text),
        service=service,
        resource=resource,
        option="assignmentStore",
        read_by="kafka-ssp",
        absent=AssignmentStoreError,
    )
