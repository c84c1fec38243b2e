"""Batches of records of 10 bytes to 1 MiB in any order, under `maxBytesPerTrigger`.

    python -m tests.support.simulation.mixed_sizes [--histories 10000] [--first 0]

A history is a shard's backlog: at any time it was written by the quotas of the service (1 MiB and
1,000 records a second, saved up for a second), in any other respect as random as possible. A query
catches up with it, on simulated time, and the sizes of its batches are compared with the limit.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.simulation.catch_up import CaughtUp, Feed, catch_up

MIB = 1 << 20
LARGEST = MIB
SECONDS = 40.0
"""The longest time for which a query runs."""
BY_TIME = 636 * 1024
"""From this limit on, batches may end by time."""
ALLOWED_MEAN = 1.25
WINDOW = 10

Sizes = Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A backlog and a limit."""

    feed: Feed
    limit: int
    seconds: int
    """The time in which the records arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The batches of one history, relative to its limit."""

    limit: int
    largest_record: int
    largest_batch: float
    largest_mean: float
    """The largest mean of ten batches in a row."""
    keeps_bound: bool
    is_caught_up: bool
    """The query read faster than the shard was written, or all of it."""
    share_of_calls: float
    megabytes_per_second: float
    written: float
    """The megabytes a second written to the shard."""


def draw(seed: int) -> History:
    """Return a history, the same for each seed."""
    rnd = random.Random(seed)
    limit = round(2 ** rnd.uniform(14, 24))
    seconds = rnd.choice([20, 60, 180])
    arrivals, sizes = list[int](), list[int]()
    for arrival, size in _written(rnd, seconds * 1000):
        arrivals.append(arrival)
        sizes.append(size)
    return History(feed=Feed.of(arrivals, sizes), limit=limit, seconds=seconds)


def _written(rnd: random.Random, end_ms: int) -> Iterator[tuple[int, int]]:
    """Yield arrival and size. Records that the quotas do not accept are written later."""
    now, until = 0.0, 0.0
    credit_bytes, credit_records, at = float(MIB), 1000.0, 0.0
    size, pause = _sizes(rnd), _pauses(rnd)
    count = 0
    while count < 30_000:
        if now >= until:
            size, pause = _sizes(rnd), _pauses(rnd)
            until = now + 10 ** rnd.uniform(2.5, 5)
        now += pause()
        record = size()
        credit_bytes = min(MIB, credit_bytes + (now - at) * MIB / 1000)
        credit_records = min(1000.0, credit_records + (now - at))
        wait = max(0.0, (record - credit_bytes) * 1000 / MIB, 1 - credit_records)
        now += wait
        credit_bytes = min(MIB, credit_bytes + wait * MIB / 1000) - record
        credit_records = min(1000.0, credit_records + wait) - 1
        at = now
        if now >= end_ms:
            break
        count += 1
        yield int(now), record
    if count == 0:
        yield 0, 10


def _sizes(rnd: random.Random) -> Sizes:
    small, large = round(10 ** rnd.uniform(1, 5)), round(10 ** rnd.uniform(4, 6))
    part = 10 ** rnd.uniform(-3, -0.3)
    run = rnd.choice([1, 1, 10, 100])
    state = [small, 0]

    def mixed() -> int:
        if state[1] == 0:
            state[:] = [large if rnd.random() < part else small, rnd.randint(1, run)]
        state[1] -= 1
        return state[0]

    return rnd.choice(
        [
            mixed,
            mixed,
            lambda: rnd.randint(10, LARGEST),
            lambda: round(10 ** rnd.uniform(1, 6)),
            lambda: small,
            lambda: LARGEST if rnd.random() < part else 10,
        ]
    )


def _pauses(rnd: random.Random) -> Callable[[], float]:
    """Return the producers' pauses in milliseconds: none at all, random ones, or bursts."""
    mean, clump = 10 ** rnd.uniform(0, 3), rnd.choice([5, 50, 500])
    place = [0]

    def bursts() -> float:
        place[0] = (place[0] + 1) % clump
        return clump * mean if place[0] == 0 else 0.0

    return rnd.choice([lambda: 0.0, lambda: rnd.expovariate(1 / mean), bursts])


def run(history: History) -> Outcome:
    """Let a query catch up with a history, and compare its batches with the limit."""
    read = catch_up(
        {"maxBytesPerTrigger": str(history.limit)},
        arrivals=history.feed,
        backlog_s=history.seconds + 2,
        seconds=SECONDS,
    )
    return _compare(history, read)


def _compare(history: History, read: CaughtUp) -> Outcome:
    limit, largest = history.limit, history.feed.largest
    batches = read.batches
    means = [
        sum(batches[n : n + WINDOW]) / WINDOW
        for n in range(max(1, len(batches) - WINDOW + 1))
        if len(batches) >= WINDOW
    ]
    bound = max(limit, largest)
    if limit >= BY_TIME:
        bound = max(bound, round(1.1 * limit) + 2 * MIB)
    total = history.feed.size(history.feed.count)
    written = total / history.seconds / 1e6
    return Outcome(
        limit=limit,
        largest_record=largest,
        largest_batch=max(batches) / limit,
        largest_mean=max(means, default=0.0) / limit,
        keeps_bound=max(batches) <= bound,
        is_caught_up=read.size == total or read.megabytes_per_second > written,
        share_of_calls=read.share_of_calls,
        megabytes_per_second=read.megabytes_per_second,
        written=written,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    outcomes = {
        seed: run(draw(seed))
        for seed in range(arguments.first, arguments.first + arguments.histories)
    }
    for name, low, high in (
        ("below 636 KiB, largest record within the limit", 0, BY_TIME),
        ("636 KiB to 1 MiB", BY_TIME, MIB),
        ("1 to 2 MiB", MIB, 2 * MIB),
        ("2 to 16 MiB", 2 * MIB, 16 * MIB + 1),
    ):
        part = {
            seed: outcome
            for seed, outcome in outcomes.items()
            if low <= outcome.limit < high and (low > 0 or outcome.largest_record <= outcome.limit)
        }
        print(f"limits {name}: {len(part)} histories")
        if not part:
            continue
        for field in ("largest_batch", "largest_mean", "share_of_calls"):
            values = sorted((getattr(outcome, field), seed) for seed, outcome in part.items())
            at = [values[round(q * (len(values) - 1))] for q in (0.5, 0.99, 1)]
            print(f"  {field}: " + ", ".join(f"{value:.2f} (seed {seed})" for value, seed in at))
        behind = [seed for seed, outcome in part.items() if not outcome.is_caught_up]
        print(f"  not caught up: {len(behind)}, as seeds {behind[:5]}")
    over = [seed for seed, outcome in outcomes.items() if not outcome.keeps_bound]
    print(f"beyond the bound: {len(over)}, as seeds {over[:5]}")
    small = [outcome for outcome in outcomes.values() if outcome.largest_record > outcome.limit]
    print(
        f"records above the limit: {len(small)} histories; largest batch, in records of that size: "
        f"{max((o.largest_batch * o.limit / o.largest_record for o in small), default=0):.2f}"
    )


if __name__ == "__main__":
    main()
