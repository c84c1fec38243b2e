"""Carrying procedures out against a service, shards side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from threading import get_ident
from typing import Any

import pytest

from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    ShardNotFoundError,
    ThrottledError,
)
from spark_ssp.kinesis_source.model.shard import TrimHorizon
from spark_ssp.kinesis_source.probing.probe_protocol import (
    FetchPage,
    ProbeResult,
    ProbeSteps,
    RecordRef,
    ShardCursor,
    fetch_page,
    open_iterator,
)
from spark_ssp.kinesis_source.probing.probe_runner import (
    MAX_CALLS,
    MAX_EXPIRIES,
    MAX_HELD_BYTES,
    MAX_PROBE_THREADS,
    PageBudget,
    Probe,
    ProbeRunner,
    run_probe,
)
from tests.support.fakes.scripted import (
    STREAM,
    Empty,
    OneThread,
    ScriptedService,
    ScriptedShard,
    Step,
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


# --- Calls of one thread --------------------------------------------------------------------------


class Measured(OneThread):
    """Measures what is under way: the most calls, and the most bytes expected of their pages."""

    most = most_bytes = 0

    def note(self, tags: Sequence[Any]) -> None:
        pages = [run.request for _, run in tags if isinstance(run.request, FetchPage)]
        self.most = max(self.most, len(tags))
        self.most_bytes = max(self.most_bytes, sum(page.max_bytes for page in pages))


def eventful(chance: Random) -> dict[ShardKey, ScriptedShard]:
    """Shards some of whose calls fail."""
    held = shards(chance.randrange(2, 150))
    events: list[Step] = [throttle(), expire(), Empty(millis_behind=5)]
    for one in held.values():
        if chance.random() < 0.3:
            one.script.append(chance.choice(events))
        if chance.random() < 0.1:
            one.opening.append(shard_gone())
    return held


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chance_to_begin", [1.0, 0.9, 0.0])
def test_probes_end_alike_on_one_thread_and_on_many(
    prober_for: Callable[[ScriptedService], ProbeRunner], seed: int, chance_to_begin: float
) -> None:
    def outcomes(service: ScriptedService) -> dict[ShardKey, object]:
        procedures = {key(n): look(1 + n % 3) for n in range(len(service.shards))}
        found = prober_for(service).run_all(procedures, STREAMS, patient=patient)
        return {
            shard: type(outcome) if isinstance(outcome, Exception) else outcome
            for shard, outcome in found.items()
        }

    draw = Random(seed)
    together = OneThread(
        eventful(Random(seed)).values(), draw, lambda: draw.random() < chance_to_begin
    )
    apart = ScriptedService(eventful(Random(seed)).values())
    assert outcomes(together) == outcomes(apart)
    assert together.closed == 1
    assert sorted(together.fetched) == sorted(apart.fetched)


def test_calls_that_do_not_fail_need_no_other_thread(
    prober_for: Callable[[ScriptedService], ProbeRunner],
) -> None:
    callers: set[int] = set()

    def begins() -> bool:
        callers.add(get_ident())
        return True

    held = shards(3 * MAX_CALLS)
    service = Measured(held.values(), Random(1), begins)
    outcomes = prober_for(service).run_all(
        {shard: look(2) for shard in held}, STREAMS, patient=patient
    )
    assert all(isinstance(outcome, ProbeResult) for outcome in outcomes.values())
    assert callers == {get_ident()}
    assert service.most == MAX_CALLS


def test_pages_under_way_are_bounded_by_their_bytes(
    prober_for: Callable[[ScriptedService], ProbeRunner],
) -> None:
    """Each page of a record of unknown size may have a megabyte."""

    def large() -> ProbeSteps:
        iterator = yield from open_iterator(TrimHorizon())
        page = yield from fetch_page(iterator, 4)
        return ProbeResult(records=page.records, time=page.time, cursor=ShardCursor())

    held = shards(2 * MAX_CALLS)
    service = Measured(held.values(), Random(1), lambda: True)
    outcomes = prober_for(service).run_all(dict.fromkeys(held, large), STREAMS, patient=patient)
    assert all(isinstance(outcome, ProbeResult) for outcome in outcomes.values())
    assert service.most_bytes == MAX_HELD_BYTES


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
