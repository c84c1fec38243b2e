"""`spark-ssp status`: The health of queries: one verdict each, its reasons and remedies.

The rules are in `spark_ssp.operations.health`; this command reads the values and shows the answer.
With `--applications` it also finds those whose lease tables are in an account and region, and
measures their shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls, connect_calls
from spark_ssp.checkpoint.leases.dynamodb_store import is_lease_table
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.common.aws.error_translation import is_denied
from spark_ssp.common.aws.service_calls import (
    Answer,
    Retrier,
    describe_table,
    readable,
    retry_settings,
)
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.common.locations import shown_location
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import duration_text
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    kafka_options,
    options_file,
    s3_connection,
    stream_references,
    to_millis,
    wait_between_readings,
    wait_option,
)
from spark_ssp.operations.cli import Environment, Screen, note, to_document, write_json
from spark_ssp.operations.health import (
    Finding,
    Health,
    Limits,
    Part,
    Query,
    Reader,
    Verdict,
    assess,
    delay_text,
    unknown,
    unreadable,
)
from spark_ssp.operations.inspection.checkpoint_folder import (
    CheckpointFolderError,
    DamagedFileError,
    Folder,
    open_folder,
)
from spark_ssp.operations.inspection.lease_table import (
    ObservedTable,
    ShardLease,
    State,
    leases_by_worker,
    namesakes_in,
    observe_tables,
    shard_leases,
    streams_of,
    without_namesakes,
)
from spark_ssp.operations.inspection.parts import shared_parts
from spark_ssp.operations.inspection.query_facts import (
    Surroundings,
    damaged,
    lease_tables,
    read_query,
)
from spark_ssp.operations.inspection.spark_checkpoint import (
    Checkpoint,
    FoundFolder,
    Search,
    find_checkpoints,
    read_checkpoint,
)
from spark_ssp.operations.inspection.streams import ListedStream, References, list_streams
from spark_ssp.operations.inspection.topics import topic_options

EXIT_CODES: Final = {
    Verdict.OK: 0,
    Verdict.BEHIND: 1,
    Verdict.STALLED: 3,
    Verdict.FAILED: 4,
    Verdict.LOSING: 5,
    Verdict.UNKNOWN: 6,
}
"""By verdict. 2 is a wrong call or a failure, as for every command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    location: str
    query_id: str | None
    query: Query
    health: Health


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visible:
    """An application that was found by its lease table."""

    name: str
    application: Application | None
    """None if the table could not be read."""
    health: Health


