"""The writes to a lease table: what each one expects of the row, what it changes, when it is done.

Conditions and changes are those of the KCL (`DynamoDBLeaseRefresher`), so that its workers and ours
never overwrite each other. Each write names the lease as its writer last saw it. Whoever takes or
renews a lease leaves its name in an attribute of our own besides. Pure.

`to_update` says a write in terms of attributes, for every store alike. `shows` says whether a row
that was found shows the write as done: for a write whose reply was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint.leases.checkpoint_position import Progress, is_forward
from checkpoint.leases.lease import AttributeValue, Lease
from checkpoint.leases.lease_serializer import (
    Attribute,
    encode,
    encode_progress,
    number,
    text,
    texts,
)
from task_grouping.identifiers import ShardId, WorkerId

# --- Writes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Put the whole row. Expects that there is none."""

    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Raise the counter. Expects the counter, and no hand-over but the one already seen."""

    lease: Lease
    throughput_kbps: float | None = None

    def __post_init__(self) -> None:
        _check_held(self.lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Make `owner` the owner, ending any hand-over. Expects the counter."""

    lease: Lease
    owner: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Say how far the shard is. Expects the counter.

    Only forward: the KCL's condition does not look at the checkpoint, but whoever changes it raises
    the counter, so it is still the one in `lease`.
    """

    lease: Lease
    progress: Progress

    def __post_init__(self) -> None:
        _check_held(self.lease)
        if not is_forward(self.lease.progress, self.progress):
            raise ValueError(
                f"a checkpoint only moves forward: {self.progress} after {self.lease.progress}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandoff:
    """Ask the owner to finish and to assign the lease to `to` (KCL 3).

    Expects the owner, and that no hand-over is under way. The counter stays, so that the owner's
    renewals go on.
    """

    lease: Lease
    to: WorkerId

    def __post_init__(self) -> None:
        if self.lease.owner is None or self.lease.checkpoint_owner is not None:
            raise ValueError("only a lease with an owner and no hand-over can be asked for")
        if self.to == self.lease.owner:
            raise ValueError("a lease is not handed over to its owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Make `owner` the owner, ending any hand-over. Expects both owners."""

    lease: Lease
    owner: WorkerId
    check_counter: bool = False
    """See `Evict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Give the lease up: to the next owner while a hand-over is under way, else to nobody.

    Expects both owners.
    """

    lease: Lease
    check_counter: bool = False
    """Whether the counter is expected too: it is the writer's own. Under the same name another
    process may have it by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetChildren:
    """Name the children of a shard that has ended. Expects that the row exists."""

    lease: Lease
    children: tuple[ShardId, ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise ValueError("a shard that has ended has children")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove the row. Expects nothing, not even the row."""

    lease: Lease


Write = Create | Renew | Take | Checkpoint | RequestHandoff | Assign | Evict | SetChildren | Delete


def _check_held(lease: Lease) -> None:
    if lease.holder is None:
        raise ValueError("only a lease that is held can be renewed or checkpointed")


# --- What became of one --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The write took effect."""

    lease: Lease
    """The row since then; for `Delete` as it was last seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The row is not as expected, and nothing was written."""

    found: Lease | None
    """The row as it is; None when there is none."""


Outcome = Done | Conflict


# --- In terms of attributes ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRow:
    """Write a whole row where there is none."""

    item: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRow:
    """Change attributes of a row that exists and has all that is expected."""

    expected: Mapping[str, AttributeValue | None] = field(default_factory=dict)
    """By attribute: the value it must have; None, that it must not be there."""
    sets: Mapping[str, AttributeValue] = field(default_factory=dict)
    adds: Mapping[str, int] = field(default_factory=dict)
    """To numbers; an absent one counts as 0."""
    removes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRow:
    """Remove the row, if there is one."""


RowChange = PutRow | UpdateRow | DeleteRow


