"""`spark-ssp topics`: The partitions of Kafka topics, and the tasks that a query would read them
in."""

from __future__ import annotations

import click

from spark_ssp.common.logs import count_of
from spark_ssp.operations.arguments import Given, kafka_options, options_file
from spark_ssp.operations.cli import Screen, write_json
from spark_ssp.operations.inspection.topics import PartitionState, Topics, read_topics
from spark_ssp.operations.snapshot import task_text


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
