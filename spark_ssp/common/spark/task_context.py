"""The batch of the current task of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from spark_ssp.common.errors import UnsupportedError

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


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


def micro_batch_of_task() -> MicroBatch | None:
    """Return the micro-batch of the current task; None outside of streaming queries and of
    tasks."""
    task = TaskContext.get()
    if task is None:
        return None
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    return None if query is None or batch is None else MicroBatch(query=query, batch=int(batch))


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
