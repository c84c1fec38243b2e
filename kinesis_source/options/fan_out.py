"""The options of enhanced fan-out: the mode, and the registered consumer.

`table` contains them; `fan_out_problems` checks them against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from spark_ssp.common.options.spec import (
    Alias,
    BadValueError,
    Fault,
    OptionProblem,
    OptionReading,
    OptionSpec,
    shown,
)
from spark_ssp.common.options.values import choice, listed, matching
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import ConsumerArn, StreamRef
from spark_ssp.kinesis_source.options.leases import APPLICATION_NAME, LEASE_TABLE
from spark_ssp.kinesis_source.options.values import ConsumerLifecycle, FanOutOptions

_DATABRICKS: Final = "Databricks"
_AWSLABS: Final = "awslabs"
_FLINK: Final = "Flink"
_GLUE: Final = "Glue"

_CONSUMER_NAME: Final = r"[a-zA-Z0-9_.-]{1,128}"
"""ConsumerName, Kinesis API reference, RegisterStreamConsumer."""
CONSUMER_ARN_PATTERN: Final = (
    r"(?P<stream_arn>arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/"
    rf"(?P<stream>[a-zA-Z0-9_.-]{{1,128}}))/consumer/(?P<name>{_CONSUMER_NAME}):[0-9]+"
)
"""ConsumerARN, Kinesis API reference."""


class ConsumerMode(StrEnum):
    """The way tasks read: `POLLING` by GetRecords, `EFO` by enhanced fan-out."""

    POLLING = "polling"
    EFO = "efo"


def _mode(text: str) -> ConsumerMode:
    return ConsumerMode(choice(*ConsumerMode)(text))


def _lifecycle(text: str) -> ConsumerLifecycle:
    return ConsumerLifecycle(choice(*ConsumerLifecycle)(text))


def _translated(values: dict[str, str], advice: str) -> Any:
    """Return a converter of another product's values."""

    def convert(text: str) -> Any:
        found = values.get(text.lower())
        if found is None:
            raise BadValueError(
                Fault(found=shown(text), expected=" or ".join(values), next_step=advice)
            )
        kind = ConsumerMode if found in tuple(ConsumerMode) else ConsumerLifecycle
        return kind(found)

    return convert


_WRITE_MODE: Final = "write consumerMode=polling or consumerMode=efo instead"
_WRITE_LIFECYCLE: Final = "write consumerLifecycle=job or consumerLifecycle=self instead"

_consumer_arn: Final = matching(
    CONSUMER_ARN_PATTERN,
    "ARNs of registered consumers, one for each stream, comma separated",
    "copy them from describe-stream-consumer, or use consumerName for a name",
)

CONSUMER_MODE: Final[OptionSpec[ConsumerMode]] = OptionSpec(
    name="consumerMode",
    convert=_mode,
    default=ConsumerMode.POLLING,
    default_text="`polling`",
    doc="`polling`: read by GetRecords; `efo`: by enhanced fan-out. See "
    "[Enhanced fan-out](kinesis-fan-out.md).",
    aliases=(
        Alias(
            name="kinesis.consumerType",
            origin=_AWSLABS,
            convert=_translated({"getrecords": "polling", "subscribetoshard": "efo"}, _WRITE_MODE),
        ),
        Alias(
            name="source.reader.type",
            origin=_FLINK,
            convert=_translated({"polling": "polling", "efo": "efo"}, _WRITE_MODE),
        ),
    ),
)

CONSUMER_NAME: Final[OptionSpec[str | None]] = OptionSpec(
    name="consumerName",
    convert=matching(
        _CONSUMER_NAME,
        "1 to 128 letters, digits, '_', '.' and '-'",
        "use consumerArn for an ARN, or choose another name",
    ),
    default=None,
    default_text="the value of `applicationName`",
    doc="With `efo`: the name of the consumer, the same in each stream. No two queries may have "
    "the same, unless they share an `applicationName`.",
    aliases=(
        Alias(name="kinesis.consumerName", origin=_AWSLABS),
        Alias(name="source.efo.consumer.name", origin=_FLINK),
    ),
)

CONSUMER_ARN: Final[OptionSpec[tuple[str, ...]]] = OptionSpec(
    name="consumerArn",
    convert=listed(_consumer_arn),
    default=(),
    default_text="looked up by `consumerName`",
    doc="With `efo`: the ARNs of consumers that are registered already, one for each stream.",
    aliases=(
        Alias(name="registeredConsumerId", origin=_DATABRICKS),
        Alias(name="fanoutConsumerARN", origin=_GLUE),
    ),
)

CONSUMER_LIFECYCLE: Final[OptionSpec[ConsumerLifecycle]] = OptionSpec(
    name="consumerLifecycle",
    convert=_lifecycle,
    default=ConsumerLifecycle.JOB,
    default_text="`job`",
    doc="With `efo`: `job`: the query registers its consumer if it is missing, and, without "
    "leases, deregisters it at its end unless another query uses it; `self`: you do both. With "
    "`consumerArn` always `self`.",
    aliases=(
        Alias(
            name="source.efo.lifecycle",
            origin=_FLINK,
            convert=_translated({"job_managed": "job", "self_managed": "self"}, _WRITE_LIFECYCLE),
        ),
    ),
)

