"""Defects that are planted into a copy of the product, one at a time, to show that the histories
find them.

    python -m tests.support.planted_defects --list
    python -m tests.support.planted_defects --only "a merge waits for one parent"

Each one breaks a guarantee as a plausible mistake would: a comparison, an order of steps, a check
that was forgotten. The tests of its kind must pass without it and fail with it. It prints a line
for each, and fails if one is not caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_LIMIT_S: Final = 1800


class Kind(StrEnum):
    """The part of the product whose histories must find a defect."""

    SOURCE = "kinesis source"
    LEASES = "leases"
    KAFKA = "kafka source"
    EXACTLY_ONCE = "exactly once into kafka"
    SINK = "kinesis sink"


SUITES: Final[Mapping[Kind, Sequence[str]]] = {
    Kind.SOURCE: (
        "tests/simulation/kinesis/test_found.py",
        "tests/simulation/kinesis/test_missing_batches.py",
        "tests/simulation/kinesis/test_days.py",
        "tests/simulation/kinesis/test_histories.py",
    ),
    Kind.LEASES: (
        "tests/simulation/leases",
        "tests/unit/kinesis_source/leases",
        "tests/unit/checkpoint/coordination",
    ),
    Kind.KAFKA: (
        "tests/unit/kafka_source/test_planner_histories.py",
        "tests/unit/kafka_source/test_planner_moves.py",
        "tests/unit/kafka_source/test_missing_topics.py",
        "tests/unit/kafka_source/reading/test_range_progress.py",
    ),
    Kind.EXACTLY_ONCE: (
        "tests/simulation/kafka",
        "tests/unit/kafka_source/sink/test_markers.py",
    ),
    Kind.SINK: ("tests/unit/kinesis_source/sink/test_delivery.py",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One change of one file: `old`, which is there once, becomes `new`."""

    name: str
    kind: Kind
    file: str
    old: str
    new: str


def _source(name: str, file: str, old: str, new: str) -> Defect:
    return Defect(name=name, kind=Kind.SOURCE, file=f"kinesis_source/{file}", old=old, new=new)


def _leases(name: str, file: str, old: str, new: str) -> Defect:
    return Defect(name=name, kind=Kind.LEASES, file=file, old=old, new=new)


def _kafka(name: str, file: str, old: str, new: str) -> Defect:
    return Defect(name=name, kind=Kind.KAFKA, file=f"kafka_source/{file}", old=old, new=new)


def _once(name: str, old: str, new: str) -> Defect:
    file = "kafka_source/sink/markers.py"
    return Defect(name=name, kind=Kind.EXACTLY_ONCE, file=file, old=old, new=new)


def _sink(name: str, old: str, new: str) -> Defect:
    file = "kinesis_source/sink/delivery.py"
    return Defect(name=name, kind=Kind.SINK, file=file, old=old, new=new)


_DECISION: Final = "kinesis_source/leases/lease_decision.py"
_SESSION: Final = "kinesis_source/leases/lease_session.py"
_RENEWER: Final = "checkpoint/coordination/lease_renewer.py"

