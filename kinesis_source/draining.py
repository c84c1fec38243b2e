"""Asking a query to drain through Spark: a batch read that is planned on the driver, and never run.

    spark.read.format("kinesis-ssp").option("drainWorker", id).option("drainStep", "ask").load()

The one column of the frame is called as the worker stands. So it works wherever the program runs
that asks, also through Spark Connect: Spark makes the frame's schema in a Python process on the
driver's machine, where the worker's marks are.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kinesis_source.drain_marks import DrainMarks
from task_grouping.identifiers import WorkerId

DRAIN_WORKER: Final = "drainWorker"
DRAIN_STEP: Final = "drainStep"


class Step(StrEnum):
    """What to do: ask (again, as often as you like), or forget about it."""

    ASK = "ask"
    CLEAR = "clear"


class Standing(StrEnum):
    """How a worker stands that was asked to drain."""

    DRAINING = "draining"
    DRAINED = "drained"
    CLEARED = "cleared"


def drain(options: Mapping[str, str]) -> Standing | None:
    """Do what the options of a batch read ask for; None when they ask for something else."""
    folded = {name.lower(): value for name, value in options.items()}
    worker = folded.get(DRAIN_WORKER.lower())
    if worker is None:
        return None
    marks = DrainMarks(WorkerId(worker))
    if folded.get(DRAIN_STEP.lower()) == Step.CLEAR:
        marks.clear()
        return Standing.CLEARED
    marks.ask()
    return Standing.DRAINED if marks.is_drained() else Standing.DRAINING
