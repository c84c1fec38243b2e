"""Snapshots over time of a query on a Kinesis stream whose shards split and merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from spark_ssp.operations.snapshot import (
    AlignmentSnapshot,
    FanOutCounts,
    LeaseCounts,
    QuerySnapshot,
    ReadState,
    ShardSnapshot,
    SourceFormat,
    SourceSnapshot,
    StreamSnapshot,
)
from spark_ssp.testing.kinesis.state.stream import shard_id

START_MS = 1_795_464_000_000
PERIOD_MS = 5_000


def snapshot(
    batch: int,
    shards: Mapping[str, ShardSnapshot],
    *,
    slots: int = 4,
    rows: int = 4_000,
    run: str = "run-1",
    label: str = "orders-etl",
    worker: str | None = None,
    leases: LeaseCounts | None = None,
    fan_out: FanOutCounts | None = None,
    alignment: AlignmentSnapshot | None = None,
    dropped: int = 0,
) -> QuerySnapshot:
    """The snapshot of a batch of a query that reads one stream."""
    found = tuple(shards[name] for name in sorted(shards))
    lags = [shard.lag for shard in found if shard.lag is not None]
    stream = StreamSnapshot(
        name="orders",
        shards=found,
        max_lag=max(lags, default=None),
        total_lag=sum(lags) if lags else None,
        states={state: sum(each.state is state for each in found) for state in ReadState},
        leases=leases,
        fan_out=fan_out,
        alignment=alignment,
    )
    source = SourceSnapshot(
        format=SourceFormat.KINESIS,
        streams=(stream,),
        tasks=tuple(map(str, range(slots))),
        rows=rows,
        counters={"throttles": 2, "retries": 3, "reshards": 1, "dataLossWarnings": 0},
        worker=worker,
    )
    return QuerySnapshot(
        query_id="1d9c3f0e-query",
        run_id=run,
        name=label,
        batch_id=batch,
        time_ms=START_MS + batch * PERIOD_MS,
        rows=rows,
        phases_ms={"triggerExecution": 1_800},
        sources=(source,),
        dropped=dropped,
    )


def shard(
    number: int,
    task: int | None,
    lag: int | None = 400,
    state: ReadState = ReadState.OPEN,
    *,
    owner: str | None = None,
    parents: tuple[int, ...] = (),
) -> ShardSnapshot:
    """A shard by its number."""
    return ShardSnapshot(
        shard=shard_id(number),
        state=state,
        task=None if task is None else str(task),
        lag=lag,
        owner=owner,
        parents=tuple(map(shard_id, parents)),
    )


def random_history(
    *, shards: int, batches: int, slots: int = 8, seed: int = 1
) -> Iterator[QuerySnapshot]:
    """The snapshots of a query whose shards split and merge at random."""
    random = Random(seed)
    live: dict[int, tuple[int, tuple[int, ...]]] = {n: (n % slots, ()) for n in range(shards)}
    following = shards
    lag = 0.0
    for batch in range(batches):
        lag = max(0.0, lag + random.gauss(0, 4_000 if batch % 60 < 40 else 60_000))
        yield snapshot(
            batch,
            {
                shard_id(n): shard(n, task, int(lag * (0.2 + n % 5)), parents=parents)
                for n, (task, parents) in live.items()
            },
            slots=slots,
            rows=int(2_000 + random.random() * 8_000),
        )
        if batch % 9 == 4 and len(live) < 2 * shards:
            parent = random.choice(sorted(live))
            task, _ = live.pop(parent)
            live[following] = task, (parent,)
            live[following + 1] = (task + 1) % slots, (parent,)
            following += 2
        elif batch % 9 == 8 and len(live) > 2:
            one, other = random.sample(sorted(live), 2)
            task, _ = live.pop(one)
            live.pop(other)
            live[following] = task, (one, other)
            following += 1
