"""Reads a lease table: the leases, and the rows of KCL 3's workers."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ssp.checkpoint.agent.tables import connect_tables
from spark_ssp.checkpoint.errors import LeaseTableError
from spark_ssp.checkpoint.leases.lease_store import Rows
from spark_ssp.checkpoint.leases.table_schema import TableSettings
from spark_ssp.checkpoint.leases.worker_metrics import KclRows
from spark_ssp.common.aws.retries import retry_settings
from spark_ssp.common.options.endpoints import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """All rows of one application."""

    rows: Rows
    kcl: KclRows


class LeaseTable:
    """A lease table in DynamoDB, only to be read. Needs dynamodb:Scan."""

    def __init__(self, application: str, table: str, connection: ConnectionOptions) -> None:
        self._name = table
        self._store, self._kcl = connect_tables(
            application, TableSettings(name=table), connection, retry_settings(connection)
        )

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
