"""Aligned batches: whatever the logs, no batch has a record that is ahead of another partition."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import EpochMillis, SystemStreamPartition
from spark_ssp.kafka_source.client.api import TimedOffset
from spark_ssp.kafka_source.planning.alignment import (
    ENOUGH_LOOKUPS,
    FULL,
    FirstRecords,
    Pace,
    find_aligned_end,
    run_lookups,
)
from spark_ssp.kafka_source.planning.rate_limit import ReadLimits
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import ssp
from tests.support.kafka.topics import Record

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

Times = list[int | None]
"""The times of a partition's offsets, after `NOW_MS`; None: an offset without a record."""


# --- Any logs -------------------------------------------------------------------------------------


@st.composite
def logs_of(draw: st.DrawFn, disorder: int) -> Times:
    """Times that do not decrease, each then set back by up to `disorder`. Often they are of few
    milliseconds, so that those of several partitions meet."""
    longest = draw(st.sampled_from([1, 3, HOUR_MS]))
    step = st.sampled_from([0, 0, 0, 1, 2, 500, 60_000, HOUR_MS]).filter(lambda ms: ms <= longest)
    steps = draw(st.lists(step, max_size=40))
    holes = draw(st.sets(st.integers(0, 39), max_size=3))
    times = list(accumulate(steps, initial=draw(st.integers(0, 3 * longest))))[1:]
    back = draw(st.lists(st.integers(0, disorder), min_size=len(times), max_size=len(times)))
    return [
        None if offset in holes else time - less
        for offset, (time, less) in enumerate(zip(times, back, strict=True))
    ]


@dataclass
class Judge:
    """Knows all records, and what each batch reads of them; compares the times of every record
    with every other."""

    kafka: FakeKafka
    limit: int
    disorder: int
    positions: dict[SystemStreamPartition, int]
    batches: int = 0

    def check(self, read: dict[SystemStreamPartition, tuple[int, int]], lookups: int) -> None:
        """Check a batch, of ranges by partition."""
        self.batches += 1
        before = dict(self.positions)
        for one, (start, end) in read.items():
            assert start == self.positions[one] < end
            self.positions[one] = end
        for one, (start, end) in read.items():
            times = [time for time in self._times(one)[start:end] if time is not None]
            for other in self.positions.keys() - {one}:
                self._check_ahead(max(times, default=-1), other)
        self._check_size(before, sum(end - start for start, end in read.values()), lookups)

    def _check_ahead(self, newest: int, other: SystemStreamPartition) -> None:
        """Check the newest record of a partition against the unread ones of another."""
        latest = -1
        for offset, time in enumerate(self._times(other)):
            if time is None:
                continue
            if offset >= self.positions[other]:
                assert newest <= time + self.disorder
                if time >= latest:  # It is not itself behind an earlier record of its partition.
                    assert newest <= time
            latest = max(latest, time)

    def _check_size(
        self, before: dict[SystemStreamPartition, int], size: int, lookups: int
    ) -> None:
        """Check the size of a batch against those of all instants."""
        assert size > 0
        every = {time for one in before for time in self._times(one) if time is not None}
        sizes = [self._size(before, time + 1) for time in sorted(every)]
        sizes.append(sum(len(self._times(one)) - at for one, at in before.items()))
        if sizes[-1] <= self.limit:
            assert size == sizes[-1]
            return
        smallest = next(one for one in sizes if one)
        if smallest > self.limit:
            assert size <= min(smallest, self.limit + len(before))
            return
        assert size <= self.limit
        larger = next(one for one in sizes if one > size)
        assert size >= FULL * self.limit or larger > self.limit or lookups >= ENOUGH_LOOKUPS

    def _size(self, before: dict[SystemStreamPartition, int], time: int) -> int:
        """Return the number of offsets from `before` to the first record of a time."""
        return sum(
            max(
                0,
                next(
                    (
                        offset
                        for offset, at in enumerate(self._times(one))
                        if at is not None and at >= time
                    ),
                    len(self._times(one)),
                )
                - position,
            )
            for one, position in before.items()
        )

    def _times(self, one: SystemStreamPartition) -> Sequence[int | None]:
        return [record.time_ms for record in self.kafka.log(one).records]


