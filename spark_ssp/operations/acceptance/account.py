"""The calls of `spark-ssp acceptance` to an account, and the deletion of everything that it made.

Each name is noted before the call that creates it, so that an answer that was lost, an error or
Ctrl-C at any moment leaves nothing that is not known. A name has sixteen random digits, so only
things that were made here have it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from spark_ssp.checkpoint.leases.kcl_tables import connect_tables
from spark_ssp.checkpoint.leases.lease_store import LeaseStore, TableSettings
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import code_of
from spark_ssp.common.aws.service_calls import (
    Retrier,
    RetryLog,
    RetrySettings,
    ServiceCalls,
    retry_settings,
)
from spark_ssp.common.errors import SspError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.times import seconds_text
from spark_ssp.kinesis_source.client.api import KinesisService, Subscriber
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.kinesis_source.client.messages import register_exact_times
from spark_ssp.kinesis_source.client.subscriptions import open_subscriber

NOT_OFFERED: Final = frozenset(
    {
        "404",
        "501",
        "InvalidAction",
        "NotImplemented",
        "NotImplementedException",
        "ParamValidationError",
        "UnknownOperation",
        "UnknownOperationException",
    }
)
"""Codes of a service, or an SDK, that lacks an operation or a parameter."""

_DELETED_WITHIN_S: Final = 300.0
_APPEARS_WITHIN_S: Final = 30.0
"""The time after which a creation whose answer was lost has come into effect, or never will."""
_POLL_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call that was not answered: the code of the service's error, or the name of the SDK's."""

    code: str


class Calls(Protocol):
    """Calls of one service."""

    def call(
        self, operation: str, request: Mapping[str, Any], *, retry: bool = True
    ) -> Mapping[str, Any] | Refusal:
        """Return the answer, or the last refusal. Transient faults are retried, unless an attempt
        could take effect twice (`retry=False`)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The services of one account in one region, and this machine's clock."""

    kinesis: Calls
    dynamodb: Calls
    reader: KinesisService
    """The client of queries."""
    open_leases: Callable[[str], LeaseStore]
    """Returns the lease table of this name, which `prepare` creates."""
    open_subscriber: Callable[[int], Subscriber]
    """Returns a subscriber with this window, in bytes."""
    monotonic: Callable[[], float]
    """In seconds."""
    sleep: Callable[[float], None]
    random: Callable[[], float]
    """Uniform in [0, 1)."""


