"""Checks of the options that name functions of the user for a login: `credentialsProvider`, for
logins by AWS's IAM and for assignment stores, and `tokenProvider`, for other tokens of
OAUTHBEARER."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from spark_ssp.checkpoint.assignments.uri import StoreKind, parse_store_uri
from spark_ssp.common.options.endpoints import (
    CREDENTIALS_PROVIDER,
    argument_problems,
    provider_problems,
    with_provider,
)
from spark_ssp.common.options.spec import OptionProblem, OptionReading
from spark_ssp.kafka_source.options.client_properties import PREFIX, ClientProperties, TokenProvider
from spark_ssp.kafka_source.options.logins import DEFAULT_METHOD, MECHANISM, METHOD, OAUTHBEARER
from spark_ssp.kafka_source.options.values import TokenChoice

_PROVIDER: Final = "tokenProvider"
_PROTOCOL: Final = "security.protocol"
_TOKEN_PROPERTIES: Final = ("sasl.oauthbearer.", "enable.sasl.oauthbearer.")
_AWS_STORES: Final = (StoreKind.S3, StoreKind.DYNAMODB)


def with_functions(client: ClientProperties, reading: OptionReading) -> ClientProperties:
    """Return the properties with the functions of the login."""
    given = reading.values(TokenChoice)
    return replace(
        client,
        iam=None if client.iam is None else with_provider(client.iam, reading),
        token_provider=None
        if given.provider is None
        else TokenProvider(path=given.provider, secret_arguments=given.secret_arguments),
    )


def function_problems(client: ClientProperties, reading: OptionReading) -> Iterator[OptionProblem]:
    """Yield the problems of the options, alone and together with other properties of the login."""
    profile = client.iam is not None and client.iam.aws_profile is not None
    others = ["awsProfileName in kafka.sasl.jaas.config"] if profile else []
    yield from provider_problems(reading, others)
    yield from argument_problems(reading, _PROVIDER, "tokenProviderSecretArguments")
    if _PROVIDER in reading.valid:
        yield from _token_problems(client)


def _token_problems(client: ClientProperties) -> Iterator[OptionProblem]:
    name, values = _PROVIDER, client.config()
    if client.iam is not None:
        yield OptionProblem(
            option=name,
            found=f"{name} with a login of AWS's IAM, whose tokens are signed here",
            expected="one source of tokens",
            next_step="remove it, and name the AWS credentials by credentialsProvider; or set "
            f"{PREFIX}{MECHANISM}={OAUTHBEARER} without the login of AWS's IAM",
        )
        return
    if values.get(MECHANISM, "").upper() != OAUTHBEARER:
        yield OptionProblem(
            option=name,
            found=f"{name} with {_setting(values, MECHANISM)}",
            expected=f"a login by {OAUTHBEARER}",
            next_step=f"set {PREFIX}{MECHANISM}={OAUTHBEARER}, or remove {name}",
        )
    if not values.get(_PROTOCOL, "").startswith("SASL_"):
        yield OptionProblem(
            option=name,
            found=f"{name} with {_setting(values, _PROTOCOL)}",
            expected="a protocol with a login",
            next_step=f"set {PREFIX}{_PROTOCOL}=SASL_SSL, or remove {name}",
        )
    given = {client.option(one) for one in values if one.startswith(_TOKEN_PROPERTIES)} - {
        PREFIX + METHOD if values.get(METHOD) == DEFAULT_METHOD else ""
    }
    for option in sorted(given):
        yield OptionProblem(
            option=option,
            found=f"another source of tokens or a setting of one, together with {name}",
            expected="one source of tokens",
            next_step=f"remove {option}, or remove {name}",
        )


def _setting(values: Mapping[str, str], name: str) -> str:
    return f"{PREFIX}{name}={values[name]}" if name in values else f"no {PREFIX}{name}"


def unused_problems(
    client: ClientProperties, reading: OptionReading, store: str | None
) -> Iterator[OptionProblem]:
    """Yield the problem of a provider for which a query has no use."""
    has_aws_store = store is not None and parse_store_uri(store).kind in _AWS_STORES
    if CREDENTIALS_PROVIDER in reading.valid and client.iam is None and not has_aws_store:
        yield OptionProblem(
            option=CREDENTIALS_PROVIDER,
            found="neither a login by AWS's IAM nor an assignment store in S3 or DynamoDB",
            expected="a use of AWS credentials",
            next_step="set kafka.sasl.mechanism=AWS_MSK_IAM, or remove it",
        )
