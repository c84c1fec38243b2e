"""The store in memory does what DynamoDB does, write by write, whatever the writers have seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ssp.checkpoint.leases.conditional_writes import (
    Assign,
    Checkpoint,
    Conflict,
    Create,
    Delete,
    Done,
    Evict,
    Renew,
    RequestHandoff,
    SetChildren,
    Take,
    Write,
)
from spark_ssp.checkpoint.leases.lease import Lease, ShardEnded, is_forward
from spark_ssp.grouping.identifiers import ShardId, WorkerId
from tests.support.leases.stores import Maker, Table, in_memory
from tests.support.leases.values import ANNE, BERT, CARL, alike, lease, processed
from tests.support.simulation.effort import AMOUNT

# On first use DynamoDB Local is fetched.
pytestmark = pytest.mark.timeout(1200)

SHARDS = [ShardId("shardId-000000000001"), ShardId("shardId-000000000002")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What somebody does, on a lease that was seen `ago` outcomes before."""

    kind: type
    shard: ShardId
    worker: WorkerId
    ago: int
    sequence_number: int


steps = st.builds(
    Step,
    kind=st.sampled_from(
        [
            Assign,
            Checkpoint,
            Create,
            Delete,
            Evict,
            Renew,
            Renew,
            RequestHandoff,
            RequestHandoff,
            SetChildren,
            Take,
        ]
    ),
    shard=st.sampled_from([*SHARDS, SHARDS[0], SHARDS[0]]),
    worker=st.sampled_from([ANNE, BERT, CARL]),
    ago=st.sampled_from([0, 0, 1, 2]),
    sequence_number=st.integers(1, 5),
)


def write_of(step: Step, seen: Lease) -> Write:
    """The write, or a renewal or take where it would make no sense."""
    held = seen.holder is not None
    if step.kind is Create:
        return Create(lease=lease(step.shard, parents=(SHARDS[0],), hash_range=None))
    if step.kind is Checkpoint and held:
        wanted = processed(step.sequence_number) if step.sequence_number < 5 else ShardEnded()
        further = is_forward(seen.progress, wanted)
        return Checkpoint(lease=seen, progress=wanted if further else seen.progress)
    if step.kind is RequestHandoff and seen.owner not in (None, step.worker):
        if not seen.is_in_handoff:
            return RequestHandoff(lease=seen, to=step.worker)
        return Evict(lease=seen)
    if step.kind is SetChildren:
        return SetChildren(lease=seen, children=(ShardId("shardId-000000000009"),))
    if step.kind is Renew and held:
        return Renew(lease=seen, throughput_kbps=float(step.sequence_number))
    if step.kind in (Evict, Delete):
        own = step.sequence_number > 3
        return Evict(lease=seen, check_counter=own) if step.kind is Evict else Delete(lease=seen)
    return (
        Assign(lease=seen, owner=step.worker, check_counter=step.sequence_number > 3)
        if step.kind is Assign
        else Take(lease=seen, owner=step.worker)
    )


def seen_in(outcome: Done | Conflict) -> Lease | None:
    return outcome.lease if isinstance(outcome, Done) else outcome.found


def play(
    real: Table,
    twin: Table,
    history: list[Step],
    write_to_real: Callable[[Write], object],
    comparable: Callable[[object], object] = lambda outcome: outcome,
) -> None:
    """The same writes on both, each with a row that was seen before; equal outcomes, equal rows."""
    first = lease(SHARDS[0], counter=3, owner=ANNE)
    for table in (real, twin):
        table.store.write(Create(lease=first))
    seen: dict[ShardId, list[Lease]] = {SHARDS[0]: [first], SHARDS[1]: [lease(SHARDS[1])]}
    for step in history:
        known = seen[step.shard]
        write = write_of(step, known[max(0, len(known) - 1 - step.ago)])
        outcome = twin.store.write(write)
        assert comparable(write_to_real(write)) == comparable(outcome)
        found = seen_in(outcome)
        if found is not None:
            known.append(found)
    assert [alike(item) for item in real.items()] == [alike(item) for item in twin.items()]
    assert real.store.scan() == twin.store.scan()


@pytest.mark.parametrize("kind", ["moto_leases", "dynamodb_local_leases"])
def test_the_twin_does_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    make: Maker = request.getfixturevalue(kind)
    real = make()

    @settings(max_examples=max(20, AMOUNT.examples // 2))
    @given(st.lists(steps, min_size=5, max_size=25))
    def run(history: list[Step]) -> None:
        for shard in SHARDS:
            real.store.write(Delete(lease=lease(shard)))
        play(real, in_memory(), history, real.store.write)

    run()


def without_family(outcome: object) -> object:
    """A batch returns the family that the writer has seen: SetChildren does not raise the counter,
    and the histories begin with a view of a row that does not exist."""
    assert isinstance(outcome, Done | Conflict)
    if isinstance(outcome, Done):
        return Done(lease=replace(outcome.lease, parents=(), children=()))
    return outcome


def test_statements_of_batches_do_the_same(request: pytest.FixtureRequest) -> None:
    make: Maker = request.getfixturevalue("dynamodb_local_leases")
    real = make()
    assert real.store.batch_size > 1

    @settings(max_examples=max(20, AMOUNT.examples // 2))
    @given(st.lists(steps, min_size=5, max_size=25))
    def run(history: list[Step]) -> None:
        for shard in SHARDS:
            real.store.write(Delete(lease=lease(shard)))
        play(
            real,
            in_memory(),
            history,
            lambda write: real.store.write_all([write])[0],
            without_family,
        )

    run()
    assert real.store.batch_size > 1
