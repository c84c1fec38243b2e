"""Parses the options that the Kinesis source and sink share: streams, region, credentials."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from spark_ssp.common.errors import shown
from spark_ssp.common.options.endpoints import provider_problems
from spark_ssp.common.options.spec import OptionProblem, OptionReading
from spark_ssp.common.options.values import is_readable_on_the_way
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import (
    STREAM_ARN_PATTERN,
    ConnectionOptions,
    LeaseOptions,
    StreamChoice,
)

_log = logging.getLogger(__name__)

_AWS_HOST: Final = re.compile(
    r"(?:.+\.)?(?:data-|control-)?kinesis(?:-fips)?\.(?P<region>[a-z]{2,}(?:-[a-z]+)+-[0-9]+)\."
    r"(?:vpce\.)?(?:amazonaws\.com|amazonaws\.com\.cn|api\.aws|api\.amazonwebservices\.com\.cn)"
)
"""The hosts of AWS's Kinesis endpoints, among them FIPS, dual-stack and VPC endpoints."""


def connection_of(reading: OptionReading) -> ConnectionOptions:
    """Return the connection that the options describe: the region is the given one, else that of
    the ARNs, else that of an AWS endpoint."""
    given = reading.values(ConnectionOptions)
    if given.region is not None:
        return given
    of_arns = _arn_regions(reading)
    return replace(given, region=of_arns[0] if of_arns else _endpoint_region(given))


# --- Streams -------------------------------------------------------------------------------------


def streams_of(reading: OptionReading) -> tuple[StreamRef, ...]:
    """Return the streams given by ARN or name, sorted by name; empty without a valid option."""
    given = reading.values(StreamChoice)
    named = [StreamRef(name=name) for name in given.names]
    by_arn = [StreamRef(name=StreamName(_arn_part(arn, "name")), arn=arn) for arn in given.arns]
    return tuple(sorted([*named, *by_arn], key=lambda stream: stream.name))


def _arn_part(arn: str, part: str) -> str:
    match = re.fullmatch(STREAM_ARN_PATTERN, arn)
    if match is None:
        raise AssertionError("an ARN that the option's converter accepted")
    return match[part]


def stream_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    """Yield the problems of a source's streams."""
    by_name, by_arn = reading.given("streamName"), reading.given("streamARN")
    if not by_name and not by_arn:
        yield OptionProblem(
            option="streamName",
            found="neither streamName nor streamARN",
            expected="one of them",
            next_step="name the stream to read",
        )
    if by_name and by_arn:
        yield name_and_arn_problem(reading)
        return
    for stream, count in sorted(Counter(stream.name for stream in streams).items()):
        if count > 1:
            yield OptionProblem(
                option="streamARN",
                found=f"{count} streams named {stream}",
                expected="streams of different names, since offsets identify them by name",
                next_step="read them in separate queries",
            )


def name_and_arn_problem(reading: OptionReading) -> OptionProblem:
    """Return the problem of both streamName and streamARN."""
    name = reading.name("streamName")
    return OptionProblem(
        option=name,
        found=f"{name} together with streamARN",
        expected="one of them",
        next_step=f"remove {name} or streamARN",
    )


# --- Region ---------------------------------------------------------------------------------------


def _arn_regions(reading: OptionReading) -> list[str]:
    return sorted({_arn_part(arn, "region") for arn in reading.values(StreamChoice).arns})


def _endpoint_region(connection: ConnectionOptions) -> str | None:
    url = connection.endpoint_url
    match = _AWS_HOST.fullmatch(urlsplit(url).hostname or "") if url else None
    return match["region"] if match else None


def region_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    """Yield the contradictions of region, ARNs and endpoint."""
    of_arns = _arn_regions(reading)
    if len(of_arns) > 1:
        yield OptionProblem(
            option="streamARN",
            found=f"streams in {' and '.join(of_arns)}",
            expected="streams of one region",
            next_step="read them in separate queries",
        )
        return
    given = reading.values(ConnectionOptions)
    region = given.region
    if region is None:
        region = of_arns[0] if of_arns else None
    elif of_arns and of_arns != [region]:
        yield OptionProblem(
            option=reading.name("region"),
            found=f"{shown(region)}, while streamARN is in {of_arns[0]}",
            expected="the region of the streams",
            next_step="remove it: the ARN names the region",
        )
    of_endpoint = _endpoint_region(given)
    if region is not None and of_endpoint not in (None, region):
        yield OptionProblem(
            option=reading.name("endpointUrl"),
            found=f"an endpoint of {of_endpoint}, while the streams are in {region}",
            expected="an endpoint of the streams' region",
            next_step="remove it where AWS's own endpoint is meant",
        )


# --- Credentials ----------------------------------------------------------------------------------

_PAIR: Final = ("awsAccessKeyId", "awsSecretAccessKey")


def credential_problems(
    reading: OptionReading, *, has_lease_role: bool = False
) -> Iterator[OptionProblem]:
    """Yield the problems of keys, profile, provider and role. `has_lease_role`: the lease table has
    a role of its own."""
    for one, other in (_PAIR, _PAIR[::-1]):
        if reading.given(one) and not reading.given(other):
            yield OptionProblem(
                option=reading.name(one),
                found=f"{reading.name(one)} without {other}",
                expected="both or neither",
                next_step=f"give {other} too",
            )
    keys = reading.given_names(*_PAIR)
    for token in reading.given_names("awsSessionToken") if not keys else ():
        yield OptionProblem(
            option=token,
            found=f"{token} without keys",
            expected="a token together with the temporary keys it belongs to",
            next_step="give awsAccessKeyId and awsSecretAccessKey too",
        )
    if reading.given("awsProfile") and keys:
        yield OptionProblem(
            option="awsProfile",
            found=f"awsProfile together with {' and '.join(keys)}",
            expected="a profile or keys",
            next_step="remove the profile or the keys",
        )
    yield from provider_problems(
        reading, reading.given_names("awsProfile", *_PAIR, "awsSessionToken")
    )
    if not reading.given("roleArn"):
        others = () if has_lease_role else ("roleSessionName", "stsEndpointUrl")
        for name in reading.given_names("roleExternalId", *others):
            yield OptionProblem(
                option=name,
                found=f"{name} without roleArn",
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
    endpoints = {
        "endpointUrl": reading.values(ConnectionOptions).endpoint_url,
        "dynamodbEndpointUrl": reading.fields(LeaseOptions).get("dynamodb_endpoint_url"),
    }
    plain = [
        reading.name(name)
        for name, url in endpoints.items()
        if url is not None and is_readable_on_the_way(url)
    ]
    if plain:
        _log.warning(
            "plain http to another machine, where records and requests are not encrypted: %s",
            ", ".join(plain),
        )
