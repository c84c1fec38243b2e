"""Parses the options that the Kinesis source and sink share: streams, region, credentials."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from spark_ssp.common.options.credentials import provider_problems, with_provider
from spark_ssp.common.options.spec import OptionProblem, OptionReading, OptionSpec, shown
from spark_ssp.common.options.values import is_readable_on_the_way
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options import connection, table
from spark_ssp.kinesis_source.options.leases import DYNAMODB_ENDPOINT_URL, names_lease_role
from spark_ssp.kinesis_source.options.values import ConnectionOptions

_log = logging.getLogger(__name__)

_AWS_HOST: Final = re.compile(
    r"(?:.+\.)?(?:data-|control-)?kinesis(?:-fips)?\.(?P<region>[a-z]{2,}(?:-[a-z]+)+-[0-9]+)\."
    r"(?:vpce\.)?(?:amazonaws\.com|amazonaws\.com\.cn|api\.aws|api\.amazonwebservices\.com\.cn)"
)
"""The hosts of AWS's Kinesis endpoints, among them FIPS, dual-stack and VPC endpoints."""


def connection_of(reading: OptionReading) -> ConnectionOptions:
    """Return the connection that the options describe."""
    connection_options = ConnectionOptions(
        region=_region(reading),
        endpoint_url=reading.value(table.ENDPOINT_URL),
        aws_profile=reading.value(connection.AWS_PROFILE),
        aws_access_key_id=reading.value(connection.AWS_ACCESS_KEY_ID),
        aws_secret_access_key=reading.value(connection.AWS_SECRET_ACCESS_KEY),
        aws_session_token=reading.value(connection.AWS_SESSION_TOKEN),
        role_arn=reading.value(connection.ROLE_ARN),
        role_external_id=reading.value(connection.ROLE_EXTERNAL_ID),
        role_session_name=reading.value(connection.ROLE_SESSION_NAME),
        sts_endpoint_url=reading.value(connection.STS_ENDPOINT_URL),
        retry_max_attempts=reading.value(connection.RETRY_MAX_ATTEMPTS),
        retry_max_backoff_ms=reading.value(connection.RETRY_MAX_BACKOFF),
        connect_timeout_ms=reading.value(connection.CONNECT_TIMEOUT),
        read_timeout_ms=reading.value(connection.READ_TIMEOUT),
    )
    return with_provider(connection_options, reading)


# --- Streams -------------------------------------------------------------------------------------


def streams_of(reading: OptionReading) -> tuple[StreamRef, ...]:
    """Return the streams given by ARN or name, sorted by name; empty without a valid option."""
    named = [StreamRef(name=StreamName(name)) for name in reading.value(table.STREAM_NAME)]
    by_arn = [
        StreamRef(name=StreamName(_arn_part(arn, "name")), arn=arn)
        for arn in reading.value(table.STREAM_ARN)
    ]
    return tuple(sorted([*named, *by_arn], key=lambda stream: stream.name))


def _arn_part(arn: str, part: str) -> str:
    match = re.fullmatch(table.STREAM_ARN_PATTERN, arn)
    if match is None:
        raise AssertionError("an ARN that the option's converter accepted")
    return match[part]


def stream_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    """Yield the problems of a source's streams."""
    by_name, by_arn = reading.given(table.STREAM_NAME), reading.given(table.STREAM_ARN)
    if not by_name and not by_arn:
        yield OptionProblem(
            option=table.STREAM_NAME.name,
            found="neither streamName nor streamARN",
            expected="one of them",
            next_step="name the stream to read",
        )
    if by_name and by_arn:
        yield OptionProblem(
            option=reading.name(table.STREAM_NAME),
            found=f"{reading.name(table.STREAM_NAME)} together with streamARN",
            expected="one of them",
            next_step=f"remove {reading.name(table.STREAM_NAME)} or streamARN",
        )
        return
    for name, count in sorted(Counter(stream.name for stream in streams).items()):
        if count > 1:
            yield OptionProblem(
                option=table.STREAM_ARN.name,
                found=f"{count} streams named {name}",
                expected="streams of different names, since offsets identify them by name",
                next_step="read them in separate queries",
            )


# --- Region ---------------------------------------------------------------------------------------


def _region(reading: OptionReading) -> str | None:
    """Return the given region, else that of the ARNs, else that of an AWS endpoint."""
    given = reading.value(table.REGION)
    if given is not None:
        return given
    of_arns = _arn_regions(reading)
    return of_arns[0] if of_arns else _endpoint_region(reading)


def _arn_regions(reading: OptionReading) -> list[str]:
    return sorted({_arn_part(arn, "region") for arn in reading.value(table.STREAM_ARN)})


