"""Exactly-once delivery to Kafka: every order of events of a small query."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from functools import cache

import pytest

from spark_ssp.kafka_source.sink.markers import (
    Action,
    CompletedBatch,
    Marker,
    Refusal,
    Write,
    decide,
)

# A query of two tasks and two batches, on a broker that fences by transactional id. Any attempt and
# any driver may pause between two steps, also while later ones run. One that never continues was
# killed.

TASKS = 2
BATCHES = 2
MOST_ATTEMPTS = 4
MOST_DRIVERS = 2

START, READ, INITIALIZED, DECIDED, DONE = range(5)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a task. `completed` is the last completed batch that it has read, or -1."""

    driver: int
    task: int
    batch: int
    step: int = START
    epoch: int = 0
    completed: int = -1


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver in a batch: the tasks that have succeeded, and the completed batch that it has read
    before it records its own: None before it has read, -1 if there was none."""

    batch: int
    done: frozenset[int] = frozenset()
    read: int | None = None
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """`written`: how often the rows of each batch and task are visible. `kept`: the epoch and batch
    of each task's last commit, by a client that its process keeps for one attempt. `logged`: the
    last batch in Spark's commit log. `faults`: those that may still happen."""

    drivers: tuple[Driver | None, ...] = (Driver(0),)
    attempts: tuple[Attempt, ...] = ()
    created: int = 0
    epochs: tuple[int, ...] = (0,) * TASKS
    markers: tuple[int, ...] = (-1,) * TASKS
    kept: tuple[tuple[int, int], ...] = ((0, -1),) * TASKS
    completed: int = -1
    written: tuple[tuple[int, ...], ...] = ((0,) * TASKS,) * BATCHES
    logged: int = -1
    refusals: frozenset[Refusal] = frozenset()
    faults: frozenset[str] = frozenset()


@cache
def _decision(task: int, batch: int, marker: int, completed: int) -> Action | Refusal:
    return decide(
        Write(sink="s", task=task, batch=batch),
        None if marker < 0 else Marker(batch=marker, rows=0, digest=""),
        None if completed < 0 else CompletedBatch(batch=completed, tasks=TASKS),
    )


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _set(world: World, number: int, driver: Driver | None) -> World:
    drivers = (*world.drivers[:number], driver, *world.drivers[number + 1 :])
    return replace(world, drivers=drivers)


def _moved(world: World, before: Attempt, after: Attempt | None) -> World:
    attempts = list(world.attempts)
    attempts.remove(before)
    return replace(world, attempts=_sorted([*attempts, *([] if after is None else [after])]))


def _sorted(attempts: list[Attempt]) -> tuple[Attempt, ...]:
    return tuple(sorted(attempts, key=astuple))


def _steps_of_attempt(world: World, one: Attempt) -> Iterator[World]:
    task = one.task
    match one.step:
        case 0:
            yield _moved(world, one, replace(one, step=READ, completed=world.completed))
        case 1:
            epoch = world.epochs[task] + 1
            begun = replace(one, step=INITIALIZED, epoch=epoch)
            yield replace(_moved(world, one, begun), epochs=_with(world.epochs, task, epoch))
            # Or its process has the client that has committed the batch before.
            kept, before = world.kept[task]
            if kept and before == one.completed:
                found = _decision(task, one.batch, before, one.completed)
                if found is Action.WRITE:
                    taken = (*world.kept[:task], (0, -1), *world.kept[task + 1 :])
                    decided = replace(one, step=DECIDED, epoch=kept)
                    yield replace(_moved(world, one, decided), kept=taken)
        case 2:
            # The marker does not change from now on, unless this attempt is fenced.
            found = _decision(task, one.batch, world.markers[task], one.completed)
            if isinstance(found, Refusal):  # The query fails.
                refusals = world.refusals | {found}
                yield _set(replace(_moved(world, one, None), refusals=refusals), one.driver, None)
            else:
                step = DECIDED if found is Action.WRITE else DONE
                yield _moved(world, one, replace(one, step=step))
        case 3 if one.epoch != world.epochs[task]:
            yield _moved(world, one, None)  # fenced
        case 3:
            row = _with(world.written[one.batch], task, world.written[one.batch][task] + 1)
            written = (*world.written[: one.batch], row, *world.written[one.batch + 1 :])
            client = one.epoch, one.batch
            yield replace(
                _moved(world, one, replace(one, step=DONE)),
                written=written,
                kept=(*world.kept[:task], client, *world.kept[task + 1 :]),
                markers=_with(world.markers, task, one.batch),
            )
        case 4:
            driver = world.drivers[one.driver]
            if driver is not None and driver.batch == one.batch:
                told = replace(driver, done=driver.done | {task})
                yield _set(_moved(world, one, None), one.driver, told)
            else:
                yield _moved(world, one, None)


