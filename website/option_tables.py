"""The tables of the option references, from the declarations of the options. A table stands between
`<!-- begin NAME -->` and `<!-- end NAME -->` in a guide. `python -m website tables` writes them; a
test compares them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from spark_ssp.common.options.spec import ForeignOption, Option, OptionTable
from spark_ssp.kafka_source.options.property_names import (
    CONSUMER,
    PRODUCER,
    SECRETS,
    PropertyNames,
)
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS
from spark_ssp.kafka_source.sink.parse import SINK_OPTIONS as KAFKA_SINK_OPTIONS
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS
from spark_ssp.kinesis_source.sink.options import SINK_OPTIONS as KINESIS_SINK_OPTIONS

GUIDES: Final = Path(__file__).parents[1] / "docs" / "guide"


def reference_tables() -> Mapping[str, Mapping[str, str]]:
    """Return the tables by the guide's file and by the names of their markers."""
    kinesis_sink = _only_of_sink(KINESIS_SINK_OPTIONS, KINESIS_OPTIONS)
    kafka_sink = _only_of_sink(KAFKA_SINK_OPTIONS, KAFKA_OPTIONS)
    return {
        "kinesis-options.md": {
            **_by_subject(KINESIS_OPTIONS.options, _KINESIS_SUBJECTS),
            "options-sink": _options(kinesis_sink, prefix="sink-option-"),
        },
        "kinesis-option-names.md": {
            **_names(KINESIS_OPTIONS),
            "sink-aliases": _aliases(kinesis_sink),
        },
        "kafka-options.md": {
            **_by_subject(KAFKA_OPTIONS.options, _KAFKA_SUBJECTS),
            "options-sink": _options(kafka_sink, prefix="sink-option-"),
            **_names(KAFKA_OPTIONS),
        },
        "kafka-client-properties.md": _property_tables(),
    }


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return the text of a guide with these tables between their markers."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n\n{tables[name]}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\S+) -->\n.*?<!-- end \1 -->", replaced, text, flags=re.DOTALL)


def write_tables() -> None:
    """Write the tables into the guides."""
    for name, tables in reference_tables().items():
        guide = GUIDES / name
        text = guide.read_text(encoding="utf-8")
        guide.write_text(with_tables(text, tables), encoding="utf-8")


# --- Options -------------------------------------------------------------------------------------


_KINESIS_SUBJECTS: Final[Mapping[str, str]] = {
    "streams": "streamName streamARN region endpointUrl",
    "start": "startingPosition endingPosition maxRecords",
    "loss": "failOnDataLoss dropStreams",
    "batches": "maxRecordsPerTrigger maxBytesPerTrigger maxBytesPerShard alignBatches "
    "alignmentTimeout trigger",
    "slots": "slots slotAssignment shardDiscoveryInterval",
    "rows": "deaggregate includeRepeatKeys",
    "calls": "maxRecordsPerFetch minFetchPeriod maxBytesInFlight retry.maxAttempts "
    "retry.maxBackoff connectTimeout readTimeout",
    "fan-out": "consumerMode consumerName consumerArn consumerLifecycle",
    "leases": "applicationName leaseTable leaseRoleArn leaseRoleExternalId workerId "
    "processorIdGenerator failoverTime maxLeasesPerWorker checkpointInterval "
    "dynamodbEndpointUrl leaseTableTags leaseTableReadWriteCapacity leaseMaxOutage",
    "credentials": "awsProfile awsAccessKeyId awsSecretAccessKey awsSessionToken "
    "credentialsProvider credentialsProviderSecretArguments roleArn roleExternalId "
    "roleSessionName stsEndpointUrl",
}
_KAFKA_SUBJECTS: Final[Mapping[str, str]] = {
    "topics": "subscribe subscribePattern assign partitionDiscoveryInterval",
    "start": "startingOffsets startingTimestamp startingOffsetsByTimestamp "
    "startingOffsetsByTimestampStrategy endingOffsets endingTimestamp endingOffsetsByTimestamp",
    "loss": "failOnDataLoss dropTopics acceptTopicIds",
    "batches": "maxOffsetsPerTrigger maxBytesPerTrigger minOffsetsPerTrigger maxTriggerDelay "
    "alignBatches trigger",
    "tasks": "minPartitions maxRecordsPerPartition grouper tasks partitionExpansionAlgorithm "
    "onPartitionCountChange assignmentStore",
    "columns": "includeHeaders includeTask",
    "requests": "fetchOffset.numRetries fetchOffset.retryIntervalMs pollTimeout",
    "groups": "commitOffsetsToGroup groupIdPrefix",
    "credentials": "credentialsProvider credentialsProviderSecretArguments tokenProvider "
    "tokenProviderSecretArguments",
}
"""The options of each source by their subject, which is a section of its reference."""


