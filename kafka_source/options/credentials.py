"""Applies the option `credentialsProvider` to logins by AWS's IAM and to assignment stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from checkpoint.assignments.uri import StoreKind, parse_store_uri
from kafka_source.properties.translation import ClientProperties
from ssp_common.options.credentials import CREDENTIALS_PROVIDER, provider_problems, with_provider
from ssp_common.options.spec import OptionProblem, OptionReading

_AWS_STORES: Final = (StoreKind.S3, StoreKind.DYNAMODB)


def with_signer(client: ClientProperties, reading: OptionReading) -> ClientProperties:
    """Return the properties with the provider of a login by AWS's IAM."""
    if client.iam is None:
        return client
    return replace(client, iam=with_provider(client.iam, reading))


def signer_problems(client: ClientProperties, reading: OptionReading) -> Iterator[OptionProblem]:
    """Yield the problems of the provider's options, alone and together with a profile."""
    profile = client.iam is not None and client.iam.aws_profile is not None
    others = ["awsProfileName in kafka.sasl.jaas.config"] if profile else []
    return provider_problems(reading, others)


def unused_problems(
    client: ClientProperties, reading: OptionReading, store: str | None
) -> Iterator[OptionProblem]:
    """Yield the problem of a provider for which a query has no use."""
    has_aws_store = store is not None and parse_store_uri(store).kind in _AWS_STORES
    provider = reading.value(CREDENTIALS_PROVIDER)
    if provider is not None and client.iam is None and not has_aws_store:
        yield OptionProblem(
            option=CREDENTIALS_PROVIDER.name,
            found="neither a login by AWS's IAM nor an assignment store in S3 or DynamoDB",
            expected="a use of AWS credentials",
            next_step="set kafka.sasl.mechanism=AWS_MSK_IAM, or remove it",
        )
