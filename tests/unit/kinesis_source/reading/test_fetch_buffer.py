"""The monitor between fetching threads and the consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.reading.arrow_batches import Chunk
from spark_ssp.kinesis_source.reading.fetch_buffer import ENOUGH_ROWS, FetchBuffer, StoppedError
from tests.support.kinesis.pages import page
from tests.support.waiting import until

DEADLINE = 20.0


def chunk(rows: int, memory_bytes: int) -> Chunk:
    shard = ShardKey(stream=StreamName("s"), shard=ShardId("a"))
    return Chunk(shard, page([b""] * rows), memory_bytes)


def fetch(buffer: FetchBuffer, rows: int, memory_bytes: int, reserve: int | None = None) -> None:
    with buffer.reservation(memory_bytes if reserve is None else reserve) as reservation:
        reservation.fill(chunk(rows, memory_bytes))


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


def test_rows_are_taken_when_there_are_enough_or_no_more_will_come() -> None:
    buffer = FetchBuffer(limit=1_000, producers=1)
    fetch(buffer, 1, 10)
    fetch(buffer, ENOUGH_ROWS - 1, 10)
    assert [len(taken) for taken in buffer.take()] == [1, ENOUGH_ROWS - 1]
    buffer.release(20)
    fetch(buffer, 2, 10)
    buffer.finished(None)
    assert [len(taken) for taken in buffer.take()] == [2]
    assert buffer.take() == []


def test_no_more_than_a_batch_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ssp.kinesis_source.reading.fetch_buffer.MAX_BATCH_ROWS", 5)
    buffer = FetchBuffer(limit=1_000, producers=1)
    for rows in (3, 2, 1, 9, 1):
        fetch(buffer, rows, 10)
    buffer.finished(None)
    taken = iter(buffer.take, [])
    assert [[len(part) for part in parts] for parts in taken] == [[3, 2], [1], [9], [1]]


def test_a_fetch_is_always_let_through_when_nothing_is_held() -> None:
    buffer = FetchBuffer(limit=10, producers=1)
    fetch(buffer, 1, 500)
    buffer.finished(None)
    assert len(buffer.take()) == 1


def test_a_thread_in_line_for_memory_makes_the_consumer_take_what_waits() -> None:
    buffer = FetchBuffer(limit=100, producers=1)

    def producer() -> None:
        fetch(buffer, 1, 80)
        fetch(buffer, 1, 80)
        buffer.finished(None)

    with running(producer):
        for _ in range(2):
            assert [part.memory_bytes for part in buffer.take()] == [80]
            buffer.release(80)
        assert buffer.take() == []


def test_what_a_reservation_gives_back_lets_others_in() -> None:
    buffer = FetchBuffer(limit=100, producers=2)
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with buffer.reservation(60):
            pass

    with buffer.reservation(90) as first, running(second):
        assert waiting.wait(DEADLINE)
        buffer.shrink(first, 95)
        assert first.size == 90
        buffer.shrink(first, 30)
    assert buffer._held == 0


def test_memory_is_granted_in_the_order_of_asking() -> None:
    buffer = FetchBuffer(limit=100, producers=2)
    order: list[int] = []

    def in_line(threads: int) -> bool:
        return len(buffer._queue) == threads

    def ask(size: int) -> Callable[[], None]:
        def job() -> None:
            with buffer.reservation(size):
                order.append(size)

        return job

    with ExitStack() as threads, buffer.reservation(60):
        # The small one would fit, but is queued after the big one.
        for place, size in enumerate((90, 20), start=1):
            threads.enter_context(running(ask(size)))
            until(partial(in_line, place), "the thread waits", within_s=DEADLINE, poll_s=0.001)
        assert order == []
    assert order == [90, 20]


def test_a_failed_fetch_gives_its_memory_back() -> None:
    buffer = FetchBuffer(limit=100, producers=1)
    with pytest.raises(ValueError, match="boom"), buffer.reservation(100):
        raise ValueError("boom")
    with buffer.reservation(100):
        pass


def test_the_first_error_is_raised_at_once_and_stops_the_others() -> None:
    buffer = FetchBuffer(limit=100, producers=3)
    fetch(buffer, ENOUGH_ROWS, 10)
    buffer.finished(ValueError("first"))
    buffer.finished(ValueError("second"))
    assert buffer.stopping.is_set()
    with pytest.raises(StoppedError), buffer.reservation(1):
        pass
    buffer.finished(StoppedError())
    with pytest.raises(ValueError, match="first"):
        buffer.take()


def test_closing_wakes_threads_in_line() -> None:
    buffer = FetchBuffer(limit=100, producers=1)
    stopped: list[bool] = []

    def job() -> None:
        with pytest.raises(StoppedError), buffer.reservation(90):
            pass
        stopped.append(True)

    with buffer.reservation(50), running(job):
        buffer.close()
    assert stopped == [True]
