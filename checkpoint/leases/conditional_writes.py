"""The writes to a lease table: their conditions, their changes, and their recognition once applied.

Conditions and changes are those of the KCL (`DynamoDBLeaseRefresher`), so that KCL workers and ours
never overwrite each other. Each write has the lease as its writer last observed it. Takes and
renewals also write the worker's id to `sspOwner`, and requests of a handoff write `sspRequestedBy`
and `sspRequestedFrom`, which the KCL does not have.

`to_update` expresses a write as changes of attributes, for every store. `is_applied` recognises a
write whose reply was lost in the row that was found, and `reconcile` uses it: a retry finds the row
changed by the first attempt, and if that counted as a conflict, a worker would give up a lease that
it holds. Without an attempt that may have taken effect a failed condition is always a conflict: two
workers with the same id must not mistake each other's writes for their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Lease,
    Processed,
    Progress,
    ShardEnded,
    is_forward,
)
from spark_ssp.checkpoint.leases.lease_serializer import (
    Attribute,
    encode,
    encode_progress,
    number,
    text,
    texts,
)
from spark_ssp.grouping.identifiers import ShardId, WorkerId

# --- Writes --------------------------------------------------------------------------------------


class Create(msgspec.Struct, frozen=True, kw_only=True):
    """Put the whole row. Condition: there is none."""

    lease: Lease


class Renew(msgspec.Struct, frozen=True, kw_only=True):
    """Increment the counter. Condition: the counter, and no handoff except the one observed."""

    lease: Lease
    throughput_kbps: float | None = None

    def __post_init__(self) -> None:
        _check_held(self.lease)


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """Make `owner` the owner, ending any handoff. Condition: the counter."""

    lease: Lease
    owner: WorkerId


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Write the position. Condition: the counter, and no handoff except the one observed, as in
    `Renew`; the KCL's is the counter alone. Positions only move forward. As in the KCL the
    condition does not include the checkpoint, but every worker that changes it increments the
    counter, so it is still the one in `lease`."""

    lease: Lease
    progress: Progress

    def __post_init__(self) -> None:
        _check_held(self.lease)
        if not is_forward(self.lease.progress, self.progress):
            raise ValueError(
                f"a checkpoint only moves forward: {self.progress} after {self.lease.progress}"
            )


class RequestHandoff(msgspec.Struct, frozen=True, kw_only=True):
    """Request that the owner finishes and assigns the lease to `to` (KCL 3). Condition: the owner,
    and no handoff in progress. The counter does not change, so that the owner's renewals still
    succeed."""

    lease: Lease
    to: WorkerId

    def __post_init__(self) -> None:
        if self.lease.owner is None or self.lease.is_in_handoff:
            raise ValueError("only a lease with an owner and no handoff can be requested")
        if self.to == self.lease.owner:
            raise ValueError("a lease is not handed over to its owner")


class Assign(msgspec.Struct, frozen=True, kw_only=True):
    """Make `owner` the owner, ending any handoff. Condition: both owners."""

    lease: Lease
    owner: WorkerId
    check_counter: bool = False
    """True if the counter is a condition too, as in `Evict`."""


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Release the lease: to the next owner during a handoff, else to none. Condition: both
    owners."""

    lease: Lease
    check_counter: bool = False
    """True if the counter is a condition too, because it is the writer's own: another process with
    the same id may hold the lease by now."""


class SetChildren(msgspec.Struct, frozen=True, kw_only=True):
    """Write the children of an ended shard. Condition: the row exists."""

    lease: Lease
    children: tuple[ShardId, ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise ValueError("a shard that has ended has children")


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the row. No condition, not even that it exists."""

    lease: Lease


Write = Create | Renew | Take | Checkpoint | RequestHandoff | Assign | Evict | SetChildren | Delete


def _check_held(lease: Lease) -> None:
    if lease.holder is None:
        raise ValueError("only a lease that is held can be renewed or checkpointed")


# --- Results -------------------------------------------------------------------------------------


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The write took effect."""

    lease: Lease
    """The new row; for `Delete` the row as last observed."""


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """The condition failed, and nothing was written."""

    found: Lease | None
    """The current row, if there is one."""


Outcome = Done | Conflict


# --- Changes of attributes -----------------------------------------------------------------------


class PutRow(msgspec.Struct, frozen=True, kw_only=True):
    """Put a whole row where there is none."""

    item: Mapping[str, AttributeValue]


class UpdateRow(msgspec.Struct, frozen=True, kw_only=True):
    """Change attributes of an existing row that meets the conditions."""

    expected: Mapping[str, AttributeValue | None] = {}
    """The required value by attribute; None: the attribute must be absent."""
    sets: Mapping[str, AttributeValue] = {}
    adds: Mapping[str, int] = {}
    """Increments of numbers; an absent one counts as 0."""
    removes: tuple[str, ...] = ()


class DeleteRow(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the row, if there is one."""


RowChange = PutRow | UpdateRow | DeleteRow