FAN_OUT_OPTIONS: Final[tuple[OptionSpec[Any], ...]] = (
    CONSUMER_MODE,
    CONSUMER_NAME,
    CONSUMER_ARN,
    CONSUMER_LIFECYCLE,
)


# --- Together ------------------------------------------------------------------------------------


def fan_out_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    """Report contradictions between the options, and a consumer that has no name."""
    named = [spec for spec in FAN_OUT_OPTIONS[1:] if reading.given(spec)]
    wrong = {problem.option for problem in reading.problems}
    if wrong & {reading.name(spec) for spec in FAN_OUT_OPTIONS}:
        return
    if reading.value(CONSUMER_MODE) is ConsumerMode.POLLING:
        for spec in named:
            yield OptionProblem(
                option=reading.name(spec),
                found=f"{reading.name(spec)} without consumerMode=efo",
                expected="the options of a consumer only with enhanced fan-out",
                next_step="set consumerMode=efo too, or remove it",
            )
        return
    if reading.given(CONSUMER_ARN):
        yield from _arn_problems(reading, streams)
        return
    name = _name(reading)
    if name is None:
        yield OptionProblem(
            option=CONSUMER_NAME.name,
            found="consumerMode=efo without consumerName, consumerArn or applicationName",
            expected="the name of the query's consumer",
            next_step="set consumerName to a name that no other reader of the stream uses",
        )
    elif not re.fullmatch(_CONSUMER_NAME, name):
        yield OptionProblem(
            option=CONSUMER_NAME.name,
            found=f"no consumerName, and an application whose name has {len(name)} characters",
            expected="a consumer's name of at most 128 characters",
            next_step="set consumerName",
        )


def _arn_problems(
    reading: OptionReading, streams: tuple[StreamRef, ...]
) -> Iterator[OptionProblem]:
    option = reading.name(CONSUMER_ARN)
    if reading.given(CONSUMER_NAME):
        yield OptionProblem(
            option=reading.name(CONSUMER_NAME),
            found=f"{reading.name(CONSUMER_NAME)} together with {option}",
            expected="one of them",
            next_step=f"remove {reading.name(CONSUMER_NAME)} or {option}",
        )
    if reading.given(CONSUMER_LIFECYCLE) and (
        reading.value(CONSUMER_LIFECYCLE) is ConsumerLifecycle.JOB
    ):
        yield OptionProblem(
            option=reading.name(CONSUMER_LIFECYCLE),
            found=f"job together with {option}",
            expected="self for consumers that are registered already",
            next_step="remove it, or give consumerName in place of the ARN",
        )
    found = sorted(_stream_of(arn)[0] for arn in reading.value(CONSUMER_ARN))
    if streams and found != sorted(stream.name for stream in streams):
        yield OptionProblem(
            option=option,
            found=f"consumers of {', '.join(found)}",
            expected=f"one consumer for each of {', '.join(s.name for s in streams)}",
            next_step="give the ARN of one consumer for each stream of the query",
        )
        return
    arns = {stream.name: stream.arn for stream in streams}
    for arn in reading.value(CONSUMER_ARN):
        name, stream_arn = _stream_of(arn)
        if arns.get(name) not in (None, stream_arn):
            yield OptionProblem(
                option=option,
                found=f"a consumer of {stream_arn}",
                expected=f"a consumer of {arns[name]}",
                next_step="give the ARN of a consumer of the stream that the query reads",
            )


def fan_out_options(reading: OptionReading) -> FanOutOptions | None:
    """Return the options of enhanced fan-out; None with polling. Requires that there are no
    problems."""
    if reading.value(CONSUMER_MODE) is ConsumerMode.POLLING:
        return None
    arns = {_stream_of(arn)[0]: ConsumerArn(arn) for arn in reading.value(CONSUMER_ARN)}
    return FanOutOptions(
        consumer_name=None if arns else _name(reading),
        consumer_arns=tuple(sorted(arns.items())),
        lifecycle=ConsumerLifecycle.SELF if arns else reading.value(CONSUMER_LIFECYCLE),
    )


def _name(reading: OptionReading) -> str | None:
    return (
        reading.value(CONSUMER_NAME)
        or reading.value(APPLICATION_NAME)
        or reading.value(LEASE_TABLE)
    )


def _stream_of(arn: str) -> tuple[StreamName, str]:
    """Return the name and the ARN of the stream of a consumer."""
    match = re.fullmatch(CONSUMER_ARN_PATTERN, arn)
    if match is None:
        raise AssertionError("an ARN that the option's converter accepted")
    return StreamName(match["stream"]), match["stream_arn"]
