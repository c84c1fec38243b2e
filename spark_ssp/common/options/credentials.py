"""The options `credentialsProvider` and `credentialsProviderSecretArguments` of both formats.

They name a function of the user that returns botocore credentials. Here they are only parsed and
checked: `common.aws.provided_credentials` calls the function in every process that calls AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from spark_ssp.common.options.allowlists import check_class
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import (
    BadValueError,
    Fault,
    OptionProblem,
    OptionReading,
    OptionSpec,
    shown,
)


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


CREDENTIALS_PROVIDER: Final[OptionSpec[str | None]] = OptionSpec(
    name="credentialsProvider",
    convert=function_path("my_company.aws:credentials"),
    default=None,
    default_text="none",
    doc="A function that returns botocore credentials or a boto3 session, as `module:function`. "
    "Every process that calls AWS imports it, on the driver and on executors.",
)

CREDENTIALS_PROVIDER_ARGUMENTS: Final[OptionSpec[str | None]] = OptionSpec(
    # Spark hides options whose names contain "secret", in every version and by default.
    name="credentialsProviderSecretArguments",
    convert=keyword_arguments,
    default=None,
    default_text="no arguments",
    doc="The keyword arguments of the function, as a JSON object. Never shown.",
    secret=True,
)

PROVIDER_OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    CREDENTIALS_PROVIDER,
    CREDENTIALS_PROVIDER_ARGUMENTS,
)


def with_provider(connection: ConnectionOptions, reading: OptionReading) -> ConnectionOptions:
    """Return the connection with the options' provider."""
    return replace(
        connection,
        credentials_provider=reading.value(CREDENTIALS_PROVIDER),
        credentials_provider_secret_arguments=reading.value(CREDENTIALS_PROVIDER_ARGUMENTS),
    )


def provider_problems(reading: OptionReading, others: Iterable[str]) -> Iterator[OptionProblem]:
    """Yield the problems of the two options. `others` are the given options that name credentials
    too, as the user wrote them."""
    provider = CREDENTIALS_PROVIDER
    yield from argument_problems(reading, provider, CREDENTIALS_PROVIDER_ARGUMENTS)
    found = list(others)
    if reading.given(provider) and found:
        yield OptionProblem(
            option=provider.name,
            found=f"{provider.name} together with {' and '.join(found)}",
            expected="one source of credentials",
            next_step=f"keep {provider.name} and remove {' and '.join(found)}, or the reverse",
        )


def argument_problems(
    reading: OptionReading, provider: OptionSpec[str | None], arguments: OptionSpec[str | None]
) -> Iterator[OptionProblem]:
    """Yield the problem of arguments without the function that they are for."""
    if reading.value(arguments) is not None and not reading.given(provider):
        yield OptionProblem(
            option=arguments.name,
            found=f"arguments without {provider.name}",
            expected="the function that they are for",
            next_step=f"give {provider.name} too, or remove them",
        )
