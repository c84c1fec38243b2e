"""Finds the applications whose lease tables are in an account and region, and measures their
shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from spark_ssp.checkpoint.leases.dynamodb_store import Readiness, readiness
from spark_ssp.checkpoint.leases.lease import LeaseTableError
from spark_ssp.common.aws.store import StoreCalls, StoreLocation
from spark_ssp.common.errors import AccessError, ServiceUnavailableError, StreamNotFoundError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.operations.health import Finding, Part, Query, Reader, unknown
from spark_ssp.operations.inspection.kinesis_parts import shared_parts
from spark_ssp.operations.inspection.lease_table import (
    ObservedTable,
    ShardLease,
    leases_by_worker,
    shard_leases,
    streams_of,
)
from spark_ssp.operations.inspection.streams import ListedStream, list_streams

_THREADS: Final = 8
_TABLES: Final = StoreLocation(
    subject="the lease tables of the account",
    service="dynamodb",
    resource="all tables of the region",
    option="the region",
    read_by="spark-ssp",
    absent=LeaseTableError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleTables:
    """The lease tables of an account and region, by name, and the tables that may not be described:
    they may be lease tables too."""

    applications: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def visible_tables(connection: ConnectionOptions) -> VisibleTables:
    """Find the lease tables. Needs dynamodb:ListTables, and dynamodb:DescribeTable for each table
    that is to be seen."""
    calls = StoreCalls.open(_TABLES, connection)

    def is_lease_table(name: str) -> bool | None:
        """Return None if it may not be described."""
        try:
            described: Mapping[str, Any] = calls.ask("DescribeTable", {"TableName": name})
            return readiness(name, described["Table"]) is Readiness.READY
        except LeaseTableError:  # another table, or one that was just deleted
            return False
        except AccessError:
            return None

    try:
        names = sorted(_table_names(calls))
        with ThreadPoolExecutor(_THREADS) as threads:
            found = dict(zip(names, threads.map(is_lease_table, names), strict=True))
    finally:
        calls.close()
    return VisibleTables(
        applications=tuple(name for name, is_one in found.items() if is_one),
        hidden=tuple(name for name, is_one in found.items() if is_one is None),
    )


def _table_names(calls: StoreCalls) -> Iterator[str]:
    request: dict[str, Any] = {}
    while True:
        answer = calls.ask("ListTables", request)
        yield from answer["TableNames"]
        last = answer.get("LastEvaluatedTableName")
        if last is None:
            return
        request = {"ExclusiveStartTableName": last}


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application, as its lease table and its streams show it. Its `query` has no batches."""

    streams: tuple[StreamName, ...]
    workers: int
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
    limit_ms: int,
    now_ms: int,
) -> Application:
    """Measure the shards of an application. `connection`: that of Kinesis. A service that refuses
    or does not answer is a finding. Needs the permissions of `list_streams` and `lags_of`."""
    streams = streams_of(table.rows.leases)
    listed: dict[StreamName, ListedStream] = {}
    findings: list[Finding] = []
    for stream in streams:
        try:
            listed |= list_streams([stream], connection)
        except StreamNotFoundError:
            findings.append(
                unknown(
                    f"stream {stream} does not exist: deleted, or in another region or account",
                    f"look in that region; if no worker of {name} will run again, delete its table",
                )
            )
        except (AccessError, ServiceUnavailableError) as error:
            reason = f"stream {stream} could not be listed: found {error.found}"
            findings.append(unknown(reason, error.next_step))
    if not streams:
        findings.append(
            unknown(
                "its rows do not name the stream, so delays are not known",
                f"spark-ssp leases {name} --stream STREAM measures them",
            )
        )
    listings = {stream: found.shards for stream, found in listed.items()}
    leases = shard_leases(table.rows, listings, table.renewals, now_ms, table.failover_ms)
    # Delays of the others are unknown, as a finding says; those without a reader count.
    parts = [
        Part(name=_name(lease), reader=lease.reader)
        for lease in leases
        if lease.stream not in listed and lease.reader.is_missing
    ]
    try:
        parts += shared_parts(
            listed, leases, connection=connection, limit_ms=limit_ms, now_ms=now_ms
        )
    except (AccessError, ServiceUnavailableError) as error:
        findings.append(unknown(f"{error.subject}: found {error.found}", error.next_step))
    return Application(
        streams=streams,
        workers=len(leases_by_worker(leases)),
        leases=tuple(leases),
        query=Query(parts=tuple(parts), findings=tuple(findings), is_spare=True, has_batches=False),
    )


def _name(lease: ShardLease) -> str:
    return lease.shard if lease.stream is None else f"{lease.stream}/{lease.shard}"
