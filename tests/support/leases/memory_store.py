"""The lease table in memory: a twin of the DynamoDB one, for tests and simulations. It stores rows
in the API's form and applies the same changes of attributes under the same conditions. Faults are
injected per attempt, so that retries and lost replies occur here too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

from spark_ssp.checkpoint.leases.conditional_writes import (
    Conflict,
    DeleteRow,
    Done,
    Outcome,
    PutRow,
    RowChange,
    UpdateRow,
    Write,
    reconcile,
    to_update,
)
from spark_ssp.checkpoint.leases.lease import AttributeValue, Item, LeaseTableError
from spark_ssp.checkpoint.leases.lease_serializer import Attribute, number
from spark_ssp.checkpoint.leases.lease_store import Rows, parse_lease, parse_rows
from spark_ssp.common.aws.error_translation import Severity
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, RetrySettings
from spark_ssp.common.errors import ServiceUnavailableError, SspError

T = TypeVar("T")


class Fault(StrEnum):
    """A fault of one attempt."""

    THROTTLED = "throttled"
    """Rejected; nothing was written."""
    UNAVAILABLE = "unavailable"
    """An error; nothing was written, which the caller cannot know."""
    REPLY_LOST = "reply-lost"
    """Applied, followed by an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One attempt, as passed to fault injectors."""

    operation: str
    """`Scan` or the write's class."""
    write: Write | None = None


class _InjectedError(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


DEFAULT_RETRY: Final = RetrySettings(max_attempts=8, max_backoff=10.0)


class MemoryLeaseStore:
    """`LeaseStore` in memory. `sleep` is in seconds, `random` uniform in [0, 1)."""

    def __init__(
        self,
        items: Iterable[Item] = (),
        *,
        faults: Callable[[Call], Fault | None] = lambda call: None,
        retry: RetrySettings = DEFAULT_RETRY,
        sleep: Callable[[float], None] = lambda seconds: None,
        random: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`faults` is called before each attempt."""
        self._lock = threading.Lock()
        self._items: dict[str, dict[str, Any]] = {}
        self._faults = faults
        self._retrier = Retrier(
            retry,
            log=RetryLog(lambda: 0.0),
            sleep=sleep,
            random=random,
            severity_of=_severity_of,
        )
        for item in items:
            self.put_item(item)

    # --- Rows ------------------------------------------------------------------------------------

    def put_item(self, item: Item) -> None:
        """Write a row unconditionally, as another program."""
        with self._lock:
            self._items[item[Attribute.KEY]["S"]] = deepcopy(
                {name: dict(value) for name, value in item.items()}
            )

    def remove_item(self, key: str) -> None:
        """Delete a row unconditionally, as another program."""
        with self._lock:
            self._items.pop(key, None)

    def items(self) -> tuple[Item, ...]:
        """Return all rows by key."""
        with self._lock:
            return tuple(deepcopy(self._items[key]) for key in sorted(self._items))

    # --- LeaseStore ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do nothing: the table exists."""

    def scan(self) -> Rows:
        """Return all rows."""
        return parse_rows(self._run(Call(operation="Scan"), self._all_items))

    def write(self, write: Write) -> Outcome:
        """Apply a write if its condition holds."""
        call = Call(operation=type(write).__name__, write=write)

        def attempt() -> Outcome:
            return self._attempt(call, lambda: self._apply(write))

        return reconcile(
            write,
            attempt,
            retrying=lambda once: self._retried(call, once),
            may_have_applied=lambda error: _severity_of(error) is Severity.FAULT,
        )

    @property
    def batch_size(self) -> int:
        """Return DynamoDB's."""
        return 25

    def write_all(self, writes: Sequence[Write]) -> list[Outcome | SspError]:
        """Apply one write after the other."""
        return [self._result(write) for write in writes]

    def _result(self, write: Write) -> Outcome | SspError:
        try:
            return self.write(write)
        except SspError as error:
            return error

    def close(self) -> None:
        """Do nothing."""

    # --- One call --------------------------------------------------------------------------------

    def _run(self, call: Call, action: Callable[[], T]) -> T:
        return self._retried(call, lambda: self._attempt(call, action))

    def _retried(self, call: Call, once: Callable[[], T]) -> T:
        try:
            return self._retrier.run(once, operation=call.operation, subject="leases in memory")
        except _InjectedError as error:
            raise ServiceUnavailableError(
                "leases in memory",
                found=f"{error.fault} on {call.operation}, {self._retrier.max_attempts} times",
                expected="an attempt without a fault",
                next_step="inject fewer faults",
            ) from None

    def _attempt(self, call: Call, action: Callable[[], T]) -> T:
        fault = self._faults(call)
        if fault in (Fault.THROTTLED, Fault.UNAVAILABLE):
            raise _InjectedError(fault)
        with self._lock:
            result = action()
        if fault is Fault.REPLY_LOST:
            raise _InjectedError(fault)
        return result

    def _all_items(self) -> list[Item]:
        return [deepcopy(item) for item in self._items.values()]

    def _apply(self, write: Write) -> Outcome:
        key = write.lease.key
        old = self._items.get(key)
        change = to_update(write)
        if not permits(change, old):
            return Conflict(found=parse_lease(deepcopy(old)))
        new = changed(change, old)
        if new is None:
            self._items.pop(key, None)
            return Done(lease=write.lease)
        self._items[key] = new
        lease = parse_lease(deepcopy(new))
        return Done(lease=write.lease if lease is None else lease)


def _severity_of(error: Exception) -> Severity:
    if not isinstance(error, _InjectedError):
        return Severity.PERMANENT
    return Severity.THROTTLE if error.fault is Fault.THROTTLED else Severity.FAULT


# --- Changes as in DynamoDB ----------------------------------------------------------------------


def permits(change: RowChange, old: Mapping[str, AttributeValue] | None) -> bool:
    """Return whether the row meets the change's conditions."""
    match change:
        case PutRow():
            return old is None
        case UpdateRow(expected=expected):
            return old is not None and all(
                _same(old.get(name), value) for name, value in expected.items()
            )
        case DeleteRow():
            return True


def changed(
    change: RowChange, old: Mapping[str, AttributeValue] | None
) -> dict[str, AttributeValue] | None:
    """Return the row after a permitted change; None after its deletion."""
    match change:
        case PutRow(item=item):
            return deepcopy(dict(item))
        case UpdateRow(sets=sets, adds=adds, removes=removes):
            new = {name: value for name, value in (old or {}).items() if name not in removes}
            new |= deepcopy(dict(sets))
            for name, amount in adds.items():
                before = new.get(name, {"N": "0"})
                if "N" not in before:
                    raise _validation_error(name)
                new[name] = number(int(before["N"]) + amount)
            return new
        case DeleteRow():
            return None


def _validation_error(name: str) -> LeaseTableError:
    return LeaseTableError(
        "leases in memory",
        found=f"an ADD to {name}, which is no number",
        expected="a number",
        next_step="restore the row",
    )


def _same(found: AttributeValue | None, expected: AttributeValue | None) -> bool:
    if found is None or expected is None:
        return found is expected
    if "N" in found and "N" in expected:
        return Decimal(found["N"]) == Decimal(expected["N"])
    return found == expected
