"""A running pipeline, whose queries are started, monitored and stopped together.

One thread of this process does this, phase by phase. The stages of a *phase* run concurrently; the
next phase starts when all of them have ended. Only the last phase of a continuous pipeline has no
end. Queries are accessed by a Protocol, so this module does not need Spark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Protocol, Self

from spark_ssp.planner.graph.errors import (
    PipelineStageError,
    ended_normally,
    stage_failure,
    start_failure,
)

_log = logging.getLogger(__name__)

POLL_S: Final = 0.1
"""Interval between polls of the queries."""


class RunningQuery(Protocol):
    """The required part of PySpark's StreamingQuery."""

    @property
    def isActive(self) -> bool: ...

    @property
    def lastProgress(self) -> Any: ...

    def exception(self) -> BaseException | None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Stages that run concurrently; if `finite`, each to the end of the available records."""

    stages: tuple[str, ...]
    finite: bool
    runs: int = 1
    """Runs of each stage's query in a finite phase, one after the other: the next phase starts
    after the last."""


class StageState(StrEnum):
    """The state of a stage."""

    WAITING = "waiting"
    """Not started, or finished with a first phase and not started again."""
    RUNNING = "running"
    ENDED = "ended"
    """It has read all available records."""
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """The state of one stage; `batch` is the number of its last known batch, None before the
    first."""

    stage: str
    state: StageState
    batch: int | None


Start = Callable[[str, bool], RunningQuery]
"""Starts the query of a stage; True for one that ends after the available records."""


class RunningPipeline:
    """The queries of a pipeline's stages. A failure of one stops all; none is restarted.

    with planned.run(spark, services) as running:
        running.await_termination()
    """

    def __init__(
        self, pipeline: str, phases: Sequence[Phase], start: Start, *, poll_s: float = POLL_S
    ) -> None:
        """Create it without starting it; `launch` does. `start` may raise any exception."""
        self._pipeline = pipeline
        self._phases = tuple(phases)
        self._start = start
        self._poll_s = poll_s
        self._stages = tuple(dict.fromkeys(s for phase in self._phases for s in phase.stages))
        self._states = dict.fromkeys(self._stages, StageState.WAITING)
        self._queries: dict[str, RunningQuery] = {}
        self._runs_left = dict.fromkeys(self._stages, 0)
        self._batches: dict[str, int] = {}
        self._failure: BaseException | None = None
        self._stop_asked = threading.Event()
        self._begun = threading.Event()
        self._over = threading.Event()
        # A program whose main thread ends must not hang; its queries end with Spark.
        self._thread = threading.Thread(
            target=self._run, name=f"spark-ssp pipeline {pipeline}", daemon=True
        )

    def launch(self) -> Self:
        """Start the pipeline, and return when the queries of the first phase run. Raises
        PipelineStageError when one of them does not start, after stopping the others."""
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:
            self.stop()
            raise
        if self._failure is not None:
            self._over.wait()
            raise self._failure
        return self

    @property
    def status(self) -> tuple[StageStatus, ...]:
        """The status of every stage, in start order."""
        return tuple(
            StageStatus(stage=s, state=self._states[s], batch=self._batch(s)) for s in self._stages
        )

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until all stages have ended, at most `timeout` seconds, and return whether they
        have. Raises PipelineStageError when a stage failed, after stopping all others. An interrupt
        (Ctrl-C) stops the pipeline."""
        try:
            over = self._over.wait(timeout)
        except BaseException:
            self.stop()
            raise
        if over and self._failure is not None:
            raise self._failure
        return over

    def stop(self) -> None:
        """Stop all stages, and return when they have stopped. No effect when they have ended. An
        earlier failure of a stage is reported by `status`, and raised by `await_termination` and at
        the end of a `with` block."""
        self._stop_asked.set()
        self._over.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None and self._failure is not None:
            raise self._failure

    # --- The thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for phase in self._phases:
                if not self._stop_asked.is_set():
                    self._start_all(phase)
                    self._begun.set()
                    self._watch(phase)
        except PipelineStageError as failure:
            self._failure = failure
            self._states[failure.stage] = StageState.FAILED
        except BaseException as error:  # noqa: BLE001 - raised where the pipeline is waited for
            self._failure = error
        finally:
            try:
                self._stop_all()
            finally:
                # Waiting threads must be released after any error.
                self._over.set()
                self._begun.set()

    def _start_all(self, phase: Phase) -> None:
        for stage in phase.stages:
            if self._stop_asked.is_set():
                return
            self._runs_left[stage] = phase.runs
            self._start_one(stage, phase)

    def _start_one(self, stage: str, phase: Phase) -> None:
        try:
            self._queries[stage] = self._start(stage, phase.finite)
        except Exception as error:
            raise start_failure(self._pipeline, stage, error) from error
        self._states[stage] = StageState.RUNNING
        self._runs_left[stage] -= 1
        _log.info("stage %s of pipeline %s runs", stage, self._pipeline)

    def _watch(self, phase: Phase) -> None:
        """Poll until all stages have ended or a stop is requested. Raises for one that failed."""
        while not self._stop_asked.is_set():
            running = [s for s in phase.stages if self._states[s] is StageState.RUNNING]
            if not running:
                return
            for stage in running:
                self._look_at(stage, phase)
            self._stop_asked.wait(self._poll_s)

    def _look_at(self, stage: str, phase: Phase) -> None:
        try:
            # In this order: a query that ends in between is seen in the next round.
            active = self._queries[stage].isActive
            error = None if active else self._queries[stage].exception()
        except Exception as lost:
            # Spark is no longer reachable.
            raise stage_failure(self._pipeline, stage, lost) from lost
        if active or self._stop_asked.is_set():
            return
        if error is not None:
            raise stage_failure(self._pipeline, stage, error) from error
        if not phase.finite:
            raise ended_normally(self._pipeline, stage)
        self._batch(stage)  # is known no more after this
        later = self._phases[self._phases.index(phase) + 1 :]
        starts_again = any(stage in other.stages for other in later)
        try:
            # Its name is free once its thread has ended, which `stop` waits for. Now, since a
            # server of Spark Connect forgets an ended query after an hour.
            self._queries.pop(stage).stop()
        except Exception as lost:
            if starts_again or self._runs_left[stage]:
                raise stage_failure(self._pipeline, stage, lost) from lost
            _log.warning("stage %s did not stop: %s", stage, type(lost).__name__)
        if self._runs_left[stage]:
            self._start_one(stage, phase)
            return
        self._states[stage] = StageState.WAITING if starts_again else StageState.ENDED

    def _stop_all(self) -> None:
        """Stop the queries in reverse order, readers before their writers."""
        for stage, query in reversed(self._queries.items()):
            self._see_failure(stage, query)
            try:
                query.stop()
            except Exception as error:  # noqa: BLE001 - Spark may raise any exception
                # The others must be stopped too.
                _log.warning("stage %s did not stop: %s", stage, type(error).__name__)
            if self._states[stage] is StageState.RUNNING:
                self._states[stage] = StageState.STOPPED

    def _see_failure(self, stage: str, query: RunningQuery) -> None:
        """Record a failure since the last poll, unless there is an earlier one."""
        if self._states[stage] is not StageState.RUNNING:
            return
        try:
            error = None if query.isActive else query.exception()
        except Exception as lost:  # noqa: BLE001 - as in `_look_at`
            error = lost
        if error is None:
            return
        self._states[stage] = StageState.FAILED
        if self._failure is None:
            self._failure = stage_failure(self._pipeline, stage, error)
            self._failure.__cause__ = error

    def _batch(self, stage: str) -> int | None:
        """Return the last known batch: a query cannot be polled when Spark is unreachable."""
        query = self._queries.get(stage)
        progress = None
        with suppress(Exception):
            progress = None if query is None else query.lastProgress
        if progress is not None:
            self._batches[stage] = int(progress["batchId"])
        return self._batches.get(stage)
