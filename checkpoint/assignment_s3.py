"""Assignments in a bucket of S3, or of what speaks its protocol and knows `If-None-Match`.

By boto3 and not by s3fs, which pins a range of botocore that ends below the boto3 needed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError

from checkpoint.assignment_aws import AwsCalls, Where, open_calls
from checkpoint.assignment_files import VersionedFiles
from checkpoint.assignment_uri import StoreUri
from ssp_common.aws_faults import MalformedAnswerError, code_of
from ssp_common.connection import ConnectionOptions

_THERE: Final = frozenset({"PreconditionFailed", "412"})


class S3Files:
    """`VersionedFiles` over the objects under a prefix. Asks for s3:ListBucket, s3:GetObject and
    s3:PutObject."""

    def __init__(self, place: StoreUri, calls: AwsCalls) -> None:
        self._bucket = place.place
        self._prefix = f"{place.path}/"
        self._calls = calls

    def names(self) -> Iterable[str]:
        """See `VersionedFiles`. S3's listings are consistent."""
        request: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": self._prefix,
            "Delimiter": "/",
        }
        found: list[str] = []
        while True:
            answer = self._calls.patiently("ListObjectsV2", partial(self._page, request))
            found.extend(entry["Key"] for entry in answer.get("Contents", ()))
            if not answer["IsTruncated"]:
                return [key.removeprefix(self._prefix) for key in found]
            request = {**request, "ContinuationToken": answer["NextContinuationToken"]}

    def _page(self, request: dict[str, Any]) -> Any:
        answer = self._calls.once("ListObjectsV2", request)
        if "IsTruncated" not in answer:
            # A body that is empty reads as a folder that is.
            raise MalformedAnswerError("a listing without its fields")
        return answer

    def read(self, name: str) -> bytes:
        """See `VersionedFiles`."""
        answer = self._calls.ask("GetObject", {"Bucket": self._bucket, "Key": self._prefix + name})
        content: bytes = answer["Body"]
        return content

    def create(self, name: str, content: bytes) -> bool:
        """See `VersionedFiles`. False as well where an attempt whose reply was lost created it."""
        request = {
            "Bucket": self._bucket,
            "Key": self._prefix + name,
            "Body": content,
            "ContentType": "application/json",
            "IfNoneMatch": "*",
        }

        def create() -> bool:
            try:
                self._calls.once("PutObject", request)
            except ClientError as error:
                if code_of(error) not in _THERE:
                    raise
                return False
            return True

        return self._calls.patiently("PutObject", create)

    def close(self) -> None:
        """See `VersionedFiles`."""
        self._calls.close()


def open_s3(place: StoreUri, connection: ConnectionOptions) -> VersionedFiles:
    """The folder that `place` names. See `open_assignment_store` for what it raises."""
    return S3Files(place, open_calls(s3_where(place), connection))


def s3_where(place: StoreUri) -> Where:
    """How errors call it."""
    return Where(uri=place.text, service="s3", resource=f"the bucket {place.place} and its objects")
