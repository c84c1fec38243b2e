"""Opens a lease agent's tables in DynamoDB."""

from __future__ import annotations

import random
import time
from functools import partial

from checkpoint.agent.event_loop import TableOpened
from checkpoint.agent.settings import AgentSettings, with_short_timeouts
from checkpoint.dynamodb_calls import DynamoDbCalls
from checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from checkpoint.leases.kcl_tables import DynamoDbKclTables
from checkpoint.leases.table_schema import TableSettings
from ssp_common.aws.clients import create_client
from ssp_common.aws.retries import Retrier, RetryLog, RetrySettings
from ssp_common.options.endpoints import ConnectionOptions


def open_tables(settings: AgentSettings) -> TableOpened:
    """Create the lease table if absent and scan it with the user's retry settings; return stores
    with short timeouts. Raises SspError."""
    connection = settings.connection
    patience = RetrySettings(
        max_attempts=connection.retry_max_attempts,
        max_backoff=connection.retry_max_backoff_ms / 1000,
    )
    patient, patient_kcl = _connect(settings, connection, patience)
    patient.prepare()
    rows = patient.scan()
    kcl_rows = patient_kcl.read(rows)
    patient.close()
    hurried, retry = with_short_timeouts(connection, settings.coordination.failover_ms)
    store, kcl = _connect(settings, hurried, retry)
    return TableOpened(store=store, kcl=kcl, rows=rows, kcl_rows=kcl_rows)


def open_lease_table(name: str, connection: ConnectionOptions) -> DynamoDbLeaseStore:
    """Return the store of a lease table, to scan it. `connection` is that of DynamoDB."""
    client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")
    retry = RetrySettings(
        max_attempts=connection.retry_max_attempts,
        max_backoff=connection.retry_max_backoff_ms / 1000,
    )
    retrier = Retrier(retry, log=RetryLog(time.monotonic), sleep=time.sleep, random=random.random)
    calls = DynamoDbCalls(client, name, retrier, role_arn=connection.role_arn)
    return DynamoDbLeaseStore(calls, TableSettings(name=name))


def _connect(
    settings: AgentSettings, connection: ConnectionOptions, retry: RetrySettings
) -> tuple[DynamoDbLeaseStore, DynamoDbKclTables]:
    client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")

    def new_retrier() -> Retrier:
        log = RetryLog(time.monotonic)
        return Retrier(retry, log=log, sleep=time.sleep, random=random.random)

    def calls(table: str, retrier: Retrier) -> DynamoDbCalls:
        return DynamoDbCalls(client, table, retrier, role_arn=connection.role_arn)

    name = settings.table.name
    store = DynamoDbLeaseStore(calls(name, new_retrier()), settings.table)
    # One log for all tables of the KCL: throttling is logged once, not once for each table.
    kcl_calls = partial(calls, retrier=new_retrier())
    return store, DynamoDbKclTables(settings.application, name, kcl_calls)
