"""Opens a lease agent's tables in DynamoDB."""

from __future__ import annotations

import random
import time
from functools import partial

from spark_ssp.checkpoint.agent.event_loop import TableOpened
from spark_ssp.checkpoint.agent.settings import AgentSettings, with_short_timeouts
from spark_ssp.checkpoint.dynamodb_calls import DECODERS, DynamoDbCalls
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.kcl_tables import DynamoDbKclTables
from spark_ssp.checkpoint.leases.table_schema import TableSettings
from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.retries import Retrier, RetryLog, RetrySettings, retry_settings
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
) -> tuple[DynamoDbLeaseStore, DynamoDbKclTables]:
    """Return the lease table of an application, and the tables of its KCL workers. `connection` is
    that of DynamoDB, which is not called."""
    client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")

    def new_retrier() -> Retrier:
        log = RetryLog(time.monotonic)
        return Retrier(retry, log=log, sleep=time.sleep, random=random.random)

    direct = DirectCalls(client, DECODERS)

    def calls(name: str, retrier: Retrier) -> DynamoDbCalls:
        return DynamoDbCalls(
            client,
            name,
            retrier,
            role_arn=connection.role_arn,
            role_option=connection.role_option,
            direct=direct,
        )

    store = DynamoDbLeaseStore(calls(table.name, new_retrier()), table)
    # One log for all tables of the KCL: throttling is logged once, not once for each table.
    kcl_calls = partial(calls, retrier=new_retrier())
    return store, DynamoDbKclTables(application, table.name, kcl_calls)