@click.command(
    "status",
    epilog="Exit codes, by the gravest verdict: "
    + ", ".join(f"{code} {verdict}" for verdict, code in EXIT_CODES.items())
    + "; 2 for a wrong call or a failure.",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--max-delay",
    callback=to_millis,
    default="10m",
    show_default=True,
    help="A query whose oldest uncommitted record is older is BEHIND.",
)
@click.option(
    "--stuck-after",
    callback=to_millis,
    default="15m",
    show_default=True,
    help="A query that commits nothing for longer, with records to read, is STALLED. Longer than "
    "the trigger's interval, and than the longest usual batch.",
)
@click.option(
    "--failover",
    callback=to_millis,
    default="10s",
    show_default=True,
    help="With leases: the workers' failover time. A lease that is not renewed for longer has no "
    "live owner.",
)
@wait_option(
    "With leases: the table is read twice, this far apart. Default: 5 s more than --failover."
)
@click.option(
    "--retention",
    callback=to_millis,
    help="Of Kafka: the topics' retention.ms, as in 7d, after which records expire.",
)
@click.option(
    "--applications",
    is_flag=True,
    help="Also the applications whose lease tables are in the account and region: those of KCL "
    "workers too.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@options_file
@aws_options
@kafka_options
@click.pass_context
def status_command(
    context: click.Context,
    paths: tuple[str, ...],
    max_delay: int,
    stuck_after: int,
    failover: int,
    wait: int | None,
    retention: int | None,
    applications: bool,
    as_json: bool,
    aws: Given,
    kafka: Given,
) -> None:
    """Show the health of the queries whose checkpoints are at each PATH, with remedies.

    PATH is a folder, or a URI such as s3://bucket/folder: a checkpoint, or a folder in which
    checkpoints are. The queries may run anywhere, or be stopped. Their streams, topics and lease
    tables are read; nothing is written.
    """
    wait = wait_between_readings(wait, failover)
    if not paths and not applications:
        raise click.UsageError("name a PATH, or give --applications")
    if kafka.options:
        topic_options(["any"], kafka.options)  # a wrong one is a wrong call
    environment: Environment = context.obj
    limits = Limits(max_delay_ms=max_delay, stuck_after_ms=stuck_after)
    visible = visible_tables(dynamodb_connection(aws)) if applications else VisibleTables()
    is_none_visible = applications and not visible.applications
    with ExitStack() as stack:
        searches = [_find(path, aws, stack) for path in paths]
        found = list({one.location: one for search in searches for one in search.found}.values())
        not_searched = {location for search in searches for location in search.not_searched}
        names = set(visible.applications)
        for one in found:
            read = _read(one, is_named=one.location in paths)
            if not isinstance(read, SspError):
                names |= lease_tables(read[1])
        tables: Mapping[str, ObservedTable | SspError] = {}
        if names:
            tables = observe_tables(
                names,
                dynamodb_connection(aws),
                environment,
                wait_ms=wait,
                failover_ms=failover,
            )
        around = Surroundings(
            kinesis=connection(aws),
            streams=stream_references(aws),
            kafka=kafka.options,
            kafka_retention_ms=retention,
            tables=tables,
            limits=limits,
            now_ms=environment.now_ms(),
        )
        answers = [_answer(one, _at_present(around, environment)) for one in found]
        seen = [_visible(name, _at_present(around, environment)) for name in visible.applications]
    if as_json:
        write_json(
            {
                "queries": [_document(answer) for answer in answers],
                "applications": [_application_document(one) for one in seen],
                "tablesNotDescribed": list(visible.hidden),
                "foldersNotSearched": len(not_searched),
            }
        )
    else:
        screen = Screen()
        _show(screen, answers, seen)
        if is_none_visible:
            screen.line("no lease table was found: look in another --region, or account")
        if visible.hidden:
            screen.line()
            hidden = abbreviate(visible.hidden)
            screen.line(f"tables that could not be described, and may be lease tables: {hidden}")
    if not_searched:
        names_shown = abbreviate([shown_location(one) for one in sorted(not_searched)], 3)
        note(f"not searched for checkpoints: {names_shown}; name a checkpoint in them as a PATH")
    verdicts = [answer.health.verdict for answer in answers]
    verdicts += [one.health.verdict for one in seen]
    if visible.hidden or is_none_visible:
        verdicts.append(Verdict.UNKNOWN)
    worst = max(verdicts, key=lambda one: one.gravity)
    context.exit(EXIT_CODES[worst])


def _find(path: str, aws: Given, stack: ExitStack) -> Search:
    """Return the checkpoints at a path. Raises only errors of a wrong call: others must not hide
    the other paths."""
    try:
        folder = open_folder(path, s3_connection(aws))
        stack.callback(folder.close)
        return find_checkpoints(folder, path)
    except (CheckpointFolderError, InvalidOptionsError):
        raise
    except SspError as error:
        return Search(found=(FoundFolder(location=path, folder=error),))


def _at_present(around: Surroundings, environment: Environment) -> Surroundings:
    """Queries are measured one after the other, each at its own time."""
    return replace(around, now_ms=environment.now_ms())


def _read(one: FoundFolder, *, is_named: bool) -> tuple[Folder, Checkpoint] | SspError:
    """Return the checkpoint, or the error that is its answer: it must not hide the others. Raises
    CheckpointFolderError if a folder that was named is no checkpoint."""
    if isinstance(one.folder, SspError):
        return one.folder
    try:
        return one.folder, read_checkpoint(one.folder, one.location)
    except DamagedFileError as error:
        return error
    except CheckpointFolderError as error:
        if is_named:
            raise
        return error
    except SspError as error:
        return error


def _answer(one: FoundFolder, around: Surroundings) -> _Answer:
    query_id, query = _query(one, around)
    return _Answer(
        location=shown_location(one.location),
        query_id=query_id,
        query=query,
        health=assess(query, around.limits, around.now_ms),
    )


def _query(one: FoundFolder, around: Surroundings) -> tuple[str | None, Query]:
    """Read the checkpoint again, and measure: since it was read, so were tables and other queries,
    and the query has committed."""
    found = _read(one, is_named=False)
    if isinstance(found, DamagedFileError):
        return None, Query(findings=(damaged(found),))
    if isinstance(found, SspError):
        return None, _unreadable(found)
    folder, checkpoint = found
    others = {name: _not_observed(name) for name in lease_tables(checkpoint) - around.tables.keys()}
    around = replace(around, tables={**around.tables, **others})
    return checkpoint.query, read_query(folder, checkpoint, around)


def _not_observed(table: str) -> SspError:
    return ServiceUnavailableError(
        f"lease table {table}",
        found="a query that began to use it while the command ran",
        expected="a table that was read twice",
        next_step="run the command again",
    )


def _unreadable(error: SspError) -> Query:
    return Query(has_batches=False, is_spare=True, findings=(unreadable(error),))


def _visible(name: str, around: Surroundings) -> _Visible:
    table = around.tables[name]
    if isinstance(table, SspError):
        health = assess(_unreadable(table), around.limits, around.now_ms)
        return _Visible(name=name, application=None, health=health)
    found = read_application(
        name,
        table,
        connection=around.kinesis,
        references=around.streams,
        limit_ms=around.limits.max_delay_ms,
        now_ms=around.now_ms,
    )
    return _Visible(
        name=name,
        application=found,
        health=assess(found.query, around.limits, around.now_ms),
    )


# --- Output ---------------------------------------------------------------------------------------


def _show(
    screen: Screen,
    answers: Sequence[_Answer],
    applications: Sequence[_Visible],
) -> None:
    if answers:
        _show_queries(screen, answers)
    if answers and applications:
        screen.line()
    if applications:
        _show_applications(screen, applications)
    named = [(answer.location, answer.health) for answer in answers]
    named += [(one.name, one.health) for one in applications]
    for name, health in named:
        for finding in health.findings:
            screen.line()
            screen.line(f"{name}: {finding.verdict}: {finding.reason}")
            screen.line(f"  -> {finding.remedy}")


def _show_queries(screen: Screen, answers: Sequence[_Answer]) -> None:
    screen.table(
        ("VERDICT", "CHECKPOINT", "STATE", "DELAY", "PLANNED DELAY", "LAST COMMIT", "LAST TRIGGER"),
        [
            (
                answer.health.verdict,
                answer.location,
                answer.health.state,
                delay_text(answer.health.committed, answer.health.unmeasured),
                delay_text(answer.health.planned, answer.health.unmeasured),
                _ago(answer.health.commit_age_ms),
                _ago(answer.health.trigger_age_ms),
            )
            for answer in answers
        ],
        wrapped=("CHECKPOINT",),
    )


def _show_applications(screen: Screen, applications: Sequence[_Visible]) -> None:
    screen.table(
        ("VERDICT", "APPLICATION", "STREAMS", "WORKERS", "SHARDS", "NOT READ", "DELAY"),
        [
            (
                one.health.verdict,
                one.name,
                *_application_columns(one.application),
                delay_text(one.health.committed, one.health.unmeasured),
            )
            for one in applications
        ],
        right=("WORKERS", "SHARDS", "NOT READ"),
        wrapped=("APPLICATION", "STREAMS"),
    )


def _application_columns(found: Application | None) -> tuple[str, str, str, str]:
    if found is None:
        return "unknown", "unknown", "unknown", "unknown"
    not_read = sum(lease.reader.is_missing for lease in found.readable)
    return (
        ", ".join(found.streams) or "not named",
        str(found.workers),
        str(len(found.readable)),
        str(not_read),
    )


def _ago(millis: int | None) -> str:
    return "unknown" if millis is None else f"{duration_text(millis)} ago"


def _document(answer: _Answer) -> dict[str, Any]:
    query, health = answer.query, answer.health
    return {
        "location": answer.location,
        "query": answer.query_id,
        "verdict": str(health.verdict),
        "state": str(health.state),
        "process": str(query.process),
        "stuckIn": [str(phase) for phase in health.stuck_in],
        "findings": [to_document(finding) for finding in health.findings],
        "committedDelay": to_document(health.committed),
        "plannedDelay": to_document(health.planned),
        "unmeasured": health.unmeasured,
        "committedBatch": query.committed,
        "committedAtMs": query.committed_at_ms,
        "batchInProgress": query.in_progress,
        "plannedAtMs": query.planned_at_ms,
        "commitAgeMs": health.commit_age_ms,
        "triggerAgeMs": health.trigger_age_ms,
        **_future(health.outlook.until_caught_up_ms, health.outlook.until_expiry_ms),
        "notRead": {str(reader): list(names) for reader, names in health.not_read.items()},
        "parts": [_part(part) for part in query.parts],
    }


def _application_document(one: _Visible) -> dict[str, Any]:
    found, health = one.application, one.health
    return {
        "application": one.name,
        "verdict": str(health.verdict),
        "findings": [to_document(finding) for finding in health.findings],
        "streams": None if found is None else list(found.streams),
        "workers": None if found is None else found.workers,
        "shards": None if found is None else len(found.readable),
        "notRead": {str(reader): list(names) for reader, names in health.not_read.items()},
        "committedDelay": to_document(health.committed),
        "unmeasured": health.unmeasured,
        **_future(health.outlook.until_caught_up_ms, health.outlook.until_expiry_ms),
        "parts": [] if found is None else [_part(part) for part in found.query.parts],
    }


def _future(caught_up: float | None, expiry: float | None) -> dict[str, Any]:
    return {
        "catchesUp": None if caught_up is None else caught_up != math.inf,
        "untilCaughtUpMs": _millis(caught_up),
        "untilExpiryMs": _millis(expiry),
    }


def _millis(value: float | None) -> int | None:
    return None if value is None or value == math.inf else round(value)


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "reader": str(part.reader),
        "committedDelay": to_document(part.committed),
        "plannedDelay": to_document(part.planned),
        "retentionMs": part.retention_ms,
        "lost": part.is_lost,
    }


