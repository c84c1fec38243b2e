"""Starts the queries of a planned pipeline, after all checks that do not start a query."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.locations import is_path
from spark_ssp.common.spark.batch_plan import changed_division
from spark_ssp.common.spark.pyspark_api import PYSPARK_WITHOUT_LIMITS
from spark_ssp.common.spark.requirement import PROVIDER, PROVIDER_SETTING, is_rocksdb
from spark_ssp.planner.graph.errors import SessionSettingError
from spark_ssp.planner.graph.operators import Graph, Input, PartitionBy, SystemName
from spark_ssp.planner.graph.systems import Services, SparkFormat
from spark_ssp.planner.planning.stages import bootstrap_stages, stages_of
from spark_ssp.planner.running.dataframes import (
    ChecksReaders,
    StageQuery,
    StreamAccess,
    stage_queries,
)
from spark_ssp.planner.running.supervisor import Phase, RunningPipeline

STAGES: Final = "stages"
"""Name of the folder below a root that contains the stages' checkpoints."""

OUTPUT_MODES: Final = ("append", "complete", "update")

_QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the query id in the thread that calls the `foreachBatch` function."""
_TRIGGER: Final = "trigger"
"""The option of the sources that declares a trigger (`options.shared.trigger_option`)."""
_DEFAULT: Final = "fs.defaultFS"
"""Hadoop's setting for the file system of paths without a scheme."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run."""

    processing_time: str | None = None
    """The trigger interval, as in Spark (`10 seconds`); None for as fast as possible."""
    available_now: bool = False
    """Read all available records, stage by stage, and end."""
    output_modes: Mapping[str, str] | None = None
    """Output modes by stage. Other stages append where Spark allows it, else they update."""

    def problems(self, stages: Sequence[str]) -> list[OptionProblem]:
        """Return the problems of the settings for a pipeline with these stages."""
        found = []
        if self.available_now and self.processing_time is not None:
            found.append(
                OptionProblem(
                    option="processing_time",
                    found=f"{self.processing_time!r} beside available_now=True",
                    expected="one of the two",
                    next_step="leave processing_time or available_now out",
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
    """Build and check all queries of a pipeline, which `launch` of the result starts. Raises
    InvalidPipelineError, InvalidOptionsError or SessionSettingError."""
    services.raise_missing(graph)
    root = root_for_spark(spark, root)
    access = StreamAccess(spark=spark, services=services)
    between = (o.stream for o in graph.operators if isinstance(o, PartitionBy))
    if any(access.drops_duplicates(stream) for stream in between):
        # Building their frames requires it already.
        check_state_store(spark)
    queries = stage_queries(graph, access)
    names = [query.stage for query in queries]
    phases = phases_of(graph, names, settings, PYSPARK_WITHOUT_LIMITS)
    problems = settings.problems(names)
    problems += _time_problems(settings, queries[0].frame)
    problems += trigger_problems(graph, services, phases, PYSPARK_WITHOUT_LIMITS)
    problems += reader_problems(graph, services)
    if problems:
        raise InvalidOptionsError(f"running pipeline {graph.pipeline}", problems)
    if any(query.keeps_state for query in queries):
        check_state_store(spark)
        warn_many_tasks(spark)
    for query in queries:
        mode = (settings.output_modes or {}).get(query.stage)
        # Only Spark knows which of the two a stage without a mode does.
        check_division(spark, query, *(("append", "update") if mode is None else (mode,)))
    known: dict[str, StageQuery] = {query.stage: query for query in queries}

    def start(stage: str, finite: bool) -> StreamingQuery:
        # Makes the session the active one of the thread that starts queries: Spark looks up formats
        # and settings there. PySpark has no other public API for this.
        spark.createDataFrame([], "nothing int")
        return _start(graph.pipeline, known[stage], root, settings, finite=finite)

    return RunningPipeline(graph.pipeline, phases, start)


def reader_problems(graph: Graph, services: Services) -> Iterator[OptionProblem]:
    """Yield a problem for each option of a system that the pipeline's readers cannot share."""
    readers: dict[SystemName, list[str]] = {}
    for stage in stages_of(graph):
        for stream in stage.sources or ():
            readers.setdefault(stream.system, []).append(stream.stream)
    for name, streams in sorted(readers.items()):
        system = services[name]
        if isinstance(system, ChecksReaders):
            yield from system.reader_problems(streams)


def _time_problems(settings: RunSettings, frame: DataFrame) -> list[OptionProblem]:
    """Let Spark parse `processing_time` before any stream is created, and return its problems."""
    if settings.processing_time is None:
        return []
    try:
        frame.writeStream.trigger(processingTime=settings.processing_time)
    except PySparkException:
        return [
            OptionProblem(
                option="processing_time",
                found=repr(settings.processing_time),
                expected="a time interval of Spark, 0 or more and without months",
                next_step="write a number and a unit, as '10 seconds' or '1 minute 30 seconds'",
            )
        ]
    return []


def root_for_spark(spark: SparkSession, root: str) -> str:
    """Return a root for Spark, so that checkpoints are beside the plans. A path without a scheme is
    one of this machine for `plan_history`, and one of the default file system for Spark. Raises
    SessionSettingError if these differ."""
    if not is_path(root):
        return root
    # None with Spark Connect: only its server has the setting.
    context: Any = getattr(spark, "_jsc", None)
    default = "" if context is None else str(context.hadoopConfiguration().get(_DEFAULT) or "")
    if default and not default.startswith("file:"):
        raise SessionSettingError(
            _DEFAULT,
            found=f"{default}, where Spark would write the checkpoints of root {root}",
            expected="the location of the plans: this machine, for a root without a scheme",
            next_step="pass the root with its scheme, as file:///path or hdfs://host/path",
        )
    return os.path.abspath(root)


def checkpoint(root: str, stage: str) -> str:
    """Return the location of a stage's checkpoint."""
    return f"{root.rstrip('/')}/{STAGES}/{stage}"


def phases_of(
    graph: Graph, stages: Sequence[str], settings: RunSettings, pyspark_without_limits: str | None
) -> tuple[Phase, ...]:
    """Return the phases of a pipeline with these stages, in start order. `pyspark_without_limits`
    is the version of a PySpark that runs availableNow as one batch, else None: there the first run
    after a failed one only repeats its batch, and the second reads all that was there."""
    sequential = stages if settings.available_now else bootstrap_stages(graph)
    runs = 1 if pyspark_without_limits is None else 2
    first = tuple(Phase(stages=(name,), finite=True, runs=runs) for name in sequential)
    return first if settings.available_now else (*first, Phase(stages=(*stages,), finite=False))


def trigger_problems(
    graph: Graph,
    services: Services,
    phases: Sequence[Phase],
    pyspark_without_limits: str | None,
) -> Iterator[OptionProblem]:
    """Yield a problem for each system whose options declare another trigger than availableNow, by
    which a finite phase reads the system: with a PySpark as in `phases_of`, limits would end it
    before all records are read."""
    if pyspark_without_limits is None:
        return
    finite = {stage for phase in phases if phase.finite for stage in phase.stages}
    # A bootstrap input is read without limits.
    limited = {
        o.stream
        for o in graph.operators
        if isinstance(o, PartitionBy) or (isinstance(o, Input) and not o.bootstrap)
    }
    found: dict[str, str] = {}
    for stage in stages_of(graph):
        for stream in stage.sources or () if stage.name in finite else ():
            if stream not in limited:
                continue
            options = services[stream.system].reader_format(stream.stream).options
            if any(name.strip().lower() == _TRIGGER for name in options):
                found.setdefault(stream.system, stage.name)
    for system, name in sorted(found.items()):
        yield OptionProblem(
            option=_TRIGGER,
            found=f"processingTime for system {system}, with PySpark {pyspark_without_limits}",
            expected=f"no declared trigger: stage {name} runs to completion by availableNow, "
            "which this version runs as one batch",
            next_step="remove it, and the limits of a batch that require it, from the options "
            "of the system; or read its stream by another system without them; or use PySpark "
            "4.2 or newer",
        )


def _start(
    pipeline: str, query: StageQuery, root: str, settings: RunSettings, *, finite: bool
) -> StreamingQuery:
    mode = (settings.output_modes or {}).get(query.stage)
    if mode is not None:
        return start_in(mode, pipeline, query, root, settings, finite=finite)
    try:
        return start_in("append", pipeline, query, root, settings, finite=finite)
    except AnalysisException as error:
        # Raised before the first write, for aggregates without a watermark.
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
        # `prepare` knows an update only of a stage with a mode.
        check_division(query.frame.sparkSession, query, mode)
        # Spark supports updates of Python sinks only as batches: they are written as new records.
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
            found=f"a session of it, for stage {query.stage} in output mode update",
            expected="a session in the driver's process: only there a batch has its query's id, "
            "which deduplication needs",
            next_step="run the pipeline in the driver's process, or set the stage's output mode to "
            "append (with a watermark) or complete (output_modes)",
        )


def writing(found: SparkFormat, batch_write_option: str | None) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch, with the query's id if the
    system has an option for it (see `DropsDuplicates`)."""

    def write(rows: DataFrame, batch: int) -> None:
        options = dict(found.options)
        if batch_write_option is not None:
            query = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            if not query:
                # All queries would share one id, and records of others would count as duplicates.
                raise SessionSettingError(
                    "PYSPARK_PIN_THREAD",
                    found=f"a batch without {_QUERY_ID}",
                    expected="a Python thread for each JVM thread, the default, which provides the "
                    "query's id of a batch",
                    next_step="remove PYSPARK_PIN_THREAD from the environment, and run again",
                )
            options[batch_write_option] = f"{query}:{batch}"
        rows.write.format(found.format).options(**options).mode("append").save()

    return write


_log = logging.getLogger(__name__)

# --- Checks of the session ------------------------------------------------------------------------


_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_MANY: Final = 4
"""Factor by which a shuffle's partitions may exceed the parallel tasks without a warning."""


def is_remote(spark: SparkSession) -> bool:
    """Return whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_state_store(spark: SparkSession) -> None:
    """Check the requirements of `transformWithState`: RocksDB in the JVM, pandas beside PySpark.
    Raises SessionSettingError."""
    found = spark.conf.get(PROVIDER_SETTING)
    if not is_rocksdb(found):
        raise SessionSettingError(
            PROVIDER_SETTING,
            found=str(found),
            expected=f"{PROVIDER}, Spark's only provider for the state of tables and deduplication",
            next_step=f'before run: spark.conf.set("{PROVIDER_SETTING}", "{PROVIDER}")',
        )
    if importlib.util.find_spec("pandas") is None:
        raise SessionSettingError(
            "pandas",
            found="no such package in this environment",
            expected="pandas, which PySpark requires for stateful operators",
            next_step='pip install "pandas<3", here and on all hosts of Spark\'s Python workers',
        )


def check_division(spark: SparkSession, query: StageQuery, mode: str, *others: str) -> None:
    """Check the requirement of a stage that writes in transactions, in one of these output modes:
    no setting by which Spark runs a repeated batch with other tasks. Raises
    SessionSettingError, with the setting for the first mode, if all of them are refused."""
    if not query.needs_fixed_division:
        return
    changed, *more = (
        changed_division(lambda name: spark.conf.get(name, None), by_batch_writes=one == "update")
        for one in (mode, *others)
    )
    if changed is not None and None not in more:
        raise SessionSettingError(
            changed.setting,
            found=changed.found,
            expected=f"{changed.expected}, for stage {query.stage} in output mode {mode}, which "
            "writes exactly once",
            next_step=changed.next_step,
        )


def warn_many_tasks(spark: SparkSession) -> None:
    """Log a warning if batches of stages with state have far more tasks than can run in
    parallel."""
    if is_remote(spark):
        return
    shuffled = spark.conf.get(_SHUFFLE) or ""
    # On a cluster these are the executors registered so far; more may follow.
    at_once = spark.sparkContext.defaultParallelism
    if shuffled.isdecimal() and int(shuffled) > _MANY * at_once:
        _log.warning(
            "%s is %s, and Spark has cores for %d tasks now: each batch of a stage with state (a "
            "table, an intermediate stream) takes %s Python tasks, and a stage's first batch fixes "
            "the number for its checkpoint. Before the first run set it to about the number of "
            "cores of the complete cluster",
            _SHUFFLE,
            shuffled,
            at_once,
            shuffled,
        )
