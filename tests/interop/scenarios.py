"""Scenarios of two kinds of workers with one lease table. A worker is started by its name. The
producer runs all the time. Each function ends with everything read and every worker stopped, and
returns the durations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from tests.interop.scene import STREAM, Scene
from tests.support.kcl.workers import Worker

Start = Callable[[Scene, str], AbstractContextManager[Worker]]
"""A worker of that name, running until the block ends."""

Seconds = dict[str, float]

SHARDS: Final = 4


@contextmanager
def running(scene: Scene, start: Start, name: str) -> Iterator[Worker]:
    """A worker that reads."""
    with start(scene, name) as worker:
        scene.workers.append(worker)
        scene.wait(lambda: bool(worker.reads()), f"a record read by {name}")
        yield worker


def relay(scene: Scene, starts: Sequence[Start]) -> Seconds:
    """One after the other: each catches up and is stopped; then the next one is started."""
    seconds: Seconds = {}
    for number, start in enumerate(starts):
        with start(scene, f"runner-{number}") as worker:
            scene.workers.append(worker)
            took = scene.wait(lambda: bool(worker.reads()), "a first record")
            seconds[f"runner-{number}, from its start to its first record"] = took
            took = scene.wait_until_read()
            seconds[f"runner-{number}, from its first record to having caught up"] = took
            if number == len(starts) - 1:
                scene.finish(worker)
            else:
                worker.stop()
    return seconds


def side_by_side(scene: Scene, first: Start, second: Start) -> Seconds:
    """Shards move from one to the other while both run, all to it when the first is stopped, and
    back when it returns."""
    with running(scene, first, "anne") as anne:
        scene.wait(lambda: _holds_all(scene, anne), "anne holds all")
        with running(scene, second, "bert") as bert:
            scene.wait_until_read()
            began = time.monotonic()
            anne.stop()
            scene.wait(lambda: _holds_all(scene, bert), "bert holds all")
            took = time.monotonic() - began
            with running(scene, first, "carl") as carl:
                scene.finish(carl, bert)
    return {"from the stop of one to the other's holding all": took}


def split_under_both(scene: Scene, first: Start, second: Start) -> Seconds:
    """Both hold shards; one shard of each is split, and the children are read."""
    with running(scene, first, "anne") as anne, running(scene, second, "bert") as bert:
        parents = [min(scene.watch.held_by(each)) for each in (anne, bert)]
        children = {child for parent in parents for child in scene.feed.split(STREAM, parent)}
        took = scene.wait(
            lambda: children <= {read.shard for each in (anne, bert) for read in each.reads()},
            f"records of {sorted(children)} read",
        )
        scene.finish(anne, bert)
    return {"records of all children read after the splits": took}


def killed(scene: Scene, first: Start, second: Start) -> Seconds:
    """`kill -9` for one of two workers. Of ours, the agent remains and returns the leases."""
    with running(scene, first, "anne") as anne, running(scene, second, "bert") as bert:
        scene.wait_until_read()
        began = time.monotonic()
        anne.kill()
        scene.wait(lambda: _holds_all(scene, bert), "bert holds all")
        took = time.monotonic() - began
        scene.finish(bert)
    return {"from the kill of one to the other's holding all": took}


def _holds_all(scene: Scene, worker: Worker) -> bool:
    return len(scene.watch.held_by(worker)) == SHARDS
