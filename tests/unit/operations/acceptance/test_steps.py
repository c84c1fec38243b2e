"""The acceptance on the embedded service without HTTP: what it proves, and that nothing is left.

Ctrl-C and faults come at every call and every wait; the clock waits in no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.operations.acceptance.account import Kind, Thing, deletion_command
from spark_ssp.operations.acceptance.queries import query_options
from spark_ssp.operations.acceptance.rules import Check
from spark_ssp.operations.acceptance.steps import Plan, Proof, Status, prove
from spark_ssp.operations.commands.acceptance import findings
from spark_ssp.testing.kinesis import Limits, UnusualAnswers
from spark_ssp.testing.kinesis.state.faults import (
    AccessDenied,
    Call,
    DelayVisibility,
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    FailSubscription,
    Fault,
    InternalFailure,
    LateShardEnd,
    LostReply,
    Refusal,
    RejectRecords,
    ShiftArrival,
    Throttle,
    TrimRecords,
)
from tests.support.leases.memory_store import MemoryLeaseStore
from tests.support.operations.in_process_account import DELAYS, InProcessAccount

NAME: Final = "trial"
WHOLE: Final = Plan(name=NAME, lease_table=True, fan_out=True)
RUNS: Final = 200


def run(world: InProcessAccount, plan: Plan = WHOLE) -> Proof:
    options = query_options(NAME, ConnectionOptions())
    return prove(plan, world.account, options, lambda _: None)


def statuses(proof: Proof) -> dict[Check, Status]:
    return {result.check: result.status for result in proof.results}


def test_everything_passes_and_nothing_is_left() -> None:
    world = InProcessAccount()
    proof = run(world)
    assert list(findings(proof)) == []
    assert proof.passed
    assert statuses(proof) == dict.fromkeys(Check, Status.PASSED)
    assert world.state.stream_names() == [], "it waits for the end of the deletion"
    assert world.left == set()
    assert proof.took_s < 600


def test_what_was_not_requested_is_not_made() -> None:
    events = Interruptions()
    world = InProcessAccount(disturb=events)
    proof = run(world, Plan(name=NAME))
    assert proof.passed
    assert world.state.calls.count("RegisterStreamConsumer") == 0
    assert [event for event in events.events if "Table" in event] == []
    absent = {
        Check.LEASES,
        Check.PUSHED,
        Check.PUSHED_END,
        Check.PUSHED_QUERY,
        Check.SECOND_SUBSCRIPTION,
    }
    assert set(statuses(proof)) == set(Check) - absent


def test_it_passes_within_the_limits_of_the_service() -> None:
    """Which refuse some calls: these are repeated."""
    world = InProcessAccount()
    world.state.set_limits(Limits.strict())
    assert run(world).passed


def test_other_streams_and_tables_are_not_touched() -> None:
    world = InProcessAccount()
    others = ("orders", f"{NAME}-absent-minded", f"{NAME}2")
    for name in others:
        world.state.create_stream(name)
    world.tables["orders"] = MemoryLeaseStore()
    assert run(world).passed
    assert world.left == set(others)
    assert [world.state.calls.count(stream=name) for name in others] == [0, 0, 0]


def test_answers_that_are_rare_and_allowed_pass() -> None:
    """Except the lag, which they leave at 0: the product does not rely on it."""
    world = InProcessAccount()
    world.state.answers = UnusualAnswers(empty_pages=2, late_shard_end=True, event_records=2)
    proof = run(world)
    assert list(findings(proof)) == []
    assert proof.passed


@pytest.mark.parametrize("fault", [LostReply(), DropConnection(), InternalFailure(), Throttle()])
def test_a_passing_fault_of_each_call_changes_nothing(fault: Fault) -> None:
    """Also of a put that is stored without an answer, or a reshard that takes effect."""
    world = InProcessAccount()
    run(world)
    for operation, calls in world.state.calls.by_operation().items():
        for nth in range(1, calls + 1, calls // 6 + 1):
            world = InProcessAccount()
            world.state.faults.add(fault, operation=operation, nth=nth)
            proof = run(world)
            found = list(findings(proof))
            assert found == [], (operation, nth)
            assert world.left == set()


# --- Deviations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "operation", "check"),
    [
        (ShiftArrival(shift_ms=-60_000), "PutRecord", Check.ARRIVALS),
        (TrimRecords(), "GetRecords", Check.RECORDS),
        (Refusal(code="ValidationException"), "GetRecords", Check.EXPIRED_ITERATOR),
        (FailSubscription(), "SubscribeToShard", Check.PUSHED_QUERY),
    ],
)
def test_a_deviation_fails_its_check(fault: Fault, operation: str, check: Check) -> None:
    world = InProcessAccount()
    from_ms = world.clock.now_ms() + (300_000 if check is Check.EXPIRED_ITERATOR else 0)
    world.state.faults.add(
        fault, operation=operation, when=lambda call: call.at_ms >= from_ms, count=None
    )
    proof = run(world)
    assert statuses(proof)[check] is Status.FAILED
    assert not proof.passed
    assert list(findings(proof))
    assert world.left == set()


def test_an_operation_that_the_service_lacks_is_not_supported() -> None:
    """And neither is what needs it; the rest is proven."""
    for operation, lacking in (
        (
            "UpdateStreamRecordDistributionStrategy",
            {Check.AUTO_SUMMARY, Check.AUTO_PLACEMENT, Check.AUTO_KEYLESS},
        ),
        (
            "RegisterStreamConsumer",
            {Check.PUSHED, Check.PUSHED_END, Check.PUSHED_QUERY, Check.SECOND_SUBSCRIPTION},
        ),
    ):
        world = InProcessAccount()
        fault = Refusal(code="UnknownOperationException")
        world.state.faults.add(fault, operation=operation, count=None)
        proof = run(world)
        found = {check for check, status in statuses(proof).items() if status != Status.PASSED}
        assert found == lacking
        assert {statuses(proof)[check] for check in lacking} == {Status.NOT_SUPPORTED}
        assert proof.passed
        assert world.left == set()


def test_a_step_that_is_denied_does_not_stop_the_others() -> None:
    world = InProcessAccount()
    world.state.faults.add(AccessDenied(), operation="SplitShard", count=None)
    proof = run(world)
    found = statuses(proof)
    assert "split: AccessDeniedException on SplitShard" in list(findings(proof))
    assert {found[check] for check in (Check.SPLIT, Check.MERGE, Check.PUSHED)} == {Status.NOT_RUN}
    assert {found[check] for check in (Check.QUERY, Check.LEASES)} == {Status.PASSED}
    assert not proof.passed
    assert world.left == set()


def test_a_stream_of_the_same_name_that_cannot_be_created_is_no_loop() -> None:
    world = InProcessAccount()
    world.state.faults.add(Refusal(code="LimitExceededException"), operation="CreateStream")
    world.state.faults.add(AccessDenied(), operation="CreateStream", count=None)
    proof = run(world)
    assert set(statuses(proof).values()) == {Status.NOT_RUN, Status.PASSED}
    assert proof.left == ()
    assert world.left == set()


# --- Nothing is left -----------------------------------------------------------------------------


class Interruptions:
    """Ctrl-C at the given events, counted from 0."""

    def __init__(self, *places: int) -> None:
        self._places = frozenset(places)
        self.events: list[str] = []

    def __call__(self, event: str) -> None:
        self.events.append(event)
        if len(self.events) - 1 in self._places:
            raise KeyboardInterrupt


def test_ctrl_c_at_any_moment_leaves_nothing() -> None:
    whole = Interruptions()
    run(InProcessAccount(disturb=whole))
    total = len(whole.events)
    assert total > RUNS
    changes = [n for n, event in enumerate(whole.events) if "Create" in event or "Delete" in event]
    deletes = next(n for n in changes if "Delete" in whole.events[n])
    for place in sorted({*range(0, total, total // RUNS + 1), *changes}):
        world = InProcessAccount(disturb=Interruptions(place))
        proof = run(world)
        where = f"Ctrl-C at {place}, {whole.events[place]}"
        assert proof.left == (), where
        assert world.left == set(), where
        assert proof.interrupted or place >= deletes, where


def test_ctrl_c_again_while_deleting_names_what_is_left() -> None:
    whole = Interruptions()
    run(InProcessAccount(disturb=whole))
    begin = whole.events.index("before DeleteTable")
    world = InProcessAccount(disturb=Interruptions(begin, begin + 1))
    proof = run(world)
    assert {left.thing for left in proof.left} == {Thing(kind=Kind.TABLE, name=NAME)}
    assert world.left == {NAME}
    assert not proof.passed
    assert world.state.stream_names() == [], "the rest is still deleted"


CODES: Final = (
    "InvalidArgumentException",
    "LimitExceededException",
    "ResourceInUseException",
    "ResourceNotFoundException",
    "UnknownOperationException",
    "ValidationException",
)
FAULTS: Final[tuple[Callable[[Random], Fault], ...]] = (
    lambda _: AccessDenied(),
    lambda _: DropConnection(),
    lambda _: EmptyPage(),
    lambda _: ExpiredIterator(),
    lambda _: InternalFailure(),
    lambda _: InternalFailure(status=503),
    lambda _: LateShardEnd(),
    lambda _: LostReply(),
    lambda _: RejectRecords(every=2),
    lambda _: Throttle(),
    lambda _: TrimRecords(),
    lambda random: DelayVisibility(delay_ms=random.randrange(30_000)),
    lambda random: FailSubscription(after_events=random.randrange(3)),
    lambda random: Refusal(code=random.choice(CODES)),
    lambda random: ShiftArrival(shift_ms=random.randrange(-9_000, 9_000)),
)
_DELETIONS: Final = frozenset({"DeleteStream", "DescribeStreamSummary"})


def _inject(world: InProcessAccount, random: Random) -> None:
    """Add faults from random calls on. One at the deletion passes, and is no denial: what lasts is
    another test's."""
    begins = random.randrange(160)
    for _ in range(random.choice((1, 1, 2, 4))):
        fault = random.choice(FAULTS)(random)
        lasts = not isinstance(fault, AccessDenied | Refusal)

        def due(call: Call, lasts: bool = lasts, begin: int = begins) -> bool:
            late = world.state.calls.count() > begin
            return late and (lasts or call.operation not in _DELETIONS)

        count = random.choice((1, 1, 3, 20))
        world.state.faults.add(fault, when=due, count=count)
        begins += random.randrange(40)


