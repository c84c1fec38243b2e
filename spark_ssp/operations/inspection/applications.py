"""Finds the applications whose lease tables are in an account and region, and measures their
shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from spark_ssp.checkpoint.agent.tables import connect_calls
from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls
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
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.operations.health import Finding, Part, Query, Reader, Verdict, unknown, unreadable
from spark_ssp.operations.inspection.lease_table import (
    ObservedTable,
    ShardLease,
    State,
    is_namesake,
    leases_by_worker,
    shard_leases,
    streams_of,
    without_namesakes,
)
from spark_ssp.operations.inspection.parts import shared_parts
from spark_ssp.operations.inspection.streams import ListedStream, References, list_streams

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
    others = {
        str(lease.stream)
        for lease in rows.leases
        if lease.stream is not None
        and lease.stream.name == stream
        and is_namesake(lease.stream, {stream: found.description})
    }
    if not others:
        return []
    return [
        unknown(
            f"not measured: {abbreviate(sorted(others), _NAMED)}, of another account, or of a "
            "stream that was deleted and created again",
            "look in that account; delete the rows of a stream that no longer exists",
        )
    ]


def _name(lease: ShardLease) -> str:
    return lease.shard if lease.stream is None else f"{lease.stream}/{lease.shard}"
