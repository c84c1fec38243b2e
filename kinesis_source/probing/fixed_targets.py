"""The ends of the shards in a run that stops at them: AvailableNow, Trigger.Once, a batch read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from spark_ssp.grouping.identifiers import ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    EpochMillis,
    Position,
    Shard,
    ShardEnd,
    ShardState,
    StreamRef,
    is_behind,
    sequence_order,
)
from spark_ssp.kinesis_source.planning.data_loss import (
    kept_since,
    report_absent_end,
)
from spark_ssp.kinesis_source.planning.shard_discovery import ShardDiscovery
from spark_ssp.kinesis_source.probing import instant_probe
from spark_ssp.kinesis_source.probing.batch_limits import (
    Limits,
)
from spark_ssp.kinesis_source.probing.instant_probe import NO_ENDS, EndPoint, is_end_of
from spark_ssp.kinesis_source.probing.position_advance import (
    LatestRecord,
    ShardAdvance,
    Target,
    is_target_reached,
    no_advance,
)
from spark_ssp.kinesis_source.probing.probe_runner import Probe
from spark_ssp.kinesis_source.probing.shard_prober import ShardProber


class FixedTargets:
    """The target of each shard to read, once fixed: other shards are ignored, and so are streams
    that were recreated since. Before, and after the release, shards have no targets."""

    def __init__(
        self,
        prober: ShardProber,
        discovery: ShardDiscovery,
        streams: Iterable[StreamRef],
        *,
        fail: bool,
    ) -> None:
        self._prober = prober
        self._discovery = discovery
        self._streams = tuple(streams)
        self._fail = fail
        self._targets: dict[ShardKey, Target] | None = None
        self._created: dict[StreamName, EpochMillis] = {}
        """The creation times of the streams that the targets are of."""

    @property
    def are_fixed(self) -> bool:
        return self._targets is not None

    def fix(self, ends: Mapping[ShardKey, EndPoint] = NO_ENDS) -> None:
        """Fix each listed shard's end, also if it waits for parents: the current one, or `ends`."""
        self._targets = None
        listed = [
            ShardKey(stream=ref.name, shard=shard)
            for ref in self._streams
            for shard in self._discovery.shards(ref)
        ]
        self._targets = self._find(listed, ends)
        self._created = {
            ref.name: self._discovery.description(ref).created for ref in self._streams
        }

    def complete(self, keys: Collection[ShardKey]) -> None:
        """Fix the current ends of shards that the listing for `fix` lacked."""
        if self._targets is None:
            return
        missing = sorted(key for key in keys - self._targets.keys() if not self._is_recreated(key))
        if missing:
            self._targets |= self._find(missing, NO_ENDS)

    def release(self) -> None:
        """Read beyond the targets again."""
        self._targets = None

    def get(self, key: ShardKey) -> Target | None:
        """Return the target of a shard; None if there is none, or if it is ignored."""
        if self._targets is None or self._is_recreated(key):
            return None
        return self._targets.get(key)

    def of(self, key: ShardKey, shard: Shard) -> Target | None:
        """Return `get`; while nothing is fixed, the target of a closed shard is its end."""
        if self._targets is None:
            return ShardEnd() if shard.closed else None
        return self.get(key)

    def _is_recreated(self, key: ShardKey) -> bool:
        return self._prober.description(key).created != self._created.get(key.stream)

    def is_at(self, key: ShardKey, position: Position) -> bool:
        """Return whether `position` is the record at which the shard ends, which is there."""
        target = self.get(key)
        return (
            isinstance(position, AfterRecord)
            and isinstance(target, LatestRecord)
            and target.record is not None
            and target.record.order == sequence_order(position.sequence_number)
        )

    def may_probe(self, key: ShardKey) -> bool:
        """Return whether a shard may be probed now. A run to fixed targets does not wait for
        `minFetchPeriod`: it ends, and asks a shard again only once a second."""
        limiter = self._prober.limiter
        return limiter.is_due(key) or (self.are_fixed and not limiter.is_paused(key))

    def unreached(
        self,
        states: Mapping[ShardKey, ShardState],
        advances: Mapping[ShardKey, ShardAdvance],
        limits: Limits,
        *,
        pending: Collection[ShardKey] = (),
    ) -> list[ShardKey]:
        """Return the shards short of their targets, sorted; none without targets. `states`: those
        from which the advances start; the position of a `pending` shard is not verified yet."""
        short: list[ShardKey] = []
        for key in sorted(states.keys() | set(pending)):
            target, advance = self.get(key), advances.get(key)
            if target is None or self._prober.is_unreadable(key):
                continue
            if key not in pending:
                reached = advance or no_advance(states[key])
                kept_since = self._kept_since(key, reached.state, limits)
                if is_target_reached(reached, target, kept_since):
                    continue
            short.append(key)
        return short

    def _kept_since(self, key: ShardKey, state: ShardState, limits: Limits) -> EpochMillis:
        stream, now = self._prober.description(key), self._prober.service_time()
        created, retention_ms = stream.created, stream.retention_ms
        return kept_since(state, created, now, retention_ms, limited=limits.is_bounded)

    def is_probed(self, key: ShardKey, position: Position) -> bool:
        """Return whether a batch under a limit needs a probe to advance towards the target."""
        target = self.get(key)
        if isinstance(target, LatestRecord):
            return target.record is not None and is_behind(position, target.record.position)
        return isinstance(target, ShardEnd)

    def _find(
        self, keys: Collection[ShardKey], ends: Mapping[ShardKey, EndPoint]
    ) -> dict[ShardKey, Target]:
        probes: dict[ShardKey, Probe] = {}
        targets: dict[ShardKey, Target] = {}
        for key in keys:
            closed = self._prober.listing(key)[key.shard].closed
            if closed and key not in ends:
                targets[key] = ShardEnd()
                continue
            find = partial(instant_probe.find_end, ends.get(key), closed=closed)
            retention_ms = self._prober.description(key).retention_ms
            probes[key] = partial(find, self._prober.service_time(), retention_ms)
        for key, outcome in self._prober.find_latest(probes).items():
            closed = outcome.closed
            if outcome.start_lost:
                # The EndingSequenceNumber need not be a record's.
                closed = is_end_of(self._prober.listing(key)[key.shard], ends.get(key))
                if not closed:
                    report_absent_end(key, fail=self._fail)
            latest = LatestRecord(record=outcome.end, time=outcome.time)
            targets[key] = ShardEnd() if closed else latest
        return targets