def to_update(write: Write) -> RowChange:
    """Return the conditions and changes of a write."""
    match write:
        case Create(lease=lease):
            return PutRow(item=encode(lease))
        case Renew():
            return _renewal(write)
        case Take(lease=lease, owner=owner):
            return UpdateRow(
                expected=_counter(lease),
                sets=_next_counter(lease) | {Attribute.OWNER.value: text(owner)} | _mark(owner),
                adds=_switch(lease, owner),
                removes=_HANDOFF,
            )
        case Checkpoint():
            return _checkpoint(write)
        case RequestHandoff(lease=lease, to=to):
            return UpdateRow(
                expected=_owners(lease),
                sets={
                    Attribute.OWNER.value: text(to),
                    Attribute.CHECKPOINT_OWNER.value: text(lease.owner or ""),
                    Attribute.REQUESTED_BY.value: text(to),
                    Attribute.REQUESTED_FROM.value: text(lease.owner or ""),
                },
            )
        case Assign(lease=lease, owner=owner, check_counter=check_counter):
            return UpdateRow(
                expected=_owners(lease) | (_counter(lease) if check_counter else {}),
                sets={Attribute.OWNER.value: text(owner)},
                adds={Attribute.COUNTER.value: 1} | _switch(lease, owner),
                removes=_HANDOFF,
            )
        case Evict(lease=lease, check_counter=check_counter):
            given_up = () if lease.is_in_handoff else (Attribute.OWNER.value,)
            return UpdateRow(
                expected=_owners(lease) | (_counter(lease) if check_counter else {}),
                adds={Attribute.COUNTER.value: 1},
                removes=(*given_up, *_HANDOFF),
            )
        case SetChildren(children=children):
            return UpdateRow(sets={Attribute.CHILDREN.value: texts(children)})
        case Delete():
            return DeleteRow()


def _renewal(write: Renew) -> UpdateRow:
    sets = _next_counter(write.lease)
    if not write.lease.is_held_by_ssp:
        sets |= _mark(write.lease.holder)
    if write.throughput_kbps is not None:
        sets[Attribute.THROUGHPUT.value] = number(write.throughput_kbps)
    return UpdateRow(
        expected=_observed(write.lease), sets=sets, removes=_ended_handoff(write.lease)
    )


_HANDOFF: Final = (
    Attribute.CHECKPOINT_OWNER.value,
    Attribute.REQUESTED_BY.value,
    Attribute.REQUESTED_FROM.value,
)


def _without_handoff(lease: Lease) -> Lease:
    return replace(lease, checkpoint_owner=None, requested_by=None, requested_from=None)


def _ended_handoff(lease: Lease) -> tuple[str, ...]:
    """Return the attributes to remove that a KCL worker has left when it ended a handoff."""
    if lease.is_in_handoff or (lease.checkpoint_owner is None and lease.requested_by is None):
        return ()
    return _HANDOFF


_TIMES: Final = (Attribute.TIMESTAMP.value, Attribute.CAUGHT_UP.value)
_PENDING: Final = (
    Attribute.PENDING.value,
    Attribute.PENDING_STATE.value,
    Attribute.PENDING_SUB.value,
)
"""Attributes of a KCL worker's prepared checkpoint, which one of a record makes void."""


def _has_moved(write: Checkpoint) -> bool:
    """Return whether records were processed. Otherwise only the times of the start change, and the
    rest of a KCL's row stays."""
    return isinstance(write.progress, Processed | ShardEnded)


def _cleared(write: Checkpoint) -> tuple[str, ...]:
    """Return the attributes that a checkpoint removes, unless it sets them."""
    return (*_PENDING, *_TIMES) if _has_moved(write) else _TIMES


def _checkpoint(write: Checkpoint) -> UpdateRow:
    sets = encode_progress(write.progress) | _next_counter(write.lease)
    if _has_moved(write):
        sets[Attribute.SWITCHES.value] = number(0)
    return UpdateRow(
        expected=_observed(write.lease),
        sets=sets,
        removes=tuple(name for name in _cleared(write) if name not in sets),
    )


def _observed(lease: Lease) -> dict[str, AttributeValue | None]:
    expected: dict[str, AttributeValue | None] = dict(_counter(lease))
    if lease.checkpoint_owner is None:
        expected[Attribute.CHECKPOINT_OWNER.value] = None
    return expected


def _counter(lease: Lease) -> dict[str, AttributeValue]:
    return {Attribute.COUNTER.value: number(lease.counter)}


def _next_counter(lease: Lease) -> dict[str, AttributeValue]:
    return {Attribute.COUNTER.value: number(lease.counter + 1)}


def _mark(holder: WorkerId | None) -> dict[str, AttributeValue]:
    return {} if holder is None else {Attribute.SSP_OWNER.value: text(holder)}


def _owners(lease: Lease) -> dict[str, AttributeValue | None]:
    return {
        Attribute.OWNER.value: None if lease.owner is None else text(lease.owner),
        Attribute.CHECKPOINT_OWNER.value: (
            None if lease.checkpoint_owner is None else text(lease.checkpoint_owner)
        ),
    }


