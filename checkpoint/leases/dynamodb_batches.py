"""Writes of many leases by one call: PartiQL's `BatchExecuteStatement`.

Each statement of a batch has its own condition and result, and the cost of the same `UpdateItem`.
A batch saves the work around a call, most of the processor time of a worker with thousands of
leases. Its answer has no new rows, so only writes are batched that determine them.

It needs dynamodb:PartiQLUpdate and is missing in some emulators; moto 5.2 reports statements as
done whose conditions fail. So the first batch is preceded by one whose conditions fail: if it is
not answered so, all writes are made one at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from botocore.exceptions import ClientError

from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    Done,
    Outcome,
    Renew,
    UpdateRow,
    Write,
    determines_row,
    is_applied,
    row_after,
    to_update,
)
from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls, may_have_applied
from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Lease,
    LeaseKey,
    StartAtTrimHorizon,
)
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, text
from spark_ssp.checkpoint.leases.lease_store import Decode, parse_lease
from spark_ssp.common.aws.error_translation import (
    MalformedAnswerError,
    Severity,
    code_of,
    severity_of,
)
from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import ShardId, WorkerId

_log = logging.getLogger(__name__)

BATCH_SIZE: Final = 25
"""The maximum number of statements (API reference, BatchExecuteStatement)."""
_OPERATION: Final = "BatchExecuteStatement"
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
"""A service that answers as many with errors of its own is taken for one without batches."""

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
    """Batches of one table. Thread-safe."""

    def __init__(self, calls: DynamoDbCalls, table: str, decode: Decode, singly: Singly) -> None:
        self._calls = calls
        self._table = table
        self._decode = decode
        self._singly = singly
        self._lock = threading.Lock()
        self._is_proven = False
        self._failed_probes = 0
        # A statement names a table by its name. An ARN has colons, which no name has.
        self.size = 1 if ":" in table else BATCH_SIZE

    def write(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        """Make writes of different rows; return their results in order. Raises nothing."""
        batch = _Batch({write.lease.key: write for write in writes if determines_row(write)})
        batch.single = {write.lease.key: write for write in writes if not determines_row(write)}
        try:
            if batch.pending:
                self._prove()
                self._calls.patiently(_OPERATION, lambda: self._attempt(batch))
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
                codes = self._calls.patiently(_OPERATION, lambda: self._probe(last))
            except SspError:
                if not isinstance(last[-1], ClientError) or _is_throttled(last[-1]):
                    raise
                self._failed_probes += 1
                code = code_of(last[-1])
                if code in _REFUSALS or self._failed_probes == _MOST_FAILED_PROBES:
                    raise _RefusedError(code) from None
                raise _UnprovenError(code) from None
            if any(code != _FAILED_CONDITION for code in codes):
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
            answers = self._calls.once(_OPERATION, request).get("Responses", ())
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
            answers = self._calls.once(_OPERATION, request).get("Responses", ())
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
    return ClientError({"Error": {"Code": code, "Message": "of a statement"}}, _OPERATION)


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
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
