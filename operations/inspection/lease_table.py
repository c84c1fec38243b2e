"""Reads a lease table: the leases, and the rows of KCL 3's workers."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from checkpoint.dynamodb_calls import DynamoDbCalls
from checkpoint.errors import LeaseTableError
from checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from checkpoint.leases.kcl_tables import DynamoDbKclTables
from checkpoint.leases.lease_store import Rows
from checkpoint.leases.table_schema import TableSettings
from checkpoint.leases.worker_metrics import KclRows
from ssp_common.aws.clients import create_client
from ssp_common.aws.retries import Retrier, RetryLog, RetrySettings
from ssp_common.options.endpoints import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """All rows of one application."""

    rows: Rows
    kcl: KclRows


class LeaseTable:
    """A lease table in DynamoDB, only to be read. Needs dynamodb:Scan."""

    def __init__(self, application: str, table: str, connection: ConnectionOptions) -> None:
        client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")
        retry = RetrySettings(
            max_attempts=connection.retry_max_attempts,
            max_backoff=connection.retry_max_backoff_ms / 1000,
        )
        log = RetryLog(time.monotonic)
        retrier = Retrier(retry, log=log, sleep=time.sleep, random=random.random)

        def calls(name: str) -> DynamoDbCalls:
            return DynamoDbCalls(client, name, retrier, role_arn=connection.role_arn)

        self._name = table
        self._store = DynamoDbLeaseStore(calls(table), TableSettings(name=table))
        self._kcl = DynamoDbKclTables(application, table, calls)

    def read(self) -> TableRows:
        """Scan the tables. Raises LeaseTableError if there is no such lease table."""
        try:
            rows = self._store.scan()
        except LeaseTableError as error:
            raise LeaseTableError(
                f"lease table {self._name}",
                found=error.found,
                expected="the lease table of an application",
                next_step="check the name (by default applicationName), --table, --region and "
                "--dynamodb-endpoint-url; the first worker of an application creates its table",
            ) from None
        return TableRows(rows=rows, kcl=self._kcl.read(rows))

    def close(self) -> None:
        """Release connections."""
        self._store.close()