@pytest.mark.parametrize("part", range(4))
def test_faults_at_any_call_leave_nothing(part: int) -> None:
    for seed in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        random = Random(seed)
        places = [random.randrange(600)] if random.random() < 0.25 else []
        world = InProcessAccount(disturb=Interruptions(*places), seed=seed)
        _inject(world, random)
        proof = run(world)
        assert proof.left == (), seed
        assert world.left == set(), seed


@pytest.mark.parametrize("operation", ["CreateStream", "DeleteStream"])
@pytest.mark.parametrize("fault", [LostReply(), DropConnection(), InternalFailure(), Throttle()])
def test_a_change_without_an_answer_is_known(operation: str, fault: Fault) -> None:
    """Also one that takes effect after all attempts have failed."""
    for count in (1, 3, 4):
        world = InProcessAccount()
        world.state.faults.add(fault, operation=operation, count=count)
        proof = run(world, Plan(name=NAME))
        assert proof.left == (), count
        assert world.left == set(), count


def test_a_stream_that_appears_late_is_deleted() -> None:
    """Its creation had no answer, and took effect after the attempts."""
    appears_ms: list[int] = []

    def disturb(event: str) -> None:
        if event == "before CreateStream" and not appears_ms:
            appears_ms.append(world.clock.now_ms() + 10_000)
        if appears_ms and world.clock.now_ms() >= appears_ms[0] and not world.created:
            world.created = True
            world.state.create_stream(NAME)

    world = LateWorld(disturb=disturb)
    world.state.faults.add(AccessDenied(), operation="CreateStream", count=None)
    proof = run(world, Plan(name=NAME))
    assert world.created
    assert proof.left == ()
    assert world.left == set()


