"""Calls to S3 and DynamoDB about one store of assignments, with this project's errors alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from botocore.exceptions import IncompleteReadError

from checkpoint.assignment_errors import AssignmentStoreError
from checkpoint.dynamodb_calls import DynamoDbCalls
from checkpoint.service_calls import Answer, ServiceCalls, readable
from ssp_common import aws_faults
from ssp_common.aws_clients import create_client
from ssp_common.aws_faults import (
    Asked,
    MalformedAnswerError,
    Severity,
    access_error,
    code_of,
    quoted,
    safe_text,
)
from ssp_common.connection import ConnectionOptions
from ssp_common.errors import (
    AccessError,
    InvalidOptionsError,
    InvalidRequestError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)
from ssp_common.retries import Retrier, RetryLog, RetrySettings

if TYPE_CHECKING:
    from botocore.client import BaseClient

_RACES: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""S3's word for two conditional writes at once: neither condition was judged, try again."""

_ACTIONS: Final[Mapping[str, str]] = {"ListObjectsV2": "ListBucket"}
"""Operations whose permission is called otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What is asked for, as errors call it."""

    uri: str
    service: Literal["dynamodb", "s3"]
    resource: str
    """What permissions are given on: `the bucket b and its objects`."""

    @property
    def subject(self) -> str:
        """What a call is about."""
        return f"assignment store {self.uri}"


class AwsCalls(ServiceCalls):
    """Calls of one client."""

    def __init__(
        self,
        client: BaseClient,
        where: Where,
        *,
        retry: RetrySettings,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        """`client` must have botocore's retries off."""
        log = RetryLog(monotonic)
        retrier = Retrier(retry, log=log, sleep=sleep, random=random, severity_of=severity_of)
        super().__init__(client, retrier, subject=where.subject)
        if where.service == "dynamodb":
            DynamoDbCalls.check_bodies(client)
        self.where = where
        self.monotonic = monotonic
        self.sleep = sleep

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def once(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """One attempt. Raises the SDK's errors. A body that comes as a stream is read."""
        answer = super().once(operation, request)
        if operation != "GetObject":
            return answer
        try:
            return {**answer, "Body": readable(answer["Body"].read)}
        except IncompleteReadError:
            raise MalformedAnswerError("an answer that was cut") from None

    def _translated(self, error: Exception, operation: str) -> SspError:
        meta = self._client.meta
        place = f"region {meta.region_name} at {safe_text(meta.endpoint_url)}"
        where = self.where
        access = access_error(
            error,
            Asked(
                subject=where.subject,
                service=where.service,
                operation=_ACTIONS.get(operation, operation),
                resource=where.resource,
                place=place,
            ),
        )
        if access is not None:
            return _for_store(access, where)
        if severity_of(error) is not Severity.PERMANENT:
            return ServiceUnavailableError(
                where.subject,
                found=f"{quoted(error)} on {operation}, {self._retrier.max_attempts} times",
                expected=f"an answer from {place}",
                next_step="check AWS_REGION, AWS_ENDPOINT_URL and the network, or wait for the "
                "service",
            )
        if code_of(error) in ("NoSuchBucket", "NoSuchKey", "ResourceNotFoundException"):
            return AssignmentStoreError(
                where.subject,
                found=f"{quoted(error)} on {operation} in {place}",
                expected=where.resource,
                next_step="create it, put back what was removed, or mend assignmentStore or "
                "AWS_REGION",
            )
        return InvalidRequestError(
            where.subject,
            found=f"{quoted(error)} on {operation}",
            expected=f"a request that {place} accepts, for {where.resource}",
            next_step="check assignmentStore, AWS_REGION and AWS_ENDPOINT_URL",
        )


def severity_of(error: Exception) -> Severity:
    """As for every service, but for what S3 says of races."""
    return Severity.FAULT if code_of(error) in _RACES else aws_faults.severity_of(error)


def _for_store(error: AccessError, where: Where) -> AccessError:
    """A store has no options for credentials."""
    if error.expected.startswith("permission for "):
        return error
    return AccessError(
        where.subject,
        found=error.found,
        expected="credentials from AWS's default chain that are valid",
        next_step="give the driver credentials by the environment, a shared file, its container "
        "or instance; a local service takes any, for example AWS_ACCESS_KEY_ID=test; check the "
        "machine's clock",
    )


def open_calls(where: Where, connection: ConnectionOptions) -> AwsCalls:
    """Calls by a client of their own. See `open_assignment_store` for what it raises."""
    try:
        client = create_client(where.service, connection)
    except AccessError as error:
        raise _for_store(error, where) from None
    except InvalidOptionsError as error:
        raise InvalidOptionsError(
            "kafka-ssp",
            [
                OptionProblem(
                    option="assignmentStore",
                    found=f"{where.uri}, and {error.problems[0].found}",
                    expected="a region, and an endpoint that is a URL, by AWS's configuration",
                    next_step="set AWS_REGION, for example us-east-1 (any for a local service)",
                )
            ],
        ) from None
    retry = RetrySettings(
        max_attempts=connection.retry_max_attempts,
        max_backoff=connection.retry_max_backoff_ms / 1000,
    )
    return AwsCalls(client, where, retry=retry)
