"""The events of a source between two snapshots, in words. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.logs import abbreviate, count_of
from spark_ssp.operations.snapshot import (
    ReadState,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
    short_name,
)

_NAMED: Final = 3
"""The most reshards of a report that get a line each, and shards that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a query."""

    time_ms: int
    text: str


def events_between(before: SourceSnapshot, after: SourceSnapshot) -> Iterator[str]:
    """Yield the events that a later snapshot shows since an earlier one."""
    if len(before.tasks) != len(after.tasks):
        noun = "slots" if after.format is SourceFormat.KINESIS else "tasks"
        yield f"{noun}: {len(before.tasks)} became {len(after.tasks)}"
    earlier = {stream.name: stream for stream in before.streams}
    for stream in after.streams:
        known = earlier.pop(stream.name, None)
        if known is None:
            yield f"{stream.name} is read too"
        elif after.format is SourceFormat.KAFKA:
            yield from _expansion(known, stream)
        else:
            yield from _reshards(known, stream, is_leased=after.worker is not None)
            yield from _owners(known, stream)
    yield from (f"{name} is no longer read" for name in earlier)


def _expansion(before: StreamSnapshot, after: StreamSnapshot) -> Iterator[str]:
    if len(after.shards) > len(before.shards):
        yield (
            f"expansion of topic {after.name}: {len(before.shards)} partitions became "
            f"{len(after.shards)}"
        )


def _reshards(before: StreamSnapshot, after: StreamSnapshot, *, is_leased: bool) -> Iterator[str]:
    known = {shard.shard: shard for shard in before.shards}
    now = {shard.shard: shard for shard in after.shards}
    new = [
        shard
        for shard in after.shards
        # Without a status, a report has a new shard and not its parents.
        if shard.shard not in known or (shard.parents and known[shard.shard].parents is None)
    ]
    splits: dict[str, list[str]] = {}
    merges: list[str] = []
    for shard in new:
        child, parents = short_name(shard.shard), [short_name(one) for one in shard.parents or ()]
        if len(parents) == 1:
            splits.setdefault(parents[0], []).append(child)
        elif parents:
            merges.append(f"{' and '.join(parents)} into {child}")
    split = [f"{parent} into {' and '.join(children)}" for parent, children in splits.items()]
    yield from _lines("split of shard", "splits", split, after.name)
    yield from _lines("merge of shards", "merges", merges, after.name)
    if is_leased:
        taken = [one for one in now if one not in known and not now[one].parents]
        yield from _handed("taken over from other workers", taken, after.name)
        gone = {parent for shard in after.shards for parent in shard.parents or ()}
        left = [
            name
            for name, shard in known.items()
            if name not in now and name not in gone and shard.state is not ReadState.ENDED
        ]
        yield from _handed("handed over to other workers", left, after.name)


def _lines(one_of: str, many: str, found: list[str], stream: str) -> Iterator[str]:
    if len(found) > _NAMED:
        yield f"{len(found)} {many} of {stream}"
    else:
        yield from (f"{one_of} {one} ({stream})" for one in found)


def _handed(verb: str, shards: list[str], stream: str) -> Iterator[str]:
    if shards:
        names = abbreviate([short_name(shard) for shard in shards], _NAMED)
        yield f"{count_of(len(shards), 'lease')} of {stream} {verb}: shard {names}"


def _owners(before: StreamSnapshot, after: StreamSnapshot) -> Iterator[str]:
    """Yield workers that come and go, if the reports name all of them."""
    one, other = before.leases, after.leases
    if one is None or other is None or one.others or other.others:
        return
    for owner in sorted(other.by_owner.keys() - one.by_owner.keys()):
        yield f"worker {owner} has leases of {after.name}"
    for owner in sorted(one.by_owner.keys() - other.by_owner.keys()):
        yield f"worker {owner} has no lease of {after.name} any more"
