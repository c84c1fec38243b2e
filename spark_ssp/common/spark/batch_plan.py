"""The batch of the current task, and the plan of a batch read, which its tasks carry.

PySpark 4.0 plans a batch DataFrame for each action. PySpark 4.1 to 4.3 plan it once, at its first
action, and every later one reads the same records, also as the static side of a streaming query,
whose joins would miss newer records without an error. A source in Python is not called then, so the
tasks detect it. docs/design/pyspark-versions.md has the calls of each version.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from spark_ssp.common.errors import DataLossError, UnsupportedError
from spark_ssp.common.spark.pyspark_api import WRITES_ARROW
from spark_ssp.common.times import time_text

T = TypeVar("T")

# --- The current task ----------------------------------------------------------------------------

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_GROUP: Final = "spark.jobGroup.id"
"""Of a streaming query, the id of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A batch of a streaming query, the same in every attempt and run of it."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWrite:
    """A task that writes one batch: the same in every attempt."""

    source: str
    """The id of the streaming query or of the batch write."""
    batch: int
    task: int


def task_of_batch_write(source: str, batch: int) -> TaskWrite:
    """Return the current task, of the batch write with this id."""
    return TaskWrite(source=source, batch=batch, task=_task().partitionId())


def task_of_query(option: str) -> TaskWrite:
    """Return the current task, of a streaming query. Raises UnsupportedError, which names `option`,
    if Spark passed neither the query nor the batch to the task."""
    found = micro_batch_of_task()
    if found is None:
        raise UnsupportedError(
            option,
            found=f"a task without the properties {_QUERY} and {_BATCH}",
            expected="a task of a streaming query, with the id of the query and of the batch",
            next_step="leave the option out",
        )
    return TaskWrite(source=found.query, batch=found.batch, task=_task().partitionId())


ADAPTIVE_QUERY: Final = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAM: Final = "spark.sql.adaptive.streaming.stateless.enabled"
"""The settings by which Spark divides shuffled rows anew, by their sizes and the cluster's cores:
in a batch query, and, from PySpark 4.1 on, in a streaming query without state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedDivision:
    """A setting by which Spark may run a batch again with its rows in other tasks, in the terms of
    an error."""

    setting: str
    found: str
    expected: str
    next_step: str


def changed_division(
    settings: Callable[[str], str | None], *, by_batch_writes: bool
) -> ChangedDivision | None:
    """Return the setting by which a batch of a streaming query that runs again may have its rows in
    other tasks; None if all are off. `settings` returns a setting, None for one that is not set.
    `by_batch_writes`: the query writes each batch by a batch write, in `foreachBatch`."""
    if not (by_batch_writes or WRITES_ARROW):
        return None
    setting = ADAPTIVE_QUERY if by_batch_writes else ADAPTIVE_STREAM
    found = settings(setting)
    if (found or "").strip().lower() == "false":
        return None
    return ChangedDivision(
        setting=setting,
        found=f"{found or 'true, its default'}, by which Spark may divide rows among other tasks "
        "when a batch runs again",
        expected="false",
        next_step=f"spark.conf.set({setting!r}, 'false') before the query starts",
    )


def require_fixed_division(option: str, *, by_batch_writes: bool) -> None:
    """Raise UnsupportedError, which names `option`, if `changed_division` finds a setting of the
    current task's query."""
    changed = changed_division(_task().getLocalProperty, by_batch_writes=by_batch_writes)
    if changed is not None:
        raise UnsupportedError(
            option,
            found=f"{changed.setting}={changed.found}",
            expected=f"{changed.setting}={changed.expected}",
            next_step=changed.next_step,
        )


def micro_batch_of_task() -> MicroBatch | None:
    """Return the micro-batch of the current task; None outside of streaming queries and of
    tasks."""
    task = TaskContext.get()
    if task is None:
        return None
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    return None if query is None or batch is None else MicroBatch(query=query, batch=int(batch))


def run_of_task() -> str | None:
    """Return the run of the query that the current task belongs to; None if that is unknown."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_GROUP)


def least_tasks() -> int:
    """Return a number of tasks that the current stage has at least: Spark does not pass all of them
    to Python. 1 outside of a task."""
    task = TaskContext.get()
    return 1 if task is None else task.partitionId() + 1


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written only in a task of Spark")
    return task


# --- Plans ---------------------------------------------------------------------------------------

REFRESH_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""With this setting Spark plans a read with a filter again for each action
(`pyspark_api.replanned`)."""

_KEPT: Final = 1_000

