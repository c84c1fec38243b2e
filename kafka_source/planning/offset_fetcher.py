"""Fetches the partitions to read and their offsets from the brokers.

One fetch requests, in this order:

1. the topics and their partitions: every `partitionDiscoveryInterval`, at the start of a run, and
   to confirm an answer;
2. the earliest offsets: of new partitions, and of all partitions whenever the topics are
   requested, so that records lost to retention are detected before a task meets the gap, and no
   limit is spent on it. In between, the task that meets a gap reports it, as with Spark's source;
3. the ends, newest partitions first; with read_committed, before them those of whole logs, for the
   lag, whenever the topics are requested, and after them where an end is before the position;
4. the offsets of a start by time, in a query's first fetch.

An answer that means a loss or a missing topic is confirmed by `fetchOffset.numRetries` fetches in a
row, or by twice as many in all, `fetchOffset.retryIntervalMs` apart. It is never accepted without a
request for the topics: a fetch that used the cached ones is followed by another. A request outside
of a fetch is repeated in the same way (`OffsetFetcher.confirm`). What is missing stays in the
offset; later fetches of the same run do not confirm it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, TypeVar

from spark_ssp.common.errors import AccessError, ServiceUnavailableError
from spark_ssp.common.logs import Detail, abbreviate
from spark_ssp.grouping.assignment import TaskAssignment
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import KafkaService, OffsetSpec
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from spark_ssp.kafka_source.model.topic import (
    IsolationLevel,
    LogicalOffset,
    NoMatch,
    Subscribe,
    SubscribePattern,
    is_selected,
    kafka_name,
    partition_of,
)
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.offset_bounds import (
    PartitionBounds,
    bounds_by_partition,
    check_names_exactly,
    names_exactly,
    no_offset_for_time,
    option_name,
    times_in,
)
from spark_ssp.kafka_source.planning.topic_metadata import (
    Metadata,
    Topics,
    build_metadata,
    missing_names,
    new_partitions,
    not_found_error,
    offsets_of,
    order_by_generation,
    partitions_without_earliest,
    partitions_without_end,
    recreated_topics,
    select_partitions,
    unconfirmed_losses,
    unknown_offsets_error,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TOGETHER_S: Final = 1.0
"""The longest time in which the ends of an aligned batch are listed, or they are listed again."""

Offsets = Mapping[SystemStreamPartition, int | None]
Partitions = Collection[SystemStreamPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshot:
    """The result of one fetch.

    `initial_positions`, of a query's first batch only: the start of each partition found by the
    first fetch, except partitions that start at their oldest record. Later partitions start at
    their oldest record too. `topics` are all that were described; `denied` is the brokers' refusal
    to describe a topic of the start. `unconfirmed` describes the answers that another fetch must
    confirm.
    """

    metadata: Metadata
    initial_positions: Positions
    topics: Topics
    denied: AccessError | None = None
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """The topics and ends at the start of a run that stops at the latest offsets. `ends` are the
    ends that the run reads to, once the start is known. It decides the order in which they must be
    listed: older generations after the newest, whose ends are in `listed`."""

    topics: Topics
    listed: Offsets
    ends: Offsets | None = None


class OffsetFetcher:
    """Fetches topics and offsets for one query. Not thread-safe. The constructor sends no request.
    `monotonic` is a clock in seconds, `sleep` waits for seconds. `whole_logs`: offsets by time are
    found among the records of open transactions as well, and so are those of `fetch_bounds`."""

    def __init__(
        self,
        options: KafkaOptions,
        service: KafkaService,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        whole_logs: bool = False,
    ) -> None:
        self._options = options
        self._whole_logs = whole_logs
        self._service = service
        self._monotonic = monotonic
        self._sleep = sleep
        self._topics: Topics = {}
        self._described_at: float | None = None
        self._starts: Positions | None = None
        self._frozen: _Frozen | None = None
        self._denied: AccessError | None = None
        self._listing_s = 0.0
        """The time that the last listing of ends took."""
        self._whole: Offsets = {}
        self._confirmed: frozenset[str] = frozenset()
        """The answers that the last fetch left unconfirmed, after all attempts."""
        self._selection_confirmed = False
        """True after a successful fetch, which has confirmed the topics that the options name."""

    def fetch(self, start: Offset, known: TaskAssignment) -> MetadataSnapshot:
        """Fetch the topics to read and their current ends, for the batch after `start`.

        `known` has the generations of partitions. Raises StreamNotFoundError if a topic or
        partition of the options does not exist at the start of a run, InvalidOptionsError if the
        options name other partitions than exist or a time without records, ServiceUnavailableError
        if an end or the start of a new partition stays unknown; and the errors of the service.
        """
        attempts = self._options.fetch_offset_attempts
        if self._frozen is not None or not self._is_due():
            attempts = max(attempts, 2)
        seen: Mapping[str, int] = {}
        for attempt in count(1):
            last = attempt >= attempts and self._is_confirmed(seen, attempt, others=1)
            try:
                snapshot = self._fetch_once(start, known, retry=attempt > 1, last=last)
            except AccessError as error:
                # A topic that was visible before. The next attempt lists the topics again, and a
                # pattern then matches only those that this user may describe.
                if last or not self._selection_confirmed:
                    raise
                self._pause("access refused", Detail(error))
                continue
            doubts = self._new(snapshot.unconfirmed)
            seen = {doubt: seen.get(doubt, 0) + 1 for doubt in doubts}
            if not doubts or (last and self._is_confirmed(seen, attempt)):
                break
            self._pause("unconfirmed metadata", abbreviate(doubts))
        self._selection_confirmed = True
        self._confirmed = frozenset(snapshot.unconfirmed)
        if self._is_first(start):
            self._starts = snapshot.initial_positions
        return snapshot

    def freeze(self, known: Collection[StreamName] = ()) -> None:
        """Fetch only the current topics and ends from now on. `known` are the topics of the
        start."""
        topics = self._request_topics(known)
        partitions = select_partitions(self._options.selection, topics)
        self._list_whole(partitions)
        self._frozen = _Frozen(topics=topics, listed=self._ends_together([partitions]))

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    @property
    def whole_ends(self) -> Offsets:
        """The ends of whole logs, for the lag of a stream with read_committed: what is behind an
        open transaction counts. Otherwise empty."""
        return self._whole

    def confirm(self, request: Callable[[], T], doubts: Callable[[T], Collection[str]]) -> T:
        """Repeat a request until its answer has no `doubts`, and return the answer: after all
        attempts, the last one (`_is_confirmed`). What the last fetch has confirmed is no doubt."""
        seen: Mapping[str, int] = {}
        for attempt in count(1):
            answer = request()
            new = self._new(doubts(answer))
            seen = {doubt: seen.get(doubt, 0) + 1 for doubt in new}
            if not new or self._is_confirmed(seen, attempt):
                break
            self._pause("unconfirmed metadata", abbreviate(new))
        return answer

    def fetch_bounds(self, bounds: Mapping[SystemStreamPartition, OffsetSpec]) -> Offsets:
        """Fetch the offset of each partition's spec: None for a time later than every record's.
        Partitions that are absent do not exist, which is confirmed."""
        return self.confirm(
            lambda: self._offsets_at(bounds),
            lambda answers: [
                f"{kafka_name(ssp)} does not exist" for ssp in bounds if ssp not in answers
            ],
        )

    def _offsets_at(self, bounds: Mapping[SystemStreamPartition, OffsetSpec]) -> Offsets:
        """Fetch them once, by one request for each different spec."""
        wanted: dict[OffsetSpec, list[SystemStreamPartition]] = {}
        for ssp, spec in bounds.items():
            wanted.setdefault(spec, []).append(ssp)
        answers: dict[SystemStreamPartition, int | None] = {}
        for spec, ssps in wanted.items():
            answers |= self._service.list_offsets(ssps, spec, uncommitted=self._whole_logs)
        return answers

    def _new(self, doubts: Iterable[str]) -> list[str]:
        """Return the doubts that the last fetch has not confirmed."""
        return [doubt for doubt in doubts if doubt not in self._confirmed]

    def _is_confirmed(self, seen: Mapping[str, int], attempt: int, *, others: int = 0) -> bool:
        """Return whether doubts stay: each was `seen` in as many attempts in a row as the options
        have, less the `others` to come, unless there were twice as many in all. Leaders that move
        one after the other raise one doubt each."""
        most = self._options.fetch_offset_attempts
        return attempt >= 2 * most or all(number >= most - others for number in seen.values())

    def _pause(self, problem: str, found: object) -> None:
        _log.warning("%s, retrying: %s", problem, found)
        self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)

    # --- One fetch -----------------------------------------------------------------------------

    def _fetch_once(
        self, start: Offset, known: TaskAssignment, *, retry: bool, last: bool
    ) -> MetadataSnapshot:
        """Fetch once. In the `last` attempt, an answer that must be confirmed is an error."""
        refresh = retry or self._is_due()
        topics = self._describe(start, refresh=refresh, retry=retry)
        partitions = select_partitions(self._options.selection, topics)
        recreated = recreated_topics(start, topics)
        unconfirmed = self._unconfirmed_names(start, topics, partitions, last=last)
        oldest = self._oldest(start, topics, partitions, refresh=refresh)
        first = self._is_first(start)
        bounds = bounds_by_partition(self._options.start, partitions) if first else {}
        if refresh and self._frozen is None:
            self._list_whole(partitions)
        ends = self._ends(partitions, known, recreated, first=first)
        if self._options.isolation_level is IsolationLevel.READ_COMMITTED:
            named = {ssp: at for ssp, at in bounds.items() if isinstance(at, int)}
            positions = {**named, **self._starts_of(start), **start.positions}
            valid = {ssp: at for ssp, at in positions.items() if ssp.stream not in recreated}
            ends = self._beyond_transactions(ends, valid)
        # After the ends: a partition without a record at its start time begins at its end, before
        # any record that comes in between.
        times = self._offsets_at(times_in(bounds))
        metadata = build_metadata(topics, partitions, oldest, ends)
        unknown = partitions_without_end(partitions, metadata)
        if unknown and last:
            raise unknown_offsets_error(unknown, "end")
        untimed = sorted(times_in(bounds).keys() - times.keys())
        if untimed and last:
            raise unknown_offsets_error(untimed, "offset by time")
        initial_positions, late = (
            self._resolved(bounds, times, metadata) if first else (self._starts_of(start), [])
        )
        if late and not unconfirmed:
            raise no_offset_for_time(option_name(self._options.start, "starting"), late)
        without_earliest = partitions_without_earliest(start, initial_positions, metadata)
        if without_earliest and last:
            raise unknown_offsets_error(without_earliest, "oldest record")
        return MetadataSnapshot(
            metadata=metadata,
            initial_positions=initial_positions,
            topics=topics,
            denied=self._denied,
            unconfirmed=(
                *unconfirmed,
                *(f"{kafka_name(ssp)} has no end" for ssp in unknown),
                *(f"{kafka_name(ssp)} has no offset by time" for ssp in untimed),
                *(f"{kafka_name(ssp)} has no oldest record" for ssp in without_earliest),
                *unconfirmed_losses(
                    self._options.selection, start, initial_positions, topics, metadata
                ),
            ),
        )

    def _is_first(self, start: Offset) -> bool:
        return start == BEFORE_FIRST_BATCH and self._starts is None

    def _starts_of(self, start: Offset) -> Positions:
        """Return the initial positions, which only apply to the first batch."""
        return (self._starts or {}) if start == BEFORE_FIRST_BATCH else {}

    def _is_due(self) -> bool:
        if self._described_at is None:
            return True
        age = (self._monotonic() - self._described_at) * 1000
        return age >= self._options.partition_discovery_interval_ms

    def _describe(self, start: Offset, *, refresh: bool, retry: bool) -> Topics:
        if refresh:
            self._described_at = self._monotonic()
        if self._frozen is not None:
            if retry:
                self.freeze(start.topics.keys())
            topics = self._frozen.topics
        elif refresh:
            topics = self._request_topics(start.topics.keys())
        else:
            return self._topics
        self._log_changes(topics)
        self._topics = topics
        return topics

    def _request_topics(self, known: Collection[StreamName]) -> Topics:
        """Request the topics to read. The list of all topics, which a pattern is compared with,
        leaves out those that the user may not describe: the known ones that it lacks are requested
        by name, which distinguishes the two."""
        selection = self._options.selection
        topics = self._service.describe(selection)
        self._denied = None
        if isinstance(selection, SubscribePattern):
            unlisted = tuple(
                topic
                for topic in sorted(known)
                if topic not in topics and is_selected(selection, partition_of(topic, 0))
            )
            try:
                found = self._service.describe(Subscribe(topics=unlisted)) if unlisted else {}
            except AccessError as error:
                self._denied, found = error, {}
            topics = {**topics, **found}
        return {name: topics[name] for name in topics if name not in self._options.drop_topics}

    def _unconfirmed_names(
        self, start: Offset, topics: Topics, partitions: Partitions, *, last: bool
    ) -> list[str]:
        """Return the topics and partitions of the options that do not exist, at the start of a
        run."""
        if self._selection_confirmed:
            return []
        names = missing_names(self._options.selection, topics, start)
        if names and last:
            raise not_found_error(self._options.selection, names)
        bound = self._options.start
        if not self._is_first(start) or names_exactly(bound, partitions):
            return [f"{name} does not exist" for name in names]
        option = option_name(bound, "starting")
        if last:
            check_names_exactly(option, bound, partitions)
        return [f"{option} names other partitions than exist"]

    def _oldest(
        self, start: Offset, topics: Topics, partitions: Partitions, *, refresh: bool
    ) -> Offsets:
        wanted = partitions if refresh else new_partitions(start, topics, partitions)
        return self._service.list_offsets(wanted, LogicalOffset.EARLIEST) if wanted else {}

    def _ends(
        self,
        partitions: Partitions,
        known: TaskAssignment,
        recreated: Collection[StreamName],
        *,
        first: bool,
    ) -> Offsets:
        frozen = self._frozen
        if frozen is not None and frozen.ends is not None:
            return frozen.ends
        generations = order_by_generation(partitions, known, recreated)
        if frozen is None:
            # The starts of the first batch, which may be its ends, must not move.
            return self._listed(generations) if first else self._ends_together(generations)
        newest = {ssp for generation in generations[:1] for ssp in generation}
        ends = {ssp: end for ssp, end in frozen.listed.items() if ssp in newest}
        ends |= self._listed(generations[1:])
        self._frozen = replace(frozen, ends=ends)
        return ends

    def _list_whole(self, partitions: Partitions) -> None:
        """Request the ends of whole logs before those that read_committed lists: records that come
        in between are in the batch, and not behind a transaction. A failure leaves the former
        ones."""
        is_needed = self._options.isolation_level is IsolationLevel.READ_COMMITTED
        if not is_needed or self._whole_logs or not partitions:
            return
        try:
            self._whole = self._service.list_offsets(
                partitions, LogicalOffset.LATEST, uncommitted=True
            )
        except ServiceUnavailableError as error:
            _log.warning("could not list the ends for the lag: %s", Detail(error))

    def _beyond_transactions(self, ends: Offsets, positions: Positions) -> Offsets:
        """Return the ends that read_committed has listed, but each that is before its position at
        the position, if the whole log reaches it, or else at the end of that: a query that has read
        uncommitted records waits after the start of an open transaction."""
        behind = {
            ssp: end for ssp, end in ends.items() if end is not None and end < positions.get(ssp, 0)
        }
        if not behind:
            return ends
        whole = self._service.list_offsets(behind, LogicalOffset.LATEST, uncommitted=True)
        moved = {
            ssp: max(end, min(positions[ssp], whole.get(ssp) or 0)) for ssp, end in behind.items()
        }
        return {**ends, **moved}

    def _ends_together(self, generations: Sequence[Partitions]) -> Offsets:
        """Return the ends; for aligned batches listed at about one time. While the leader of some
        partitions is away, the ends of the others get old: so all are listed again after it, unless
        that takes as long every time."""
        began = self._monotonic()
        ends = self._listed(generations)
        took = self._monotonic() - began
        usual, self._listing_s = self._listing_s, took
        if not self._options.align_batches or took < max(_TOGETHER_S, 2 * usual):
            return ends
        began = self._monotonic()
        try:
            ends = self._listed(generations)
        except ServiceUnavailableError as error:
            _log.warning("could not list the ends again: %s", Detail(error))
        self._listing_s = self._monotonic() - began
        return ends

    def _listed(self, generations: Sequence[Partitions]) -> Offsets:
        ends: dict[SystemStreamPartition, int | None] = {}
        for generation in generations:
            ends |= self._service.list_offsets(generation, LogicalOffset.LATEST)
        return ends

    def _resolved(
        self, bounds: PartitionBounds, times: Offsets, metadata: Metadata
    ) -> tuple[Positions, list[SystemStreamPartition]]:
        """Return the start of a new query in each partition, and the partitions for which a start
        time is an error."""
        initial_positions: dict[SystemStreamPartition, int] = {}
        late: list[SystemStreamPartition] = []
        for ssp, bound in bounds.items():
            logs = metadata[ssp.stream].partitions if ssp.stream in metadata else {}
            if bound is LogicalOffset.EARLIEST or ssp.partition not in logs:
                continue
            end = offsets_of(metadata, ssp).end
            if isinstance(bound, int):
                initial_positions[ssp] = bound
            elif bound is LogicalOffset.LATEST:
                initial_positions[ssp] = end
            elif ssp in times:
                offset = times[ssp]
                if offset is None and self._options.no_match is NoMatch.ERROR:
                    late.append(ssp)
                initial_positions[ssp] = end if offset is None else min(offset, end)
        return initial_positions, late

    def _log_changes(self, topics: Topics) -> None:
        before = self._topics
        changes = []
        for name in sorted(topics):
            count = topics[name].partition_count
            if name not in before:
                changes.append(f"{name} with {count} partitions")
            elif before[name].partition_count != count:
                changes.append(
                    f"{name} with {count} partitions, {before[name].partition_count} before"
                )
        if changes:
            _log.debug("topics found: %s", abbreviate(changes))
