"""`spark-ssp topics`: The partitions of Kafka topics, and the tasks that a query would read them
in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import click

from spark_ssp.common.logs import count_of
from spark_ssp.grouping.assignment import NO_ASSIGNMENT
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition, TaskName
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.topic import LogicalOffset, TopicId, partition_of
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS, KafkaOptions
from spark_ssp.kafka_source.planning.plan_batch import create_grouping
from spark_ssp.kafka_source.planning.topic_metadata import not_found_error
from spark_ssp.operations.arguments import Given, kafka_options, options_file
from spark_ssp.operations.terminal import Screen, task_text, write_json

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")


@click.command("topics")
@click.argument("topics", nargs=-1, required=True)
@click.option("--grouper", help="The query's option grouper: ssp, partition or single.")
@click.option("--tasks", type=int, help="The query's option tasks.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@options_file
@kafka_options
def topics_command(
    topics: tuple[str, ...],
    grouper: str | None,
    tasks: int | None,
    as_json: bool,
    kafka: Given,
) -> None:
    """Show the partitions of TOPICS, and the tasks of a new query that subscribes to them."""
    given = {"grouper": grouper, "tasks": None if tasks is None else str(tasks)}
    options = {name: value for name, value in given.items() if value is not None}
    found = read_topics(topics, kafka.with_options(**options).options)
    if as_json:
        write_json(
            {
                "topics": {name: {"id": topic_id} for name, topic_id in found.ids.items()},
                "partitions": [
                    {
                        "topic": row.ssp.stream,
                        "partition": row.ssp.partition,
                        "task": row.task,
                        "begin": row.begin,
                        "end": row.end,
                    }
                    for row in found.partitions
                ],
            }
        )
        return
    _show(Screen(), found)


def _show(screen: Screen, found: Topics) -> None:
    screen.table(
        ("TOPIC", "PARTITION", "TASK", "BEGIN", "END", "OFFSETS"),
        [
            (
                row.ssp.stream,
                row.ssp.partition,
                task_text(row.task),
                row.begin,
                row.end,
                _offsets(row),
            )
            for row in found.partitions
        ],
        right=("PARTITION", "BEGIN", "END", "OFFSETS"),
        wrapped=("TOPIC", "TASK"),
    )
    tasks = len({row.task for row in found.partitions})
    total = sum(_offsets(row) or 0 for row in found.partitions)
    parts = (
        count_of(len(found.partitions), "partition"),
        count_of(tasks, "task"),
        count_of(total, "offset"),
    )
    screen.line(" · ".join(parts))


def _offsets(row: PartitionState) -> int | None:
    """Return the number of offsets: at least that of the records, since compaction and transactions
    leave gaps."""
    return None if row.begin is None or row.end is None else row.end - row.begin


# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition, and the task that a new query would give it to."""

    ssp: SystemStreamPartition
    begin: int | None
    """The offset of the oldest record; None if the partition's leader is unknown."""
    end: int | None
    """The offset after the newest record (with read_committed, the last stable offset)."""
    task: TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics of one cluster."""

    ids: Mapping[StreamName, TopicId | None]
    partitions: tuple[PartitionState, ...]


def read_topics(names: Iterable[str], options: Mapping[str, str]) -> Topics:
    """Read topics. StreamNotFoundError if one does not exist. Needs Describe on the topics."""
    parsed = topic_options(names, options)
    service = connect(parsed)
    found = service.describe(parsed.selection)
    missing = sorted({StreamName(name) for name in names} - found.keys())
    if missing:
        raise not_found_error(parsed.selection, missing)
    partitions = [
        partition_of(name, number)
        for name in sorted(found)
        for number in range(found[name].partition_count)
    ]
    begins = service.list_offsets(partitions, LogicalOffset.EARLIEST)
    ends = service.list_offsets(partitions, LogicalOffset.LATEST)
    assignment = create_grouping(parsed).group(NO_ASSIGNMENT, frozenset(partitions))
    owners = assignment.owners()
    return Topics(
        ids={name: topic.topic_id for name, topic in sorted(found.items())},
        partitions=tuple(
            PartitionState(ssp=ssp, begin=begins.get(ssp), end=ends.get(ssp), task=owners[ssp])
            for ssp in partitions
        ),
    )


def topic_options(topics: Iterable[str], options: Mapping[str, str]) -> KafkaOptions:
    """Parse options of a query, with these topics. Raises InvalidOptionsError."""
    others = KAFKA_OPTIONS.left_out(options, *_SELECTIONS)
    return parse_options({**others, "subscribe": ",".join(topics)})


def describe_topics(
    topics: Iterable[StreamName], options: Mapping[str, str]
) -> Mapping[StreamName, TopicDescription]:
    """Return the ids and partition counts of the topics that exist."""
    parsed = topic_options(topics, options)
    return connect(parsed).describe(parsed.selection)


def latest_offsets(
    partitions: Iterable[SystemStreamPartition], options: Mapping[str, str]
) -> dict[SystemStreamPartition, int]:
    """Return the offset after the newest record of each partition that has a leader."""
    wanted = sorted(partitions)
    parsed = topic_options(sorted({ssp.stream for ssp in wanted}), options)
    found = connect(parsed).list_offsets(wanted, LogicalOffset.LATEST)
    return {ssp: offset for ssp, offset in found.items() if offset is not None}
