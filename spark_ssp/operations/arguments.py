"""Options of the command line that several commands have: connections to services, durations.
Connections become options of the sources, which the sources' own tables parse and check: names,
values and errors are the same as in a query."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import KAFKA, KINESIS, BadValueError, read_options
from spark_ssp.common.options.values import duration
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.options.client_properties import PREFIX
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.connection import (
    connection_of,
    credential_problems,
    region_problems,
    stream_problems,
    streams_of,
)
from spark_ssp.kinesis_source.options.parse import has_lease_role, lease_role
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS, LeaseOptions, table_connection
from spark_ssp.operations.health import YEAR_MS

F = TypeVar("F", bound=Callable[..., Any])
_SOURCE: Final = "spark-ssp"
_FILE: Final = "spark_ssp.options"
_KAFKA_ONLY: Final = {
    option.name.lower() for option in KINESIS_OPTIONS.all_foreign() if option.origin == KAFKA
}
_KINESIS_ONLY: Final = {
    option.name.lower() for option in KAFKA_OPTIONS.all_foreign() if option.origin == KINESIS
}
_LONGER_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of a source, as given on the command line. Its text shows only their names."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def with_options(self, **options: str) -> Given:
        """Return these options and others."""
        return Given(options={**self.options, **options})


def aws_options(command: F) -> F:
    """Add the options of AWS. The command takes `aws`, a `Given`."""
    return _options(
        command,
        "aws",
        {
            "region": ("--region", "The AWS region; default: AWS's configuration."),
            "endpointUrl": ("--endpoint-url", "The endpoint of Kinesis."),
            "dynamodbEndpointUrl": ("--dynamodb-endpoint-url", "The endpoint of DynamoDB."),
            "awsProfile": ("--profile", "A profile of AWS's configuration files."),
            "roleArn": ("--role-arn", "A role to assume."),
        },
        ("--option", "NAME=VALUE", "Another option of kinesis-ssp, such as stsEndpointUrl."),
    )


def kafka_options(command: F) -> F:
    """Add the options of Kafka. The command takes `kafka`, a `Given`."""
    return _options(
        command,
        "kafka",
        {"kafka.bootstrap.servers": ("--bootstrap-servers", "Brokers, as host:port,host:port.")},
        ("--property", "kafka.NAME=VALUE", "A property of the Kafka client, as in a query."),
    )


def options_file(command: F) -> F:
    """Add a file of options, for secrets and for the options of a job. The command line overrides
    it."""
    return click.option(
        "--options",
        expose_value=False,
        is_eager=True,
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_load,
        help="A JSON file with options of the source: credentials belong here, not on the command "
        "line, which other users can see.",
    )(command)


def _load(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise click.BadParameter(f"{path}: not JSON") from None
    if not isinstance(document, dict) or not all(
        isinstance(value, str | int | float) for value in document.values()
    ):
        raise click.BadParameter(f"{path}: not a JSON object of options and their values")
    context.meta[_FILE] = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in document.items()
    }


def _of_file(target: str) -> dict[str, str]:
    """Return the options of the file if they are those of this kind of service."""
    found: dict[str, str] = click.get_current_context().meta.get(_FILE, {})
    is_kafka = any(name.strip().lower().startswith(PREFIX) for name in found) or are_of_kafka(found)
    return dict(found) if is_kafka is (target == "kafka") else {}


def are_of_kafka(options: Mapping[str, str]) -> bool:
    """Return whether options are those of the Kafka source: some are of Kafka only and none are of
    Kinesis only."""
    names = {name.strip().lower() for name in options}
    if names & _KINESIS_ONLY:
        return False
    return bool(names & _KAFKA_ONLY) or any(name.startswith(PREFIX) for name in names)


def _options(
    command: F,
    target: str,
    named: Mapping[str, tuple[str, str]],
    generic: tuple[str, str, str],
) -> F:
    """Add options that are collected into one parameter of the command, with those of the file."""
    parameters = {f"{target}_{n}": name for n, name in enumerate(named)}

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        options = _of_file(target)
        options.update(kwargs.pop(f"{target}_generic"))
        for parameter, name in parameters.items():
            value = kwargs.pop(parameter)
            if value is not None:
                options[name] = value
        return command(*args, **{target: Given(options=options)}, **kwargs)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    flag, form, text = generic
    click.option(
        flag, f"{target}_generic", multiple=True, metavar=form, callback=_pairs, help=text
    )(wrapper)
    for parameter, (option, help_text) in reversed(
        list(zip(parameters, named.values(), strict=True))
    ):
        click.option(option, parameter, help=help_text)(wrapper)
    return wrapper  # type: ignore[return-value]


def _pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            # The value may be a secret.
            raise click.BadParameter(f"expected {parameter.metavar}")
        found[name.strip()] = text
    return found


# --- Connections ----------------------------------------------------------------------------------


def connection(given: Given) -> ConnectionOptions:
    """Return the connection to AWS. Raises InvalidOptionsError."""
    reading = read_options(KINESIS_OPTIONS, given.options)
    problems = [
        *reading.problems,
        *region_problems(reading),
        *credential_problems(reading, has_lease_role=has_lease_role(reading)),
    ]
    if problems:
        raise InvalidOptionsError(_SOURCE, problems)
    return connection_of(reading)


def dynamodb_connection(given: Given) -> ConnectionOptions:
    """Return the connection to DynamoDB."""
    reading = read_options(KINESIS_OPTIONS, given.options)
    endpoint = reading.fields(LeaseOptions).get("dynamodb_endpoint_url")
    return table_connection(connection(given), endpoint, lease_role(reading))


def s3_connection(given: Given) -> ConnectionOptions:
    """Return the connection to S3, at the endpoint of AWS's configuration."""
    return replace(connection(given), endpoint_url=None)


