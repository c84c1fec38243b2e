"""All benchmarks, in the order in which they are run, and how long each takes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One module of this package. `minutes` is how long it takes on two cores at its full size;
    `small` are the arguments with which it shows in seconds that it works."""

    name: str
    minutes: float
    small: str

    def arguments(self, *, small: bool) -> list[str]:
        """Of its command."""
        return self.small.split() if small else []


CATALOGUE: Final = (
    Benchmark(name="planning.offset_size", minutes=0.5, small="--parts 50 --rounds 1"),
    Benchmark(name="planning.shard_planning", minutes=1, small="--shards 400 --slots 4 --rounds 1"),
    Benchmark(
        name="planning.partition_planning", minutes=1, small="--partitions 400 --tasks 8 --rounds 1"
    ),
    Benchmark(name="planning.pipeline_planning", minutes=1, small="--operators 80 --rounds 1"),
    Benchmark(name="planning.start", minutes=2, small="--rounds 1 --warm-up 0"),
    Benchmark(name="leases.agent", minutes=4, small="--leases 40 --failover 2 --seconds 2"),
    Benchmark(name="leases.writes", minutes=5, small="--leases 2 --failover 1.5 --seconds 3"),
    Benchmark(name="leases.hand_overs", minutes=8, small="--leases 2 --failover 1 --rounds 1"),
    Benchmark(
        name="leases.lost_driver",
        minutes=1,
        small="--drivers 2 --leases 20 --failover 10",
    ),
    Benchmark(name="kinesis.catch_up", minutes=2, small="--limits 2 --seconds 10"),
    Benchmark(name="kinesis.catch_up_http", minutes=6, small="--limits 1.25 --seconds 4"),
    Benchmark(
        name="kinesis.aligned",
        minutes=25,
        small="--records 200 --megabytes 1 --shards 4 --minutes 0.5",
    ),
    Benchmark(name="kinesis.planning", minutes=3, small="--shards 2 --slots 1 --rounds 1"),
    Benchmark(
        name="kinesis.triggers",
        minutes=30,
        small="--shards 1 --slots 1 --seconds 0.5 --rounds 1",
    ),
    Benchmark(
        name="kinesis.many_shards",
        minutes=40,
        small="--shards 2 --slots 1 --batches 2",
    ),
    Benchmark(
        name="kinesis.reshard_at_scale",
        minutes=10,
        small="--shards 2 --slots 1 --batches 2",
    ),
    Benchmark(
        name="kinesis.backlog",
        minutes=6,
        small="--shards 1 --records 1000 --over 1 --silence 0.1 --rounds 1",
    ),
    Benchmark(name="kinesis.metrics", minutes=4, small="--shards 2 --slots 1 --seconds 1"),
    Benchmark(name="kinesis.memory", minutes=3, small="--gigabytes 0.02 --by push"),
    Benchmark(name="kinesis.neighbour", minutes=10, small="--shards 1 --seconds 20"),
    Benchmark(
        name="kinesis.bulk",
        minutes=10,
        small="--shards 2 --records 20000 --rounds 1 --columns data",
    ),
    Benchmark(
        name="kinesis.sink", minutes=4, small="--shards 4 --records 2000 --rounds 1 --seconds 1"
    ),
    Benchmark(name="kinesis.slow_link", minutes=5, small="--rates 4 --tasks 2 --megabytes 1"),
    Benchmark(
        name="kafka.bulk",
        minutes=20,
        small="--records 2000 --sizes 200 --partitions 2 --rounds 1 --warm-up 0 --columns value",
    ),
    Benchmark(
        name="kafka.native",
        minutes=15,
        small="--records 2000 --sizes 200 --headers 1 --partitions 2 --rounds 1 --warm-up 0",
    ),
    Benchmark(
        name="kafka.memory",
        minutes=5,
        small="--megabytes 1 --partitions 2 --batches 1 --pause 0 --shapes zstd:1000",
    ),
    Benchmark(
        name="kafka.triggers",
        minutes=15,
        small="--partitions 1 --tasks 1 --seconds 0.2 --rounds 1 --warm-up 0",
    ),
    Benchmark(
        name="kafka.duplicates",
        minutes=4,
        small="--records 2000 --partitions 2 --rounds 1 --warm-up 0",
    ),
    Benchmark(
        name="kafka.exactly_once",
        minutes=2,
        small="--records 500 --tasks 2 --rounds 1 --warm-up 0",
    ),
)


def modules() -> frozenset[str]:
    """The modules of this package that measure: those with a function `run`."""
    return frozenset(
        f"{path.parent.name}.{path.stem}"
        for path in Path(__file__).parent.glob("*/*.py")
        if any(
            isinstance(part, ast.FunctionDef) and part.name == "run"
            for part in ast.parse(path.read_text(encoding="utf-8")).body
        )
    )