def _switch(lease: Lease, owner: WorkerId) -> dict[str, int]:
    """Count a switch as the KCL does: to another owner, or back to the owner that was to hand
    over."""
    changes = lease.owner is not None and lease.owner != owner
    back = lease.is_in_handoff and lease.holder == owner
    return {Attribute.SWITCHES.value: 1} if changes or back else {}


def determines_row(write: Write) -> bool:
    """Return whether `row_after` is known: the condition includes the counter, which otherwise may
    have risen."""
    match write:
        case Renew() | Checkpoint() | Take():
            return True
        case Assign(check_counter=check) | Evict(check_counter=check):
            return check
    return False


def row_after(write: Write) -> Lease | None:
    """Return the row after a write whose condition held, as far as its writer knows the other
    attributes; None unless the write determines it."""
    lease = write.lease
    counter = lease.counter + 1
    match write:
        case Renew(throughput_kbps=throughput):
            mark = lease.ssp_owner if lease.is_held_by_ssp else lease.holder
            kbps = lease.throughput_kbps if throughput is None else throughput
            if _ended_handoff(lease):
                lease = _without_handoff(lease)
            return replace(lease, counter=counter, ssp_owner=mark, throughput_kbps=kbps)
        case Checkpoint(progress=progress) if not _has_moved(write):
            return replace(lease, counter=counter, progress=progress)
        case Checkpoint(progress=progress):
            cleared = _cleared(write)
            kept = {n: v for n, v in lease.extra_attributes.items() if n not in cleared}
            return replace(
                lease,
                counter=counter,
                progress=progress,
                switches=0,
                pending=None,
                extra_attributes=kept,
            )
        case Take(owner=owner):
            return replace(_assigned(lease, owner), ssp_owner=owner)
        case Assign(owner=owner, check_counter=True):
            return _assigned(lease, owner)
        case Evict(check_counter=True):
            left = lease.owner if lease.is_in_handoff else None
            return replace(_without_handoff(lease), counter=counter, owner=left)
    return None


def _assigned(lease: Lease, owner: WorkerId) -> Lease:
    return replace(
        _without_handoff(lease),
        counter=lease.counter + 1,
        owner=owner,
        switches=lease.switches + len(_switch(lease, owner)),
    )


# --- Recognition of applied writes ---------------------------------------------------------------


def is_applied(write: Write, found: Lease | None) -> bool:
    """Return whether `found`, read after an attempt with an unknown result, shows the write as
    applied.

    With the counter as condition, its successor and the same holder prove it: no other worker
    writes that. The holder and not the owner, because a handoff may have been requested since. If
    others have changed the row further, the write is not recognised and is reported as a conflict,
    which it has become.
    """
    match write:
        case Delete():
            return found is None
        case _ if found is None:
            return False
        case Create(lease=lease):
            return found == lease
        case Renew(lease=lease, throughput_kbps=throughput):
            measured = throughput is None or found.throughput_kbps == throughput
            return measured and _has_next_counter(lease, found) and found.holder == lease.holder
        case Take(lease=lease, owner=owner):
            return _has_next_counter(lease, found) and found.holder == owner
        case Checkpoint(lease=lease, progress=progress):
            held = _has_next_counter(lease, found) and found.holder == lease.holder
            switches = 0 if _has_moved(write) else lease.switches
            return held and found.progress == progress and found.switches == switches
        case RequestHandoff(lease=lease, to=to):
            finished = found.checkpoint_owner is None and found.counter > lease.counter
            return found.owner == to and (found.checkpoint_owner == lease.owner or finished)
        case Assign(lease=lease, owner=owner):
            return found.counter > lease.counter and found.holder == owner
        case Evict(lease=lease):
            left = lease.owner if lease.is_in_handoff else None
            given_up = found.owner == left and found.checkpoint_owner is None
            return found.counter > lease.counter and given_up
        case SetChildren(children=children):
            return found.children == tuple(sorted(set(children)))


def _has_next_counter(seen: Lease, found: Lease) -> bool:
    return found.counter == seen.counter + 1


Attempt = Callable[[], Outcome]


def reconcile(
    write: Write,
    attempt: Attempt,
    *,
    retrying: Callable[[Attempt], Outcome],
    may_have_applied: Callable[[Exception], bool],
    doubtful: bool = False,
) -> Outcome:
    """Run `attempt` through `retrying`, which repeats it after transient errors; return the
    result. `doubtful`: an earlier attempt may have taken effect."""

    def once() -> Outcome:
        nonlocal doubtful
        try:
            return attempt()
        except Exception as error:
            doubtful = doubtful or may_have_applied(error)
            raise

    outcome = retrying(once)
    if doubtful and isinstance(outcome, Conflict) and is_applied(write, outcome.found):
        lease = write.lease if outcome.found is None else outcome.found
        return Done(lease=lease)
    return outcome
