"""The option table's part for sharing shards by leases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from spark_ssp.checkpoint.worker_identity import find_fault
from spark_ssp.common.options.spec import (
    Alias,
    BadValueError,
    Fault,
    OptionProblem,
    OptionReading,
    OptionSpec,
    shown,
)
from spark_ssp.common.options.values import duration, integer, matching, url, url_or_host
from spark_ssp.kinesis_source.options.connection import external_id, role_arn
from spark_ssp.kinesis_source.options.values import LeaseOptions, LeaseRole

_KCL: Final = "KCL"
_DSTREAM: Final = "Spark's DStream"

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

_MOST_TAGS: Final = 50
_TAG_KEY: Final = re.compile(r"(?!aws:)[\w .:/+@-]{1,128}")
_TAG_VALUE: Final = re.compile(r"[\w .:/+@-]{0,256}")
"""DynamoDB developer guide, tagging restrictions; without `=`, which separates key and value."""

_NO_ROLE: Final = "none"

_CAPACITY: Final = re.compile(r"([1-9][0-9]{0,6})/([1-9][0-9]{0,6})", re.ASCII)


# --- Converters ----------------------------------------------------------------------------------

_table_name: Final = matching(
    "[a-zA-Z0-9_.-]{3,255}",
    "3 to 255 letters, digits, '_', '.' and '-', as DynamoDB names its tables",
    "give another name",
)


def _worker_id(text: str) -> str:
    fault = find_fault(text)
    if fault is not None:
        raise BadValueError(fault)
    return text


_dotted_path: Final = matching(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+",
    "the dotted path of a class such as my_company.ids.PodName",
    "write the module, a dot and the class",
)


def _tags(text: str) -> tuple[tuple[str, str], ...]:
    faults: list[Fault] = []
    tags: dict[str, str] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not _TAG_KEY.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
            found, next_step = shown(part), "write key=value, without AWS's own keys (aws:)"
        elif key in tags:
            found, next_step = f"the key {shown(key)} twice", "remove one of them"
        else:
            tags[key] = value
            continue
        expected = "tags such as team=orders, comma separated"
        faults.append(Fault(found=found, expected=expected, next_step=next_step))
    if len(parts) > _MOST_TAGS:
        faults.append(
            Fault(
                found=f"{len(parts)} tags",
                expected=f"at most {_MOST_TAGS}",
                next_step=f"keep at most {_MOST_TAGS} tags",
            )
        )
    if faults:
        raise BadValueError(*faults)
    return tuple(sorted(tags.items()))


def _capacity(text: str) -> tuple[int, int]:
    match = _CAPACITY.fullmatch(text)
    if match is None:
        raise BadValueError(
            Fault(
                found=shown(text),
                expected="units for reads, a slash and units for writes, such as 10/5",
                next_step="write two whole numbers of 1 or more, or remove it for on-demand mode",
            )
        )
    return int(match[1]), int(match[2])


def _role_arn(text: str) -> str:
    return _NO_ROLE if text.lower() == _NO_ROLE else role_arn(text)


# --- The options ---------------------------------------------------------------------------------

APPLICATION_NAME: Final[OptionSpec[str | None]] = OptionSpec(
    name="applicationName",
    convert=_table_name,
    default=None,
    default_text="none: the query reads every shard, without leases",
    doc="The name of the application. Shards are shared with all of its workers, other queries or "
    "the KCL, by a lease table in DynamoDB.",
    aliases=(Alias(name="checkpointAppName", origin=_DSTREAM),),
)

LEASE_TABLE: Final[OptionSpec[str | None]] = OptionSpec(
    name="leaseTable",
    convert=_table_name,
    default=None,
    default_text="the value of `applicationName`",
    doc="The lease table, if it has another name. Without `applicationName` it is also the name of "
    "the application.",
)

WORKER_ID: Final[OptionSpec[str | None]] = OptionSpec(
    name="workerId",
    convert=_worker_id,
    default=None,
    default_text="from `processorIdGenerator`",
    doc="The id of this query's worker, unique among the workers. White space, also around it, is "
    "refused.",
    verbatim=True,
)

PROCESSOR_ID_GENERATOR: Final[OptionSpec[str | None]] = OptionSpec(
    name="processorIdGenerator",
    convert=_dotted_path,
    default=None,
    default_text="a random UUID",
    doc="The dotted path of a class that generates the worker id, such as "
    "`spark_ssp.HostAndQueryGenerator`. `workerId` overrides it.",
)

FAILOVER_TIME: Final[OptionSpec[int]] = OptionSpec(
    name="failoverTime",
    convert=duration(_SECOND, 10 * _MINUTE),
    default=10 * _SECOND,
    default_text="`10s`",
    doc="The time without renewal after which a worker's leases expire and others take them; the "
    "same for all workers: a duration from 1s to 10m.",
    aliases=(Alias(name="failoverTimeMillis", origin=_KCL),),
)

MAX_LEASES_PER_WORKER: Final[OptionSpec[int | None]] = OptionSpec(
    name="maxLeasesPerWorker",
    convert=integer(1),
    default=None,
    default_text="no limit",
    doc="The most leases of this query: 1 or more. If all workers together take fewer leases than "
    "there are shards, some are not read.",
    aliases=(Alias(name="maxLeasesForWorker", origin=_KCL),),
)

CHECKPOINT_INTERVAL: Final[OptionSpec[int]] = OptionSpec(
    name="checkpointInterval",
    convert=duration(100, _HOUR),
    default=5 * _SECOND,
    default_text="`5s`",
    doc="The shortest time between two checkpoints of a lease: a duration from 100ms to 1h. The "
    "progress is written at once before a lease is handed over.",
)

DYNAMODB_ENDPOINT_URL: Final[OptionSpec[str | None]] = OptionSpec(
    name="dynamodbEndpointUrl",
    convert=url,
    default=None,
    default_text="from AWS's configuration",
    doc="The endpoint of DynamoDB, such as `http://localhost:8000`.",
    aliases=(Alias(name="dynamoDBEndpoint", origin=_KCL, convert=url_or_host),),
)

LEASE_TABLE_TAGS: Final[OptionSpec[tuple[tuple[str, str], ...]]] = OptionSpec(
    name="leaseTableTags",
    convert=_tags,
    default=(),
    default_text="none",
    doc="Tags for a table that is created: `team=orders,stage=test`.",
)

LEASE_TABLE_CAPACITY: Final[OptionSpec[tuple[int, int] | None]] = OptionSpec(
    name="leaseTableReadWriteCapacity",
    convert=_capacity,
    default=None,
    default_text="on demand",
    doc="Capacity for a table that is created: units for reads and writes, such as `10/5`.",
)

LEASE_MAX_OUTAGE: Final[OptionSpec[int | None]] = OptionSpec(
    name="leaseMaxOutage",
    convert=duration(_SECOND, 24 * _HOUR),
    default=None,
    default_text="the value of `failoverTime`",
    doc="How long the table may be unreachable before the query fails; until then the query "
    "continues to read its shards: a duration from 1s to 1d.",
)

LEASE_ROLE_ARN: Final[OptionSpec[str | None]] = OptionSpec(
    name="leaseRoleArn",
    convert=_role_arn,
    default=None,
    default_text="the value of `roleArn`",
    doc="A role to assume for the lease table instead of `roleArn`, or `none`: the table is used "
    "with the credentials that roles are assumed with. For a stream of another account.",
)

LEASE_ROLE_EXTERNAL_ID: Final[OptionSpec[str | None]] = OptionSpec(
    name="leaseRoleExternalId",
    convert=external_id,
    default=None,
    default_text="none",
    doc="The external id that this role requires. Shown only in [plans](#credentials).",
    secret=True,
)

LEASE_OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    APPLICATION_NAME,
    LEASE_TABLE,
    WORKER_ID,
    PROCESSOR_ID_GENERATOR,
    FAILOVER_TIME,
    MAX_LEASES_PER_WORKER,
    CHECKPOINT_INTERVAL,
    DYNAMODB_ENDPOINT_URL,
    LEASE_TABLE_TAGS,
    LEASE_TABLE_CAPACITY,
    LEASE_MAX_OUTAGE,
    LEASE_ROLE_ARN,
    LEASE_ROLE_EXTERNAL_ID,
)


# --- Together ------------------------------------------------------------------------------------


def lease_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    """Report options for leases that are given without leases, which are surely intended."""
    if reading.given(APPLICATION_NAME) or reading.given(LEASE_TABLE):
        yield from _role_problems(reading)
        return
    for spec in LEASE_OPTIONS:
        if reading.given(spec):
            yield OptionProblem(
                option=reading.name(spec),
                found=f"{reading.name(spec)} without applicationName",
                expected="the name of the application whose workers share the shards",
                next_step="set applicationName too, or remove it",
            )


def _role_problems(reading: OptionReading) -> Iterator[OptionProblem]:
    if reading.given(LEASE_ROLE_EXTERNAL_ID) and not names_lease_role(reading):
        yield OptionProblem(
            option=LEASE_ROLE_EXTERNAL_ID.name,
            found="leaseRoleExternalId without leaseRoleArn",
            expected="the role that it is for",
            next_step="give leaseRoleArn too, or remove it",
        )


def names_lease_role(reading: OptionReading) -> bool:
    """Return whether the lease table has a role of its own."""
    return reading.given(LEASE_ROLE_ARN) and reading.value(LEASE_ROLE_ARN) != _NO_ROLE


def lease_role(reading: OptionReading) -> LeaseRole | None:
    """Return the role for the lease table; None: that of the streams, if any."""
    arn = reading.value(LEASE_ROLE_ARN)
    if arn is None:
        return None
    return LeaseRole(
        arn=None if arn == _NO_ROLE else arn, external_id=reading.value(LEASE_ROLE_EXTERNAL_ID)
    )


def lease_options(reading: OptionReading) -> LeaseOptions | None:
    """Return the lease options; None without leases. Requires that there are no problems."""
    application = reading.value(APPLICATION_NAME) or reading.value(LEASE_TABLE)
    if application is None:
        return None
    failover_ms = reading.value(FAILOVER_TIME)
    return LeaseOptions(
        application=application,
        table=reading.value(LEASE_TABLE) or application,
        worker_id=reading.value(WORKER_ID),
        processor_id_generator=reading.value(PROCESSOR_ID_GENERATOR),
        failover_ms=failover_ms,
        max_leases=reading.value(MAX_LEASES_PER_WORKER),
        checkpoint_interval_ms=reading.value(CHECKPOINT_INTERVAL),
        dynamodb_endpoint_url=reading.value(DYNAMODB_ENDPOINT_URL),
        table_tags=reading.value(LEASE_TABLE_TAGS),
        table_capacity=reading.value(LEASE_TABLE_CAPACITY),
        max_outage_ms=reading.value(LEASE_MAX_OUTAGE) or failover_ms,
        role=lease_role(reading),
    )
