"""The lease table in DynamoDB.

Reads are consistent: a write based on an outdated row would only fail its condition. Writes of many
leases are made by one call, PartiQL's `BatchExecuteStatement`, where the service has it
(`BatchWriter`).

KCL 3 uses an index over the owners; a table created here has it. An existing table without it is
not changed: KCL 3 adds it when it needs it, and this project does not read it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, count
from typing import Any, Final, Literal, NoReturn

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    DeleteRow,
    Done,
    Outcome,
    PutRow,
    Renew,
    RowChange,
    UpdateRow,
    Write,
    determines_row,
    is_applied,
    reconcile,
    row_after,
    to_update,
)
from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls, has_code, may_have_applied
from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Item,
    Lease,
    LeaseKey,
    LeaseTableError,
    StartAtTrimHorizon,
)
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, text
from spark_ssp.checkpoint.leases.lease_store import (
    Decode,
    LeaseCache,
    Rows,
    TableSettings,
    parse_lease,
    parse_rows,
)
from spark_ssp.common.aws.error_translation import (
    MalformedAnswerError,
    Severity,
    code_of,
    severity_of,
)
from spark_ssp.common.aws.service_calls import create_table, describe_table
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import ShardId, WorkerId

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_MAX_SEGMENTS: Final = 4


class DynamoDbLeaseStore:
    """`LeaseStore` in DynamoDB. Cannot be pickled or used after a fork. `calls` must use a client
    without botocore's retries. `monotonic` and `sleep` are in seconds."""

    def __init__(
        self,
        calls: DynamoDbCalls,
        settings: TableSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls = calls
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._cache = LeaseCache()
        self._segments = 1
        self._batches = BatchWriter(calls, settings.name, self._cache.decode, self._write)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection belongs to its process: open the store where it is needed")

    def close(self) -> None:
        """Release connections."""
        self._calls.close()

    # --- The table -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the table if absent and wait until it is active. Creating needs
        dynamodb:CreateTable, and with tags dynamodb:TagResource."""
        deadline = self._monotonic() + self._settings.wait_s
        while True:
            found = readiness(self._settings.name, describe_table(self._calls, self._settings.name))
            if found is Readiness.READY:
                return
            if found is Readiness.ABSENT:
                create_table(self._calls, creation_request(self._settings))
            if self._monotonic() >= deadline:
                raise self._not_ready(found)
            self._sleep(_POLL_S)

    def _not_ready(self, found: Readiness) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            self._calls.location.subject,
            found=f"the table still {found} after {seconds_text(self._settings.wait_s)}",
            expected=f"an active table in {self._calls.location}",
            next_step="check the table's status in DynamoDB, then start again",
        )

    # --- Rows ------------------------------------------------------------------------------------

    def scan(self) -> Rows:
        """Return all rows. A table of several pages is read in segments, in parallel, from the next
        scan on."""
        segments = self._segments
        if segments == 1:
            parts = [self._scan_part({})]
        else:
            limits = [{"Segment": n, "TotalSegments": segments} for n in range(segments)]
            with ThreadPoolExecutor(segments, thread_name_prefix="lease-scanner") as pool:
                parts = list(pool.map(self._scan_part, limits))
        pages = max(pages for _, pages in parts)
        self._segments = min(segments * pages, _MAX_SEGMENTS)
        rows = parse_rows(chain.from_iterable(items for items, _ in parts), self._cache.decode)
        self._cache.retain(rows.leases)
        return rows

    def _scan_part(self, limits: Mapping[str, int]) -> tuple[list[Item], int]:
        """Return the rows of a segment and the number of its pages."""
        request: dict[str, Any] = {"TableName": self._settings.name, "ConsistentRead": True}
        request |= limits
        items: list[Item] = []
        for pages in count(1):
            answer = self._calls.ask("Scan", request)
            items.extend(answer.get("Items", ()))
            last = answer.get("LastEvaluatedKey")
            if not last:
                return items, pages
            request = {**request, "ExclusiveStartKey": last}
        raise AssertionError("a count without an end")

    @property
    def batch_size(self) -> int:
        """The number of writes that one call can make; 1 if the service refuses batches."""
        return self._batches.size

    def write_all(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        """Apply writes of different rows."""
        return self._batches.write(writes)

    def write(self, write: Write) -> Outcome:
        """Apply a write if its condition holds."""
        return self._write(write, False)

    def _write(self, write: Write, doubtful: bool) -> Outcome:
        change = to_update(write)
        operation, request = request_of(self._settings.name, write.lease.key, change)

        def attempt() -> Outcome:
            try:
                answer = self._calls.once(operation, request)
            except ClientError as error:
                if not has_code(error, "ConditionalCheckFailedException"):
                    raise
                return Conflict(found=self._found(error, write.lease.key))
            if isinstance(change, PutRow | DeleteRow):
                return Done(lease=write.lease)
            lease = parse_lease(answer.get("Attributes"), self._cache.decode)
            if lease is None:
                raise MalformedAnswerError("an answer without the written row")
            return Done(lease=lease)

        return reconcile(
            write,
            attempt,
            retrying=lambda once: self._calls.patiently(operation, once),
            may_have_applied=may_have_applied,
            doubtful=doubtful,
        )

    def _found(self, error: ClientError, key: LeaseKey) -> Lease | None:
        """Return the row that failed the condition, reading it if the answer does not contain
        it."""
        item: Item | None = error.response.get("Item")  # type: ignore[assignment]
        return parse_lease(item or self._item(key), self._cache.decode)

    def _item(self, key: LeaseKey) -> Item | None:
        request = {
            "TableName": self._settings.name,
            "Key": {Attribute.KEY.value: text(key)},
            "ConsistentRead": True,
        }
        return self._calls.ask("GetItem", request).get("Item")


# --- Requests ------------------------------------------------------------------------------------

Operation = Literal["PutItem", "UpdateItem", "DeleteItem"]

_EXISTS: Final = f"attribute_exists({Attribute.KEY.value})"
_ABSENT: Final = f"attribute_not_exists({Attribute.KEY.value})"
_ALL_OLD: Final = "ALL_OLD"


def request_of(table: str, key: LeaseKey, change: RowChange) -> tuple[Operation, dict[str, Any]]:
    """Return the API operation and its arguments. The answer to a failed condition contains the
    row."""
    row: dict[str, Any] = {"TableName": table, "Key": {Attribute.KEY.value: text(key)}}
    match change:
        case PutRow(item=item):
            return "PutItem", {
                "TableName": table,
                "Item": dict(item),
                "ConditionExpression": _ABSENT,
                "ReturnValuesOnConditionCheckFailure": _ALL_OLD,
            }
        case UpdateRow():
            return "UpdateItem", row | _update(change)
        case DeleteRow():
            return "DeleteItem", row


def _update(change: UpdateRow) -> dict[str, Any]:
    terms = _Terms()
    conditions = [_EXISTS]
    for name, value in sorted(change.expected.items()):
        if value is None:
            conditions.append(f"attribute_not_exists({terms.name(name)})")
        else:
            conditions.append(f"{terms.name(name)} = {terms.value(value)}")
    clauses = {
        "SET": [f"{terms.name(n)} = {terms.value(v)}" for n, v in sorted(change.sets.items())],
        "ADD": [
            f"{terms.name(n)} {terms.value({'N': str(amount)})}"
            for n, amount in sorted(change.adds.items())
        ],
        "REMOVE": [terms.name(n) for n in sorted(change.removes)],
    }
    update = " ".join(f"{word} {', '.join(parts)}" for word, parts in clauses.items() if parts)
    request: dict[str, Any] = {
        "UpdateExpression": update,
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": terms.names,
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": _ALL_OLD,
    }
    if terms.values:
        request["ExpressionAttributeValues"] = terms.values
    return request


class _Terms:
    """Placeholders for attribute names, which may be reserved words, and values."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Mapping[str, Any]] = {}

    def name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, value: AttributeValue) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = value
        return placeholder


