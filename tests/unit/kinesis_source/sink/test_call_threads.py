"""Threads that take their next call themselves."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.kinesis_source.sink.writer import Call, CallThreads

NEVER = float("inf")
LONG = 60.0
"""Longer than any test."""
NAME = "call-threads-test"


class Work:
    """Calls to make, and their results in the order in which they were used."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], int]] = deque()
        self.results: list[int] = []
        self.is_locked = False
        self.now: float | None = None

    def next_call(self) -> Call[int] | float:
        with self.locked():
            return Call(self.calls.popleft(), self.use) if self.calls else NEVER

    def use(self, result: int) -> None:
        with self.locked():
            self.results.append(result)

    @contextmanager
    def locked(self) -> Iterator[None]:
        assert not self.is_locked, "another thread has the lock"
        self.is_locked = True
        time.sleep(0)  # lets another thread run
        yield
        self.is_locked = False

    def add(self, threads: CallThreads, *calls: Callable[[], int]) -> None:
        with threads.changing(), self.locked():
            self.calls.extend(calls)

    def monotonic(self) -> float:
        return time.monotonic() if self.now is None else self.now

    def threads(self, *, interval: float = 0.0, most: int = 8) -> CallThreads:
        return CallThreads(
            self.next_call, interval=interval, most=most, name=NAME, monotonic=self.monotonic
        )


class Blocked:
    """A call that lasts until it may end."""

    def __init__(self, result: int) -> None:
        self.result = result
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        assert self.may_end.wait(LONG)
        return self.result


def running() -> int:
    return sum(each.name.startswith(NAME) for each in threading.enumerate())


def test_every_result_is_used_once_and_threads_end() -> None:
    work = Work()
    with work.threads() as threads:
        for start in range(0, 5_000, 50):
            work.add(threads, *(partial(int, n) for n in range(start, start + 50)))
            if start % 500 == 0:
                threads.wait_until(lambda: len(work.calls) < 20)
        threads.wait_until(lambda: len(work.results) == 5_000)
    assert sorted(work.results) == list(range(5_000))
    assert running() == 0


def test_calls_are_made_at_the_same_time_up_to_the_most() -> None:
    work, together = Work(), threading.Barrier(4)
    with work.threads(interval=0.001, most=4) as threads:
        work.add(threads, *[lambda: together.wait(LONG)] * 8)
        threads.wait_until(lambda: len(work.results) == 8)
        assert running() == 4
    assert sorted(work.results) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_one_thread_makes_the_calls_of_a_fast_service() -> None:
    work, makers = Work(), set[str]()

    def call() -> int:
        makers.add(threading.current_thread().name)
        return 0

    with work.threads(interval=LONG) as threads:
        work.add(threads, *[call] * 100)
        threads.wait_until(lambda: len(work.results) == 100)
    assert len(makers) == 1


def test_a_slow_call_is_followed_by_another_at_once() -> None:
    """Also if others are under way, and one of them was started within the interval."""
    work, first, second = Work(), Blocked(1), Blocked(2)
    work.now = 0.0
    with work.threads(interval=10.0) as threads:
        work.add(threads, first, second)
        assert first.begun.wait(LONG)
        work.now = 10.0
        work.add(threads)
        assert second.begun.wait(LONG)
        work.now = 12.0
        work.add(threads, lambda: 3)
        first.may_end.set()
        threads.wait_until(lambda: work.results == [1, 3])
        second.may_end.set()


def test_a_call_is_made_after_the_wait_for_it() -> None:
    results = list[int]()
    found: deque[Call[int] | float] = deque([0.05, Call(lambda: 1, results.append)])
    with CallThreads(
        lambda: found.popleft() if found else NEVER, interval=LONG, most=1, name=NAME
    ) as threads:
        with threads.changing():
            pass
        threads.wait_until(lambda: results == [1])


def test_the_leader_looks_earlier_if_another_thread_has_to_wait_less() -> None:
    first, is_waiting, results = Blocked(1), threading.Event(), list[int]()
    calls: deque[Call[int] | float] = deque(
        [Call(first, results.append), NEVER, 0.01, Call(lambda: 2, results.append)]
    )

    def next_call() -> Call[int] | float:
        found = calls.popleft() if calls else NEVER
        if found == NEVER:
            is_waiting.set()
        return found

    with CallThreads(next_call, interval=0.0, most=2, name=NAME) as threads:
        with threads.changing():
            pass
        assert is_waiting.wait(LONG)
        first.may_end.set()
        threads.wait_until(lambda: results == [1, 2])


@pytest.mark.parametrize("failing", ["make", "use", "next_call"])
def test_an_error_ends_all_threads_and_reaches_the_owner(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise LookupError("lost")

    def use(result: int) -> None:
        if failing == "use":
            fail()

    def next_call() -> Call[int] | float:
        if failing == "next_call":
            fail()
        return Call(fail if failing == "make" else lambda: 1, use)

    threads = CallThreads(next_call, interval=0.0, most=3, name=NAME)

    def make_calls() -> None:
        with threads:
            with threads.changing():
                pass
            threads.wait_until(lambda: False)

    with pytest.raises(LookupError, match="lost"):
        make_calls()
    assert running() == 0
    assert not caplog.messages
    with pytest.raises(LookupError, match="lost"), threads.changing():
        pytest.fail("a change after the end")


UNAVAILABLE = ServiceUnavailableError("s", found="f", expected="e", next_step="n")


@pytest.mark.parametrize(
    ("error", "text"),
    [(LookupError("s3cret"), "LookupError"), (UNAVAILABLE, "found f; expected e")],
)
def test_leaving_waits_for_calls_under_way_and_logs_their_errors(
    caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    work, call = Work(), Blocked(1)

    def fail() -> int:
        call()
        raise error

    with work.threads() as threads:
        work.add(threads, fail)
        assert call.begun.wait(LONG)
        threading.Timer(0.05, call.may_end.set).start()
    assert running() == 0
    (message,) = caplog.messages
    assert text in message
    assert "s3cret" not in message
