"""The pace of records to a shard, and the windows of tasks that share a link: a simulation of each,
and their rules."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ssp.kinesis_source.sink.encoding import encode_rows
from spark_ssp.kinesis_source.sink.pacing import (
    RECORDS_PER_SECOND,
    TARGET_S,
    LinkWindow,
    ShardPacer,
    ShardQueue,
    Upload,
    first_share,
)
from tests.support.kinesis.sink_writer import Entry, rows_of

_LOOK_S = 0.05


@dataclass
class Shard:
    """Stores records as Kinesis does: at most so many within a second."""

    uses: deque[tuple[float, int]] = field(default_factory=deque)
    stored: int = 0
    refused: int = 0

    def put(self, now: float, count: int) -> int:
        while self.uses and self.uses[0][0] <= now - 1:
            self.uses.popleft()
        left = RECORDS_PER_SECOND - sum(used for _, used in self.uses)
        taken = min(count, left)
        self.uses.append((now, taken))
        self.stored += taken
        self.refused += count - taken
        return taken


@dataclass
class Tasks:
    """Tasks that write as much as their pacers allow. A request reaches the shard within `delay`
    seconds, and its answer takes up to half as long."""

    shard: Shard
    delay: float
    pacers: list[ShardPacer]
    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _backoff: dict[int, float] = field(default_factory=dict)

    def run(self, until: float, writing: int | None = None) -> None:
        """Let the first tasks, or all, write until a time in seconds."""
        chance = random.Random(len(self.pacers))
        self._events.clear()
        for pacer in self.pacers[:writing]:
            self._look(pacer, chance)
        while self._events[0][0] < until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _look(self, pacer: ShardPacer, chance: random.Random) -> None:
        """Send what the pacer allows, and look again a little later."""
        while self.now >= self._backoff.get(id(pacer), 0.0):
            allowed, _ = pacer.budget(self.now)
            if allowed < pacer.part(self.now):
                break
            self._send(pacer, min(allowed, 500), chance)
        pause = _LOOK_S * chance.uniform(0.8, 1.2)
        self._at(self.now + pause, lambda: self._look(pacer, chance))

    def _send(self, pacer: ShardPacer, records: int, chance: random.Random) -> None:
        use = pacer.begin(self.now, records, records)

        def arrive() -> None:
            stored = self.shard.put(self.now, records)
            self._at(self.now + chance.uniform(0, self.delay / 2), lambda: answer(stored))

        def answer(stored: int) -> None:
            pacer.end(use, self.now)
            if stored < records:
                pacer.throttled(self.now, stored / records)
                self._backoff[id(pacer)] = self.now + chance.uniform(0.1, 0.2)

        self._at(self.now + chance.uniform(0, self.delay), arrive)


@pytest.mark.parametrize("delay", [0.02, 0.2])
@pytest.mark.parametrize(("tasks", "throttled"), [(1, 0.0), (2, 0.02), (4, 0.02), (16, 0.04)])
def test_tasks_use_a_shard_nearly_without_throttling(
    tasks: int, throttled: float, delay: float
) -> None:
    shard = Shard()
    writers = Tasks(shard, delay, [ShardPacer(0) for _ in range(tasks)])
    writers.run(until=10)
    shard.stored = shard.refused = 0
    writers.run(until=100)
    assert shard.refused <= throttled * (shard.refused + shard.stored)
    # A task waits for a second from an answer on, so that no delay of a request is throttled.
    assert shard.stored >= (0.9 - delay) * 90 * RECORDS_PER_SECOND


def test_a_task_uses_the_shard_of_those_that_have_ended() -> None:
    shard = Shard()
    writers = Tasks(shard, 0.05, [ShardPacer(0) for _ in range(4)])
    writers.run(until=30)
    before = shard.stored
    writers.run(until=60, writing=1)
    assert shard.stored - before >= 0.5 * 30 * RECORDS_PER_SECOND


def test_a_request_without_an_answer_holds_back_others_for_some_seconds_only() -> None:
    pacer = ShardPacer(0)
    for _ in range(2):
        pacer.begin(0, 500, 500)
    assert pacer.budget(4.9)[0] < pacer.part(4.9)
    assert pacer.next_budget(4.9, 250) == 5
    assert pacer.budget(5)[0] == RECORDS_PER_SECOND


def test_a_slow_request_does_not_hold_back_those_that_were_answered() -> None:
    pacer = ShardPacer(0)
    slow, fast = pacer.begin(0, 500, 500), pacer.begin(0, 500, 500)
    pacer.end(fast, 0.05)
    assert pacer.next_budget(0.1, 250) == 1.05
    assert pacer.budget(1.1)[0] == 500
    pacer.end(slow, 3)
    assert pacer.budget(3.9)[0] == 500
    assert pacer.budget(4)[0] == RECORDS_PER_SECOND


def test_records_of_a_slow_shard_do_not_keep_those_of_others() -> None:
    rows = encode_rows(rows_of([Entry(bytes(10), "k")] * 100))
    queue = ShardQueue(ShardPacer(0))
    for _ in range(20):
        queue.age()
        queue.add(rows.part(0, 2))
        queue.add(rows.part(2, 3))
    taken = queue.take(30, 10_000, 10_000)
    assert [len(run.text) for run, _ in taken] == [len(run.entries) for run, _ in taken]
    for _ in range(2):
        queue.age()
        queue.add(rows.part(3, 4))
    runs = [run for run, _ in queue.take_all()]
    assert sum(run.count for run in runs) == 32
    shared = [run for run in runs if len(run.text) > len(run.entries)]
    assert len(shared) == 6


def test_tasks_that_start_together_leave_room_for_each_other() -> None:
    """Each knows only that there are as many tasks as its number. Those of the next batch know
    what these have learned."""

    def refused(shares: list[float]) -> tuple[float, float]:
        shard = Shard()
        tasks = Tasks(shard, 0.05, [ShardPacer(0, share=share) for share in shares])
        tasks.run(6.0)
        first, stored = shard.refused, shard.stored
        for pacer in tasks.pacers:
            pacer.rest(30.0)
        shard.refused = shard.stored = 0
        tasks.now += 30.0
        tasks.run(tasks.now + 6.0)
        return first / stored, shard.refused / shard.stored

    begun_with_all, _ = refused([1.0] * 8)
    begun_with_a_part, next_batch = refused([first_share(number) for number in range(1, 9)])
    assert begun_with_a_part < begun_with_all / 4
    assert next_batch < 0.05


def test_the_first_share_of_a_task_doubles_until_it_is_throttled() -> None:
    pacer = ShardPacer(0, share=1 / 8)
    assert [pacer.budget(second)[0] for second in range(5)] == [125, 250, 500, 1000, 1000]
    pacer.throttled(4.0, 0.5)
    assert pacer.budget(5.0)[0] < 1000


_STEP_S = 0.025
_ROUND_TRIP_S = 0.05
_TIMEOUT_S = 30.0


@dataclass
class Flight:
    """A request on the link. `left` are the bytes that have not left yet."""

    upload: Upload
    left: float
    answered_at: float | None = None


@dataclass
class Task:
    window: LinkWindow = field(default_factory=LinkWindow)
    waiting: int = 0
    flights: list[Flight] = field(default_factory=list)
    lost: int = 0

    def in_flight(self) -> int:
        return sum(each.upload.size for each in self.flights)

    def send(self, now: float, row: int, most: int) -> None:
        while (
            self.waiting
            and len(self.flights) < most
            and self.window.allows_request(self.in_flight())
        ):
            size = min(self.waiting, max(row, self.window.request_bytes // row * row), 10 << 20)
            self.waiting -= size
            upload = Upload(
                began=now,
                size=size,
                in_flight=self.in_flight() + size,
                seconds=0.0,
                is_measured=True,
                is_cut=self.waiting > 0 and size < 10 << 20,
            )
            self.flights.append(Flight(upload, size))

    def settle(self, now: float) -> None:
        for each in list(self.flights):
            sent = each.upload
            is_lost = now - sent.began > _TIMEOUT_S and each.answered_at is None
            if is_lost:
                self.waiting += sent.size
                self.lost += sent.size
            elif each.answered_at is None or each.answered_at > now:
                continue
            self.flights.remove(each)
            seconds = (each.answered_at or now) - _ROUND_TRIP_S - sent.began
            told = Upload(
                began=sent.began,
                size=sent.size,
                in_flight=sent.in_flight,
                seconds=seconds,
                is_measured=True,
                is_cut=sent.is_cut,
                is_lost=is_lost,
            )
            self.window = self.window.after(told, now)


def simulate(rate: float, tasks: list[Task], row: int, most: int, now: float = 0.0) -> float:
    """Send all rows on a link that requests share evenly; return the time of the end."""
    while any(each.waiting or each.flights for each in tasks):
        for task in tasks:
            task.settle(now)
            task.send(now, row, most)
        leaving = [one for each in tasks for one in each.flights if one.left > 0]
        now += _STEP_S
        for one in leaving:
            one.left -= rate * _STEP_S / len(leaving)
            if one.left <= 0:
                one.answered_at = now + _ROUND_TRIP_S
    return now


@settings(deadline=None)
@given(
    rate=st.sampled_from([200_000.0, 700_000.0, 1_500_000.0, 10_000_000.0]),
    tasks=st.sampled_from([1, 2, 8, 16]),
    row=st.sampled_from([2_000, 20_000, 200_000]),
    most=st.sampled_from([2, 8, 32]),
    first=st.sampled_from([LinkWindow().size, 256 << 10]),
)
def test_tasks_use_the_link_and_lose_nothing(
    rate: float, tasks: int, row: int, most: int, first: int
) -> None:
    """Even if a request may take only 30 s in all, as where botocore sends it."""
    count = int(rate * 15 / tasks // row) + 1
    each = [Task(LinkWindow(size=first), waiting=count * row) for _ in range(tasks)]
    seconds = simulate(rate, each, row, most)
    assert sum(one.lost for one in each) <= 0.02 * count * row * tasks
    assert seconds <= 1.3 * count * row * tasks / rate + TARGET_S


def test_the_window_follows_a_link_that_becomes_slower() -> None:
    task = Task(waiting=40_000_000)
    now = simulate(10_000_000.0, [task], 20_000, 8)
    assert task.window.size > 4_000_000
    task.waiting = 40_000_000
    simulate(300_000.0, [task], 20_000, 8, now)
    assert task.lost == 0
    assert task.window.size <= 300_000 * TARGET_S * 1.5


def upload(**changes: object) -> Upload:
    values: dict[str, object] = {
        "began": 10.0,
        "size": 128 << 10,
        "in_flight": 256 << 10,
        "seconds": 0.1,
        "is_measured": True,
    }
    return Upload(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 384 << 10),
        ({"in_flight": 100 << 10}, 256 << 10),  # the window was no limit
        ({"size": 100 << 10, "in_flight": 100 << 10, "is_cut": True}, 356 << 10),
        ({"seconds": 1.5}, 272 << 10),
        ({"seconds": 4.0}, 128 << 10),
        ({"seconds": 4.0, "began": 4.0}, 256 << 10),  # it had begun before the last reduction
        ({"seconds": 4.0, "is_measured": False}, 256 << 10),  # the service may be slow
        ({"seconds": 30.0, "is_measured": False, "is_lost": True}, 64 << 10),
    ],
)
def test_one_request(changes: dict[str, object], expected: int) -> None:
    window = LinkWindow(size=256 << 10, reduced_at=5.0)
    assert window.after(upload(**changes), 12.0).size == expected


def test_the_window_never_vanishes() -> None:
    window = LinkWindow()
    for second in range(100):
        lost = upload(began=float(second), seconds=30.0, is_lost=True)
        window = window.after(lost, second + 0.5)
    assert window.request_bytes > 0
    assert window.allows_request(0)