# --- The table's schema --------------------------------------------------------------------------

OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"


class Readiness(StrEnum):
    """The next step for a table."""

    ABSENT = "absent"
    READY = "ready"
    WAIT = "wait"


def creation_request(settings: TableSettings) -> dict[str, Any]:
    """Return the arguments of CreateTable."""
    index: dict[str, Any] = {
        "IndexName": OWNER_INDEX,
        "KeySchema": [
            {"AttributeName": Attribute.OWNER.value, "KeyType": "HASH"},
            {"AttributeName": Attribute.KEY.value, "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    request: dict[str, Any] = {
        "TableName": settings.name,
        "KeySchema": [{"AttributeName": Attribute.KEY.value, "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": name.value, "AttributeType": "S"}
            for name in (Attribute.KEY, Attribute.OWNER)
        ],
        "GlobalSecondaryIndexes": [index],
        "BillingMode": "PAY_PER_REQUEST",
    }
    if settings.capacity is not None:
        units = {
            "ReadCapacityUnits": settings.capacity.read,
            "WriteCapacityUnits": settings.capacity.write,
        }
        request["BillingMode"] = "PROVISIONED"
        request["ProvisionedThroughput"] = units
        index["ProvisionedThroughput"] = units
    if settings.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in settings.tags]
    return request


def readiness(name: str, table: Mapping[str, Any] | None) -> Readiness:
    """Return the next step for the table described (None: it does not exist). LeaseTableError if it
    never can be used: it has another key, or a status that does not pass."""
    if table is None:
        return Readiness.ABSENT
    status = str(table.get("TableStatus"))
    if status == "DELETING":
        return Readiness.WAIT
    _check_key(name, table)
    if status in ("ACTIVE", "UPDATING"):
        return Readiness.READY
    if status == "CREATING":
        return Readiness.WAIT
    raise LeaseTableError(
        f"table {name}",
        found=f"status {status}",
        expected="status ACTIVE",
        next_step="repair the table (for example its encryption key), or name another one",
    )


def is_lease_table(table: Mapping[str, Any]) -> bool:
    """Return whether the table described has the key of lease tables."""
    return _key_of(table) == [("HASH", Attribute.KEY.value, "S")]


def _key_of(table: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    types = {
        entry["AttributeName"]: entry["AttributeType"]
        for entry in table.get("AttributeDefinitions", ())
    }
    return [
        (entry["KeyType"], entry["AttributeName"], types.get(entry["AttributeName"]))
        for entry in table.get("KeySchema", ())
    ]


def _check_key(name: str, table: Mapping[str, Any]) -> None:
    if not is_lease_table(table):
        key = _key_of(table)
        found = ", ".join(f"{kind} {attribute} ({of_type})" for kind, attribute, of_type in key)
        raise LeaseTableError(
            f"table {name}",
            found=f"a table with key {found or 'unknown'}",
            expected=f"a lease table with key HASH {Attribute.KEY.value} (S)",
            next_step="it belongs to another application: choose another applicationName, or "
            "another table by leaseTable",
        )


# --- Batches of writes ----------------------------------------------------------------------------

BATCH_SIZE: Final = 25
"""The maximum number of statements (API reference, BatchExecuteStatement)."""
_BATCH_WRITE: Final = "BatchExecuteStatement"
_FAILED_CONDITION: Final = "ConditionalCheckFailed"
_TRANSIENT: Final = {
    "InternalServerError": "InternalServerError",
    "ProvisionedThroughputExceeded": "ProvisionedThroughputExceededException",
    "RequestLimitExceeded": "RequestLimitExceeded",
    "ThrottlingError": "ThrottlingException",
}
"""The codes of statements to repeat (API reference, BatchStatementError), and those of calls."""
_DENIED: Final = "AccessDenied"
_REFUSALS: Final = frozenset(
    {
        _DENIED,
        "AccessDeniedException",
        "NotImplemented",
        "UnknownOperation",
        "UnknownOperationException",
        "ValidationException",
    }
)
_PROBES: Final = tuple(
    Lease(
        shard=ShardId(f"spark-ssp-probe-{number}"),
        counter=1,
        progress=StartAtTrimHorizon(),
        owner=WorkerId("spark-ssp"),
    )
    for number in (1, 2)
)
"""Leases that do not exist."""

_MOST_FAILED_PROBES: Final = 3
"""After this many probes that failed by an error of the service, batches count as unsupported."""

Singly = Callable[[Write, bool], Outcome]
"""Makes one write; True if an earlier attempt may have taken effect. Raises SspError."""


class _RefusedError(Exception):
    """The service does not accept batches."""


class _UnprovenError(Exception):
    """The probe has failed, so it is not known whether the service accepts batches."""


@dataclass(slots=True)
class _Batch:
    """The writes of a call and of its repetitions."""

    pending: dict[LeaseKey, Write]
    results: dict[LeaseKey, Outcome | SspError] = field(default_factory=dict)
    single: dict[LeaseKey, Write] = field(default_factory=dict)
    """Writes that their statements did not decide."""
    doubtful: set[LeaseKey] = field(default_factory=set)
    """Writes that an attempt may have applied."""


class BatchWriter:
    """Writes of many leases of one table by one call. Thread-safe.

    Each statement of a batch has its own condition and result, and the cost of the same
    `UpdateItem`. A batch saves the work around a call, most of the processor time of a worker with
    thousands of leases. Its answer has no new rows, so only writes are batched that determine them.

    It needs dynamodb:PartiQLUpdate and is missing in some emulators; moto 5.2 reports statements as
    done whose conditions fail. So the first batch is preceded by one whose conditions fail: if it
    is not answered so, all writes are made one at a time.
    """

    def __init__(self, calls: DynamoDbCalls, table: str, decode: Decode, singly: Singly) -> None:
        self._calls = calls
        self._table = table
        self._decode = decode
        self._singly = singly
        self._lock = threading.Lock()
        self._is_proven = False
        self._failed_probes = 0
        self.size = BATCH_SIZE

    def write(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        """Make writes of different rows; return their results in order. Raises nothing."""
        batch = _Batch({write.lease.key: write for write in writes if determines_row(write)})
        batch.single = {write.lease.key: write for write in writes if not determines_row(write)}
        try:
            if batch.pending:
                self._prove()
                self._calls.patiently(_BATCH_WRITE, lambda: self._attempt(batch))
        except _RefusedError as refused:
            self._disable(str(refused))
            batch.single |= batch.pending
        except _UnprovenError:
            batch.single |= batch.pending
        except SspError as error:
            batch.results |= dict.fromkeys(batch.pending, error)
        for key, write in batch.single.items():
            batch.results[key] = self._one(write, key in batch.doubtful)
        return [batch.results[write.lease.key] for write in writes]

    def _prove(self) -> None:
        """Check once that failed conditions are reported. Raises _RefusedError, _UnprovenError
        after an error that may pass, or SspError after one that concerns all calls."""
        with self._lock:
            if self._is_proven:
                return
            if self.size == 1:
                raise _RefusedError("refused before")
            last: list[Exception] = []
            try:
                codes = self._calls.patiently(_BATCH_WRITE, lambda: self._probe(last))
            except SspError:
                if not isinstance(last[-1], ClientError) or _is_throttled(last[-1]):
                    raise
                self._failed_probes += 1
                code = code_of(last[-1])
                if code in _REFUSALS or self._failed_probes == _MOST_FAILED_PROBES:
                    raise _RefusedError(code) from None
                raise _UnprovenError(code) from None
            if codes != [_FAILED_CONDITION] * len(_PROBES):
                raise _RefusedError(f"{codes} for two failed conditions")
            self._is_proven = True

    def _probe(self, errors: list[Exception]) -> list[str | None]:
        first, second = _PROBES
        writes: list[Write] = [
            Renew(lease=first),
            Checkpoint(lease=second, progress=StartAtTrimHorizon()),
        ]
        request = {"Statements": [statement_of(self._table, write) for write in writes]}
        try:
            answers = self._calls.once(_BATCH_WRITE, request).get("Responses", ())
        except Exception as error:
            errors.append(error)
            raise
        codes: list[str | None] = [(answer.get("Error") or {}).get("Code") for answer in answers]
        for code in codes:
            if code in _TRANSIENT:
                errors.append(_error_of(_TRANSIENT[code]))
                raise errors[-1]
        return codes

    def _one(self, write: Write, doubtful: bool) -> Outcome | SspError:
        try:
            return self._singly(write, doubtful)
        except SspError as error:
            return error

    def _disable(self, why: str) -> None:
        if self.size > 1:
            self.size = 1
            _log.warning(
                "%s does not accept batches of writes (%s): the leases are written one at a time, "
                "which takes more processor time; allow dynamodb:PartiQLUpdate",
                self._calls.location.subject,
                why,
            )

    def _attempt(self, batch: _Batch) -> None:
        """Send the pending writes. Raises the SDK's errors if any is to be sent again."""
        writes = list(batch.pending.values())
        try:
            request = {"Statements": [statement_of(self._table, write) for write in writes]}
            answers = self._calls.once(_BATCH_WRITE, request).get("Responses", ())
            if len(answers) != len(writes):
                raise MalformedAnswerError("an answer without a result for each statement")
        except Exception as error:
            if may_have_applied(error):
                batch.doubtful |= batch.pending.keys()
            if isinstance(error, ClientError) and code_of(error) in _REFUSALS:
                raise _RefusedError(code_of(error)) from None
            raise
        errors = [answer.get("Error") or {} for answer in answers]
        again, denied = None, False
        for write, found in zip(writes, errors, strict=True):
            if found.get("Code") == _DENIED:
                denied = True  # the other statements of the answer have their results
            else:
                again = self._decide(batch, write, found) or again
        if denied:
            raise _RefusedError(_DENIED)
        if again is not None:
            raise _error_of(again)

    def _decide(self, batch: _Batch, write: Write, error: Mapping[str, Any]) -> str | None:
        """Record the result of a statement, or return the error after which it is repeated."""
        key, code = write.lease.key, error.get("Code")
        if code in _TRANSIENT:
            if code == "InternalServerError":
                batch.doubtful.add(key)
            return _TRANSIENT[code]
        del batch.pending[key]
        if code is None and (after := row_after(write)) is not None:
            batch.results[key] = Done(lease=after)
        elif code == _FAILED_CONDITION and error.get("Item"):
            batch.results[key] = self._conflict(write, error["Item"], key in batch.doubtful)
        else:
            batch.single[key] = write
        return None

    def _conflict(
        self, write: Write, item: Mapping[str, AttributeValue], doubtful: bool
    ) -> Outcome | SspError:
        try:
            found = parse_lease(item, self._decode)
        except SspError as error:
            return error
        if doubtful and found is not None and is_applied(write, found):
            return Done(lease=found)
        return Conflict(found=found)


def _error_of(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "of a statement"}}, _BATCH_WRITE)


def _is_throttled(error: Exception) -> bool:
    return severity_of(error) is Severity.THROTTLE


def statement_of(table: str, write: Write) -> dict[str, Any]:
    """Return the statement of a write that changes a row. The answer to a failed condition
    contains the row."""
    change = to_update(write)
    if not isinstance(change, UpdateRow):
        raise TypeError(f"{type(write).__name__} is not an update")
    parameters: list[AttributeValue] = []
    parts = [f'UPDATE "{table}"']
    for name, value in change.sets.items():
        parts.append(f'SET "{name}"=?')
        parameters.append(value)
    for name, amount in change.adds.items():
        parts.append(f'SET "{name}"="{name}"+?')
        parameters.append({"N": str(amount)})
    parts += [f'REMOVE "{name}"' for name in change.removes]
    parts.append(f'WHERE "{Attribute.KEY.value}"=?')
    parameters.append(text(write.lease.key))
    for name, expected in change.expected.items():
        if expected is None:
            parts.append(f'AND "{name}" IS MISSING')
        else:
            parts.append(f'AND "{name}"=?')
            parameters.append(expected)
    return {
        "Statement": " ".join(parts),
        "Parameters": parameters,
        "ReturnValuesOnConditionCheckFailure": _ALL_OLD,
    }