def to_update(write: Write) -> RowChange:
    """What the write expects and changes."""
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
                removes=(Attribute.CHECKPOINT_OWNER.value,),
            )
        case Checkpoint():
            return _checkpoint(write)
        case RequestHandoff(lease=lease, to=to):
            return UpdateRow(
                expected=_owners(lease),
                sets={
                    Attribute.OWNER.value: text(to),
                    Attribute.CHECKPOINT_OWNER.value: text(lease.owner or ""),
                },
            )
        case Assign(lease=lease, owner=owner, check_counter=check_counter):
            return UpdateRow(
                expected=_owners(lease) | (_counter(lease) if check_counter else {}),
                sets={Attribute.OWNER.value: text(owner)},
                adds={Attribute.COUNTER.value: 1} | _switch(lease, owner),
                removes=(Attribute.CHECKPOINT_OWNER.value,),
            )
        case Evict(lease=lease, check_counter=check_counter):
            given_up = (
                Attribute.OWNER if lease.checkpoint_owner is None else Attribute.CHECKPOINT_OWNER
            )
            return UpdateRow(
                expected=_owners(lease) | (_counter(lease) if check_counter else {}),
                adds={Attribute.COUNTER.value: 1},
                removes=(given_up.value,),
            )
        case SetChildren(children=children):
            return UpdateRow(sets={Attribute.CHILDREN.value: texts(children)})
        case Delete():
            return DeleteRow()


def _renewal(write: Renew) -> UpdateRow:
    expected: dict[str, AttributeValue | None] = dict(_counter(write.lease))
    if write.lease.checkpoint_owner is None:
        expected[Attribute.CHECKPOINT_OWNER.value] = None
    sets = _next_counter(write.lease)
    if not write.lease.is_held_by_ssp:
        sets |= _mark(write.lease.holder)
    if write.throughput_kbps is not None:
        sets[Attribute.THROUGHPUT.value] = number(write.throughput_kbps)
    return UpdateRow(expected=expected, sets=sets)


def _checkpoint(write: Checkpoint) -> UpdateRow:
    sets = encode_progress(write.progress) | _next_counter(write.lease)
    sets[Attribute.SWITCHES.value] = number(0)
    cleared = (
        Attribute.PENDING.value,
        Attribute.PENDING_STATE.value,
        Attribute.PENDING_SUB.value,
        Attribute.TIMESTAMP.value,
    )
    return UpdateRow(
        expected=_counter(write.lease),
        sets=sets,
        removes=tuple(name for name in cleared if name not in sets),
    )


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
    """As the KCL counts: from one owner to another, or back to the one who was to hand over."""
    changes = lease.owner is not None and lease.owner != owner
    back = lease.checkpoint_owner == owner
    return {Attribute.SWITCHES.value: 1} if changes or back else {}


# --- Seeing that a write is done -----------------------------------------------------------------


def is_applied(write: Write, found: Lease | None) -> bool:
    """Whether `found`, read after an attempt whose outcome is unknown, shows the write as done.

    Where the counter was expected, one more and the same holder is proof: nobody else writes that.
    The holder and not the owner, because a hand-over may have been asked for since. What others
    have changed further since then hides the write; it is then reported as a conflict, which it
    has become.
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
            return held and found.progress == progress and found.switches == 0
        case RequestHandoff(lease=lease, to=to):
            finished = found.checkpoint_owner is None and found.counter > lease.counter
            return found.owner == to and (found.checkpoint_owner == lease.owner or finished)
        case Assign(lease=lease, owner=owner):
            return found.counter > lease.counter and found.holder == owner
        case Evict(lease=lease):
            left = None if lease.checkpoint_owner is None else lease.owner
            given_up = found.owner == left and found.checkpoint_owner is None
            return found.counter > lease.counter and given_up
        case SetChildren(children=children):
            return found.children == tuple(sorted(set(children)))


def _has_next_counter(seen: Lease, found: Lease) -> bool:
    return found.counter == seen.counter + 1
