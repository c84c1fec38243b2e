"""The lease of a shard, as a value.

The attributes are those of the Kinesis Client Library (KCL); `lease_serializer.py` has their names.
The holder of a lease increments its counter with every renewal; every other write has the observed
counter as a condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from spark_ssp.checkpoint.leases.checkpoint_position import Progress, ShardEnded
from spark_ssp.grouping.identifiers import HashRange, ShardId, StreamName, WorkerId

LeaseKey = NewType("LeaseKey", str)
"""The key of a row: the shard id; with several streams `account:stream:epoch:shardId`."""

AttributeValue = Mapping[str, Any]
"""A DynamoDB value in the API's form, such as `{"S": "text"}` or `{"N": "1"}`."""

Item = Mapping[str, AttributeValue]
"""A row in the API's form: values by attribute."""

_STREAM: Final = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StreamIdentifier:
    """The KCL's name of a stream in multi-stream mode (`StreamIdentifier`)."""

    account: str
    """Twelve digits."""
    name: StreamName
    created: int
    """The stream's creation, in seconds since the epoch: a recreated stream has another
    identifier."""

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.created}"

    @classmethod
    def parse(cls, text: str) -> StreamIdentifier | None:
        """Parse the result of `str`; None for any other text."""
        match = _STREAM.fullmatch(text)
        if match is None:
            return None
        found = cls(account=match[1], name=StreamName(match[2]), created=int(match[3]))
        return found if str(found) == text else None


def lease_key(shard: ShardId, stream: StreamIdentifier | None = None) -> LeaseKey:
    """Return the key of a shard's lease; `stream` only if the application reads several streams."""
    return LeaseKey(shard if stream is None else f"{stream}:{shard}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that a KCL worker has prepared (`prepareCheckpoint`) but not completed."""

    progress: Progress
    state: bytes | None = field(default=None, repr=False)
    """Data of the KCL application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row. `shard` and `stream` form its key."""

    shard: ShardId
    stream: StreamIdentifier | None = None
    counter: int
    progress: Progress
    """The attribute `checkpoint` and those that complement it."""
    owner: WorkerId | None = None
    """The owner, or, during a handoff, the next owner."""
    checkpoint_owner: WorkerId | None = None
    """During a handoff (KCL 3), the worker that still holds the lease and writes checkpoints."""
    ssp_owner: WorkerId | None = None
    """The last holder from this project; see `is_held_by_ssp`."""
    switches: int = 0
    """Changes of the owner since the last checkpoint."""
    pending: PendingCheckpoint | None = None
    parents: tuple[ShardId, ...] = ()
    """Sorted."""
    children: tuple[ShardId, ...] = ()
    """Sorted; written at the end of the shard."""
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    """KCL 3's measurement of the shard, for balancing."""
    has_entity_type: bool = True
    """True if the row has `entityType` LEASE, as from KCL 3.5 on; a row without it is a lease
    too."""
    extra_attributes: Mapping[str, AttributeValue] = field(
        default_factory=dict, hash=False, repr=False
    )
    """Unknown attributes, unchanged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(sorted(set(self.parents))))
        object.__setattr__(self, "children", tuple(sorted(set(self.children))))

    @property
    def has_ended(self) -> bool:
        """True if the checkpoint is SHARD_END."""
        return isinstance(self.progress, ShardEnded)

    @property
    def key(self) -> LeaseKey:
        """The row's key."""
        return lease_key(self.shard, self.stream)

    @property
    def holder(self) -> WorkerId | None:
        """The worker that may read the shard and write checkpoints (KCL: `actualOwner`)."""
        return self.owner if self.checkpoint_owner is None else self.checkpoint_owner

    @property
    def is_held_by_ssp(self) -> bool:
        """Return whether the holder is a worker of this project.

        Such a worker writes its id to `sspOwner`, which a KCL worker does not know and so leaves
        unchanged when it becomes the holder.
        """
        return self.holder is not None and self.holder == self.ssp_owner