def connect_account(
    kinesis: ConnectionOptions,
    dynamodb: ConnectionOptions,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> Account:
    """Return the account of these connections; nothing is called. Raises AccessError without
    credentials."""
    client = create_client("kinesis", kinesis)
    register_exact_times(client.meta.events)

    def open_leases(name: str) -> LeaseStore:
        return connect_tables(name, TableSettings(name=name), dynamodb, retry_settings(dynamodb))[0]

    return Account(
        kinesis=ServiceAccount(client, retry_settings(kinesis), "Kinesis"),
        dynamodb=ServiceAccount(
            create_client("dynamodb", dynamodb, endpoint_option="dynamodbEndpointUrl"),
            retry_settings(dynamodb),
            "DynamoDB",
        ),
        reader=connect(kinesis),
        open_leases=open_leases,
        open_subscriber=lambda window: open_subscriber(kinesis, window=window),
        monotonic=monotonic,
        sleep=sleep,
        random=random.random,
    )


class RefusedError(SspError):
    """A call was refused, with the service's code: see the report of the acceptance."""

    kind = "refused"
    code: str = ""
    """Lost by pickling."""


def refused(operation: str, code: str) -> RefusedError:
    """Return the error of a call that was refused with this code."""
    error = RefusedError(
        operation,
        found=code,
        expected="an answer",
        next_step="see the report of the acceptance",
    )
    error.code = code
    return error


class ServiceAccount:
    """`Calls` on a client of the SDK, which must have botocore's retries off."""

    def __init__(self, client: Any, retry: RetrySettings, subject: str) -> None:
        log = RetryLog(time.monotonic)
        self._patient = _Calls(client, Retrier(retry, log=log), subject=subject)
        once = RetrySettings(max_attempts=1, max_backoff=0.0)
        self._single = _Calls(client, Retrier(once, log=log), subject=subject)
        self._operations = frozenset(client.meta.service_model.operation_names)

    def call(
        self, operation: str, request: Mapping[str, Any], *, retry: bool = True
    ) -> Mapping[str, Any] | Refusal:
        """As `Calls.call`."""
        if operation not in self._operations:
            return Refusal(code="UnknownOperation")
        try:
            return (self._patient if retry else self._single).ask(operation, request)
        except RefusedError as error:
            return Refusal(code=error.code)


class _Calls(ServiceCalls):
    def _translated(self, error: Exception, operation: str) -> SspError:
        return refused(operation, code_of(error))


# --- Things that were made -----------------------------------------------------------------------


class Kind(StrEnum):
    """The kinds of things that are deleted. A consumer is deleted with its stream."""

    STREAM = "stream"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A stream or a table that was made, or may have been."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A thing that could not be deleted."""

    thing: Thing
    reason: str


def deletion_command(thing: Thing, options: str) -> str:
    """Return the command of the AWS CLI that deletes a thing; `options` are those of the
    connection."""
    if thing.kind is Kind.STREAM:
        command = (
            f"aws kinesis delete-stream --stream-name {thing.name} --enforce-consumer-deletion"
        )
    else:
        command = f"aws dynamodb delete-table --table-name {thing.name}"
    return f"{command} {options}".rstrip()


class Ledger:
    """The things that were made, until they are deleted. Used by one thread."""

    def __init__(self, account: Account, say: Callable[[str], None]) -> None:
        self._account = account
        self._say = say
        self._made: dict[Thing, float] = {}
        self._confirmed: set[Thing] = set()
        self._left: list[LeftBehind] = []

    def note(self, thing: Thing) -> None:
        """Note a thing before the call that creates it."""
        self._made[thing] = self._account.monotonic()

    def confirm(self, thing: Thing) -> None:
        """Note that a thing exists: once it is not found, it is deleted."""
        self._confirmed.add(thing)

    def delete_all(self) -> tuple[LeftBehind, ...]:
        """Delete everything, newest first; return the rest. Ctrl-C does not stop this before
        it is pressed again. Calling it again is safe."""
        presses = 0
        while self._made:
            thing = list(self._made)[-1]
            try:
                self._say(f"deleting {thing.kind} {thing.name}")
                reason = self._delete(thing)
            except KeyboardInterrupt:
                presses += 1
                if presses == 1:
                    self._say("still deleting: press Ctrl-C again to leave the rest")
                    continue
                reason = "the deletion was stopped by Ctrl-C"
            if reason is not None:
                self._left.append(LeftBehind(thing=thing, reason=reason))
            del self._made[thing]
        return tuple(self._left)

    def _delete(self, thing: Thing) -> str | None:
        """Delete a thing and wait until it is gone; return why it may not be."""
        account = self._account
        deadline = account.monotonic() + _DELETED_WITHIN_S
        accepted = False
        while True:
            code = self._code(*_DELETE[thing.kind], thing, accepted=accepted)
            if code == "ResourceNotFoundException":
                settled = self._made[thing] + _APPEARS_WITHIN_S
                if accepted or thing in self._confirmed or account.monotonic() >= settled:
                    return None
            elif code is None:
                accepted = True
            elif accepted and code in _DENIED:
                return None  # the service deletes it: only that cannot be watched
            if account.monotonic() >= deadline:
                waited = seconds_text(_DELETED_WITHIN_S)
                return f"{code or 'it still exists'}, after {waited}"
            if code in _DENIED:
                return f"{code} on {_DELETE[thing.kind][0]}"
            account.sleep(_POLL_S)

    def _code(
        self, delete: str, describe: str, field: str, thing: Thing, *, accepted: bool
    ) -> str | None:
        request: dict[str, Any] = {field: thing.name}
        if thing.kind is Kind.STREAM and not accepted:
            request["EnforceConsumerDeletion"] = True
        calls = self._account.kinesis if thing.kind is Kind.STREAM else self._account.dynamodb
        answer = calls.call(describe if accepted else delete, request)
        return answer.code if isinstance(answer, Refusal) else None


_DELETE: Final = {
    Kind.STREAM: ("DeleteStream", "DescribeStreamSummary", "StreamName"),
    Kind.TABLE: ("DeleteTable", "DescribeTable", "TableName"),
}
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException"})
