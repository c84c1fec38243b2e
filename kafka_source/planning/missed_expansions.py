"""Detects signs of a partition count that no batch saw and that is no multiple of the one before.

A topic that goes from 4 to 8 partitions between two looks at the brokers may have had 6 in between.
Records that were written then lie by `hash(key) mod 6`, so some of them are in partitions of other
tasks than those of their keys. Kafka does not keep the time at which a partition was created, and
nothing else proves that there were 6. But partitions 4 and 5 were then written to before 6 and 7
were there. So the times of the oldest records are compared. They are the producers' own, and keys
may be few: what is found is a suspicion, for a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from task_grouping.assignment import TaskAssignment
from task_grouping.identifiers import SystemStream

_CHANCE: Final = 1 / 1_000
"""The largest probability of a false alarm at which a warning is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A topic whose partition count was `old` and is now found to be `new`."""

    stream: SystemStream
    old: int
    new: int

    def may_hide_counts(self) -> bool:
        """Return whether there are counts between the two that are no multiple of `old`."""
        return self.new > self.old + 1 and self.old > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedCount:
    """The suspicion that the topic had `count` partitions: those from `old` to `count` have older
    records than all later ones, whose oldest record has the time `until`; None if they are
    empty."""

    expansion: Expansion
    count: int
    until: int | None

    @property
    def early(self) -> range:
        """The partitions that may have existed first."""
        return range(self.expansion.old, self.count)

    def is_likely(self, records: Mapping[int, int]) -> bool:
        """Return whether this number of records in each of `early` before `until` is unlikely to be
        chance: evenly spread keys would rarely miss all other new partitions."""
        if not all(records.get(partition) for partition in self.early):
            return False
        share = len(self.early) / (self.expansion.new - self.expansion.old)
        return sum(records.values()) * math.log(share) <= math.log(_CHANCE)

    def warning(self) -> str:
        """Return the text of a warning."""
        topic, old, new = self.expansion.stream.stream, self.expansion.old, self.expansion.new
        return (
            f"Topic {topic} went from {old} to {new} partitions since the last look at it, and the "
            f"records in its partitions {old} to {self.count - 1} are older than all in "
            f"{self.count} to {new - 1}. If it had {self.count} partitions in between, which is no "
            f"multiple of {old}, records that were written then may be read by other tasks than "
            "those of their keys. Expand to multiples only, or while producers are stopped."
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


def suspected_counts(
    expansion: Expansion, first_times: Mapping[int, int | None]
) -> tuple[SuspectedCount, ...]:
    """The counts between that the times of the oldest records speak for, at most two: that with the
    longest time before later partitions were written to, and that behind which all are empty.

    `first_times` has, by partition, the time of the oldest record; None where there is none.
    """
    untils = _oldest_from(expansion, first_times)
    widest: tuple[int, int] | None = None
    last: int | None = None
    latest = -1
    for count in range(expansion.old + 1, expansion.new):
        time = first_times.get(count - 1)
        if time is None:
            break  # The age of an empty partition is unknown.
        latest = max(latest, time)
        until = untils[count]
        if count % expansion.old == 0:
            continue
        if until is None:
            last = count if last is None else last
        elif until > latest and (widest is None or until - latest > widest[0]):
            widest = until - latest, count
    counts = [] if widest is None else [widest[1]]
    counts += [] if last is None else [last]
    return tuple(
        SuspectedCount(expansion=expansion, count=count, until=untils[count]) for count in counts
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
