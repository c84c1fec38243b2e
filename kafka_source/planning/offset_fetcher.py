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

from kafka_source.client.api import KafkaService, Point
from kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, Positions
from kafka_source.model.topic import AtTime, Edge, NoMatch, kafka_name
from kafka_source.options.values import KafkaOptions
from kafka_source.planning.metadata_checks import (
    Topics,
    by_generation,
    compose,
    doubts,
    missing,
    new_partitions,
    not_known,
    not_there,
    selected,
    without_end,
    without_oldest,
)
from kafka_source.planning.offset_bounds import (
    Points,
    check_names_all,
    names_all,
    no_such_time,
    option_of,
    points_of,
)
from kafka_source.planning.topic_metadata import Found, log_of, recreated_topics
from ssp_common.logs import some_of
from task_grouping.assignment import TaskAssignment
from task_grouping.identifiers import StreamName, SystemStreamPartition

_log = logging.getLogger(f"spark_ssp.{__name__}")

Offsets = Mapping[SystemStreamPartition, int | None]
Partitions = Collection[SystemStreamPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one look found.

    `starts`, of a query's first batch alone: where the partitions begin that were found in the
    first look, but for those that begin at their oldest record. Others came later, hence begin at
    theirs too.
    """

    found: Found
    starts: Positions
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """What there was when a run to the tip began.

    `ends` are those that the run reads to, once the start is known, which says in which order they
    must be listed: older generations are listed after the newest, of which `listed` has the ends.
    """

    topics: Topics
    listed: Offsets
    ends: Offsets | None = None


class Finder:
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

    def find(self, start: Offset, known: TaskAssignment) -> Sight:
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
            sight = self._look(start, known, again=attempt > 1, last=attempt == attempts)
            if not sight.doubts or attempt == attempts:
                break
            _log.warning("In doubt, asking again: %s.", some_of(sight.doubts))
            self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
        self._settled = True
        if self._is_first(start):
            self._starts = sight.starts
        return sight

    def freeze(self) -> None:
        """From now on find what there is at this moment, and no more."""
        topics = self._service.describe(self._options.selection)
        partitions = selected(self._options.selection, topics)
        self._frozen = _Frozen(topics=topics, listed=self._service.offsets(partitions, Edge.LATEST))

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def ask(self, points: Points) -> dict[SystemStreamPartition, int | None]:
        """Offsets of points other than the latest, one call for each such point: None for a time
        later than every record's. Partitions that do not exist are absent."""
        wanted: dict[Point, list[SystemStreamPartition]] = {}
        for ssp, point in points.items():
            if not isinstance(point, int) and point is not Edge.LATEST:
                wanted.setdefault(point, []).append(ssp)
        answers: dict[SystemStreamPartition, int | None] = {}
        for point, ssps in wanted.items():
            answers |= self._service.offsets(ssps, point)
        return answers

    # --- One look ------------------------------------------------------------------------------

    def _look(self, start: Offset, known: TaskAssignment, *, again: bool, last: bool) -> Sight:
        """`last`: no other look follows, so that what stays unclear is an error."""
        close = again or self._is_due()
        topics = self._describe(close=close, again=again)
        partitions = selected(self._options.selection, topics)
        afresh = recreated_topics(start, topics)
        unclear = [] if self._settled else self._unclear(start, topics, partitions, last=last)
        oldest = self._oldest(start, topics, partitions, close=close)
        first = self._is_first(start)
        points = points_of(self._options.start, partitions) if first else {}
        times = self.ask({ssp: at for ssp, at in points.items() if isinstance(at, AtTime)})
        ends = self._ends(partitions, known, afresh)
        found = compose(topics, partitions, oldest, ends)
        unknown = without_end(partitions, found)
        if unknown and last:
            raise not_known(unknown, "end")
        starts, late = (
            self._resolved(points, times, found) if first else (self._starts_of(start), [])
        )
        if late and not unclear:
            raise no_such_time(option_of(self._options.start, "starting"), late)
        beginless = without_oldest(start, starts, found)
        if beginless and last:
            raise not_known(beginless, "oldest record")
        return Sight(
            found=found,
            starts=starts,
            doubts=(
                *unclear,
                *(f"{kafka_name(ssp)} has no end" for ssp in unknown),
                *(f"{kafka_name(ssp)} has no oldest record" for ssp in beginless),
                *doubts(start, starts, topics, found),
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
        names = missing(self._options.selection, topics, start)
        if names and last:
            raise not_there(self._options.selection, names)
        bound = self._options.start
        if not self._is_first(start) or names_all(bound, partitions):
            return [f"{name} is not there" for name in names]
        option = option_of(bound, "starting")
        if last:
            check_names_all(option, bound, partitions)
        return [f"{option} names other partitions than there are"]

    def _oldest(
        self, start: Offset, topics: Topics, partitions: Partitions, *, close: bool
    ) -> Offsets:
        wanted = partitions if close else new_partitions(start, topics, partitions)
        return self._service.offsets(wanted, Edge.EARLIEST) if wanted else {}

    def _ends(
        self, partitions: Partitions, known: TaskAssignment, afresh: Collection[StreamName]
    ) -> Offsets:
        frozen = self._frozen
        if frozen is not None and frozen.ends is not None:
            return frozen.ends
        ends: dict[SystemStreamPartition, int | None] = {}
        for place, wave in enumerate(by_generation(partitions, known, afresh)):
            if frozen is not None and place == 0:
                ends |= {ssp: frozen.listed[ssp] for ssp in wave if ssp in frozen.listed}
            else:
                ends |= self._service.offsets(wave, Edge.LATEST)
        if frozen is not None:
            self._frozen = replace(frozen, ends=ends)
        return ends

    def _resolved(
        self, points: Points, times: Offsets, found: Found
    ) -> tuple[Positions, list[SystemStreamPartition]]:
        """Where a new query begins in the partitions found, and those for which a time is an
        error. Ends were listed after `times`, unless they are those of a run to the tip."""
        starts: dict[SystemStreamPartition, int] = {}
        late: list[SystemStreamPartition] = []
        for ssp, point in points.items():
            logs = found[ssp.stream].partitions if ssp.stream in found else {}
            if point is Edge.EARLIEST or ssp.partition not in logs:
                continue
            end = log_of(found, ssp).end
            if isinstance(point, int):
                starts[ssp] = point
            elif point is Edge.LATEST:
                starts[ssp] = end
            else:
                offset = times.get(ssp)
                if offset is None and self._options.no_match is NoMatch.ERROR:
                    late.append(ssp)
                starts[ssp] = end if offset is None else min(offset, end)
        return starts, late

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
            _log.info("Topics found: %s.", some_of(news))
