"""A lease: one shard's row in the table, as a value.

The names of the attributes are the Kinesis Client Library's (KCL); see `lease_serializer.py`.
Whoever holds a lease raises its counter with every renewal; every other write names the counter it
has seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from checkpoint.leases.checkpoint_position import Progress
from task_grouping.identifiers import HashRange, ShardId, StreamName, WorkerId

LeaseKey = NewType("LeaseKey", str)
"""The key of a row: the shard's id; with several streams `account:stream:epoch:shardId`."""

AttributeValue = Mapping[str, Any]
"""A DynamoDB value in the API's form, such as `{"S": "text"}` or `{"N": "1"}`."""

Item = Mapping[str, AttributeValue]
"""A row in the API's form: values by attribute."""

_STREAM: Final = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StreamIdentifier:
    """A stream among several, as the KCL names it (`StreamIdentifier`, multi-stream mode)."""

    account: str
    """Twelve digits."""
    name: StreamName
    created: int
    """The stream's creation, in seconds since the epoch: another value is another stream."""

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.created}"

    @classmethod
    def parse(cls, text: str) -> StreamIdentifier | None:
        """What `str` gave; None for any other text."""
        match = _STREAM.fullmatch(text)
        if match is None:
            return None
        found = cls(account=match[1], name=StreamName(match[2]), created=int(match[3]))
        return found if str(found) == text else None


def lease_key(shard: ShardId, stream: StreamIdentifier | None = None) -> LeaseKey:
    """The key of a shard's lease; `stream` only where an application reads several."""
    return LeaseKey(shard if stream is None else f"{stream}:{shard}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """What a KCL worker has prepared (`prepareCheckpoint`) and not yet checkpointed."""

    progress: Progress
    state: bytes | None = field(default=None, repr=False)
    """The application's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row. `shard` and `stream` together are its key."""

    shard: ShardId
    stream: StreamIdentifier | None = None
    counter: int
    progress: Progress
    """The attribute `checkpoint` and what belongs to it."""
    owner: WorkerId | None = None
    """Whose lease it is, or, while a hand-over is under way, whose it will be."""
    checkpoint_owner: WorkerId | None = None
    """Only while a hand-over is under way (KCL 3): who still holds it and writes checkpoints."""
    ssp_owner: WorkerId | None = None
    """The worker of this project that held the lease last: see `is_held_by_ssp`."""
    switches: int = 0
    """Changes of the owner since the last checkpoint."""
    pending: PendingCheckpoint | None = None
    parents: tuple[ShardId, ...] = ()
    """Sorted."""
    children: tuple[ShardId, ...] = ()
    """Sorted; written when the shard has ended."""
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    """KCL 3's measure of the shard, for balancing."""
    has_entity_type: bool = True
    """Whether the row says `entityType` LEASE, as from KCL 3.5 on; a row without is one as well."""
    extra_attributes: Mapping[str, AttributeValue] = field(
        default_factory=dict, hash=False, repr=False
    )
    """Attributes that are not known here, untouched."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(sorted(set(self.parents))))
        object.__setattr__(self, "children", tuple(sorted(set(self.children))))

    @property
    def key(self) -> LeaseKey:
        """The row's key."""
        return lease_key(self.shard, self.stream)

    @property
    def holder(self) -> WorkerId | None:
        """Who may read the shard and write checkpoints (KCL: `actualOwner`)."""
        return self.owner if self.checkpoint_owner is None else self.checkpoint_owner

    @property
    def is_held_by_ssp(self) -> bool:
        """Whether the holder is a worker of this project: it has left its name in an attribute that
        a KCL worker does not know, so that the name stays behind when another becomes the holder.
        """
        return self.holder is not None and self.holder == self.ssp_owner
