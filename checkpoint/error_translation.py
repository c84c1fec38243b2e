"""Translates errors of calls to the lease table into the project's errors."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ssp.checkpoint.errors import LeaseTableError
from spark_ssp.common.aws.error_translation import (
    DeniedCall,
    Severity,
    access_error,
    code_of,
    quoted,
    safe_text,
    severity_of,
)
from spark_ssp.common.errors import InvalidRequestError, ServiceUnavailableError, SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation:
    """A table, its region and its endpoint."""

    table: str
    region: str
    endpoint: str
    role_arn: str | None = None
    role_option: str = "roleArn"

    @property
    def subject(self) -> str:
        """The subject of errors about this table."""
        return f"lease table {self.table}"

    def __str__(self) -> str:
        return f"region {self.region} at {safe_text(self.endpoint)}"


def translate(
    error: Exception, location: TableLocation, operation: str, *, attempts: int
) -> SspError:
    """Return the error to raise when a call has failed for good, after `attempts` attempts."""
    access = access_error(
        error,
        DeniedCall(
            subject=location.subject,
            service="dynamodb",
            operation=operation,
            resource=f"the table {location.table}",
            place=str(location),
            role_arn=location.role_arn,
            role_option=location.role_option,
        ),
    )
    if access is not None:
        return access
    if severity_of(error) is not Severity.PERMANENT:
        return ServiceUnavailableError(
            location.subject,
            found=f"{quoted(error)} on {operation}, {attempts} times",
            expected=f"an answer from {location}",
            next_step=_retry_advice(severity_of(error)),
        )
    if code_of(error) == "ResourceNotFoundException":
        return LeaseTableError(
            location.subject,
            found=f"no such table on {operation} in {location}",
            expected="the table that existed at the start",
            next_step="restore it from a backup, or start the query again, which creates it: "
            "shards in the query's checkpoint continue there, others begin at TRIM_HORIZON",
        )
    return InvalidRequestError(
        location.subject,
        found=f"{quoted(error)} on {operation}",
        expected=f"a request that {location} accepts",
        next_step="check applicationName, leaseTable, region and dynamodbEndpointUrl",
    )


def _retry_advice(severity: Severity) -> str:
    if severity is Severity.THROTTLE:
        return (
            "raise the table's capacity or set it to on demand; retry.maxAttempts and "
            "retry.maxBackoff limit the retries"
        )
    return (
        "check dynamodbEndpointUrl, region and the network, or wait for the service; "
        "retry.maxAttempts and retry.maxBackoff limit the retries"
    )
