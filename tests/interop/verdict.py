"""Requirements on workers that share a table, of any implementation.

- Nothing is lost, nothing is made up.
- Each key comes in order: the first time that each of its records was read, taken together.
- A worker that takes a lease over begins behind the progress that it finds there. So a record is
  read twice only where a worker had read it and not yet written that down when it lost the lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from spark_ssp.checkpoint.leases.lease import Lease, Processed
from tests.interop.scene import Scene, Seen
from tests.support.kcl.workers import Read


class TakeOver(NamedTuple):
    """A lease changed hands. `at`: when it was seen."""

    at: float
    shard: str
    before: str | None
    worker: str
    behind: tuple[int, int] | None
    """The sequence number and sub-sequence number that was processed; None: nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the checks, for the assertion and for people."""

    put: int
    read: dict[str, int]
    """Number of reads by worker."""
    lost: tuple[int, ...]
    invented: tuple[int, ...]
    out_of_order: tuple[str, ...]
    """Keys."""
    twice: dict[int, tuple[str, ...]]
    """Numbers read more than once, with their readers in order."""
    take_overs: tuple[TakeOver, ...]
    reread: tuple[str, ...]
    """Reads of records that the lease recorded as processed when it was taken."""

    def check(self, *, duplicates: int) -> None:
        """Check that nothing is lost, all is in order, take-overs are exact, and at most
        `duplicates` records were read twice."""
        assert not self.lost, f"lost: {self}"
        assert not self.invented, f"never put: {self}"
        assert not self.reread, f"read again although checkpointed: {self}"
        assert not self.out_of_order, f"out of order: {self}"
        assert len(self.twice) <= duplicates, f"more than {duplicates} duplicates: {self}"

    def __str__(self) -> str:
        hands = [f"{t.shard[-2:]}: {t.before} -> {t.worker} @{t.at:.1f}" for t in self.take_overs]
        return (
            f"put {self.put}, read {self.read}, lost {len(self.lost)} {self.lost[:10]}, "
            f"twice {len(self.twice)} {dict(list(self.twice.items())[:10])}, "
            f"reread {self.reread[:5]}, out of order {self.out_of_order[:5]}, hands {hands}"
        )


def judge(scene: Scene) -> Verdict:
    """Look at everything, once the workers and the producer have stopped."""
    return verdict_on(
        scene.producer.keys, {each.name: each.reads() for each in scene.workers}, scene.watch.seen
    )


def verdict_on(
    keys: Mapping[int, str], reads_by: Mapping[str, Sequence[Read]], seen: Iterable[Seen]
) -> Verdict:
    """`keys`: of every number that was put. `reads_by`: by worker, as each wrote them down."""
    reads = sorted(chain.from_iterable(reads_by.values()), key=lambda read: read.at)
    readers: dict[int, list[str]] = defaultdict(list)
    by_key: dict[str, list[int]] = defaultdict(list)
    for read in reads:
        number = int(read.data)
        if number not in readers:
            by_key[read.key].append(number)
        readers[number].append(read.worker)
    take_overs = tuple(_take_overs(seen))
    return Verdict(
        put=len(keys),
        read={worker: len(found) for worker, found in reads_by.items()},
        lost=tuple(sorted(keys.keys() - readers.keys())),
        invented=tuple(sorted(readers.keys() - keys.keys())),
        out_of_order=tuple(key for key, found in by_key.items() if found != sorted(found)),
        twice={number: tuple(found) for number, found in readers.items() if len(found) > 1},
        take_overs=take_overs,
        reread=tuple(_reread(reads, take_overs)),
    )


def _take_overs(seen: Iterable[Seen]) -> Iterator[TakeOver]:
    last: dict[str, Lease] = {}
    for at, lease in seen:
        before = last.get(lease.shard)
        last[lease.shard] = lease
        if lease.holder is None or (before is not None and before.holder == lease.holder):
            continue
        # The new holder may have checkpointed already: then only the sighting before is sure.
        sure = lease if lease.switches or before is None else before
        progress = sure.progress
        yield TakeOver(
            at=at,
            shard=lease.shard,
            before=None if before is None else before.holder,
            worker=lease.holder,
            behind=(int(progress.sequence_number), progress.sub)
            if isinstance(progress, Processed)
            else None,
        )


def _reread(reads: Iterable[Read], take_overs: Iterable[TakeOver]) -> Iterator[str]:
    """Reads at or before the progress of the lease's take-over that they belong to."""
    by_shard: dict[str, list[TakeOver]] = defaultdict(list)
    for each in take_overs:
        by_shard[each.shard].append(each)
    for read in reads:
        mine = [t for t in by_shard[read.shard] if t.worker == read.worker and t.at < read.at]
        if mine:
            behind = mine[-1].behind
            if behind is not None and (int(read.sequence), read.sub) <= behind:
                yield f"{read.data} in {read.shard} by {read.worker}, taken behind {behind}"
