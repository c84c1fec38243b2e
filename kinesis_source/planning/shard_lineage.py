"""Orders shards by lineage: parents before children, across splits, merges and expiry.

Each function is about one stream, from the service's listing (every shard not yet expired) and the
entries of an offset (`states`, being read, and `waiting`).

A listed shard that has no entry is *finished* if one of its descendants has an entry, otherwise
*new*. A new or waiting shard may be read once each of its parents is done, and a parent is done if

* its entry is at SHARD_END: it was read to the end and committed by Spark; or
* it is finished, and so is every ancestor of it that has an entry (a start by shard may skip a
  generation: LATEST for a closed shard whose own parent is read from the beginning); or
* it has no entry and is no longer listed: it expired with all its records.

A new shard inherits its parents' latest `last_caught_up_ms`: they were open then, so its records
are younger.

An entry leaves the offset if it is at SHARD_END and every listed child has an entry or is finished,
or if it is at SHARD_END and has expired itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_ssp.common.errors import SspError
from spark_ssp.common.logs import abbreviate
from spark_ssp.grouping.identifiers import HashRange, ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    Latest,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)


class UnnamedShardError(SspError):
    """A position names shards, has no default, and misses one that exists; or it names a shard that
    does not exist."""

    kind = "invalid-options"


States = Mapping[ShardId, ShardState]
Children = Mapping[ShardId, Sequence[ShardId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The entries of one stream after one listing."""

    states: dict[ShardId, ShardState]
    """To be read now, or at SHARD_END and waiting for their children to be listed."""
    waiting: dict[ShardId, ShardState]
    vanished: tuple[ShardId, ...]
    """Entries before SHARD_END that the service no longer lists: their remaining records are
    lost."""
    abandoned: tuple[ShardId, ...]
    """Entries at SHARD_END that expired before a child was started. A child is younger than its
    parent's last record, so its first records may have expired as well."""
    undiscovered_children: bool
    """True if a shard is at SHARD_END without a listed child: the listing may be stale."""


def advance_lineage(listed: Collection[Shard], states: States, waiting: States) -> Lineage:
    """Admit every shard that may now be read, and drop every shard that is finished."""
    by_id = {shard.shard_id: shard for shard in listed}
    children = children_of(listed)
    entries = {**states, **waiting}
    finished = ancestors(by_id, entries.keys()) - entries.keys()
    unread = [
        shard_id
        for shard_id, state in entries.items()
        if shard_id in waiting or not isinstance(state.position, ShardEnd)
    ]
    undone = {*unread, *_descendants_through(unread, children, finished)}

    def done(parent: ShardId) -> bool:
        known = parent in entries or parent in finished or parent not in by_id
        return known and parent not in undone

    reading = dict(states)
    still_waiting = {}
    for shard_id, state in waiting.items():
        shard = by_id.get(shard_id)
        if shard is None or all(done(parent) for parent in shard.parents):
            reading[shard_id] = state
        else:
            still_waiting[shard_id] = state
    for shard in listed:
        if shard.shard_id in entries or shard.shard_id in finished:
            continue
        if all(done(parent) for parent in shard.parents):
            proofs = [
                entries[parent].last_caught_up_ms for parent in shard.parents if parent in entries
            ]
            seen = max((proof for proof in proofs if proof is not None), default=None)
            reading[shard.shard_id] = ShardState(position=TrimHorizon(), last_caught_up_ms=seen)
    begun = reading.keys() | still_waiting.keys() | finished
    return _drop_finished(by_id, children, reading, still_waiting, begun)


def _drop_finished(
    by_id: Mapping[ShardId, Shard],
    children: Children,
    reading: Mapping[ShardId, ShardState],
    waiting: Mapping[ShardId, ShardState],
    begun: Collection[ShardId],
) -> Lineage:
    """Drop the shards that are finished. `begun`: every shard that has an entry or is finished."""
    kept: dict[ShardId, ShardState] = {}
    vanished: list[ShardId] = []
    abandoned: list[ShardId] = []
    undiscovered = False
    for shard_id in sorted(reading):
        state = reading[shard_id]
        ended = isinstance(state.position, ShardEnd)
        if shard_id not in by_id:
            (abandoned if ended else vanished).append(shard_id)
            continue
        own = children.get(shard_id, ())
        if ended and own and all(child in begun for child in own):
            continue
        undiscovered = undiscovered or (ended and not own)
        kept[shard_id] = state
    return Lineage(
        states=kept,
        waiting={shard_id: waiting[shard_id] for shard_id in sorted(waiting)},
        vanished=tuple(vanished),
        abandoned=tuple(abandoned),
        undiscovered_children=undiscovered,
    )


