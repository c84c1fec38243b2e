"""Calls S3 and DynamoDB for a store that an option names by a URI, and raises only this project's
errors. Credentials come from `credentialsProvider` or AWS's configuration, as the region does. S3
by boto3 and not by s3fs, which pins a range of botocore that ends below the boto3 needed here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from botocore.exceptions import ClientError, IncompleteReadError

from spark_ssp.common.aws import error_translation as aws_faults
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import (
    CredentialsProviderError,
    DeniedCall,
    MalformedAnswerError,
    Severity,
    access_error,
    code_of,
    is_denied,
    quoted,
    safe_text,
)
from spark_ssp.common.aws.service_calls import (
    Answer,
    Retrier,
    RetryLog,
    RetrySettings,
    ServiceCalls,
    readable,
    reject_cut_bodies,
    retry_settings,
)
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    InvalidRequestError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.locations import MAX_BYTES
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.write_once_files import S3Folder

if TYPE_CHECKING:
    from botocore.client import BaseClient

_ABSENT: Final = ("NoSuchBucket", "NoSuchKey", "ResourceNotFoundException")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """The store as errors describe it. Contains no secret."""

    subject: str
    """The subject of errors: `assignment store s3://lake/orders`."""
    service: Literal["dynamodb", "s3"]
    resource: str
    """The resource of permissions: `the bucket b and its objects`."""
    option: str
    """The option that names the store: `assignmentStore`."""
    read_by: str
    """The owner of the option: `kafka-ssp`."""
    absent: type[SspError]
    """The error for a missing bucket or table."""


class StoreCalls(ServiceCalls):
    """Calls of one client."""

    def __init__(
        self,
        client: BaseClient,
        where: StoreLocation,
        *,
        retry: RetrySettings,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        """`client` must have botocore's retries off."""
        log = RetryLog(monotonic)
        retrier = Retrier(retry, log=log, sleep=sleep, random=random, severity_of=self._severity_of)
        super().__init__(client, retrier, subject=where.subject)
        if where.service == "dynamodb":
            reject_cut_bodies(client)
        self.where = where
        self.monotonic = monotonic
        self.sleep = sleep

    @classmethod
    def open(cls, where: StoreLocation, connection: ConnectionOptions) -> Self:
        """Create a client; no call is made yet. Raises AccessError without credentials,
        InvalidOptionsError without a region."""
        try:
            client = create_client(where.service, connection)
        except AccessError as error:
            raise _by_the_chain(error, where) from None
        except InvalidOptionsError as error:
            raise InvalidOptionsError(
                where.read_by,
                [
                    OptionProblem(
                        option=where.option,
                        found=f"{where.subject}, and {error.problems[0].found}",
                        expected="a region, and an endpoint that is a URL, by AWS's configuration",
                        next_step="set AWS_DEFAULT_REGION, for example us-east-1 (any for a local "
                        "service)",
                    )
                ],
            ) from None
        retry = retry_settings(connection)
        return cls(client, where, retry=retry)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _severity_of(self, error: Exception) -> Severity:
        return aws_faults.severity_of(error)

    def _action(self, operation: str) -> str:
        """Return the name of the permission for an operation."""
        return operation

    def _translated(self, error: Exception, operation: str) -> SspError:
        meta = self._client.meta
        place = f"region {meta.region_name} at {safe_text(meta.endpoint_url)}"
        where = self.where
        access = access_error(
            error,
            DeniedCall(
                subject=where.subject,
                service=where.service,
                operation=self._action(operation),
                resource=where.resource,
                place=place,
            ),
        )
        if access is not None:
            return _by_the_chain(access, where)
        if self._severity_of(error) is not Severity.PERMANENT:
            return ServiceUnavailableError(
                where.subject,
                found=f"{quoted(error)} on {operation}, {self._retrier.max_attempts} times",
                expected=f"an answer from {place}",
                next_step="check AWS_DEFAULT_REGION, AWS_ENDPOINT_URL and the network, or wait for "
                "the service",
            )
        if code_of(error) in _ABSENT:
            return where.absent(
                where.subject,
                found=f"{quoted(error)} on {operation} in {place}",
                expected=where.resource,
                next_step=f"create or restore it, or correct {where.option} or AWS_DEFAULT_REGION",
            )
        return InvalidRequestError(
            where.subject,
            found=f"{quoted(error)} on {operation}",
            expected=f"a request that {place} accepts, for {where.resource}",
            next_step=f"check {where.option}, AWS_DEFAULT_REGION and AWS_ENDPOINT_URL",
        )


def _by_the_chain(error: AccessError, where: StoreLocation) -> AccessError:
    """Without a provider there are no options for credentials here."""
    if isinstance(error, CredentialsProviderError) or is_denied(error):
        return error
    return AccessError(
        where.subject,
        found=error.found,
        expected="credentials from AWS's default chain that are valid",
        next_step="give the driver credentials by the environment, a shared file, its container "
        "or instance; a local service takes any, for example AWS_ACCESS_KEY_ID=test and "
        "AWS_SECRET_ACCESS_KEY=test; check the machine's clock",
    )


# --- S3 ------------------------------------------------------------------------------------------

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
            return {**answer, "Body": readable(partial(_content, answer["Body"]))}
        except IncompleteReadError:
            raise MalformedAnswerError("an answer that was cut") from None

    def _severity_of(self, error: Exception) -> Severity:
        return Severity.FAULT if code_of(error) in _RACES else super()._severity_of(error)

    def _action(self, operation: str) -> str:
        return _ACTIONS.get(operation, operation)


def _content(body: Any) -> bytes:
    """Return the content of an object, or one byte more than `MAX_BYTES` of a larger one."""
    content: bytes = body.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        body.close()
    else:
        body.read(1)  # at the end, this compares the length with the header's
    return content


class S3Files:
    """`WriteOnceFiles` over the objects under a prefix. Asks for s3:ListBucket, s3:GetObject and
    s3:PutObject."""

    def __init__(self, folder: S3Folder, calls: S3Calls) -> None:
        self._bucket = folder.bucket
        self._prefix = f"{folder.path}/"
        self._calls = calls

    def names(self) -> Iterable[str]:
        """See `WriteOnceFiles`. S3's listings are consistent."""
        return self.listing()[0]

    def listing(self, most: int | None = None) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders directly below the prefix; a page more
        than `most`, if there are so many."""
        files: list[str] = []
        folders: list[str] = []
        for page in self._pages():
            files += [entry["Key"] for entry in page.get("Contents", ())]
            folders += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            if most is not None and len(files) + len(folders) > most:
                break
        return (
            [key.removeprefix(self._prefix) for key in files],
            [prefix.removeprefix(self._prefix).removesuffix("/") for prefix in folders],
        )

    def _pages(self) -> Iterator[Answer]:
        request: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": self._prefix,
            "Delimiter": "/",
        }
        while True:
            answer = self._calls.patiently("ListObjectsV2", partial(self._page, request))
            yield answer
            if not answer["IsTruncated"]:
                return
            request = {**request, "ContinuationToken": answer["NextContinuationToken"]}

    def _page(self, request: dict[str, Any]) -> Any:
        answer = self._calls.once("ListObjectsV2", request)
        if "IsTruncated" not in answer:
            # A body that is empty reads as a folder that is.
            raise MalformedAnswerError("a listing without its fields")
        return answer

    def read(self, name: str) -> bytes:
        """Implements `WriteOnceFiles`."""
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
        """Implements `WriteOnceFiles`."""
        self._calls.close()