def _endpoint_region(reading: OptionReading) -> str | None:
    url = reading.value(table.ENDPOINT_URL)
    match = _AWS_HOST.fullmatch(urlsplit(url).hostname or "") if url else None
    return match["region"] if match else None


def region_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    """Yield the contradictions of region, ARNs and endpoint."""
    of_arns = _arn_regions(reading)
    if len(of_arns) > 1:
        yield OptionProblem(
            option=table.STREAM_ARN.name,
            found=f"streams in {' and '.join(of_arns)}",
            expected="streams of one region",
            next_step="read them in separate queries",
        )
        return
    region = reading.value(table.REGION)
    if region is None:
        region = of_arns[0] if of_arns else None
    elif of_arns and of_arns != [region]:
        yield OptionProblem(
            option=reading.name(table.REGION),
            found=f"{shown(region)}, while streamARN is in {of_arns[0]}",
            expected="the region of the streams",
            next_step="remove it: the ARN names the region",
        )
    of_endpoint = _endpoint_region(reading)
    if region is not None and of_endpoint not in (None, region):
        yield OptionProblem(
            option=reading.name(table.ENDPOINT_URL),
            found=f"an endpoint of {of_endpoint}, while the streams are in {region}",
            expected="an endpoint of the streams' region",
            next_step="remove it where AWS's own endpoint is meant",
        )


# --- Credentials ----------------------------------------------------------------------------------

_KEYS_OR_PROFILE: Final = (
    connection.AWS_PROFILE,
    connection.AWS_ACCESS_KEY_ID,
    connection.AWS_SECRET_ACCESS_KEY,
    connection.AWS_SESSION_TOKEN,
)
_PAIR: Final = (connection.AWS_ACCESS_KEY_ID, connection.AWS_SECRET_ACCESS_KEY)
_OF_ANY_ROLE: Final = (connection.ROLE_SESSION_NAME, connection.STS_ENDPOINT_URL)


def credential_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    """Yield the problems of keys, profile, provider and role."""
    for one, other in (_PAIR, _PAIR[::-1]):
        if reading.given(one) and not reading.given(other):
            yield OptionProblem(
                option=reading.name(one),
                found=f"{reading.name(one)} without {other.name}",
                expected="both or neither",
                next_step=f"give {other.name} too",
            )
    keys = [spec for spec in _PAIR if reading.given(spec)]
    if reading.given(connection.AWS_SESSION_TOKEN) and not keys:
        yield OptionProblem(
            option=reading.name(connection.AWS_SESSION_TOKEN),
            found=f"{reading.name(connection.AWS_SESSION_TOKEN)} without keys",
            expected="a token together with the temporary keys it belongs to",
            next_step="give awsAccessKeyId and awsSecretAccessKey too",
        )
    if reading.given(connection.AWS_PROFILE) and keys:
        yield OptionProblem(
            option=connection.AWS_PROFILE.name,
            found=f"awsProfile together with {' and '.join(reading.name(spec) for spec in keys)}",
            expected="a profile or keys",
            next_step="remove the profile or the keys",
        )
    others = [reading.name(spec) for spec in _KEYS_OR_PROFILE if reading.given(spec)]
    yield from provider_problems(reading, others)
    if not reading.given(connection.ROLE_ARN):
        others_role = () if names_lease_role(reading) else _OF_ANY_ROLE
        for spec in (connection.ROLE_EXTERNAL_ID, *others_role):
            if reading.given(spec):
                yield OptionProblem(
                    option=reading.name(spec),
                    found=f"{reading.name(spec)} without roleArn",
                    expected="the role that it is for",
                    next_step="give roleArn too, or remove it",
                )


# --- Warnings ------------------------------------------------------------------------------------


def warn(reading: OptionReading, format_name: str) -> None:
    """Log the options without effect, the unknown ones and those that send records in the clear."""
    if reading.without_effect:
        _log.warning(
            "options without effect on %s: %s",
            format_name,
            "; ".join(f"{option.name} ({option.advice})" for option in reading.without_effect),
        )
    if reading.unknown:
        _log.warning(
            "options unknown to %s, ignored: %s",
            format_name,
            ", ".join(shown(name) for name in reading.unknown),
        )
    plain = [
        reading.name(spec)
        for spec in (table.ENDPOINT_URL, DYNAMODB_ENDPOINT_URL)
        if is_readable_on_the_way(reading.value(spec) or "")
    ]
    if plain:
        _log.warning(
            "plain http to another machine, where records and requests are not encrypted: %s",
            ", ".join(plain),
        )


def warn_in_batch_read(reading: OptionReading, specs: Iterable[OptionSpec[Any]]) -> None:
    """Log those of the given options that have no effect in a batch read."""
    unused = [reading.name(spec) for spec in specs if reading.given(spec)]
    if unused:
        _log.warning("options without effect in a batch read: %s", ", ".join(unused))