_LOCAL_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""In a task's process, the folders of the executor's block manager, separated by commas."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The plan of one batch read. `planned_at_ms` is the time of the driver's clock, in epoch
    milliseconds."""

    id: str
    planned_at_ms: int
    has_fixed_end: bool
    """True if the options name the last record or a time that has passed, so that a later plan ends
    there too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSource:
    """The names of a source in errors about its batch reads."""

    format: str
    condition: str
    """A condition that every row meets and that Spark passes to a source."""
    end_option: str


class PlannedPartition(InputPartition):
    """The part of a plan that one task reads: a partition of the source, or None if there is
    nothing to read."""

    def __init__(self, value: InputPartition | None, plan: BatchPlan) -> None:
        super().__init__(value)
        self.value: InputPartition | None = value
        self.plan = plan


def with_plan(partitions: Sequence[InputPartition], plan: BatchPlan) -> list[InputPartition]:
    """Return the partitions with their plan; one without a value if there are none, so that a later
    use of an empty plan is detected as well."""
    return [PlannedPartition(value, plan) for value in partitions or (None,)]


class PlanUses:
    """The first use of each plan in an executor: a micro-batch, or None outside of streaming
    queries. Remembers the last thousand plans at least.

    Spark ends a Python worker after a minute without tasks, so the uses are also in `folder`, as
    the targets of symbolic links: a link is created whole, and by one process only. If the folder
    is unknown or cannot be used, each process knows its own uses only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._first: dict[str, str] = {}

    def is_outdated(self, plan: BatchPlan, use: MicroBatch | None) -> bool:
        """Return whether a micro-batch uses a plan that was used before it, whose end may not be
        the present one."""
        if plan.has_fixed_end:
            return False
        named = repr(use)
        if plan.id not in self._first:
            self._first[plan.id] = self._first_in_executor(plan.id, named)
            if len(self._first) > _KEPT:
                del self._first[next(iter(self._first))]
        return use is not None and named != self._first[plan.id]

    def _first_in_executor(self, plan: str, use: str) -> str:
        if self._folder is None:
            return use
        link = self._folder / hashlib.sha256(plan.encode()).hexdigest()[:32]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # another worker has just removed an old link
                try:
                    link.symlink_to(use)
                except FileExistsError:
                    return os.readlink(link)
                if len(os.listdir(self._folder)) > 2 * _KEPT:  # seldom: it reads the time of each
                    links = self._folder.iterdir()
                    for old in sorted(links, key=lambda one: one.lstat().st_mtime_ns)[:-_KEPT]:
                        old.unlink()
        except OSError as error:
            _log.warning("uses of a DataFrame in other Python workers are unknown: %s", error)
        return use


def _executor_folder() -> Path | None:
    """Return a folder that Spark removes with the executor of the current task; None if Spark did
    not pass one."""
    first, *_ = os.environ.get(_LOCAL_FOLDERS, "").split(",")
    return Path(first) / "spark-ssp-plans" if first else None


_uses = PlanUses(_executor_folder())


def read_planned(
    partition: InputPartition,
    source: BatchSource,
    read: Callable[[InputPartition], Iterator[T]],
    *,
    uses: PlanUses = _uses,
) -> Iterator[T]:
    """Yield the rows of one task, which `read` returns for the source's partition. Raises
    UnsupportedError if a micro-batch uses a plan that was used before it, and DataLossError with
    the time of the plan."""
    if not isinstance(partition, PlannedPartition):
        raise TypeError(f"a PlannedPartition is expected, not a {type(partition).__name__}")
    plan, use = partition.plan, micro_batch_of_task()
    if uses.is_outdated(plan, use) and use is not None:
        raise _outdated(plan, use, source)
    if partition.value is None:
        return
    try:
        yield from read(partition.value)
    except DataLossError as error:
        raise DataLossError(
            error.subject,
            found=f"{error.found}; the DataFrame was planned at {time_text(plan.planned_at_ms)}",
            expected=error.expected,
            next_step="call load() again and use the new DataFrame, which reads the records that "
            "are left, or set failOnDataLoss to false to leave out those that are gone",
        ) from error


def _outdated(plan: BatchPlan, use: MicroBatch, source: BatchSource) -> UnsupportedError:
    return UnsupportedError(
        f"DataFrame of {source.format} in a streaming query",
        found=f"the plan of {time_text(plan.planned_at_ms)}, made before micro-batch {use.batch}: "
        f"PySpark {pyspark.__version__} plans a batch DataFrame once, and newer records would be "
        "missing",
        expected="a plan for each micro-batch",
        next_step=f"before the query starts, set {REFRESH_SETTING} to true and add "
        f'.where("{source.condition}") after load(); or call load() within foreachBatch, or again '
        "for a query of one micro-batch; or, to read the same records in every micro-batch, set "
        f"{source.end_option}, or join with a copy, as of DataFrame.checkpoint()",
    )
