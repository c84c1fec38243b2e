"""Threads that take their next call themselves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest

from ssp_common.call_threads import Call, CallThreads

NEVER = float("inf")
LONG = 60.0


class Work:
    """Calls to make, and their results in the order in which they were used."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], int]] = deque()
        self.results: list[int] = []
        self.looks = 0
        self.is_locked = False

    def next_call(self) -> Call[int] | float:
        self.looks += 1
        return Call(self.calls.popleft(), self.use) if self.calls else NEVER

    def use(self, result: int) -> None:
        assert not self.is_locked, "another thread holds the lock"
        self.is_locked = True
        self.results.append(result)
        self.is_locked = False

    def threads(self, *, interval: float = 0.0, most: int = 8) -> CallThreads:
        return CallThreads(self.next_call, interval=interval, most=most, name="call-threads-test")


def running() -> int:
    return sum(each.name.startswith("call-threads-test") for each in threading.enumerate())


def test_every_result_is_used_once_and_threads_end() -> None:
    work = Work()
    with work.threads() as threads:
        for start in range(0, 5_000, 50):
            with threads.changing():
                work.calls.extend(partial(int, n) for n in range(start, start + 50))
            if start % 500 == 0:
                threads.wait_until(lambda: len(work.calls) < 20)
        threads.wait_until(lambda: len(work.results) == 5_000)
    assert sorted(work.results) == list(range(5_000))
    assert running() == 0


def test_calls_are_made_at_the_same_time_up_to_the_most() -> None:
    work, together = Work(), threading.Barrier(4)
    with work.threads(interval=0.001, most=4) as threads:
        with threads.changing():
            work.calls.extend([lambda: together.wait(LONG)] * 8)
        threads.wait_until(lambda: len(work.results) == 8)
        assert running() == 4
    assert sorted(work.results) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_one_thread_makes_the_calls_of_a_fast_service() -> None:
    work, makers = Work(), set[str]()

    def call() -> int:
        makers.add(threading.current_thread().name)
        return 0

    with work.threads(interval=LONG) as threads:
        with threads.changing():
            work.calls.extend([call] * 100)
        threads.wait_until(lambda: len(work.results) == 100)
    assert len(makers) == 1


def test_the_waiting_thread_looks_earlier_if_the_next_call_is_due_earlier() -> None:
    is_waiting, may_end, results = threading.Event(), threading.Event(), list[int]()

    def first() -> int:
        may_end.wait(LONG)
        return 1

    calls: deque[Call[int] | float] = deque(
        [Call(first, results.append), NEVER, 0.01, Call(lambda: 2, results.append)]
    )

    def next_call() -> Call[int] | float:
        found = calls.popleft() if calls else NEVER
        if found == NEVER:
            is_waiting.set()
        return found

    with CallThreads(next_call, interval=0.0, most=2, name="call-threads-test") as threads:
        with threads.changing():
            pass
        is_waiting.wait(LONG)
        may_end.set()
        threads.wait_until(lambda: results == [1, 2])


@pytest.mark.parametrize("failing", ["make", "use", "next_call"])
def test_an_error_ends_all_threads_and_reaches_the_owner(failing: str) -> None:
    def fail(*_: object) -> int:
        raise LookupError("lost")

    def use(result: int) -> None:
        if failing == "use":
            fail()

    def next_call() -> Call[int] | float:
        if failing == "next_call":
            fail()
        return Call(fail if failing == "make" else lambda: 1, use)

    threads = CallThreads(next_call, interval=0.0, most=3, name="call-threads-test")
    with threads:
        with threads.changing():
            pass
        with pytest.raises(LookupError, match="lost"):
            threads.wait_until(lambda: False)
    assert running() == 0
    with pytest.raises(LookupError, match="lost"), threads.changing():
        pytest.fail("a change after the end")


def test_leaving_waits_for_the_calls_under_way(caplog: pytest.LogCaptureFixture) -> None:
    work, begun, may_end = Work(), threading.Event(), threading.Event()

    def call() -> int:
        begun.set()
        may_end.wait(LONG)
        raise LookupError("s3cret")

    with work.threads() as threads:
        with threads.changing():
            work.calls.append(call)
        begun.wait(LONG)
        threading.Timer(0.05, may_end.set).start()
    assert may_end.is_set()
    assert running() == 0
    assert caplog.messages == ["call-threads-test: LookupError after the end"]
