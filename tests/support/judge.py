"""The judge of histories: compares the rows that a reader has processed with those that were put.
It knows nothing of the readers and uses none of the product's code."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple


class Put(NamedTuple):
    """A record that was put. The numbers of a key ascend in the order of its puts."""

    key: str
    number: int


class Processed(NamedTuple):
    """A row of an output. `at`: when it was processed, in nanoseconds."""

    at: int
    key: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Numbers of rows.

    - `lost`: not in the output, though a later row of the key is.
    - `stuck`: not in the output, and nor is a later row of the key.
    - `repeated`: in the output beyond the first time.
    - `disordered`: processed, for the first time, after a later row of the key.
    - `late`: not counted by the windows; None without windows, and if the output lacks rows.
    """

    rows: int = 0
    lost: int = 0
    stuck: int = 0
    repeated: int = 0
    disordered: int = 0
    late: int | None = None

    def __add__(self, other: Verdict) -> Verdict:
        counts = {
            name: count + getattr(other, name)
            for name, count in asdict(self).items()
            if name != "late"
        }
        late = [each.late for each in (self, other) if each.late is not None]
        return Verdict(**counts, late=sum(late) if late else None)


def judge(
    put: Iterable[Put],
    processed: Iterable[Processed],
    windows: tuple[Mapping[int, int], Mapping[int, int]] | None = None,
) -> Verdict:
    """Compare; `windows` are the right counts and those found. Raises AssertionError for a row that
    was never put or a window that counts too much."""
    wanted = list(put)
    in_order = [Put(row.key, row.number) for row in sorted(processed, key=lambda row: row.at)]
    found = Counter(in_order)
    invented = found.keys() - set(wanted)
    assert not invented, f"never put: {sorted(invented)[:5]}"
    highest: dict[str, int] = {}
    disordered = 0
    for row in dict.fromkeys(in_order):  # each where it is for the first time
        disordered += row.number < highest.get(row.key, row.number)
        highest[row.key] = max(row.number, highest.get(row.key, row.number))
    missing = [row for row in wanted if row not in found]
    lost = sum(row.key in highest and row.number < highest[row.key] for row in missing)
    return Verdict(
        rows=len(wanted),
        lost=lost,
        stuck=len(missing) - lost,
        repeated=found.total() - len(found),
        disordered=disordered,
        # The windows are of another query, whose lost rows may be others.
        late=None if windows is None or missing else _missing(*windows),
    )


def _missing(right: Mapping[int, int], found: Mapping[int, int]) -> int:
    more = Counter(found) - Counter(right)
    assert not more, f"windows count too much: {more}"
    return (Counter(right) - Counter(found)).total()


class Written(NamedTuple):
    """A row of a file of a batch. `at_s`: its event time, in seconds; `written_ns`: when its file
    was."""

    key: str
    number: int
    at_s: float
    batch: int
    file: str
    position: int
    written_ns: int


def in_order(rows: Iterable[Written]) -> list[Processed]:
    """Return the rows of a query in their order: by batch, file, and position in the file."""
    ordered = sorted(rows, key=lambda row: (row.batch, row.file, row.position))
    return [Processed(at, row.key, row.number) for at, row in enumerate(ordered)]


def parted_keys(rows: Iterable[Written]) -> int:
    """Return in how many batches a key has rows in more than one file, where order is not known."""
    files: dict[tuple[int, str], set[str]] = defaultdict(set)
    for row in rows:
        files[row.batch, row.key].add(row.file)
    return sum(len(found) > 1 for found in files.values())


def wide_batches(rows: Iterable[Written], files: int) -> int:
    """Return how many batches have more files with rows than `files`."""
    found: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        found[row.batch].add(row.file)
    return sum(len(one) > files for one in found.values())


def late_rows(rows: Iterable[Written], delay_s: float) -> int:
    """Return the number of rows that are older than a watermark of this delay when their batch
    begins: the latest event time of all batches before, less the delay."""
    batches: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        batches[row.batch].append(row.at_s)
    late, latest = 0, float("-inf")
    for batch in sorted(batches):
        late += sum(at_s < latest - delay_s for at_s in batches[batch])
        latest = max(latest, *batches[batch])
    return late


def judge_readers(put: Iterable[Put], outputs: Sequence[Sequence[Written]]) -> tuple[Verdict, int]:
    """Judge the outputs of all that share a stream: together they have the rows put, and each has
    those of a key once and in order, as have all together in the order in which their files were
    written. Return with the verdict how many rows several outputs have."""
    wanted = list(put)
    merged = sorted(
        (row for rows in outputs for row in rows),
        key=lambda row: (row.written_ns, row.file, row.position),
    )
    whole = judge(wanted, [Processed(at, row.key, row.number) for at, row in enumerate(merged)])
    found = [{Put(row.key, row.number) for row in rows} for rows in outputs]
    each = [
        judge([one for one in wanted if one in have], in_order(rows))
        for rows, have in zip(outputs, found, strict=True)
    ]
    repeated = sum(one.repeated for one in each)
    disordered = max(whole.disordered, sum(one.disordered for one in each))
    disordered += sum(map(parted_keys, outputs))
    verdict = replace(whole, repeated=repeated, disordered=disordered)
    return verdict, whole.repeated - repeated
