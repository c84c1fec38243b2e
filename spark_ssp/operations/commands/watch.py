"""`spark-ssp watch`: the live page of a query that another process runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from spark_ssp.operations.inspection.errors import CheckpointFolderError
from spark_ssp.operations.inspection.folders import open_folder
from spark_ssp.operations.inspection.lease_table import LeaseTable
from spark_ssp.operations.live_page.checkpoint_lags import measure_status
from spark_ssp.operations.live_page.checkpoint_snapshots import CheckpointReader, with_owners
from spark_ssp.operations.live_page.page import page
from spark_ssp.operations.live_page.server import start_server
from spark_ssp.operations.live_page.timeline import MAX_BATCHES
from spark_ssp.operations.live_page.timelines import Timelines
from spark_ssp.operations.model.snapshot import QuerySnapshot
from spark_ssp.operations.terminal.connection import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    kafka_options,
    options_file,
    s3_connection,
)
from spark_ssp.operations.terminal.environment import Environment
from spark_ssp.operations.terminal.output import note, to_document, unavailable_noted, write_json
from spark_ssp.operations.terminal.values import to_millis


@click.command("watch")
@click.argument("path")
@click.option(
    "--application",
    help="The applicationName of the query: shows the owners of leases, from its lease table.",
)
@click.option("--table", help="The lease table; default: the application's name.")
@click.option(
    "--lag",
    is_flag=True,
    help="Measure the lag after the newest batch, which reads each shard, or asks the brokers for "
    "the ends of partitions.",
)
@click.option(
    "--once",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page to a file, without serving it.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the newest batch as JSON instead.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve at.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any free port.")
@click.option("--token", help="Opens the page; default: none on this machine, else random.")
@click.option(
    "--interval", callback=to_millis, default="5s", show_default=True, help="Between two readings."
)
@options_file
@aws_options
@kafka_options
@click.pass_context
def watch_command(
    context: click.Context,
    path: str,
    application: str | None,
    table: str | None,
    lag: bool,
    once: Path | None,
    as_json: bool,
    host: str,
    port: int,
    token: str | None,
    interval: int,
    aws: Given,
    kafka: Given,
) -> None:
    """Serve a page of the query whose checkpoint is at PATH, until Ctrl-C.

    It shows the shards or partitions of each task over the batches of the checkpoint, with --lag
    also how far the newest batch is behind the stream or topic. Rows and durations are not in a
    checkpoint: serve_live_page in the query's own program shows them.
    """
    environment: Environment = context.obj
    folder = open_folder(path, s3_connection(aws))
    leases = None
    if application is not None:
        leases = LeaseTable(application, table or application, dynamodb_connection(aws))
    measure = None
    if lag:
        kinesis = connection(aws)
        measure = partial(measure_status, kinesis=kinesis, kafka=kafka.options)
    timelines = Timelines()
    server = None
    try:
        update = _updates(CheckpointReader(folder, path, measure), leases, timelines)
        found = update()
        if not found:
            raise _no_batches(path)
        if as_json:
            write_json(to_document(found[-1]))
            return
        if once is not None:
            once.write_text(page(timelines.render()), encoding="utf-8")
            return
        server = start_server(timelines, host=host, port=port, token=token)
        note(f"serving {server.url} until Ctrl-C")
        for _ in itertools.count():
            environment.sleep(interval / 1000)
            with unavailable_noted():
                update()
    finally:
        if server is not None:
            server.stop()
        if leases is not None:
            leases.close()
        folder.close()


def _updates(
    reader: CheckpointReader, leases: LeaseTable | None, timelines: Timelines
) -> Callable[[], Sequence[QuerySnapshot]]:
    unowned: list[QuerySnapshot] = []  # kept if the lease table cannot be read

    def update() -> Sequence[QuerySnapshot]:
        unowned.extend(reader.read_new(MAX_BATCHES))
        del unowned[:-MAX_BATCHES]
        rows = leases.read().rows.leases if leases is not None and unowned else ()
        owned = [with_owners(snapshot, rows) for snapshot in unowned]
        unowned.clear()
        for snapshot in owned:
            timelines.publish(snapshot)
        return owned

    return update


def _no_batches(path: str) -> CheckpointFolderError:
    return CheckpointFolderError(
        f"checkpoint {path}",
        found="no planned batch",
        expected="the checkpoint of a query that has planned a batch",
        next_step="name the query's checkpointLocation itself, or start the query first",
    )
