"""Exactly-once delivery to Kafka: every order of events of small queries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

import pytest

from spark_ssp.kafka_source.sink.markers import (
    Action,
    CompletedBatch,
    Marker,
    Refusal,
    Write,
    continues,
    decide,
)

# A query on a broker that fences by transactional id. Any attempt and any driver may pause between
# two steps, also while later ones run. One that never continues was killed. What can have no effect
# any more is left out of a state, so that there are few.


@dataclass(frozen=True, slots=True)
class Query:
    """`tasks`: the number of tasks of each batch. `attempts`, `drivers`: how many there may be.
    `faults`: those that happen once, at any time."""

    tasks: tuple[int, ...]
    attempts: int
    drivers: int
    faults: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "-".join([*map(str, self.tasks), f"{self.attempts}x{self.drivers}", *self.faults])


LATE_RECORD = "late record"
"""A driver's record without an answer, which is sent again, is also written at a later time."""
RESTORED = "checkpoint restored"
LOST = "markers lost"


class Step(IntEnum):
    """What an attempt has done last."""

    START = 0
    READ = 1
    INITIALIZED = 2
    DECIDED = 3


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """An attempt of a task. `driver`: None if its driver has left the batch. `completed`: the last
    completed batch that it has read, or -1. `fenced`: another one has initialized its id since."""

    task: int
    batch: int
    driver: int = -1
    step: Step = Step.START
    completed: int = -1
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver in a batch: the tasks that have succeeded; whether it is about to write its record,
    since the one that it has read is older; and whether it has a record."""

    batch: int
    done: frozenset[int] = frozenset()
    records: bool = False
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """`written`: how often the rows of each batch and task are visible. `kept`: the marker of each
    task's last client, if a process has it and no one has initialized the id since, or -1.
    `late`: a record that is yet to be written. `logged`: the last batch in Spark's commit log.
    `faults`: those that may still happen."""

    written: tuple[tuple[int, ...], ...]
    markers: tuple[int, ...]
    kept: tuple[int, ...]
    drivers: tuple[Driver | None, ...] = (Driver(0),)
    attempts: tuple[Attempt, ...] = ()
    created: int = 0
    completed: int = -1
    late: int = -1
    logged: int = -1
    faults: frozenset[str] = frozenset()


def _first(query: Query) -> World:
    none = (-1,) * max(query.tasks)
    written = tuple((0,) * tasks for tasks in query.tasks)
    return World(written=written, markers=none, kept=none, faults=query.faults)


@cache
def _decision(
    tasks: tuple[int, ...], task: int, batch: int, marker: int, completed: int, of_first: int
) -> Action | Refusal:
    write = Write(sink="s", task=task, batch=batch)
    record = None if completed < 0 else CompletedBatch(batch=completed, tasks=tasks[completed])
    found = decide(write, _marker(marker), record)
    if found is Refusal.GAP:
        found = decide(write, _marker(marker), record, _marker(of_first))
    return found


def _marker(batch: int) -> Marker | None:
    return None if batch < 0 else Marker(batch=batch, rows=0, digest="")


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _set(world: World, number: int, driver: Driver | None) -> World:
    """Return the world after a step of a driver. Nobody listens to the attempts of a batch that it
    has left."""
    before = world.drivers[number]
    drivers = (*world.drivers[:number], driver, *world.drivers[number + 1 :])
    attempts = world.attempts
    if driver is None or before is None or driver.batch != before.batch:
        left = (replace(one, driver=-1) if one.driver == number else one for one in attempts)
        attempts = tuple(sorted(left))
    return replace(world, drivers=drivers, attempts=attempts)


def _moved(world: World, before: Attempt, after: Attempt | None = None) -> World:
    attempts = list(world.attempts)
    attempts.remove(before)
    if after is not None:
        attempts.append(after)
    return replace(world, attempts=tuple(sorted(attempts)))


def _initialized(world: World, task: int) -> World:
    """Return the world after the id of a task was initialized: no earlier client commits."""
    attempts = (
        replace(one, fenced=True) if one.task == task and one.step is Step.INITIALIZED else one
        for one in world.attempts
        if not (one.task == task and one.step is Step.DECIDED)
    )
    return replace(world, attempts=tuple(sorted(attempts)), kept=_with(world.kept, task, -1))


def _found(query: Query, world: World, one: Attempt) -> Action | Refusal:
    found, markers = (one.task, one.batch), world.markers
    return _decision(query.tasks, *found, markers[one.task], one.completed, markers[0])


def _reported(world: World, one: Attempt) -> Iterator[World]:
    """Yield the worlds after an attempt has succeeded: it is killed before its driver knows, or the
    driver knows. That a driver knows late makes no difference, since each may pause."""
    yield world
    driver = None if one.driver < 0 else world.drivers[one.driver]
    if driver is not None:
        yield _set(world, one.driver, replace(driver, done=driver.done | {one.task}))


def _steps_of_attempt(query: Query, world: World, one: Attempt) -> Iterator[World]:
    task = one.task
    decided = replace(one, step=Step.DECIDED, completed=-1)
    match one.step:
        case Step.START:
            yield _moved(world, one, replace(one, step=Step.READ, completed=world.completed))
            # Or its process has the client that has committed the batch before.
            write = Write(sink="s", task=task, batch=one.batch)
            if continues(write, _marker(world.kept[task])):
                taken = replace(world, kept=_with(world.kept, task, -1))
                yield _moved(taken, one, decided)
        case Step.READ:
            begun = replace(one, step=Step.INITIALIZED)
            yield _moved(_initialized(world, task), one, begun)
        case Step.INITIALIZED:
            # The marker does not change from now on, unless this attempt is fenced.
            found = _found(query, world, one)
            if found is Action.COMPARE:
                kept = world.kept if one.fenced else _with(world.kept, task, one.batch)
                yield from _reported(replace(_moved(world, one), kept=kept), one)
            else:
                writes = found is Action.WRITE and not one.fenced
                yield _moved(world, one, decided if writes else None)
        case Step.DECIDED:
            row = _with(world.written[one.batch], task, world.written[one.batch][task] + 1)
            committed = replace(
                _moved(world, one),
                written=(*world.written[: one.batch], row, *world.written[one.batch + 1 :]),
                kept=_with(world.kept, task, one.batch),
                markers=_with(world.markers, task, one.batch),
            )
            yield from _reported(committed, one)


def _steps_of_driver(query: Query, world: World, number: int, driver: Driver) -> Iterator[World]:
    batch, tasks = driver.batch, query.tasks[driver.batch]
    if world.created < query.attempts:
        for task in set(range(tasks)) - driver.done:
            # An attempt fails, or has a speculative copy: there may be others.
            attempts = sorted([*world.attempts, Attempt(task, batch, number)])
            yield replace(world, attempts=tuple(attempts), created=world.created + 1)
    if len(driver.done) < tasks:
        return
    recorded = replace(driver, records=False, recorded=True)
    if driver.records:
        after = replace(_set(world, number, recorded), completed=batch)
        yield after
        if LATE_RECORD in world.faults:
            yield replace(after, late=batch, faults=world.faults - {LATE_RECORD})
    elif not driver.recorded:
        is_older = world.completed < batch
        yield _set(world, number, replace(driver, records=True) if is_older else recorded)
    elif world.logged >= batch:
        yield _set(world, number, None)  # Another driver has logged it.
    else:
        following = None if batch + 1 == len(query.tasks) else Driver(batch + 1)
        yield replace(_set(world, number, following), logged=batch)


def _faults(query: Query, world: World) -> Iterator[World]:
    if world.late >= 0:
        yield replace(world, completed=world.late, late=-1)
    if RESTORED in world.faults and world.logged >= 0:
        yield replace(world, logged=world.logged - 1, faults=world.faults - {RESTORED})
    # Nothing can tell a first batch whose markers are gone from one that was never begun.
    drivers = [one for one in world.drivers if one is not None]
    batches = [one.batch for one in world.attempts] + [one.batch for one in drivers]
    if LOST in world.faults and world.logged >= 0 and 0 not in batches:
        # Those that are older than another expire before it: the driver's comes after the tasks'.
        for oldest in range(len(query.tasks) + 1):
            kept = tuple(one if one >= oldest else -1 for one in world.markers)
            for completed in {world.completed if world.completed >= oldest else -1, -1}:
                if all(one < 0 for one in kept) or completed == world.completed:
                    faults = world.faults - {LOST}
                    yield replace(world, markers=kept, completed=completed, faults=faults)


def _next(query: Query, world: World) -> Iterator[World]:
    for one in world.attempts:
        yield from _steps_of_attempt(query, world, one)
    for number, driver in enumerate(world.drivers):
        if driver is not None:
            yield from _steps_of_driver(query, world, number, driver)
    if len(world.drivers) < query.drivers and world.logged + 1 < len(query.tasks):
        yield replace(world, drivers=(*world.drivers, Driver(world.logged + 1)))
    yield from _faults(query, world)


def _refusals(query: Query, world: World) -> Iterator[tuple[Attempt, Refusal]]:
    for one in world.attempts:
        if one.step is Step.INITIALIZED:
            found = _found(query, world, one)
            if isinstance(found, Refusal):
                yield one, found


def _check(query: Query, world: World) -> None:
    assert all(times <= 1 for row in world.written for times in row), world
    for batch in range(world.logged + 1):
        assert all(times == 1 for times in world.written[batch]), world
    for one, refusal in _refusals(query, world):
        if LOST not in query.faults:
            assert refusal is Refusal.NEWER, (world, one)
        if not query.faults & {LOST, RESTORED}:
            assert world.logged >= one.batch, (world, one)  # another driver has logged it


def _explore(query: Query) -> int:
    """Check every state that the query can reach, and return their number."""
    first = _first(query)
    seen, waiting, ends = {first}, deque([first]), 0
    while waiting:
        world = waiting.popleft()
        _check(query, world)
        ends += world.logged == len(query.tasks) - 1
        for later in _next(query, world):
            if later not in seen:
                seen.add(later)
                waiting.append(later)
    assert ends
    return len(seen)


def _query(tasks: tuple[int, ...], attempts: int, drivers: int, *faults: str) -> Query:
    return Query(tasks, attempts, drivers, frozenset(faults))


@pytest.mark.parametrize(
    "query",
    [
        _query((2, 2), 4, 2, LATE_RECORD),
        _query((1, 1, 2), 5, 1, LATE_RECORD),
        *(
            pytest.param(_query(*size, fault), marks=pytest.mark.soak)
            for size, fault in (
                (((1, 1, 2), 5, 2), LATE_RECORD),
                (((2, 2), 4, 2), LOST),
                (((2, 2), 4, 2), RESTORED),
                (((1, 1, 2), 4, 2), RESTORED),
            )
        ),
    ],
    ids=str,
)
def test_no_order_of_events_loses_or_doubles_rows(query: Query) -> None:
    assert _explore(query) > 1
