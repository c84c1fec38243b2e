"""Reads the rows that KCL 3 workers write beside the leases, and writes our metric row. The KCL's
own tables are never created. A missing table is looked up again every `RECHECK_S`, and so is one
that may not be read, after a warning."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls, connect_calls, has_code
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.lease import Item
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, text
from spark_ssp.checkpoint.leases.lease_store import Rows, TableSettings
from spark_ssp.checkpoint.leases.worker_metrics import (
    OWN,
    KclRows,
    RowLocation,
    kcl_rows,
    metrics_table,
    own_metric_row,
    state_table,
)
from spark_ssp.common.aws.service_calls import Retrier, RetrySettings
from spark_ssp.common.errors import AccessError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import WorkerId

_log = logging.getLogger(__name__)

RECHECK_S: Final = 60.0
"""Time for which a table is skipped that is missing or may not be read."""


CallsOf = Callable[[str], DynamoDbCalls]
"""Returns the calls of a table by its name."""


class KclTables:
    """The rows of KCL 3 workers in DynamoDB, under the KCL's default names. Thread-safe. Raises
    SspError."""

    def __init__(
        self,
        application: str,
        lease_table: str,
        calls: CallsOf,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease_table = lease_table
        self._metrics_table = metrics_table(application)
        self._state_table = state_table(application)
        self._calls = {
            name: calls(name)
            for name in (self._lease_table, self._metrics_table, self._state_table)
        }
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._skip_until: dict[str, float] = {}
        self._warned: set[str] = set()

    def read(self, rows: Rows) -> KclRows:
        """Return the rows, without those of tables that are missing or may not be read. `rows` is a
        fresh scan of the lease table."""
        return kcl_rows(
            rows.foreign,
            metrics=self._items(self._metrics_table),
            states=self._items(self._state_table),
        )

    def _items(self, table: str) -> list[Item]:
        """Return all rows of a table, one for each worker; none for a missing table."""
        with self._lock:
            if self._monotonic() < self._skip_until.get(table, 0.0):
                return []
        request: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
        items: list[Item] = []
        try:
            while True:
                answer = self._scan_page(table, request)
                if answer is None:
                    self._skip(table)
                    return []
                items.extend(answer.get("Items", ()))
                last = answer.get("LastEvaluatedKey")
                if not last:
                    return items
                request = {**request, "ExclusiveStartKey": last}
        except AccessError as error:
            self._skip(table)
            self._warn_once(table, error)
            return []

    def _scan_page(self, table: str, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        def scan() -> Mapping[str, Any] | None:
            try:
                return self._calls[table].once("Scan", request)
            except ClientError as error:
                if has_code(error, "ResourceNotFoundException"):
                    return None
                raise

        return self._calls[table].patiently("Scan", scan)

    def _skip(self, table: str) -> None:
        with self._lock:
            self._skip_until[table] = self._monotonic() + RECHECK_S

    def _warn_once(self, table: str, error: AccessError) -> None:
        with self._lock:
            if table in self._warned:
                return
            self._warned.add(table)
        _log.warning(
            "%s; continuing as if no workers of KCL 3.0 to 3.4 shared these leases; if there are "
            "some, allow dynamodb:Scan on %s",
            error,
            table,
        )

    # --- Our metric row --------------------------------------------------------------------------

    def write_own_metrics(self, worker: WorkerId, location: RowLocation, now: int) -> None:
        """Write or refresh our metric row. `now` is in seconds since the epoch. A row of another
        type with this key is never changed."""
        row = own_metric_row(worker, location, now)
        names = {f"#{name}": name for name in row}
        sets = ", ".join(f"#{name} = :{name}" for name in sorted(row))
        request: dict[str, Any] = {
            "TableName": self._table(location),
            "Key": {location.value: text(worker)},
            "UpdateExpression": f"SET {sets}",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {f":{name}": value for name, value in row.items()},
        }
        if location is RowLocation.LEASES:
            kind = Attribute.ENTITY_TYPE.value
            request["ConditionExpression"] = (
                f"attribute_not_exists({Attribute.KEY.value}) OR #{kind} = :{kind}"
            )
        self._calls[self._table(location)].ask("UpdateItem", request)

    def remove_own_metrics(self, worker: WorkerId, location: RowLocation) -> None:
        """Delete our metric row if it exists."""
        request: dict[str, Any] = {
            "TableName": self._table(location),
            "Key": {location.value: text(worker)},
            "ConditionExpression": "#own = :own",
            "ExpressionAttributeNames": {"#own": OWN},
            "ExpressionAttributeValues": {":own": text(worker)},
        }
        calls = self._calls[self._table(location)]

        def remove() -> None:
            try:
                calls.once("DeleteItem", request)
            except ClientError as error:
                # Deleted already, by the KCL's clean-up or by an attempt whose reply was lost.
                if not has_code(error, "ConditionalCheckFailedException"):
                    raise

        calls.patiently("DeleteItem", remove)

    def _table(self, location: RowLocation) -> str:
        return self._lease_table if location is RowLocation.LEASES else self._metrics_table


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
