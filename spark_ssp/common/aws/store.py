"""Calls S3 and DynamoDB for a store that an option names by a URI, and raises only this project's
errors. Credentials come from `credentialsProvider` or AWS's configuration, as the region does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from spark_ssp.common.aws import error_translation as aws_faults
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import (
    CredentialsProviderError,
    DeniedCall,
    Severity,
    access_error,
    code_of,
    quoted,
    safe_text,
)
from spark_ssp.common.aws.retries import Retrier, RetryLog, RetrySettings, retry_settings
from spark_ssp.common.aws.service_calls import ServiceCalls
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    InvalidRequestError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.options.endpoints import ConnectionOptions

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
        self._prepare(client)
        self.where = where
        self.monotonic = monotonic
        self.sleep = sleep

    @classmethod
    def open(cls, where: StoreLocation, connection: ConnectionOptions) -> Self:
        """Create a client; no call is made yet.

        Raises AccessError without credentials, InvalidOptionsError without a region.
        """
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
                        next_step="set AWS_REGION, for example us-east-1 (any for a local service)",
                    )
                ],
            ) from None
        retry = retry_settings(connection)
        return cls(client, where, retry=retry)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _prepare(self, client: BaseClient) -> None:
        """Adapt the client to the service."""

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
                next_step="check AWS_REGION, AWS_ENDPOINT_URL and the network, or wait for the "
                "service",
            )
        if code_of(error) in _ABSENT:
            return where.absent(
                where.subject,
                found=f"{quoted(error)} on {operation} in {place}",
                expected=where.resource,
                next_step=f"create or restore it, or correct {where.option} or AWS_REGION",
            )
        return InvalidRequestError(
            where.subject,
            found=f"{quoted(error)} on {operation}",
            expected=f"a request that {place} accepts, for {where.resource}",
            next_step=f"check {where.option}, AWS_REGION and AWS_ENDPOINT_URL",
        )


def _by_the_chain(error: AccessError, where: StoreLocation) -> AccessError:
    """Without a provider there are no options for credentials here."""
    if isinstance(error, CredentialsProviderError) or error.expected.startswith("permission for "):
        return error
    return AccessError(
        where.subject,
        found=error.found,
        expected="credentials from AWS's default chain that are valid",
        next_step="give the driver credentials by the environment, a shared file, its container "
        "or instance; a local service takes any, for example AWS_ACCESS_KEY_ID=test and "
        "AWS_SECRET_ACCESS_KEY=test; check the machine's clock",
    )