DEFECTS: Final = (
    # --- Kinesis: lineage, loss, replays, alignment -----------------------------------------------
    _source(
        "a merge waits for one parent",
        "planning/active_shards.py",
        "        if all(done(parent) for parent in shard.parents):\n            proofs",
        "        if any(done(parent) for parent in shard.parents):\n            proofs",
    ),
    _source(
        "a waiting shard is admitted at once",
        "planning/active_shards.py",
        "        if shard is None or all(done(parent) for parent in shard.parents):",
        "        if shard_id in waiting:",
    ),
    _source(
        "a parent leaves before its children are listed",
        "planning/active_shards.py",
        "        if ended and own and all(child in begun for child in own):",
        "        if ended and all(child in begun for child in own):",
    ),
    _source(
        "records of a child may be missing if its parents were never read to the latest",
        "planning/data_loss.py",
        "    return replace(state, last_caught_up_ms=created) if is_unpromised(state) else state",
        "    return state",
    ),
    _source(
        "the end of a closed shard proves that its children have no older records",
        "probing/position_advance.py",
        "if seen is not None and seen != old and (opened := open_at(key)) is not None:\n"
        "            proofs.append(min(seen, opened))",
        "if seen is not None:\n            proofs.append(seen)",
    ),
    _source(
        "any record proves that none was trimmed",
        "planning/data_loss.py",
        "evidence.found is not None and int(evidence.found) == int(anchor):",
        "evidence.found is not None:",
    ),
    _source(
        "records count as kept for twice the retention",
        "planning/data_loss.py",
        "evidence.time - since < kept_ms:",
        "evidence.time - since < 2 * kept_ms:",
    ),
    _source(
        "a recreated stream continues",
        "batch_planner.py",
        "            if created == entry.created:\n                known.add(name)",
        "            if created:\n                known.add(name)",
    ),
    _source(
        "children follow a parent that alignment has cut",
        "batch_planner.py",
        "            batch.withdraw_children()\n",
        "",
    ),
    _source(
        "a batch is not aligned",
        "batch_planner.py",
        "        if self._options.align_batches and not reach_targets:",
        "        if self._options.align_batches and reach_targets:",
    ),
    _source(
        "a replay of several batches is not checked",
        "planning/input_partitions.py",
        " in gone if not isinstance(before[shard].position, ShardEnd)}",
        " in ()}",
    ),
    _source(
        "a task reads past the end of its range",
        "reading/page_rows.py",
        "        stop = following\n        if ",
        "        stop = following + (end_match is Match.FOUND)\n        if ",
    ),
    _source(
        "an aggregated record that a batch has begun is read from its beginning",
        "reading/page_rows.py",
        "        after_sub=expected.after_sub if expected is not None and begins_inside else None,",
        "        after_sub=None,",
    ),
    _source(
        "a slot is moved to another number of slots",
        "planning/active_shards.py",
        "    return mapper.assign(previous, shards, slots)",
        "    return mapper.assign(previous, shards, slots + 1)",
    ),
    _source(
        "the time of the last proof is never renewed",
        "batch_planner.py",
        "        same = same_positions(start, end) and not changed and not "
        "self._is_retention_new(start)\n"
        "        if same and not self._is_caught_up_time_old(start, advances):",
        "        same = same_positions(start, end) and not changed and not "
        "self._is_retention_new(start)\n"
        "        if same:",
    ),
    # --- Leases -----------------------------------------------------------------------------------
    _leases(
        "a shard is read although its lease was lost meanwhile",
        _SESSION,
        "        return not isinstance(verdict, Read) or (key in reading and key in table.held)",
        "        return not isinstance(verdict, Read) or key in reading",
    ),
    _leases(
        "a held child does not wait for its parents",
        _DECISION,
        "        if key not in self._start.states and (open_ancestors := self._open(key.shard)):",
        "        if False and (open_ancestors := self._open(key.shard)):",
    ),
    _leases(
        "a shard without a row counts as finished",
        _DECISION,
        "        return Hole(since_ms=self._facts.holes.get(key, self._facts.now_ms))",
        "        return Finished()",
    ),
    _leases(
        "the query's own position wins over a lease that is further",
        _DECISION,
        "        if entry is not None and not is_behind(entry.position, reached(row.progress)):",
        "        if entry is not None:",
    ),
    _leases(
        "leases of children are created before those of their parents",
        _SESSION,
        "            for shard in ancestors(listings[key.stream], [key.shard])\n        )",
        "            for shard in ()\n        )",
    ),
    _leases(
        "the end of a shard is written before the leases of its children exist",
        _RENEWER,
        "    if missing_child_leases(state, key):\n        return None\n",
        "",
    ),
    _leases(
        "a lease is released before its progress is written",
        _RENEWER,
        "        if progress is not None:\n"
        "            return DueWrite(at=now, write=Checkpoint(lease=lease, progress=progress))\n",
        "",
    ),
    _leases(
        "a lease that is not renewed counts as held",
        "checkpoint/coordination/observed_leases.py",
        "    return now - state.held[key].renewed_at >= state.settings.failover_ms",
        "    return now - state.held[key].renewed_at >= 3 * state.settings.failover_ms",
    ),
    # --- Kafka source -----------------------------------------------------------------------------
    _kafka(
        "the newest generation is read first",
        "planning/plan_batch.py",
        "        [generations[generation] for generation in sorted(generations)]",
        "        [generations[generation] for generation in sorted(generations, reverse=True)]",
    ),
    _kafka(
        "a batch ends one record later than was granted",
        "planning/plan_batch.py",
        "position + granted.get(ssp, 0) for ssp",
        "position + (granted.get(ssp, -1) + 1) for ssp",
    ),
    _kafka(
        "a partition that is missing from an answer loses its position",
        "planning/plan_batch.py",
        "            **{ssp: context.start.positions[ssp] for ssp in context.missing},\n",
        "",
    ),
    _kafka(
        "a task reads the record at the end of its range",
        "reading/progress.py",
        "        end = bisect_left(offsets, self._ranges[ssp].end, lo=begin)",
        "        end = bisect_left(offsets, self._ranges[ssp].end + 1, lo=begin)",
    ),
    # --- Sinks ------------------------------------------------------------------------------------
    _once(
        "a task writes what it has committed already",
        "        return Action.COMPARE\n",
        "        return Action.WRITE\n",
    ),
    _once(
        "a lost marker is not noticed",
        "    if took_part and (marker is None or marker.batch < completed.batch):",
        "    if took_part and marker is None:",
    ),
    _once(
        "an older checkpoint is not refused",
        "    if newest > batch:\n        return Refusal.NEWER\n",
        "",
    ),
    _sink(
        "a record that was refused is not sent again",
        "                    again.append((some, now if since is None else since))\n",
        "",
    ),
    _sink(
        "the records of a key do not wait for each other",
        "            if key in self._held:\n                waiting.append(row)\n",
        "            if key in ():\n                waiting.append(row)\n",
    ),
)


