"""Files in an S3 bucket, or in a store with its protocol that supports `If-None-Match`.

By boto3 and not by s3fs, which pins a range of botocore that ends below the boto3 needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError, IncompleteReadError

from spark_ssp.common.aws.error_translation import MalformedAnswerError, Severity, code_of
from spark_ssp.common.aws.s3_names import S3Folder
from spark_ssp.common.aws.service_calls import Answer, readable
from spark_ssp.common.aws.store import StoreCalls

_THERE: Final = frozenset({"PreconditionFailed", "412"})

_RACES: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""S3's word for two conditional writes at once: neither condition was judged, try again."""

_ACTIONS: Final[Mapping[str, str]] = {"ListObjectsV2": "ListBucket"}
"""Operations whose permission is called otherwise."""


class S3Calls(StoreCalls):
    """Calls to S3. A body that comes as a stream is read as part of the call."""

    def once(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """Make one call, and read a streamed body."""
        answer = super().once(operation, request)
        if operation != "GetObject":
            return answer
        try:
            return {**answer, "Body": readable(answer["Body"].read)}
        except IncompleteReadError:
            raise MalformedAnswerError("an answer that was cut") from None

    def _severity_of(self, error: Exception) -> Severity:
        return Severity.FAULT if code_of(error) in _RACES else super()._severity_of(error)

    def _action(self, operation: str) -> str:
        return _ACTIONS.get(operation, operation)


class S3Files:
    """`WriteOnceFiles` over the objects under a prefix. Asks for s3:ListBucket, s3:GetObject and
    s3:PutObject."""

    def __init__(self, folder: S3Folder, calls: S3Calls) -> None:
        self._bucket = folder.bucket
        self._prefix = f"{folder.path}/"
        self._calls = calls

    def names(self) -> Iterable[str]:
        """See `WriteOnceFiles`. S3's listings are consistent."""
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
        """Implements `ImmutableFiles`."""
        answer = self._calls.ask("GetObject", {"Bucket": self._bucket, "Key": self._prefix + name})
        content: bytes = answer["Body"]
        return content

    def create(self, name: str, content: bytes) -> bool:
        """See `WriteOnceFiles`. False as well where an attempt whose reply was lost created it."""
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
        """Implements `ImmutableFiles`."""
        self._calls.close()
