"""Endpoint and credentials of an AWS service: the options, and their values.

The Kinesis source and sink have all of these options; the Kafka source and sink have those of the
credentials provider, a function of the user that returns botocore credentials. Here it is only
named and checked: `common.aws.provided_credentials` calls it in every process that calls AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import (
    Alias,
    BadValueError,
    Fault,
    Option,
    OptionProblem,
    OptionReading,
    is_secret,
    option,
    options_of,
)
from spark_ssp.common.options.user_code import check_class
from spark_ssp.common.options.values import (
    credentials_url,
    credentials_url_or_host,
    duration,
    integer,
    matching,
    url,
    url_or_host,
)

DATABRICKS: Final = "Databricks"
AWSLABS: Final = "awslabs"

CREDENTIALS_PROVIDER: Final = "credentialsProvider"
# Spark hides options whose names contain "secret", in every version and by default.
_ARGUMENTS: Final = "credentialsProviderSecretArguments"

_MINUTE: Final = 60_000
_MOST_ATTEMPTS: Final = 100
_CHAIN: Final = "AWS's default chain"
_CONFIGURATION: Final = "from AWS's configuration"
_NO_AWS: Final = "it is for AWS; Kafka's connection and login are options that begin with kafka."
_ATTEMPTS_OF_KAFKA: Final = (
    "use fetchOffset.numRetries, fetchOffset.retryIntervalMs and pollTimeout"
)


# --- Converters ----------------------------------------------------------------------------------

region: Final = matching(
    # A host label that does not end like an availability zone (eu-west-1a).
    r"(?![a-z]+(-[a-z]+)+-[0-9]+[a-z]$)[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    "a region's code such as eu-west-1",
    "write the code, without the letter of an availability zone",
)

KEY_PATTERN: Final = r"[\x21-\x7e]+"
"""Keys and session tokens: they are sent in a header."""
_key: Final = matching(KEY_PATTERN, "text without white space", "copy it again")

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


def _retries(text: str) -> int:
    """Convert a number of retries, one fewer than the attempts."""
    return 1 + integer(0, _MOST_ATTEMPTS - 1)(text)


def function_path(example: str) -> Callable[[str], str]:
    """Return the converter of an option that names a function as `module:function`."""

    def convert(text: str) -> str:
        module, _, name = text.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            raise BadValueError(
                Fault(
                    found=shown(text),
                    expected=f"a module and a function of it, such as {example}",
                    next_step="write the module, a colon and the function",
                )
            )
        check_class(f"{module}.{name}")
        return text

    return convert


def keyword_arguments(text: str) -> str:
    """Convert an option with the arguments of a function: the text of a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        # The parser's error is not chained: it contains the text.
        raise BadValueError(
            Fault(
                found="no JSON object",
                expected='a JSON object of keyword arguments, such as {"role": "reader"}',
                next_step="write a JSON object, for example by json.dumps",
            )
        ) from None
    return text


