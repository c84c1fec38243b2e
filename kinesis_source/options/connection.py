"""The option table's part for credentials, retries and time-outs."""

from __future__ import annotations

from typing import Any, Final

from spark_ssp.common.options.credentials import PROVIDER_OPTIONS
from spark_ssp.common.options.spec import Alias, OptionSpec
from spark_ssp.common.options.values import (
    credentials_url,
    credentials_url_or_host,
    duration,
    integer,
    matching,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions

_DATABRICKS: Final = "Databricks"
_AWSLABS: Final = "awslabs"

_MINUTE: Final = 60_000

_DEFAULTS: Final = ConnectionOptions()

_key: Final = matching(r"[\x21-\x7e]+", "text without white space", "copy it again")


role_arn: Final = matching(
    r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,576}",
    "an ARN such as arn:aws:iam::123456789012:role/reader",
    "copy it from the console",
)

external_id: Final = matching(
    r"[\w+=,.@:/-]{2,1224}",
    "2 to 1224 letters, digits and any of _+=,.@:/-",
    "ask the role's owner",
)

_MOST_ATTEMPTS: Final = 100


def _retries(text: str) -> int:
    """Convert a number of retries, one fewer than the attempts."""
    return 1 + integer(0, _MOST_ATTEMPTS - 1)(text)


# --- Credentials ----------------------------------------------------------------------------------

AWS_PROFILE: Final[OptionSpec[str | None]] = OptionSpec(
    name="awsProfile",
    convert=matching(r"[\x20-\x7e]+", "a profile's name", "see the AWS configuration files"),
    default=None,
    default_text="AWS's default chain",
    doc="A profile of the AWS configuration files, which every executor must have.",
)

AWS_ACCESS_KEY_ID: Final[OptionSpec[str | None]] = OptionSpec(
    name="awsAccessKeyId",
    convert=_key,
    default=None,
    default_text="AWS's default chain",
    doc="With `awsSecretAccessKey`. Never shown.",
    aliases=(
        Alias(name="awsAccessKey", origin=_DATABRICKS),
        Alias(name="kinesis.awsAccessKeyId", origin=_AWSLABS),
    ),
    secret=True,
)

AWS_SECRET_ACCESS_KEY: Final[OptionSpec[str | None]] = OptionSpec(
    name="awsSecretAccessKey",
    convert=_key,
    default=None,
    default_text="AWS's default chain",
    doc="With `awsAccessKeyId`. Never shown.",
    aliases=(
        Alias(name="awsSecretKey", origin=_DATABRICKS),
        Alias(name="kinesis.awsSecretKey", origin=_AWSLABS),
    ),
    secret=True,
)

AWS_SESSION_TOKEN: Final[OptionSpec[str | None]] = OptionSpec(
    name="awsSessionToken",
    convert=_key,
    default=None,
    default_text="AWS's default chain",
    doc="The token of temporary keys. Never shown; never refreshed, so prefer `roleArn` for long "
    "queries.",
    aliases=(Alias(name="kinesis.sessionToken", origin=_AWSLABS),),
    secret=True,
)

ROLE_ARN: Final[OptionSpec[str | None]] = OptionSpec(
    name="roleArn",
    convert=role_arn,
    default=None,
    default_text="none",
    doc="A role to assume with the credentials found; refreshed automatically.",
    aliases=(Alias(name="kinesis.stsRoleArn", origin=_AWSLABS),),
)

ROLE_EXTERNAL_ID: Final[OptionSpec[str | None]] = OptionSpec(
    name="roleExternalId",
    convert=external_id,
    default=None,
    default_text="none",
    doc="The external id that the role requires. Shown only in [plans](#credentials).",
    secret=True,
)

ROLE_SESSION_NAME: Final[OptionSpec[str | None]] = OptionSpec(
    name="roleSessionName",
    convert=matching(
        r"[\w+=,.@-]{2,64}",
        "2 to 64 letters, digits and any of _+=,.@-",
        "choose another name",
    ),
    default=None,
    default_text="the SDK's",
    doc="The name of the role's session in AWS's logs.",
    aliases=(Alias(name="kinesis.stsSessionName", origin=_AWSLABS),),
)

STS_ENDPOINT_URL: Final[OptionSpec[str | None]] = OptionSpec(
    name="stsEndpointUrl",
    convert=credentials_url,
    default=None,
    default_text="from AWS's configuration",
    doc="The endpoint of STS, which assumes the role: https, or http on this machine.",
    aliases=(
        Alias(name="stsEndpoint", origin=_DATABRICKS, convert=credentials_url_or_host),
        Alias(name="kinesis.stsEndpointUrl", origin=_AWSLABS),
    ),
)

# --- Retries and time-outs ------------------------------------------------------------------------

RETRY_MAX_ATTEMPTS: Final[OptionSpec[int]] = OptionSpec(
    name="retry.maxAttempts",
    convert=integer(1, _MOST_ATTEMPTS),
    default=_DEFAULTS.retry_max_attempts,
    default_text="`8`",
    doc="The most attempts of a call before the query fails: 1 to 100. Throttling does not count "
    "while records are read: the call is repeated, with warnings, until it succeeds.",
    aliases=(Alias(name="kinesis.clientNumRetries", origin=_AWSLABS, convert=_retries),),
)

RETRY_MAX_BACKOFF: Final[OptionSpec[int]] = OptionSpec(
    name="retry.maxBackoff",
    convert=duration(100, 10 * _MINUTE),
    default=_DEFAULTS.retry_max_backoff_ms,
    default_text="`10s`",
    doc="The longest pause between two attempts: a duration from 100ms to 10m.",
    aliases=(Alias(name="kinesis.clientMaxRetryIntervalMs", origin=_AWSLABS),),
)

CONNECT_TIMEOUT: Final[OptionSpec[int]] = OptionSpec(
    name="connectTimeout",
    convert=duration(100, 10 * _MINUTE),
    default=_DEFAULTS.connect_timeout_ms,
    default_text="`10s`",
    doc="The time-out for connecting: a duration from 100ms to 10m.",
)

READ_TIMEOUT: Final[OptionSpec[int]] = OptionSpec(
    name="readTimeout",
    convert=duration(100, 10 * _MINUTE),
    default=_DEFAULTS.read_timeout_ms,
    default_text="`30s`",
    doc="The time-out for an answer, which begins again with each part of a request that leaves "
    "and of an answer that arrives: a duration from 100ms to 10m.",
)

CONNECTION_OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    AWS_PROFILE,
    AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN,
    *PROVIDER_OPTIONS,
    ROLE_ARN,
    ROLE_EXTERNAL_ID,
    ROLE_SESSION_NAME,
    STS_ENDPOINT_URL,
    RETRY_MAX_ATTEMPTS,
    RETRY_MAX_BACKOFF,
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
)
