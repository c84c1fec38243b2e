"""From a planned pipeline to running queries: everything is checked before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline_planner.graph.operators import Graph, PartitionBy
from pipeline_planner.running.dataframes import StageQuery, stage_queries
from pipeline_planner.running.errors import SessionSettingError
from pipeline_planner.running.session import check_state_store, is_remote, warn_many_tasks
from pipeline_planner.running.stage_order import bootstrap_stages
from pipeline_planner.running.streams import StreamAccess
from pipeline_planner.running.supervisor import Phase, RunningPipeline
from pipeline_planner.services.systems import Services, SparkFormat
from pipeline_planner.storage.plan_storage import is_path
from ssp_common.errors import InvalidOptionsError, OptionProblem

STAGES: Final = "stages"
"""The folder below a root that holds the stages' checkpoints."""

OUTPUT_MODES: Final = ("append", "complete", "update")

_QUERY_ID: Final = "sql.streaming.queryId"
"""What Spark calls it in the thread that calls the function of `foreachBatch`."""
_DEFAULT: Final = "fs.defaultFS"
"""Hadoop's setting of the file system of paths without a scheme."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a pipeline shall run. Raises InvalidOptionsError naming every wrong one."""

    processing_time: str | None = None
    """How often a batch begins, as in Spark (`10 seconds`); None for as fast as possible."""
    available_now: bool = False
    """Read what there is, stage by stage, and end."""
    output_modes: Mapping[str, str] | None = None
    """By stage. Others append where Spark allows it, else they update."""

    def problems(self, stages: Sequence[str]) -> list[OptionProblem]:
        """What is wrong with them for a pipeline of these stages."""
        found = []
        if self.available_now and self.processing_time is not None:
            found.append(
                OptionProblem(
                    option="processing_time",
                    found=f"{self.processing_time!r} beside available_now=True",
                    expected="one of the two",
                    next_step="leave one out",
                )
            )
        for stage, mode in sorted((self.output_modes or {}).items()):
            if stage not in stages or mode not in OUTPUT_MODES:
                found.append(
                    OptionProblem(
                        option="output_modes",
                        found=f"{mode!r} for stage {stage!r}",
                        expected=f"{', '.join(OUTPUT_MODES)} for one of the stages "
                        f"{', '.join(stages)}",
                        next_step="name a stage and a mode as in the plan and in Spark",
                    )
                )
        return found


def prepare(
    graph: Graph, spark: SparkSession, services: Services, *, root: str, settings: RunSettings
) -> RunningPipeline:
    """Build and check all queries of a pipeline; `launch` of the result starts them.

    Raises InvalidPipelineError, InvalidOptionsError or SessionSettingError.
    """
    services.raise_missing(graph)
    root = root_for_spark(spark, root)
    access = StreamAccess(spark=spark, services=services)
    between = (o.stream for o in graph.operators if isinstance(o, PartitionBy))
    if any(access.drops_duplicates(stream) for stream in between):
        # Their frames cannot even be built without.
        check_state_store(spark)
    queries = stage_queries(graph, access)
    problems = settings.problems([query.stage for query in queries])
    problems += _time_problems(settings, queries[0].frame)
    if problems:
        raise InvalidOptionsError(f"running pipeline {graph.pipeline}", problems)
    if any(query.keeps_state for query in queries):
        check_state_store(spark)
        warn_many_tasks(spark)
    known: dict[str, StageQuery] = {query.stage: query for query in queries}

    def start(stage: str, finite: bool) -> StreamingQuery:
        # Makes the session the active one of the thread that starts queries: Spark looks up formats
        # and settings there. PySpark has no other public way to say so.
        spark.createDataFrame([], "nothing int")
        return _start(graph.pipeline, known[stage], root, settings, finite=finite)

    return RunningPipeline(graph.pipeline, _phases(graph, queries, settings), start)


def _time_problems(settings: RunSettings, frame: DataFrame) -> list[OptionProblem]:
    """What Spark says of `processing_time`, asked before anything is created: it knows the form."""
    if settings.processing_time is None:
        return []
    try:
        frame.writeStream.trigger(processingTime=settings.processing_time)
    except PySparkException:
        return [
            OptionProblem(
                option="processing_time",
                found=repr(settings.processing_time),
                expected="a time as Spark reads it, 0 or more and without months",
                next_step="write a number and a unit, as '10 seconds' or '1 minute 30 seconds'",
            )
        ]
    return []