@given(st.data(), st.sampled_from([0, 0, 700, 2 * HOUR_MS]), st.integers(1, 60))
def test_no_batch_is_ahead_of_a_partition(data: st.DataObject, disorder: int, limit: int) -> None:
    """Two topics with any backlogs, one of which is expanded meanwhile."""
    kafka = FakeKafka()
    counts = {"clicks": data.draw(st.integers(1, 2)), "orders": data.draw(st.integers(1, 2))}
    for topic, count in counts.items():
        kafka.create(count, name=topic)
    judge = Judge(kafka, limit, disorder, {})

    def fill(topic: str, first: int, last: int) -> None:
        for partition in range(first, last):
            judge.positions[ssp(topic, partition)] = 0
            times = data.draw(logs_of(disorder))
            kafka.put(
                topic,
                [
                    Record(
                        value=b"",
                        partition=partition,
                        time_ms=None if time is None else NOW_MS + time,
                    )
                    for time in times
                ],
            )

    for topic, count in counts.items():
        fill(topic, 0, count)
    options = kafka_options(
        subscribe="clicks,orders", alignBatches="true", maxOffsetsPerTrigger=str(limit)
    )
    query = FakeQuery(kafka, options)
    expand_after = data.draw(st.integers(0, 4))
    while True:
        if judge.batches == expand_after:
            kafka.expand("orders", 2 * counts["orders"])
            fill("orders", counts["orders"], 2 * counts["orders"])
            query.pass_time()
            expand_after = -1
        calls = len(kafka.calls)
        read = query.batch()
        if read is None:
            break
        lookups = sum(call.startswith("first records") for call in kafka.calls[calls:])
        assert lookups <= ENOUGH_LOOKUPS + 2 * (2 * 40 * HOUR_MS).bit_length()
        if read:  # The first batch has the assignment even if there is no record.
            judge.check({one: (start, end) for _, one, start, end in read}, lookups)
    assert judge.positions == {one: len(kafka.log(one).records) for one in judge.positions}, (
        "nothing is left"
    )


# --- Uneven partitions ----------------------------------------------------------------------------

WEEK_MS = 7 * 24 * HOUR_MS


def _constant(chance: random.Random) -> int:
    return chance.randrange(WEEK_MS)


def _by_day(chance: random.Random) -> int:
    """Fifty times as many records at noon as at midnight."""
    while True:
        time = chance.randrange(WEEK_MS)
        noon = (1 - math.cos(2 * math.pi * time / (24 * HOUR_MS))) / 2
        if chance.random() < 0.02 + 0.98 * noon:
            return time


def _in_bursts(chance: random.Random) -> int:
    """A second of each hour."""
    return chance.randrange(WEEK_MS // HOUR_MS) * HOUR_MS + chance.randrange(1_000)


@pytest.mark.parametrize(
    ("draw_time", "steady_lookups"), [(_constant, 3.0), (_by_day, 6.0), (_in_bursts, 8.0)]
)
@pytest.mark.parametrize("begin", [0.0, 0.9])
def test_batches_of_a_backlog_are_full_and_cost_few_lookups(
    draw_time: Callable[[random.Random], int], steady_lookups: float, begin: float
) -> None:
    """Partitions of very different sizes, from their beginning or from late in their logs."""
    chance = random.Random(7)
    logs = {
        ssp("orders", number): sorted(NOW_MS + draw_time(chance) for _ in range(count))
        for number, count in enumerate((40_000, 8_000, 1_000, 20))
    }
    first = NOW_MS + round(begin * WEEK_MS)
    positions = {one: bisect_left(times, first) for one, times in logs.items()}
    limits = ReadLimits(max_offsets=400)
    pace: Pace | None = None
    sizes: list[int] = []
    lookups: list[int] = []
    while True:
        unread = {
            one: range(positions[one], len(times))
            for one, times in logs.items()
            if positions[one] < len(times)
        }
        if limits.allow({one: len(offsets) for one, offsets in unread.items()}):
            break
        aligned = run_lookups(
            find_aligned_end(unread, limits, pace), lambda time: _first_records(logs, time)
        )
        pace = aligned.pace
        for one, lag in aligned.lags.items():
            positions[one] += lag
        sizes.append(sum(aligned.lags.values()))
        lookups.append(aligned.lookups)
    assert max(sizes) <= 400
    assert sum(sizes) >= FULL * 400 * len(sizes)
    assert lookups[0] <= 20
    assert sum(lookups[1:]) <= steady_lookups * len(lookups)


def _first_records(
    logs: Mapping[SystemStreamPartition, Sequence[int]], since_ms: EpochMillis
) -> FirstRecords:
    found = {one: bisect_left(times, since_ms) for one, times in logs.items()}
    return {
        one: TimedOffset(offset=offset, time_ms=EpochMillis(logs[one][offset]))
        if offset < len(logs[one])
        else None
        for one, offset in found.items()
    }


def test_what_the_brokers_do_not_know_is_not_read_and_holds_back_nothing() -> None:
    logs = {ssp("orders", 0): [NOW_MS + 10, NOW_MS + 20], ssp("orders", 1): [NOW_MS + 30]}
    unread = {**{one: range(len(times)) for one, times in logs.items()}, ssp("gone", 0): range(5)}
    limits = ReadLimits(max_offsets=4)
    aligned = run_lookups(
        find_aligned_end(unread, limits, None), lambda time: _first_records(logs, time)
    )
    assert aligned.lags == {ssp("orders", 0): 2, ssp("orders", 1): 1}
    assert aligned.time_ms is None
    assert run_lookups(find_aligned_end(unread, limits, None), lambda _: {}).lags == {}