def children_of(listed: Collection[Shard]) -> dict[ShardId, list[ShardId]]:
    """Return the listed children by parent; the parent may have expired."""
    children: dict[ShardId, list[ShardId]] = {}
    for shard in listed:
        for parent in shard.parents:
            children.setdefault(parent, []).append(shard.shard_id)
    return children


def ancestors(by_id: Mapping[ShardId, Shard], shards: Collection[ShardId]) -> set[ShardId]:
    """Return every listed shard that has a descendant among `shards`."""
    found: set[ShardId] = set()
    pending = [shard_id for shard_id in shards if shard_id in by_id]
    while pending:
        for parent in by_id[pending.pop()].parents:
            if parent in by_id and parent not in found:
                found.add(parent)
                pending.append(parent)
    return found


def families(
    listed: Mapping[ShardId, Shard], shards: Collection[ShardId]
) -> dict[ShardId, HashRange]:
    """Return the hash keys of each shard and its listed ancestors, if they are more than its own.

    Only such a shard may hold an aggregate that was made for an ancestor. A merge removes no keys,
    so its child has a family only if a split came before.
    """
    found: dict[ShardId, HashRange] = {}
    for shard_id in shards:
        if shard_id not in listed:
            continue
        own = listed[shard_id].hash_range
        line = [own, *(listed[one].hash_range for one in ancestors(listed, [shard_id]))]
        family = HashRange(
            first=min(keys.first for keys in line), last=max(keys.last for keys in line)
        )
        if family != own:
            found[shard_id] = family
    return found


def _descendants_through(
    shards: Collection[ShardId], children: Children, through: Collection[ShardId]
) -> set[ShardId]:
    """Return the descendants of `shards` that are reached only through shards among `through`."""
    found: set[ShardId] = set()
    pending = list(shards)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child in through and child not in found:
                found.add(child)
                pending.append(child)
    return found


# --- The start -----------------------------------------------------------------------------------


def start_points(
    stream: StreamName, listed: Sequence[Shard], start: StartingPosition
) -> dict[ShardId, StartPoint | ShardEnd]:
    """Return the start of each shard of a stream that is new to the query; shards left out have no
    entry.

    * Started at TRIM_HORIZON throughout, a stream needs entries for its oldest shards only: their
      descendants are found by `advance_lineage` in time.
    * Any other start is fixed now for every listed shard, also for those that must wait.
    * LATEST of a closed shard is its end. It gets an entry only while no child is listed, so that
      the children are found later; otherwise its children's entries show that it is finished.
    """
    by_id = {shard.shard_id: shard for shard in listed}
    if not start.by_shard and start.default == TrimHorizon():
        return {
            shard_id: TrimHorizon()
            for shard_id, shard in by_id.items()
            if not any(parent in by_id for parent in shard.parents)
        }
    parents_of_listed = {parent for shard in listed for parent in shard.parents}
    points: dict[ShardId, StartPoint | ShardEnd] = {}
    unnamed: list[ShardId] = []
    for shard_id, shard in sorted(by_id.items()):
        point = start.by_shard.get(ShardKey(stream=stream, shard=shard_id), start.default)
        if point is None:
            unnamed.append(shard_id)
        elif not (isinstance(point, Latest) and shard.closed):
            points[shard_id] = point
        elif shard_id not in parents_of_listed:
            points[shard_id] = ShardEnd()
    if unnamed:
        raise UnnamedShardError(
            f"option startingPosition, stream {stream}",
            found=f"no position for {abbreviate(unnamed)}",
            expected="a position for each shard of the stream, or a default for the rest",
            next_step='name them, or add "default": "trim_horizon" (or another position)',
        )
    check_named_shards("startingPosition", stream, by_id, start)
    return points


def check_named_shards(
    option: str, stream: StreamName, by_id: Mapping[ShardId, Shard], start: StartingPosition
) -> None:
    """Raise UnnamedShardError if the option names a shard that is not listed."""
    unknown = sorted(
        key.shard for key in start.by_shard if key.stream == stream and key.shard not in by_id
    )
    if unknown:
        raise UnnamedShardError(
            f"option {option}, stream {stream}",
            found=f"positions for {abbreviate(unknown)}, which the stream does not have",
            expected="shards that the service lists (expired ones are not)",
            next_step="remove them from the option",
        )


def split_waiting(
    listed: Collection[Shard], entries: States
) -> tuple[dict[ShardId, ShardState], dict[ShardId, ShardState]]:
    """Split a new stream's entries into those that may be read immediately and those that must
    wait."""
    lineage = advance_lineage(listed, {}, entries)
    states = {key: lineage.states[key] for key in lineage.states if key in entries}
    return states, lineage.waiting