def root_for_spark(spark: SparkSession, root: str) -> str:
    """A root as Spark must be given it, to have its checkpoints beside the plans. A path without a
    scheme is one of this machine to `plan_folders`, and one of its default file system to Spark.

    Raises SessionSettingError where that is another one.
    """
    if not is_path(root):
        return root
    # None with Spark Connect, whose server knows.
    context: Any = getattr(spark, "_jsc", None)
    default = "" if context is None else str(context.hadoopConfiguration().get(_DEFAULT) or "")
    if default and not default.startswith("file:"):
        raise SessionSettingError(
            _DEFAULT,
            found=f"{default}, where Spark would have the checkpoints of root {root}",
            expected="the place of the plans, which is this machine for a root without a scheme",
            next_step="give the root with its scheme, as file:///path or hdfs://host/path",
        )
    return os.path.abspath(root)


def checkpoint(root: str, stage: str) -> str:
    """Where a stage's checkpoint lies."""
    return f"{root.rstrip('/')}/{STAGES}/{stage}"


def _phases(
    graph: Graph, queries: Sequence[StageQuery], settings: RunSettings
) -> tuple[Phase, ...]:
    names = tuple(query.stage for query in queries)
    alone = names if settings.available_now else bootstrap_stages(graph)
    first = tuple(Phase(stages=(name,), finite=True) for name in alone)
    return first if settings.available_now else (*first, Phase(stages=names, finite=False))


def _start(
    pipeline: str, query: StageQuery, root: str, settings: RunSettings, *, finite: bool
) -> StreamingQuery:
    mode = (settings.output_modes or {}).get(query.stage)
    if mode is not None:
        return start_in(mode, pipeline, query, root, settings, finite=finite)
    try:
        return start_in("append", pipeline, query, root, settings, finite=finite)
    except AnalysisException as error:
        # Spark says so before it has written anything: aggregates without a watermark.
        if error.getCondition() != "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION":
            raise
    return start_in("update", pipeline, query, root, settings, finite=finite)


def start_in(
    mode: str,
    pipeline: str,
    query: StageQuery,
    root: str,
    settings: RunSettings,
    *,
    finite: bool,
) -> StreamingQuery:
    """Start one query in this output mode."""
    sink = query.frame.writeStream
    if mode == "update":
        _refuse_updates_from_afar(query)
        # Spark has no sink in Python take updates but as batches: they are written as new records.
        sink = sink.foreachBatch(writing(query.writer, query.batch_write_option))
    else:
        sink = sink.format(query.writer.format).options(**query.writer.options)
    writer = (
        sink.option("checkpointLocation", checkpoint(root, query.stage))
        .queryName(f"{pipeline}/{query.stage}")
        .outputMode(mode)
    )
    if finite:
        writer = writer.trigger(availableNow=True)
    elif settings.processing_time is not None:
        writer = writer.trigger(processingTime=settings.processing_time)
    return writer.start()


def _refuse_updates_from_afar(query: StageQuery) -> None:
    if query.batch_write_option is not None and is_remote(query.frame.sparkSession):
        raise SessionSettingError(
            "Spark Connect",
            found=f"a session of it, for stage {query.stage}, which updates",
            expected="a session in the driver's own process: only there does a batch tell which "
            "query it is of, and without that its repeats are not dropped",
            next_step="run the pipeline in the driver's process, or have the stage append (with a "
            "watermark) or complete (output_modes)",
        )


def writing(found: SparkFormat, batch_write_option: str | None) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: writes each batch, with the query's identity where there is an option
    for it (see `streams.DropsRepeats`)."""

    def write(rows: DataFrame, batch: int) -> None:
        options = dict(found.options)
        if batch_write_option is not None:
            query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            if not query:
                # All queries would have one identity, and records of others would pass for repeats.
                raise SessionSettingError(
                    "PYSPARK_PIN_THREAD",
                    found=f"a batch without {_QUERY_ID}",
                    expected="a thread of Python for each of the JVM's, as by default: it tells "
                    "which query a batch is of",
                    next_step="leave PYSPARK_PIN_THREAD out of the environment, and run again",
                )
            options[batch_write_option] = f"{query}:{batch}"
        rows.write.format(found.format).options(**options).mode("append").save()

    return write
