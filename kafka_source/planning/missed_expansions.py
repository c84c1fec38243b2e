"""Detects a possible partition count between two fetches that is no multiple of the one before.

A topic that grows from 4 to 8 partitions between two fetches of its metadata may have had 6 in
between. Records written then are distributed by `hash(key) mod 6`, so some are in partitions of
other tasks than those of their keys. Kafka does not record the creation time of a partition, and
nothing else proves that there were 6. But then partitions 4 and 5 were written to before 6 and 7
existed. So the times of the oldest records are compared. They are set by producers, and keys may be
few: the result is a suspicion, for a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.grouping.assignment import TaskAssignment
from spark_ssp.grouping.identifiers import SystemStream

_CHANCE: Final = 1 / 1_000
"""The largest probability of a false alarm at which a warning is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A topic whose partition count was `old` and is now `new`."""

    stream: SystemStream
    old: int
    new: int

    def may_hide_counts(self) -> bool:
        """Return whether a count between the two is no multiple of `old`."""
        return self.new > self.old + 1 and self.old > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedCount:
    """A count that the topic may have had: partitions `old` to `count` have older records than all
    later ones, whose oldest record has the time `until_ms`; None if they are empty."""

    expansion: Expansion
    count: int
    until_ms: int | None

    @property
    def early(self) -> range:
        """The partitions that may have existed before the others."""
        return range(self.expansion.old, self.count)

    def is_likely(self, records: Mapping[int, int]) -> bool:
        """Return whether this number of records in each of `early` before `until_ms` is unlikely to
        be chance: evenly spread keys would rarely miss all other new partitions."""
        if not all(records.get(partition) for partition in self.early):
            return False
        share = len(self.early) / (self.expansion.new - self.expansion.old)
        return sum(records.values()) * math.log(share) <= math.log(_CHANCE)

    def warning(self) -> str:
        """Return the text of a warning."""
        topic, old, new = self.expansion.stream.stream, self.expansion.old, self.expansion.new
        return (
            f"topic {topic} grew from {old} to {new} partitions since the last metadata fetch, "
            f"and the records in its partitions {old} to {self.count - 1} are older than all in "
            f"{self.count} to {new - 1}; if it had {self.count} partitions in between, which is no "
            f"multiple of {old}, records written then may be read by other tasks than those of "
            "their keys: expand to multiples only, or while producers are stopped"
        )


def find_expansions(before: TaskAssignment, now: TaskAssignment) -> tuple[Expansion, ...]:
    """Return the topics that kept their tasks through a larger count, sorted, if a count that is no
    multiple may have been in between. A topic that was grouped again has one generation."""
    found = (
        Expansion(stream=stream, old=before.counts[stream][-1], new=now.counts[stream][-1])
        for stream in sorted(before.counts.keys() & now.counts.keys())
        if len(now.counts[stream]) > len(before.counts[stream])
    )
    return tuple(expansion for expansion in found if expansion.may_hide_counts())


def count_expansions(before: TaskAssignment, now: TaskAssignment) -> int:
    """Return the number of topics that have more partitions than before."""
    both = before.counts.keys() & now.counts.keys()
    return sum(now.counts[stream][-1] > before.counts[stream][-1] for stream in both)


def suspected_counts(
    expansion: Expansion, first_times: Mapping[int, int | None]
) -> tuple[SuspectedCount, ...]:
    """Return the counts in between that the times of the oldest records suggest, at most two: the
    one with the longest time before later partitions were written to, and the one after which all
    are empty.

    `first_times` has the time of the oldest record of each partition; None if it has none.
    """
    oldest_times = _oldest_from(expansion, first_times)
    widest: tuple[int, int] | None = None
    last: int | None = None
    latest = -1
    for count in range(expansion.old + 1, expansion.new):
        time = first_times.get(count - 1)
        if time is None:
            break  # The age of an empty partition is unknown.
        latest = max(latest, time)
        until = oldest_times[count]
        if count % expansion.old == 0:
            continue
        if until is None:
            last = count if last is None else last
        elif until > latest and (widest is None or until - latest > widest[0]):
            widest = until - latest, count
    counts = [] if widest is None else [widest[1]]
    counts += [] if last is None else [last]
    return tuple(
        SuspectedCount(expansion=expansion, count=count, until_ms=oldest_times[count])
        for count in counts
    )


def _oldest_from(
    expansion: Expansion, first_times: Mapping[int, int | None]
) -> dict[int, int | None]:
    """Return, by partition, the oldest time in it or in any with a higher number."""
    oldest: dict[int, int | None] = {}
    until: int | None = None
    for partition in range(expansion.new - 1, expansion.old, -1):
        time = first_times.get(partition)
        until = time if until is None else until if time is None else min(time, until)
        oldest[partition] = until
    return oldest