# --- The runs -------------------------------------------------------------------------------------


@contextmanager
def _copied() -> Iterator[Path]:
    """Copy the files of the repository, as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        for name in filter(None, names):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
        yield Path(folder)


def _fails(folder: Path, suite: Sequence[str]) -> str:
    """Run tests in a copy until one fails; return its name, or nothing if all pass."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", *suite],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if run.returncode == 0:
        return ""
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED ")]
    if run.returncode != 1 or not failed:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return failed[0].removeprefix("FAILED ").split(" - ")[0]


@contextmanager
def _planted(defect: Defect, folder: Path) -> Iterator[None]:
    path = folder / defect.file
    text = path.read_text(encoding="utf-8")
    if text.count(defect.old) != 1:
        raise RuntimeError(
            f"{defect.name}: the text to replace is {text.count(defect.old)} times in "
            f"{defect.file}, expected once"
        )
    path.write_text(text.replace(defect.old, defect.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant each defect, and run the tests that must find it."""
    parser = argparse.ArgumentParser(description="Plant defects, and run the histories.")
    parser.add_argument("--list", action="store_true", help="print the defects, and end")
    parser.add_argument(
        "--only",
        action="append",
        choices=[one.name for one in DEFECTS],
        metavar="NAME",
        help="plant only this one, by its name after the colon",
    )
    options = parser.parse_args(arguments)
    chosen = [one for one in DEFECTS if not options.only or one.name in options.only]
    if options.list:
        print("\n".join(f"{one.kind}: {one.name}" for one in chosen))
        return 0
    survivors = 0
    with _copied() as folder:
        for kind in Kind:
            defects = [one for one in chosen if one.kind is kind]
            if not defects:
                continue
            if failed := _fails(folder, SUITES[kind]):
                raise RuntimeError(f"{failed} fails without a defect")
            for defect in defects:
                began = time.monotonic()
                with _planted(defect, folder):
                    found = _fails(folder, SUITES[kind])
                survivors += not found
                result = f"caught by {found}" if found else "NOT CAUGHT"
                print(
                    f"{kind}: {defect.name}: {result} ({time.monotonic() - began:.0f} s)",
                    flush=True,
                )
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
