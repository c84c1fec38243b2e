"""The driver's look at the brokers: which partitions there are, and how far each can be read.

One look asks, in this order:

1. the topics and their partitions, not each time but every `partitionDiscoveryInterval`, at the
   start of a run and in doubt;
2. the oldest offsets: of new partitions, and of all whenever the topics are asked for, so that
   retention that overtakes a query is noticed before a task meets the gap, and a limit is not
   spent on it. In between a task that meets a gap tells, as with Spark's source;
3. the offsets of a start by time, in a query's first look;
4. the ends, newest partitions first.

An answer that would be a loss, or a missing topic, is asked for again `fetchOffset.numRetries`
times in all, `fetchOffset.retryIntervalMs` apart. It is never believed before the topics were asked
for: a look at those that are remembered is followed by another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from kafka_source.client.api import KafkaService, OffsetSpec
from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from kafka_source.model.topic import AtTime, LogicalOffset, NoMatch, kafka_name
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.metadata_checks import (
    Topics,
    build_metadata,
    missing_names,
    new_partitions,
    not_found_error,
    order_by_generation,
    partitions_without_earliest,
    partitions_without_end,
    select_partitions,
    unconfirmed_losses,
    unknown_offsets_error,
)
from kafka_source.planning.offset_bounds import (
    PartitionBounds,
    bounds_by_partition,
    check_names_exactly,
    names_exactly,
    no_offset_for_time,
    option_name,
)
from kafka_source.planning.topic_metadata import Metadata, offsets_of, recreated_topics
from ssp_common.logs import abbreviate
from task_grouping.assignment import TaskAssignment
from task_grouping.identifiers import StreamName, SystemStreamPartition

_log = logging.getLogger(f"spark_ssp.{__name__}")

Offsets = Mapping[SystemStreamPartition, int | None]
Partitions = Collection[SystemStreamPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshot:
    """What one look found.

    `starts`, of a query's first batch alone: where the partitions begin that were found in the
    first look, but for those that begin at their oldest record. Others came later, hence begin at
    theirs too.
    """

    metadata: Metadata
    initial_positions: Positions
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """What there was when a run to the tip began.

    `ends` are those that the run reads to, once the start is known, which says in which order they
    must be listed: older generations are listed after the newest, of which `listed` has the ends.
    """

    topics: Topics
    listed: Offsets
    ends: Offsets | None = None


class OffsetFetcher:
    """Looks for one query. Not thread-safe. Building asks nothing.

    `monotonic` is a clock in seconds, `sleep` waits that many.
    """

    def __init__(
        self,
        options: KafkaOptions,
        service: KafkaService,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._options = options
        self._service = service
        self._monotonic = monotonic
        self._sleep = sleep
        self._topics: Topics = {}
        self._described_at: float | None = None
        self._starts: Positions | None = None
        self._frozen: _Frozen | None = None
        self._settled = False
        """Whether a look has succeeded, so that what the options name was there."""

    def fetch(self, start: Offset, known: TaskAssignment) -> MetadataSnapshot:
        """The topics to read and their ends at this moment, for the batch after `start`.

        `known` says which partitions came together. Raises StreamNotFoundError when what the
        options name is not there at the start of a run, InvalidOptionsError when they name other
        partitions than there are or a time at which there is nothing, ServiceUnavailableError
        when an end, or where a new partition begins, stays unknown; and what the service raises.
        """
        attempts = self._options.fetch_offset_attempts
        if self._frozen is not None or not self._is_due():
            attempts = max(attempts, 2)
        for attempt in range(1, attempts + 1):
            snapshot = self._fetch_once(start, known, again=attempt > 1, last=attempt == attempts)
            if not snapshot.unconfirmed or attempt == attempts:
                break
            _log.warning("In doubt, asking again: %s.", abbreviate(snapshot.unconfirmed))
            self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
        self._settled = True
        if self._is_first(start):
            self._starts = snapshot.initial_positions
        return snapshot

    def freeze(self) -> None:
        """From now on find what there is at this moment, and no more."""
        topics = self._service.describe(self._options.selection)
        partitions = select_partitions(self._options.selection, topics)
        self._frozen = _Frozen(
            topics=topics, listed=self._service.list_offsets(partitions, LogicalOffset.LATEST)
        )

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def fetch_bounds(self, bounds: PartitionBounds) -> dict[SystemStreamPartition, int | None]:
        """Offsets of points other than the latest, one call for each such point: None for a time
        later than every record's. Partitions that do not exist are absent."""
        wanted: dict[OffsetSpec, list[SystemStreamPartition]] = {}
        for ssp, point in bounds.items():
            if not isinstance(point, int) and point is not LogicalOffset.LATEST:
                wanted.setdefault(point, []).append(ssp)
        answers: dict[SystemStreamPartition, int | None] = {}
        for point, ssps in wanted.items():
            answers |= self._service.list_offsets(ssps, point)
        return answers

    # --- One look ------------------------------------------------------------------------------

    def _fetch_once(
        self, start: Offset, known: TaskAssignment, *, again: bool, last: bool
    ) -> MetadataSnapshot:
        """`last`: no other look follows, so that what stays unclear is an error."""
        close = again or self._is_due()
        topics = self._describe(close=close, again=again)
        partitions = select_partitions(self._options.selection, topics)
        recreated = recreated_topics(start, topics)
        unclear = [] if self._settled else self._unclear(start, topics, partitions, last=last)
        oldest = self._oldest(start, topics, partitions, close=close)
        first = self._is_first(start)
        bounds = bounds_by_partition(self._options.start, partitions) if first else {}
        times = self.fetch_bounds({ssp: at for ssp, at in bounds.items() if isinstance(at, AtTime)})
        ends = self._ends(partitions, known, recreated)
        metadata = build_metadata(topics, partitions, oldest, ends)
        unknown = partitions_without_end(partitions, metadata)
        if unknown and last:
            raise unknown_offsets_error(unknown, "end")
        initial_positions, late = (
            self._resolved(bounds, times, metadata) if first else (self._starts_of(start), [])
        )
        if late and not unclear:
            raise no_offset_for_time(option_name(self._options.start, "starting"), late)
        beginless = partitions_without_earliest(start, initial_positions, metadata)
        if beginless and last:
            raise unknown_offsets_error(beginless, "oldest record")
        return MetadataSnapshot(
            metadata=metadata,
            initial_positions=initial_positions,
            unconfirmed=(
                *unclear,
                *(f"{kafka_name(ssp)} has no end" for ssp in unknown),
                *(f"{kafka_name(ssp)} has no oldest record" for ssp in beginless),
                *unconfirmed_losses(start, initial_positions, topics, metadata),
            ),
        )

    def _is_first(self, start: Offset) -> bool:
        return start == BEFORE_FIRST_BATCH and self._starts is None

    def _starts_of(self, start: Offset) -> Positions:
        """What was found for the first batch means nothing to later ones."""
        return (self._starts or {}) if start == BEFORE_FIRST_BATCH else {}

    def _is_due(self) -> bool:
        if self._described_at is None:
            return True
        age = (self._monotonic() - self._described_at) * 1000
        return age >= self._options.partition_discovery_interval_ms

    def _describe(self, *, close: bool, again: bool) -> Topics:
        if close:
            self._described_at = self._monotonic()
        if self._frozen is not None:
            if again:
                self.freeze()
            topics = self._frozen.topics
        elif close:
            topics = self._service.describe(self._options.selection)
        else:
            return self._topics
        self._log_changes(topics)
        self._topics = topics
        return topics

    def _unclear(
        self, start: Offset, topics: Topics, partitions: Partitions, *, last: bool
    ) -> list[str]:
        """At the start of a run, what the options name and is not there."""
        names = missing_names(self._options.selection, topics, start)
        if names and last:
            raise not_found_error(self._options.selection, names)
        bound = self._options.start
        if not self._is_first(start) or names_exactly(bound, partitions):
            return [f"{name} is not there" for name in names]
        option = option_name(bound, "starting")
        if last:
            check_names_exactly(option, bound, partitions)
        return [f"{option} names other partitions than there are"]

    def _oldest(
        self, start: Offset, topics: Topics, partitions: Partitions, *, close: bool
    ) -> Offsets:
        wanted = partitions if close else new_partitions(start, topics, partitions)
        return self._service.list_offsets(wanted, LogicalOffset.EARLIEST) if wanted else {}

    def _ends(
        self, partitions: Partitions, known: TaskAssignment, recreated: Collection[StreamName]
    ) -> Offsets:
        frozen = self._frozen
        if frozen is not None and frozen.ends is not None:
            return frozen.ends
        ends: dict[SystemStreamPartition, int | None] = {}
        for place, wave in enumerate(order_by_generation(partitions, known, recreated)):
            if frozen is not None and place == 0:
                ends |= {ssp: frozen.listed[ssp] for ssp in wave if ssp in frozen.listed}
            else:
                ends |= self._service.list_offsets(wave, LogicalOffset.LATEST)
        if frozen is not None:
            self._frozen = replace(frozen, ends=ends)
        return ends

    def _resolved(
        self, bounds: PartitionBounds, times: Offsets, metadata: Metadata
    ) -> tuple[Positions, list[SystemStreamPartition]]:
        """Where a new query begins in the partitions found, and those for which a time is an
        error. Ends were listed after `times`, unless they are those of a run to the tip."""
        initial_positions: dict[SystemStreamPartition, int] = {}
        late: list[SystemStreamPartition] = []
        for ssp, point in bounds.items():
            logs = metadata[ssp.stream].partitions if ssp.stream in metadata else {}
            if point is LogicalOffset.EARLIEST or ssp.partition not in logs:
                continue
            end = offsets_of(metadata, ssp).end
            if isinstance(point, int):
                initial_positions[ssp] = point
            elif point is LogicalOffset.LATEST:
                initial_positions[ssp] = end
            else:
                offset = times.get(ssp)
                if offset is None and self._options.no_match is NoMatch.ERROR:
                    late.append(ssp)
                initial_positions[ssp] = end if offset is None else min(offset, end)
        return initial_positions, late

    def _log_changes(self, topics: Topics) -> None:
        before = self._topics
        news = []
        for name in sorted(topics):
            count = topics[name].partition_count
            if name not in before:
                news.append(f"{name} with {count} partitions")
            elif before[name].partition_count != count:
                news.append(
                    f"{name} with {count} partitions, {before[name].partition_count} before"
                )
        if news:
            _log.info("Topics found: %s.", abbreviate(news))