class LateWorld(InProcessAccount):
    """An account in which a stream is created late."""

    created = False


def test_what_cannot_be_deleted_is_named_with_its_command() -> None:
    world = InProcessAccount()
    world.state.faults.add(AccessDenied(), operation="DeleteStream", count=None)
    world.table_codes["DeleteTable"] = "AccessDeniedException"
    proof = run(world)
    assert {left.thing for left in proof.left} == set(WHOLE.things)
    assert {left.reason for left in proof.left} == {
        "AccessDeniedException on DeleteStream",
        "AccessDeniedException on DeleteTable",
    }
    assert not proof.passed
    assert [deletion_command(thing, "--region r") for thing in WHOLE.things] == [
        f"aws kinesis delete-stream --stream-name {NAME} --enforce-consumer-deletion --region r",
        f"aws dynamodb delete-table --table-name {NAME} --region r",
    ]


def test_a_service_that_is_gone_at_the_end_is_waited_for_and_named() -> None:
    world = InProcessAccount()
    world.state.faults.add(DropConnection(), operation="DeleteStream", count=None)
    proof = run(world, Plan(name=NAME))
    (left,) = proof.left
    assert left.reason == "ConnectionClosedError, after 5 min"


def test_a_deletion_that_does_not_end_is_named() -> None:
    world = InProcessAccount(delays=replace(DELAYS, delete_ms=3_600_000))
    proof = run(world, Plan(name=NAME))
    (left,) = proof.left
    assert left.reason == "it still exists, after 5 min"


def test_a_deletion_that_cannot_be_watched_has_taken_place() -> None:
    world = InProcessAccount()
    deleted = world.state.calls

    def due(call: Call) -> bool:
        return call.operation == "DescribeStreamSummary" and deleted.count("DeleteStream") > 0

    world.state.faults.add(AccessDenied(), when=due, count=None)
    assert run(world).passed
    assert world.left == set()


def test_an_answer_that_cannot_be_read_ends_a_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InProcessAccount()
    whole = world.account.kinesis.call

    def call(operation: str, request: Mapping[str, Any], *, retry: bool = True) -> Any:
        answer = whole(operation, request, retry=retry)
        return {} if operation == "UpdateStreamMode" or operation == "PutRecords" else answer

    monkeypatch.setattr(type(world.account.kinesis), "call", staticmethod(call))
    proof = run(world)
    assert any("KeyError" in text for text in findings(proof))
    assert "'Records'" not in "".join(findings(proof))
    assert world.left == set()
