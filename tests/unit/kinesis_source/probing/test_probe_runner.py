"""Carrying procedures out against a service, shards side by side."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    ShardNotFoundError,
    ThrottledError,
)
from spark_ssp.kinesis_source.model.shard import TrimHorizon
from spark_ssp.kinesis_source.probing.probe_protocol import (
    ProbeResult,
    ProbeSteps,
    RecordRef,
    ShardCursor,
    fetch_page,
    open_iterator,
)
from spark_ssp.kinesis_source.probing.probe_runner import (
    FIRST_PROBE_THREADS,
    MAX_EXPIRIES,
    MAX_PROBE_THREADS,
    PageBudget,
    Probe,
    ProbeRunner,
    next_threads,
    run_probe,
)
from tests.support.fakes.scripted import (
    STREAM,
    ScriptedService,
    ScriptedShard,
    expire,
    recs,
    shard_gone,
    throttle,
)
from tests.support.kinesis.planning import shard_id
from tests.support.kinesis.shards import key

STREAMS = {STREAM.name: STREAM}


def shards(count: int) -> dict[ShardKey, ScriptedShard]:
    return {
        key(n): ScriptedShard(shard_id=shard_id(n), records=recs(10 * n + 1, 10 * n + 2))
        for n in range(count)
    }


def look(pages: int = 1) -> Probe:
    """Open the shard at its beginning and fetch so many pages of one record."""

    def steps() -> ProbeSteps:
        iterator = yield from open_iterator(TrimHorizon())
        rows: list[RecordRef] = []
        for _ in range(pages):
            page = yield from fetch_page(iterator, 1)
            rows += page.records
            assert page.next_iterator is not None
            iterator = page.next_iterator
        return ProbeResult(records=tuple(rows), time=page.time, cursor=ShardCursor())

    return steps


@pytest.fixture
def prober_for() -> Iterator[Callable[[ScriptedService], ProbeRunner]]:
    made: list[ProbeRunner] = []

    def make(service: ScriptedService) -> ProbeRunner:
        made.append(ProbeRunner(service))
        return made[-1]

    yield make
    for prober in made:
        prober.close()


def patient(key: ShardKey) -> bool:
    return False


def test_one_outcome_for_each_shard_in_their_order(
    prober_for: Callable[[ScriptedService], ProbeRunner],
) -> None:
    held = shards(3 * MAX_PROBE_THREADS)
    prober = prober_for(ScriptedService(held.values()))
    procedures = {shard: look() for shard in reversed(held)}
    for _ in range(2):
        outcomes = prober.run_all(procedures, STREAMS, patient=patient)
        assert list(outcomes) == sorted(held)
        for shard, outcome in outcomes.items():
            assert isinstance(outcome, ProbeResult)
            assert outcome.records[0].order == held[shard].records[0].sequence


def test_nothing_to_do() -> None:
    prober = ProbeRunner(ScriptedService([]))
    threads = set(threading.enumerate())
    assert prober.run_all({}, STREAMS, patient=patient) == {}
    assert set(threading.enumerate()) <= threads
    prober.close()


def test_an_error_is_an_outcome_of_its_shard_alone(
    prober_for: Callable[[ScriptedService], ProbeRunner],
) -> None:
    held = shards(4)
    held[key(1)].script.append(throttle())
    held[key(2)].opening.append(shard_gone())

    def faulty() -> ProbeSteps:
        yield from open_iterator(TrimHorizon())
        return None  # type: ignore[return-value]

    procedures: dict[ShardKey, Probe] = {shard: look() for shard in held}
    procedures[key(3)] = faulty
    outcomes = prober_for(ScriptedService(held.values())).run_all(
        procedures, STREAMS, patient=patient
    )
    kinds = [type(outcome) for outcome in outcomes.values()]
    assert kinds == [ProbeResult, ThrottledError, ShardNotFoundError, TypeError]


def test_shards_are_looked_at_side_by_side(
    prober_for: Callable[[ScriptedService], ProbeRunner],
) -> None:
    held = shards(8)
    together = threading.Barrier(len(held), timeout=60)
    service = ScriptedService(held.values(), before_fetch=lambda shard: together.wait())
    outcomes = prober_for(service).run_all(
        {shard: look() for shard in held}, STREAMS, patient=patient
    )
    assert all(isinstance(outcome, ProbeResult) for outcome in outcomes.values())


def test_calls_that_wait_for_the_service_get_more_threads() -> None:
    """The clock says that the first probes took a second and no processor time."""
    held = shards(4 * FIRST_PROBE_THREADS)
    together = threading.Barrier(MAX_PROBE_THREADS, timeout=60)
    waits = False
    service = ScriptedService(
        held.values(), before_fetch=lambda shard: together.wait() if waits else None
    )
    seconds = itertools.count()
    prober = ProbeRunner(service, wall_clock=lambda: next(seconds), cpu_clock=lambda: 0.0)
    probes = {shard: look() for shard in held}
    prober.run_all(probes, STREAMS, patient=patient)
    waits = True
    outcomes = prober.run_all(probes, STREAMS, patient=patient)
    assert all(isinstance(outcome, ProbeResult) for outcome in outcomes.values())
    prober.close()


def test_the_number_of_threads_comes_down_again() -> None:
    held = shards(4 * FIRST_PROBE_THREADS)
    wall, used = itertools.count(), itertools.count()
    is_busy = False
    prober = ProbeRunner(
        ScriptedService(held.values()),
        wall_clock=lambda: next(wall),
        cpu_clock=lambda: next(used) if is_busy else 0.0,
    )
    probes = {shard: look() for shard in held}
    threads = []
    for is_busy in (False, True):  # noqa: B007  (read by the clock)
        prober.run_all(probes, STREAMS, patient=patient)
        threads.append(prober.threads)
    prober.close()
    assert threads == [MAX_PROBE_THREADS, FIRST_PROBE_THREADS]


@pytest.mark.parametrize(
    ("threads", "cpu_s", "expected"),
    [
        (FIRST_PROBE_THREADS, 0.4, 2 * FIRST_PROBE_THREADS),
        (MAX_PROBE_THREADS, 0.4, MAX_PROBE_THREADS),
        (MAX_PROBE_THREADS, 0.8, MAX_PROBE_THREADS),
        (MAX_PROBE_THREADS, 1.0, MAX_PROBE_THREADS // 2),
        (FIRST_PROBE_THREADS, 1.0, FIRST_PROBE_THREADS),
    ],
)
def test_the_number_of_threads_follows_the_processor_time_of_the_probes(
    threads: int, cpu_s: float, expected: int
) -> None:
    assert next_threads(threads, wall_s=1.0, cpu_s=cpu_s) == expected


def test_the_calls_are_counted() -> None:
    service = ScriptedService(shards(1).values())
    for pages in (1, 2):
        finding = run_probe(look(pages), service, STREAM, shard_id(0), patience=False)
        assert (finding.fetches, len(finding.records)) == (pages, pages)


def test_an_iterator_that_expires_on_the_way_begins_the_look_anew() -> None:
    held = shards(1)[key(0)]
    held.script.extend([expire()] * MAX_EXPIRIES)
    service = ScriptedService([held])
    finding = run_probe(look(), service, STREAM, shard_id(0), patience=False)
    assert finding.records[0].order == 1
    assert len(service.opened) == MAX_EXPIRIES + 1


def test_iterators_that_go_on_expiring_are_an_error() -> None:
    held = shards(1)[key(0)]
    held.script.extend([expire()] * (MAX_EXPIRIES + 1))
    with pytest.raises(ExpiredIteratorError):
        run_probe(look(), ScriptedService([held]), STREAM, shard_id(0), patience=False)


def test_closing_ends_the_threads() -> None:
    threads = set(threading.enumerate())
    prober = ProbeRunner(ScriptedService(shards(4).values()))
    prober.run_all({key(n): look() for n in range(4)}, STREAMS, patient=patient)
    assert set(threading.enumerate()) - threads
    prober.close()
    assert not set(threading.enumerate()) - threads
    prober.close()


# --- Memory ---------------------------------------------------------------------------------------


def test_pages_held_at_the_same_time_are_bounded_by_bytes_not_by_threads() -> None:
    """Thirty threads fetch pages of 30 bytes, with room for three at a time."""
    memory, lock = PageBudget(limit=100), threading.Lock()
    gate = threading.Barrier(3, timeout=30)
    held = most = 0

    def fetch_page() -> None:
        nonlocal held, most
        with memory.reserved(30):
            with lock:
                held += 30
                most = max(most, held)
            gate.wait()  # three are let in together, or nobody gets any further
            with lock:
                held -= 30
            gate.wait()

    threads = [threading.Thread(target=fetch_page) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (held, most) == (0, 90)


def test_a_large_page_that_leaves_makes_room_for_several_small_ones() -> None:
    memory = PageBudget(limit=30)
    gate = threading.Barrier(3, timeout=10)
    held: list[int] = []

    def fetch_page(number: int) -> None:
        with memory.reserved(10), suppress(threading.BrokenBarrierError):
            gate.wait()  # all three hold theirs
            held.append(number)

    threads = [threading.Thread(target=fetch_page, args=(number,)) for number in range(3)]
    with memory.reserved(30):
        for thread in threads:
            thread.start()
        time.sleep(0.1)  # they wait for room
    for thread in threads:
        thread.join()
    assert sorted(held) == [0, 1, 2]


def test_a_page_larger_than_the_bound_is_fetched_by_itself() -> None:
    memory = PageBudget(limit=10)
    with memory.reserved(11):
        pass
    with memory.reserved(11):
        pass


def test_a_finding_counts_the_calls_and_bytes_that_it_took() -> None:
    shard = ScriptedShard(shard_id=shard_id(0), records=recs(1, 2))
    finding = run_probe(look(2), ScriptedService([shard]), STREAM, shard_id(0), patience=False)
    assert finding.fetches == 2
    assert finding.fetched_bytes == sum(row.size_bytes for row in finding.records)
