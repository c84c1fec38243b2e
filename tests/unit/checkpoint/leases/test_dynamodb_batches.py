"""Batches of writes under drawn faults: a write reported done was made once, one reported a
conflict was not made, and where batches are refused the writes are made one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    Done,
    Outcome,
    Renew,
    RequestHandoff,
    Write,
    is_applied,
)
from spark_ssp.checkpoint.leases.dynamodb_store import BATCH_SIZE, BatchWriter, statement_of
from spark_ssp.checkpoint.leases.lease import LeaseKey
from spark_ssp.checkpoint.leases.lease_serializer import decode, encode
from spark_ssp.common.errors import ServiceUnavailableError
from tests.support.leases.values import ANNE, BERT, lease, processed

ATTEMPTS = 3
KEYS = [LeaseKey(f"shardId-{number:012d}") for number in range(4)]
OF_STATEMENTS = [
    None,
    None,
    None,
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
    "InternalServerError",
    "InternalServerError, done",
    "ValidationError",
    "AccessDenied",
]
OF_CALLS = [None, None, None, "lost", "lost, done", "ThrottlingException"]


def error(code: str, status: int = 400) -> ClientError:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "BatchExecuteStatement")


@dataclass(kw_only=True)
class Service:
    """The calls of a table whose rows are counters of leases of one owner."""

    counters: dict[str, int]
    draw: Callable[[list[Any]], Any] = lambda options: options[0]
    refusal: Exception | None = None
    probed: tuple[str | None, ...] = ("ConditionalCheckFailed",) * 2
    written: dict[str, int] = field(default_factory=dict)
    singles: list[LeaseKey] = field(default_factory=list)
    calls: int = 0
    location: Any = field(default_factory=lambda: SimpleNamespace(subject="lease table orders"))

    def patiently(self, operation: str, function: Callable[[], None]) -> None:
        for attempt in range(ATTEMPTS):
            try:
                return function()
            except ClientError:
                if attempt == ATTEMPTS - 1:
                    raise unavailable() from None
        return None

    def once(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls += 1
        if self.refusal is not None:
            raise self.refusal
        if "spark-ssp-probe-1" in str(request):
            return {
                "Responses": [{"Error": {"Code": code}} if code else {} for code in self.probed]
            }
        fault = self.draw(OF_CALLS)
        if fault == "lost":
            raise error("InternalServerError", 500)
        if fault == "ThrottlingException":
            raise error(fault)
        answers = [self._state(statement) for statement in request["Statements"]]
        if fault is not None:
            raise error("InternalServerError", 500)
        return {"Responses": answers}

    def _state(self, statement: Mapping[str, Any]) -> dict[str, Any]:
        fault = self.draw(OF_STATEMENTS)
        key = next(v["S"] for v in statement["Parameters"] if v.get("S", "").startswith("shardId"))
        counters = [int(v["N"]) for v in statement["Parameters"] if "N" in v]
        if fault in (None, "InternalServerError, done"):
            if self.counters.get(key) != counters[-1]:
                fault = fault or "ConditionalCheckFailed"
            else:
                self._raise(key)
        if fault is None:
            return {}
        item = encode(lease(key, counter=self.counters[key], owner=ANNE, ssp_owner=ANNE))
        found = {"Item": item} if fault == "ConditionalCheckFailed" else {}
        return {"Error": {"Code": fault.partition(",")[0], **found}}

    def singly(self, write: Write, doubtful: bool) -> Outcome:
        key = write.lease.key
        self.singles.append(key)
        found = lease(key, counter=self.counters[key], owner=ANNE, ssp_owner=ANNE)
        if self.counters[key] != write.lease.counter:
            applied = doubtful and is_applied(write, found)
            return Done(lease=found) if applied else Conflict(found=found)
        self._raise(key)
        return Done(lease=replace(write.lease, counter=self.counters[key]))

    def _raise(self, key: str) -> None:
        self.counters[key] += 1
        self.written[key] = self.written.get(key, 0) + 1

    def writer(self) -> BatchWriter:
        return BatchWriter(cast("Any", self), "orders", decode, self.singly)


def unavailable() -> ServiceUnavailableError:
    return ServiceUnavailableError("x", found="y", expected="z", next_step="w")


def renewal(key: str, counter: int = 7) -> Renew:
    return Renew(lease=lease(key, counter=counter, owner=ANNE, ssp_owner=ANNE))


@given(data=st.data(), current=st.lists(st.booleans(), min_size=4, max_size=4))
def test_each_write_is_answered_by_what_became_of_it(
    data: st.DataObject, current: list[bool]
) -> None:
    service = Service(
        counters={key: 7 if fits else 9 for key, fits in zip(KEYS, current, strict=True)},
        draw=lambda options: data.draw(st.sampled_from(options)),
    )
    outcomes = service.writer().write([renewal(key) for key in KEYS])
    for key, fits, outcome in zip(KEYS, current, outcomes, strict=True):
        times = service.written.get(key, 0)
        assert times <= fits
        match outcome:
            case Done(lease=row):
                assert times == 1
                assert (row.key, row.counter) == (key, 8)
            case Conflict(found=found):
                assert times == 0
                assert found is not None
                assert found.counter == 9
            case failed:
                assert isinstance(failed, ServiceUnavailableError)


@pytest.mark.parametrize(
    "refusal",
    [
        error("AccessDeniedException"),
        error("UnknownOperationException"),
        error("ValidationException"),
    ],
)
def test_where_batches_are_refused_each_write_is_made_alone(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(counters=dict.fromkeys(KEYS, 7), refusal=refusal)
    writer = service.writer()
    assert writer.size == BATCH_SIZE
    outcomes = writer.write([renewal(key) for key in KEYS])
    assert [type(outcome) for outcome in outcomes] == [Done] * len(KEYS)
    assert service.singles == KEYS
    assert writer.size == 1
    (warning,) = caplog.records
    assert "dynamodb:PartiQLUpdate" in warning.getMessage()


def test_a_fault_of_the_probe_disables_batches_only_if_it_stays() -> None:
    service = Service(counters=dict.fromkeys(KEYS, 7), refusal=error("InternalFailure", 500))
    writer = service.writer()
    sizes = []
    for counter in range(7, 10):
        outcomes = writer.write([renewal(key, counter) for key in KEYS])
        assert [type(outcome) for outcome in outcomes] == [Done] * len(KEYS)
        sizes.append(writer.size)
    assert sizes == [BATCH_SIZE, BATCH_SIZE, 1]


def test_a_service_that_ignores_conditions_gets_no_batch() -> None:
    failed = "ConditionalCheckFailed"
    for probed in ((None, None), (failed, None), ("ValidationError",) * 2, (), (failed,)):
        service = Service(counters=dict.fromkeys(KEYS, 9), probed=probed)
        writer = service.writer()
        outcomes = writer.write([renewal(key) for key in KEYS])
        assert [type(outcome) for outcome in outcomes] == [Conflict] * len(KEYS)
        assert (service.singles, service.calls, writer.size) == (KEYS, 1, 1)


def test_a_write_that_does_not_determine_its_row_is_made_alone() -> None:
    service = Service(counters=dict.fromkeys(KEYS, 7))
    request = RequestHandoff(lease=renewal(KEYS[0]).lease, to=BERT)
    outcomes = service.writer().write([request, renewal(KEYS[1])])
    assert [type(outcome) for outcome in outcomes] == [Done, Done]
    assert service.singles == [KEYS[0]]


def test_a_statement_has_the_condition_and_the_changes() -> None:
    row = lease(KEYS[0], counter=7, owner=ANNE, ssp_owner=ANNE, progress=processed(1))
    assert statement_of("orders", Renew(lease=row)) == {
        "Statement": 'UPDATE "orders" SET "leaseCounter"=? WHERE "leaseKey"=? '
        'AND "leaseCounter"=? AND "checkpointOwner" IS MISSING',
        "Parameters": [{"N": "8"}, {"S": KEYS[0]}, {"N": "7"}],
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    checkpoint = statement_of("orders", Checkpoint(lease=row, progress=processed(2)))
    assert 'REMOVE "pendingCheckpoint" ' in checkpoint["Statement"]