# --- The options ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Endpoint and credentials. Hashable, since clients are cached by it. Durations are in ms. None
    means "as in the AWS configuration". Its text never shows credentials; its pickle carries them,
    because executors need them."""

    region: str | None = option(
        "region",
        region,
        "The streams' region.",
        unset="from `streamARN`, else from an `endpointUrl` of AWS, else AWS's configuration",
        sister=_NO_AWS,
        aliases=(
            Alias(name="kinesis.kinesisRegion", origin=AWSLABS),
            Alias(name="kinesis.region", origin=AWSLABS),
        ),
    )
    endpoint_url: str | None = option(
        "endpointUrl",
        url,
        "The endpoint of Kinesis, such as `http://localhost:4567`.",
        unset=_CONFIGURATION,
        sister=_NO_AWS,
        aliases=(
            Alias(name="endpoint", origin=DATABRICKS, convert=url_or_host),
            Alias(name="kinesis.endpointUrl", origin=AWSLABS),
        ),
    )
    aws_profile: str | None = option(
        "awsProfile",
        matching(r"[\x20-\x7e]+", "a profile's name", "see the AWS configuration files"),
        "A profile of the AWS configuration files, which every executor must have.",
        unset=_CHAIN,
        sister=_NO_AWS,
    )
    aws_access_key_id: str | None = option(
        "awsAccessKeyId",
        _key,
        "With `awsSecretAccessKey`. Never shown.",
        unset=_CHAIN,
        sister=_NO_AWS,
        aliases=(
            Alias(name="awsAccessKey", origin=DATABRICKS),
            Alias(name="kinesis.awsAccessKeyId", origin=AWSLABS),
        ),
        secret=True,
    )
    aws_secret_access_key: str | None = option(
        "awsSecretAccessKey",
        _key,
        "With `awsAccessKeyId`. Never shown.",
        unset=_CHAIN,
        sister=_NO_AWS,
        aliases=(
            Alias(name="awsSecretKey", origin=DATABRICKS),
            Alias(name="kinesis.awsSecretKey", origin=AWSLABS),
        ),
        secret=True,
    )
    aws_session_token: str | None = option(
        "awsSessionToken",
        _key,
        "The token of temporary keys. Never shown; never refreshed, so prefer `roleArn` for long "
        "queries.",
        unset=_CHAIN,
        sister=_NO_AWS,
        aliases=(Alias(name="kinesis.sessionToken", origin=AWSLABS),),
        secret=True,
    )
    credentials_provider: str | None = option(
        CREDENTIALS_PROVIDER,
        function_path("my_company.aws:credentials"),
        "A function that returns botocore credentials or a boto3 session, as `module:function`. "
        "Every process that calls AWS imports it, on the driver and on executors.",
        unset="none",
    )
    credentials_provider_secret_arguments: str | None = option(
        _ARGUMENTS,
        keyword_arguments,
        "The keyword arguments of the function, as a JSON object. Never shown.",
        unset="no arguments",
        secret=True,
    )
    role_arn: str | None = option(
        "roleArn",
        role_arn,
        "A role to assume with the credentials found; refreshed automatically.",
        unset="none",
        sister=_NO_AWS,
        aliases=(Alias(name="kinesis.stsRoleArn", origin=AWSLABS),),
    )
    role_external_id: str | None = option(
        "roleExternalId",
        external_id,
        "The external id that the role requires. Shown only in [plans](#credentials).",
        unset="none",
        sister=_NO_AWS,
        secret=True,
    )
    role_session_name: str | None = option(
        "roleSessionName",
        matching(
            r"[\w+=,.@-]{2,64}",
            "2 to 64 letters, digits and any of _+=,.@-",
            "choose another name",
        ),
        "The name of the role's session in AWS's logs.",
        unset="the SDK's",
        sister=_NO_AWS,
        aliases=(Alias(name="kinesis.stsSessionName", origin=AWSLABS),),
    )
    sts_endpoint_url: str | None = option(
        "stsEndpointUrl",
        credentials_url,
        "The endpoint of STS, which assumes the role: https, or http on this machine.",
        unset=_CONFIGURATION,
        sister=_NO_AWS,
        aliases=(
            Alias(name="stsEndpoint", origin=DATABRICKS, convert=credentials_url_or_host),
            Alias(name="kinesis.stsEndpointUrl", origin=AWSLABS),
        ),
    )
    role_option: str = "roleArn"
    """The option that named the role, for messages."""
    retry_max_attempts: int = option(
        "retry.maxAttempts",
        integer(1, _MOST_ATTEMPTS),
        "The most attempts of a call before the query fails: 1 to 100. Throttling does not count "
        "while records are read: the call is repeated, with warnings, until it succeeds.",
        default="8",
        sister=_ATTEMPTS_OF_KAFKA,
        aliases=(Alias(name="kinesis.clientNumRetries", origin=AWSLABS, convert=_retries),),
    )
    retry_max_backoff_ms: int = option(
        "retry.maxBackoff",
        duration(100, 10 * _MINUTE),
        "The longest pause between two attempts: a duration from 100ms to 10m.",
        default="10s",
        sister=_ATTEMPTS_OF_KAFKA,
        aliases=(Alias(name="kinesis.clientMaxRetryIntervalMs", origin=AWSLABS),),
    )
    connect_timeout_ms: int = option(
        "connectTimeout",
        duration(100, 10 * _MINUTE),
        "The time-out for connecting: a duration from 100ms to 10m.",
        default="10s",
        sister=_ATTEMPTS_OF_KAFKA,
    )
    read_timeout_ms: int = option(
        "readTimeout",
        duration(100, 10 * _MINUTE),
        "The time-out for an answer, which begins again with each part of a request that leaves "
        "and of an answer that arrives: a duration from 100ms to 10m.",
        default="30s",
        sister=_ATTEMPTS_OF_KAFKA,
    )

    def __repr__(self) -> str:
        shown = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            hidden = is_secret(entry) and value is not None
            shown.append(f"{entry.name}={'***' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


PROVIDER_OPTIONS: Final[tuple[Option[Any], ...]] = tuple(
    declared
    for declared in options_of(ConnectionOptions)
    if declared.name in (CREDENTIALS_PROVIDER, _ARGUMENTS)
)


# --- Together ------------------------------------------------------------------------------------


def with_provider(connection: ConnectionOptions, reading: OptionReading) -> ConnectionOptions:
    """Return the connection with the options' provider."""
    given = reading.values(ConnectionOptions)
    return replace(
        connection,
        credentials_provider=given.credentials_provider,
        credentials_provider_secret_arguments=given.credentials_provider_secret_arguments,
    )


def provider_problems(reading: OptionReading, others: Iterable[str]) -> Iterator[OptionProblem]:
    """Yield the problems of the two options. `others` are the given options that name credentials
    too, as the user wrote them."""
    yield from argument_problems(reading, CREDENTIALS_PROVIDER, _ARGUMENTS)
    found = list(others)
    if reading.given(CREDENTIALS_PROVIDER) and found:
        yield OptionProblem(
            option=CREDENTIALS_PROVIDER,
            found=f"{CREDENTIALS_PROVIDER} together with {' and '.join(found)}",
            expected="one source of credentials",
            next_step=f"keep {CREDENTIALS_PROVIDER} and remove {' and '.join(found)}, or the "
            "reverse",
        )


def argument_problems(
    reading: OptionReading, provider: str, arguments: str
) -> Iterator[OptionProblem]:
    """Yield the problem of arguments without the function that they are for."""
    if arguments in reading.valid and not reading.given(provider):
        yield OptionProblem(
            option=arguments,
            found=f"arguments without {provider}",
            expected="the function that they are for",
            next_step=f"give {provider} too, or remove them",
        )