def _only_of_sink(sink: OptionTable, source: OptionTable) -> Sequence[Option[Any]]:
    return [one for one in sink.options if one not in source.options]


def _by_subject(options: Iterable[Option[Any]], subjects: Mapping[str, str]) -> Mapping[str, str]:
    """Return a table for each subject. Raises ValueError unless each option has one subject."""
    by_name = {one.name: one for one in options}
    listed = [name for names in subjects.values() for name in names.split()]
    times = Counter(listed)
    if wrong := [name for name in {*listed, *by_name} if times[name] != (name in by_name)]:
        raise ValueError(f"not in exactly one subject: {', '.join(sorted(wrong))}")
    return {
        f"options-{subject}": _options(by_name[name] for name in names.split())
        for subject, names in subjects.items()
    }


def _names(table: OptionTable) -> Mapping[str, str]:
    foreign = table.all_foreign()
    return {
        "aliases": _aliases(table.options),
        "refused": _foreign(foreign, refused=True),
        "without-effect": _foreign(foreign, refused=False),
    }


def _options(options: Iterable[Option[Any]], prefix: str = "option-") -> str:
    """Return a table with an anchor in each row, such as `option-slots`."""
    rows = [
        (f'<a id="{prefix}{one.name}"></a>`{one.name}`', one.default_text, one.doc)
        for one in options
    ]
    return _table(("option", "default", "meaning"), rows)


def _aliases(options: Iterable[Option[Any]]) -> str:
    rows = [
        (f"`{alias.name}`", alias.origin, f"`{one.name}`")
        for one in options
        for alias in one.aliases
    ]
    return _table(("name", "of", "here"), rows)


def _foreign(options: Iterable[ForeignOption], *, refused: bool) -> str:
    """Return a row for each advice, in the order of the first name."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in options:
        if one.refused is refused:
            groups[one.advice, one.origin].append(one.name)
    head = ("names", "of", "instead" if refused else "why it has no effect")
    rows = [
        (", ".join(f"`{name}`" for name in names), origin, advice)
        for (advice, origin), names in groups.items()
    ]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# --- Properties of the Kafka client --------------------------------------------------------------

_CLIENTS: Final[Sequence[PropertyNames]] = (CONSUMER, PRODUCER)
_CLIENT_TEXT: Final[Mapping[tuple[bool, ...], str]] = {
    (True, True): "source and sink",
    (True, False): "source",
    (False, True): "sink",
}


def _property_tables() -> Mapping[str, str]:
    """Return the tables by the names of their markers in the reference."""
    return {
        "properties-passed": _passed(),
        "properties-translated": _translated(),
        "properties-defaults": _defaults(),
        "properties-refused": _advised("instead", [names.refused for names in _CLIENTS]),
        "properties-without-effect": _advised(
            "reason", [names.without_effect for names in _CLIENTS]
        ),
        "properties-ranges": _ranges(),
        "properties-secret": _listed(SECRETS) + "\n",
    }


def _clients(given: Iterable[bool]) -> str:
    return _CLIENT_TEXT[tuple(given)]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _passed() -> str:
    of: dict[str, list[str]] = defaultdict(list)
    for name in sorted(frozenset().union(*(names.supported for names in _CLIENTS))):
        of[_clients(name in names.supported for names in _CLIENTS)].append(name)
    return _table(
        ("of", "properties"), [(whose, _listed(of[whose])) for whose in _CLIENT_TEXT.values()]
    )


def _translated() -> str:
    pairs = sorted({pair for names in _CLIENTS for pair in names.aliases.items()})
    rows = [
        (f"`{name}`", f"`{twin}`", _clients(names.aliases.get(name) == twin for names in _CLIENTS))
        for name, twin in pairs
    ]
    return _table(("property", "passed on as", "of"), rows)


def _defaults() -> str:
    rows = [
        (
            f"`{name}`",
            f"`{value}`",
            _clients(names.defaults.get(name) == value for names in _CLIENTS),
        )
        for name, value in sorted({pair for names in _CLIENTS for pair in names.defaults.items()})
    ]
    return _table(("property", "default here", "of"), rows)


def _ranges() -> str:
    rows = [
        (
            f"`{name}`",
            f"{least} to {most}",
            _clients(names.ranges.get(name) == (least, most) for names in _CLIENTS),
        )
        for name, (least, most) in sorted(
            {pair for names in _CLIENTS for pair in names.ranges.items()}
        )
    ]
    return _table(("property", "librdkafka's range", "of"), rows)


def _advised(head: str, advice: Sequence[Mapping[str, str]]) -> str:
    """Return a row for each text and kind of client, in the order of the first name."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, text in sorted({pair for of_client in advice for pair in of_client.items()}):
        whose = _clients(of_client.get(name) == text for of_client in advice)
        groups[text, whose].append(name)
    return _table(
        ("properties", "of", head),
        [(_listed(names), whose, text) for (text, whose), names in groups.items()],
    )
