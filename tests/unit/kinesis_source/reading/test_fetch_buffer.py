"""The monitor between fetching threads and the consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from kinesis_source.model.shard import EpochMillis, SequenceNumber
from kinesis_source.reading.arrow_batches import Chunk
from kinesis_source.reading.fetch_buffer import ENOUGH_ROWS, Handoff, StoppedError
from task_grouping.identifiers import ShardId, ShardKey, StreamName

DEADLINE = 20.0


def chunk(rows: int, weight: int) -> Chunk:
    return Chunk(
        shard=ShardKey(stream=StreamName("s"), shard=ShardId("a")),
        partition_keys=["k"] * rows,
        data=[b""] * rows,
        sequence_numbers=[SequenceNumber("1")] * rows,
        sub_sequence_numbers=None,
        arrival_millis=[EpochMillis(0)] * rows,
        weight=weight,
    )


def fetch(handoff: Handoff, rows: int, weight: int, reserve: int | None = None) -> None:
    with handoff.reservation(weight if reserve is None else reserve) as reservation:
        reservation.fill(chunk(rows, weight))


@contextmanager
def running(*jobs: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Each job in a thread; at the end all must have ended."""
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(DEADLINE)
    assert not [thread for thread in threads if thread.is_alive()]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_rows_are_taken_when_there_are_enough_or_no_more_will_come() -> None:
    handoff = Handoff(limit=1_000, producers=1)
    fetch(handoff, 1, 10)
    fetch(handoff, ENOUGH_ROWS - 1, 10)
    assert [len(taken) for taken in handoff.take()] == [1, ENOUGH_ROWS - 1]
    handoff.release(20)
    fetch(handoff, 2, 10)
    handoff.finished(None)
    assert [len(taken) for taken in handoff.take()] == [2]
    assert handoff.take() == []


def test_no_more_than_a_batch_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_source.reading.fetch_buffer.MAX_BATCH_ROWS", 5)
    handoff = Handoff(limit=1_000, producers=1)
    for rows in (3, 2, 1, 9, 1):
        fetch(handoff, rows, 10)
    handoff.finished(None)
    taken = iter(handoff.take, [])
    assert [[len(part) for part in parts] for parts in taken] == [[3, 2], [1], [9], [1]]


def test_a_fetch_is_always_let_through_when_nothing_is_held() -> None:
    handoff = Handoff(limit=10, producers=1)
    fetch(handoff, 1, 500)
    handoff.finished(None)
    assert len(handoff.take()) == 1


def test_a_thread_in_line_for_memory_makes_the_consumer_take_what_waits() -> None:
    handoff = Handoff(limit=100, producers=1)

    def producer() -> None:
        fetch(handoff, 1, 80)
        fetch(handoff, 1, 80)
        handoff.finished(None)

    with running(producer):
        for _ in range(2):
            assert [part.weight for part in handoff.take()] == [80]
            handoff.release(80)
        assert handoff.take() == []


def test_what_a_reservation_gives_back_lets_others_in() -> None:
    handoff = Handoff(limit=100, producers=2)
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with handoff.reservation(60):
            pass

    with handoff.reservation(90) as first, running(second):
        assert waiting.wait(DEADLINE)
        handoff.shrink(first, 95)
        assert first.size == 90
        handoff.shrink(first, 30)
    assert handoff._held == 0


def test_memory_is_granted_in_the_order_of_asking() -> None:
    handoff = Handoff(limit=100, producers=2)
    order: list[int] = []

    def in_line(threads: int) -> bool:
        return len(handoff._line) == threads

    def ask(size: int) -> Callable[[], None]:
        def job() -> None:
            with handoff.reservation(size):
                order.append(size)

        return job

    with ExitStack() as threads, handoff.reservation(60):
        # The small one would fit, yet stands behind the big one.
        for place, size in enumerate((90, 20), start=1):
            threads.enter_context(running(ask(size)))
            until(partial(in_line, place))
        assert order == []
    assert order == [90, 20]


def test_a_failed_fetch_gives_its_memory_back() -> None:
    handoff = Handoff(limit=100, producers=1)
    with pytest.raises(ValueError, match="boom"), handoff.reservation(100):
        raise ValueError("boom")
    with handoff.reservation(100):
        pass


def test_the_first_error_is_raised_at_once_and_stops_the_others() -> None:
    handoff = Handoff(limit=100, producers=3)
    fetch(handoff, ENOUGH_ROWS, 10)
    handoff.finished(ValueError("first"))
    handoff.finished(ValueError("second"))
    assert handoff.stopping.is_set()
    with pytest.raises(StoppedError), handoff.reservation(1):
        pass
    handoff.finished(StoppedError())
    with pytest.raises(ValueError, match="first"):
        handoff.take()


def test_closing_wakes_threads_in_line() -> None:
    handoff = Handoff(limit=100, producers=1)
    stopped: list[bool] = []

    def job() -> None:
        with pytest.raises(StoppedError), handoff.reservation(90):
            pass
        stopped.append(True)

    with handoff.reservation(50), running(job):
        handoff.close()
    assert stopped == [True]
