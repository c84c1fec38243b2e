"""Windows of tasks that share a link: a simulation of the link, and the rules of one window."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ssp.kinesis_source.sink.link_window import TARGET_S, LinkWindow, Upload

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