def _steps_of_driver(world: World, number: int, driver: Driver) -> Iterator[World]:
    if world.created < MOST_ATTEMPTS:
        for task in range(TASKS):
            if task not in driver.done:
                # An attempt fails, or has a speculative copy: there may be others.
                attempts = _sorted([*world.attempts, Attempt(number, task, driver.batch)])
                yield replace(world, attempts=attempts, created=world.created + 1)
    if len(driver.done) < TASKS:
        return
    if driver.read is None:
        yield _set(world, number, replace(driver, read=world.completed))
    elif not driver.recorded:
        later = driver.batch if driver.read < driver.batch else world.completed
        yield replace(_set(world, number, replace(driver, recorded=True)), completed=later)
    elif world.logged >= driver.batch:
        yield _set(world, number, None)  # Another driver has logged it.
    else:
        following = None if driver.batch + 1 == BATCHES else Driver(driver.batch + 1)
        yield replace(_set(world, number, following), logged=driver.batch)


def _faults(world: World) -> Iterator[World]:
    if "checkpoint restored" in world.faults and world.logged >= 0:
        faults = world.faults - {"checkpoint restored"}
        yield replace(world, logged=world.logged - 1, faults=faults)
    # Nothing can tell a first batch whose markers are gone from one that was never begun.
    drivers = [one for one in world.drivers if one is not None]
    batches = [one.batch for one in world.attempts] + [one.batch for one in drivers]
    first_is_over = world.logged >= 0 and 0 not in batches
    if "markers lost" in world.faults and first_is_over:
        faults = world.faults - {"markers lost"}
        # Those that are older than another expire before it: the driver's comes after the tasks'.
        for oldest in range(BATCHES + 1):
            kept = tuple(one if one >= oldest else -1 for one in world.markers)
            for completed in {world.completed if world.completed >= oldest else -1, -1}:
                if all(one < 0 for one in kept) or completed == world.completed:
                    yield replace(world, markers=kept, completed=completed, faults=faults)


def _next(world: World) -> Iterator[World]:
    for one in world.attempts:
        yield from _steps_of_attempt(world, one)
    for number, driver in enumerate(world.drivers):
        if driver is not None:
            yield from _steps_of_driver(world, number, driver)
    if len(world.drivers) < MOST_DRIVERS and world.logged + 1 < BATCHES:
        started = Driver(world.logged + 1)
        yield replace(world, drivers=(*world.drivers, started))
    yield from _faults(world)


@pytest.mark.parametrize(
    "faults",
    [
        (),
        pytest.param(("checkpoint restored",), marks=pytest.mark.soak),
        pytest.param(("markers lost",), marks=pytest.mark.soak),
    ],
)
def test_no_order_of_events_loses_or_doubles_rows(faults: tuple[str, ...]) -> None:
    first = World(faults=frozenset(faults))
    seen, waiting, ends = {first}, deque([first]), 0
    while waiting:
        world = waiting.popleft()
        assert all(times <= 1 for row in world.written for times in row), world
        for batch in range(world.logged + 1):
            assert world.written[batch] == (1,) * TASKS, world
        # Without a fault, only a driver that is behind another one is refused.
        assert faults or world.refusals <= {Refusal.NEWER}, world
        ends += world.logged == BATCHES - 1
        for later in _next(world):
            if later not in seen:
                seen.add(later)
                waiting.append(later)
    assert ends
