"""What only the store in memory has: faults by call, and a table that may be missing."""

from __future__ import annotations

import pytest

from spark_ssp.checkpoint.errors import LeaseTableError
from spark_ssp.checkpoint.leases.conditional_writes import Create, Done, Renew
from spark_ssp.common.aws.retries import RetrySettings
from spark_ssp.common.errors import ServiceUnavailableError
from tests.support.leases.memory_store import Call, Fault, MemoryLeaseStore
from tests.support.leases.values import ANNE, lease

MINE = lease(counter=1, owner=ANNE)


def test_a_table_that_was_not_prepared_is_missing() -> None:
    store = MemoryLeaseStore(prepared=False)
    with pytest.raises(LeaseTableError, match="no such table"):
        store.scan()
    store.prepare()
    assert store.scan().leases == ()


def test_a_fault_is_chosen_by_the_call() -> None:
    """A partition: renewals fail, everything else goes on."""

    def faults(call: Call) -> Fault | None:
        return Fault.UNAVAILABLE if isinstance(call.write, Renew) else None

    store = MemoryLeaseStore(faults=faults, retry=RetrySettings(max_attempts=2, max_backoff=1.0))
    assert store.write(Create(lease=MINE)) == Done(lease=MINE)
    with pytest.raises(ServiceUnavailableError, match="unavailable on Renew, 2 times"):
        store.write(Renew(lease=MINE))
    assert store.scan().leases == (MINE,)


def test_waits_are_slept_and_drawn_from_outside() -> None:
    slept: list[float] = []
    faults = iter([Fault.THROTTLED, Fault.UNAVAILABLE, None])
    store = MemoryLeaseStore(
        faults=lambda call: next(faults), sleep=slept.append, random=lambda: 0.5
    )
    assert store.write(Create(lease=MINE)) == Done(lease=MINE)
    assert slept == [0.25, 0.2]


def test_rows_handed_out_are_copies() -> None:
    store = MemoryLeaseStore()
    store.put_item({"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}})
    (item,) = store.items()
    item["leaseKey"]["S"] = "other"  # type: ignore[index]
    (row,) = store.scan().foreign
    assert row.key == "Leader"