# --- Applications --------------------------------------------------------------------------------


_THREADS: Final = 8
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleTables:
    """The lease tables of an account and region, by name, and the tables that could not be
    described: they may be lease tables too."""

    applications: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def visible_tables(connection: ConnectionOptions) -> VisibleTables:
    """Find the lease tables. Needs dynamodb:ListTables, and dynamodb:DescribeTable for each table
    that is to be seen."""
    connected, retry = connect_calls(connection), retry_settings(connection)

    def is_application(name: str) -> bool | None:
        """Return None if it cannot be described."""
        try:
            table = describe_table(connected(name, Retrier(retry)), name)
        except ServiceUnavailableError:
            return None
        except AccessError as error:
            if is_denied(error):
                return None
            raise
        # One that cannot be used, for whatever reason, is an application that does not run.
        return table is not None and is_lease_table(table) and table["TableStatus"] != "DELETING"

    calls = connected("*", Retrier(retry))
    try:
        names = sorted(_table_names(calls))
        with ThreadPoolExecutor(_THREADS) as threads:
            found = dict(zip(names, threads.map(is_application, names), strict=True))
    finally:
        calls.close()
    return VisibleTables(
        applications=tuple(name for name, is_one in found.items() if is_one),
        hidden=tuple(name for name, is_one in found.items() if is_one is None),
    )


