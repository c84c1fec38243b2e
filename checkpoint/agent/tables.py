"""Opens a lease agent's tables in DynamoDB, with time-outs that suit the failover time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from spark_ssp.checkpoint.agent.event_loop import TableOpened
from spark_ssp.checkpoint.coordination.protocol import AgentSettings
from spark_ssp.checkpoint.leases.dynamodb_calls import DECODERS, DynamoDbCalls
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.kcl_tables import KclTables
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.service_calls import Retrier, RetrySettings, retry_settings
from spark_ssp.common.options.endpoints import ConnectionOptions


def open_tables(settings: AgentSettings) -> TableOpened:
    """Create the lease table if absent and scan it with the user's retry settings; return stores
    with short timeouts. Raises SspError."""
    connection = settings.connection
    application, table = settings.application, settings.table
    patient, patient_kcl = connect_tables(
        application, table, connection, retry_settings(connection)
    )
    patient.prepare()
    rows = patient.scan()
    kcl_rows = patient_kcl.read(rows)
    patient.close()
    hurried, retry = with_short_timeouts(connection, settings.coordination.failover_ms)
    store, kcl = connect_tables(application, table, hurried, retry)
    return TableOpened(store=store, kcl=kcl, rows=rows, kcl_rows=kcl_rows)


def connect_tables(
    application: str, table: TableSettings, connection: ConnectionOptions, retry: RetrySettings
) -> tuple[DynamoDbLeaseStore, KclTables]:
    """Return the lease table of an application, and the tables of its KCL workers. `connection` is
    that of DynamoDB, which is not called."""
    calls = connect_calls(connection)
    store = DynamoDbLeaseStore(calls(table.name, Retrier(retry)), table)
    # One log for all tables of the KCL: throttling is logged once, not once for each table.
    of_kcl = Retrier(retry)
    return store, KclTables(application, table.name, lambda name: calls(name, of_kcl))


def connect_calls(connection: ConnectionOptions) -> Callable[[str, Retrier], DynamoDbCalls]:
    """Return a function that returns the calls about a table: all by one client, which the first
    `close` of any closes. DynamoDB is not called yet."""
    client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")
    direct = DirectCalls(client, DECODERS)

    def calls(table: str, retrier: Retrier) -> DynamoDbCalls:
        return DynamoDbCalls(
            client,
            table,
            retrier,
            role_arn=connection.role_arn,
            role_option=connection.role_option,
            direct=direct,
        )

    return calls


_ATTEMPTS: Final = 2
_CONNECT, _READ, _BACKOFF = 0.2, 0.25, 0.1
"""Shares of a call's time: 2 x (0.2 + 0.25) + 0.1 = 1."""
SHORTEST_MS: Final = 500
"""The minimum timeout: a healthy DynamoDB may need some hundred milliseconds, above all for a new
connection."""


def with_short_timeouts(
    connection: ConnectionOptions, failover_ms: int
) -> tuple[ConnectionOptions, RetrySettings]:
    """Return connection and retry settings under which a call takes at most a third of the failover
    time.

    Failover times below 7.5 s get the minimum timeouts instead. A renewal is due that often, and
    the coordinator repeats a failed one while the lease lasts: a longer call would only delay that.
    """
    budget = failover_ms / 3
    retry = RetrySettings(
        max_attempts=min(_ATTEMPTS, connection.retry_max_attempts),
        max_backoff=min(connection.retry_max_backoff_ms, budget * _BACKOFF) / 1000,
    )
    hurried = replace(
        connection,
        connect_timeout_ms=min(
            connection.connect_timeout_ms, max(SHORTEST_MS, int(budget * _CONNECT))
        ),
        read_timeout_ms=min(connection.read_timeout_ms, max(SHORTEST_MS, int(budget * _READ))),
    )
    return hurried, retry
