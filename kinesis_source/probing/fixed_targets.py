"""The ends of the shards in a run that stops at them: AvailableNow, Trigger.Once, a batch read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Position,
    ShardEnd,
    ShardState,
    is_behind,
    sequence_order,
)
from spark_ssp.kinesis_source.probing.position_advance import (
    LatestRecord,
    ShardAdvance,
    Target,
    is_target_reached,
)


class FixedTargets:
    """The target of each shard to read, once fixed: other shards are ignored, and so are streams
    that were recreated since. Before, and after the release, shards have no targets."""

    def __init__(self) -> None:
        self._targets: dict[ShardKey, Target] | None = None
        self._recreated: set[StreamName] = set()

    @property
    def are_fixed(self) -> bool:
        return self._targets is not None

    def fix(self, targets: Mapping[ShardKey, Target]) -> None:
        """Read up to these targets."""
        self._targets = dict(targets)

    def add(self, targets: Mapping[ShardKey, Target]) -> None:
        """Read more shards up to these targets."""
        if self._targets is not None:
            self._targets |= targets

    def missing(self, keys: Collection[ShardKey]) -> list[ShardKey]:
        """Return the shards without a target, once targets are fixed."""
        if self._targets is None:
            return []
        return sorted(
            key for key in keys - self._targets.keys() if key.stream not in self._recreated
        )

    def release(self) -> None:
        """Read beyond the targets again."""
        self._targets = None
        self._recreated.clear()

    def ignore(self, stream: StreamName) -> None:
        """Ignore a stream that was recreated."""
        if self._targets is not None:
            self._recreated.add(stream)

    def get(self, key: ShardKey) -> Target | None:
        """Return the target of a shard; None if there is none, or if it is ignored."""
        if self._targets is None or key.stream in self._recreated:
            return None
        return self._targets.get(key)

    def is_at(self, key: ShardKey, position: Position) -> bool:
        """Return whether `position` is the record at which the shard ends, which is there."""
        target = self.get(key)
        return (
            isinstance(position, AfterRecord)
            and isinstance(target, LatestRecord)
            and target.record is not None
            and target.record.order == sequence_order(position.sequence_number)
        )

    def unreached(
        self,
        keys: Collection[ShardKey],
        advances: Mapping[ShardKey, ShardAdvance],
        kept_since: Callable[[ShardKey, ShardState], EpochMillis],
    ) -> list[ShardKey]:
        """Return the shards short of their targets, sorted. `kept_since`: the arrival time of the
        oldest record that is certainly read."""
        short: list[ShardKey] = []
        for key in sorted(keys):
            target, advance = self.get(key), advances.get(key)
            if target is not None and (
                advance is None
                or not is_target_reached(advance, target, kept_since(key, advance.state))
            ):
                short.append(key)
        return short

    def is_probed(self, key: ShardKey, position: Position) -> bool:
        """Return whether a batch under a limit needs a probe to advance towards the target."""
        target = self.get(key)
        if isinstance(target, LatestRecord):
            return target.record is not None and is_behind(position, target.record.position)
        return isinstance(target, ShardEnd)