def _table_names(calls: DynamoDbCalls) -> Iterator[str]:
    request: dict[str, Any] = {}

    def page() -> tuple[list[str], Answer]:
        answer = calls.once("ListTables", request)
        return answer["TableNames"], answer

    while True:
        names, answer = calls.patiently("ListTables", lambda: readable(page))
        yield from names
        last = answer.get("LastEvaluatedTableName")
        if last is None:
            return
        request = {"ExclusiveStartTableName": last}


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application, as its lease table and its streams show it. Its `query` has no batches."""

    streams: tuple[StreamName, ...]
    workers: int
    """The owners of leases that are not stale."""
    leases: tuple[ShardLease, ...]
    query: Query

    @property
    def readable(self) -> tuple[ShardLease, ...]:
        """The shards that are to be read, now or after their parents."""
        return tuple(lease for lease in self.leases if lease.reader is not Reader.ENDED)


def read_application(
    name: str,
    table: ObservedTable,
    *,
    connection: ConnectionOptions,
    references: References,
    limit_ms: int,
    now_ms: int,
) -> Application:
    """Measure the shards of an application. `connection`: that of Kinesis. A stream that cannot be
    listed or measured is a finding. Needs the permissions of `list_streams` and `lags_of`."""
    findings = [_malformed(table.rows)] if table.rows.malformed else []
    streams = streams_of(table.rows.leases)
    listed: dict[StreamName, ListedStream] = {}
    for stream in streams:
        try:
            found = list_streams([stream], connection, references)[stream]
        except StreamNotFoundError as error:
            findings.append(
                unknown(
                    f"stream {stream} does not exist: deleted, or in another region or account: "
                    f"found {error.found}",
                    "check --region, and the account of the credentials, first; if no worker of "
                    f"{name} will run again, delete its table",
                )
            )
        except SspError as error:
            findings.append(unreadable(error))
        else:
            listed[stream] = found
            findings += _namesakes(stream, found, table.rows)
    described = {name: one.description for name, one in listed.items()}
    leases = shard_leases(
        without_namesakes(table, described),
        {stream: listed[stream].shards if stream in listed else None for stream in streams},
    )
    parts: list[Part] = []
    for name_of, of_stream in _by_stream(leases).items():
        if name_of is None or name_of not in listed:
            # It cannot be measured, as a finding says; those without a reader count.
            parts += [
                Part(name=_name(lease), reader=lease.reader)
                for lease in of_stream
                if lease.reader.is_missing
            ]
            continue
        measured, failed = shared_parts(
            name_of,
            listed[name_of],
            of_stream,
            connection=connection,
            references=references,
            limit_ms=limit_ms,
            now_ms=now_ms,
        )
        parts += measured
        findings += failed
    if any(lease.stream is None and lease.reader is not Reader.ENDED for lease in leases):
        findings.append(
            unknown(
                "rows do not name their stream, so delays are not known",
                f"spark-ssp leases {name} --stream STREAM measures them",
            )
        )
    if not parts and not findings:
        findings.append(
            unknown(
                "its table has no lease of a shard that is to be read",
                "see whether a worker of the application runs: it creates the leases",
            )
        )
    return Application(
        streams=streams,
        workers=len(leases_by_worker(one for one in leases if one.state is not State.STALE)),
        leases=tuple(leases),
        query=Query(parts=tuple(parts), findings=tuple(findings), is_spare=True, has_batches=False),
    )


def _by_stream(leases: Iterable[ShardLease]) -> dict[StreamName | None, list[ShardLease]]:
    found: dict[StreamName | None, list[ShardLease]] = {}
    for lease in leases:
        found.setdefault(lease.stream, []).append(lease)
    return found


def _malformed(rows: Rows) -> Finding:
    names = abbreviate([error.key or "a row without a key" for error in rows.malformed], _NAMED)
    return Finding(
        verdict=Verdict.STALLED,
        reason=f"rows that cannot be parsed, so that nobody takes their leases: {names}",
        remedy="restore or delete them; spark-ssp leases shows them",
    )


def _namesakes(stream: StreamName, found: ListedStream, rows: Rows) -> list[Finding]:
    others = [str(one) for one in namesakes_in(rows, {stream: found.description})]
    if not others:
        return []
    return [
        unknown(
            f"not measured: {abbreviate(others, _NAMED)}, of another account, or of a "
            "stream that was deleted and created again",
            "look in that account; delete the rows of a stream that no longer exists",
        )
    ]


def _name(lease: ShardLease) -> str:
    return lease.shard if lease.stream is None else f"{lease.stream}/{lease.shard}"