def stream_ref(stream: str, given: Given) -> StreamRef:
    """Return a stream given by name or ARN: one that the options of a query name, as they do.
    Raises InvalidOptionsError."""
    option = "streamARN" if stream.startswith("arn:") else "streamName"
    reading = read_options(KINESIS_OPTIONS, {option: stream})
    problems = [*reading.problems, *stream_problems(reading, streams_of(reading))]
    if problems:
        raise InvalidOptionsError(_SOURCE, problems)
    (named,) = streams_of(reading)
    return named if named.arn is not None else stream_references(given).get(named.name, named)


def stream_references(given: Given) -> dict[StreamName, StreamRef]:
    """Return the streams that the options of a query name, by name. One of another account has an
    ARN there, which its offsets do not contain."""
    reading = read_options(KINESIS_OPTIONS, given.options)
    return {stream.name: stream for stream in streams_of(reading)}


# --- Durations ------------------------------------------------------------------------------------


def to_millis(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Convert a duration such as 500ms, 10s, 5m or 2h."""
    return None if value is None else millis_of(value)


def wait_option(help_text: str, *, least_ms: int = 1) -> Callable[[F], F]:
    """Add the pause between two readings of a lease table, `wait`."""

    def parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        return None if value is None else millis_of(value, least_ms)

    return click.option("--wait", callback=parsed, help=help_text)


def wait_between_readings(wait_ms: int | None, failover_ms: int) -> int:
    """Return the pause between two readings of a lease table. Raises click.UsageError if it is too
    short to show a lease whose owner is dead."""
    if wait_ms is None:
        return failover_ms + _LONGER_MS
    if wait_ms <= failover_ms:
        raise click.UsageError(
            f"--wait is {duration_text(wait_ms)}, and --failover {duration_text(failover_ms)}: a "
            "lease whose owner is dead shows only in a longer wait. Give --wait more than "
            "--failover"
        )
    return wait_ms


def millis_of(text: str, least_ms: int = 1) -> int:
    """Return a duration in milliseconds. Raises click.BadParameter."""
    try:
        return duration(least_ms, YEAR_MS)(text)
    except BadValueError as error:
        fault = error.faults[0]
        raise click.BadParameter(f"found {fault.found}; expected {fault.expected}") from None
