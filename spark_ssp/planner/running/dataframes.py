"""Builds the DataFrames of a pipeline's stages from its operators. Reads no records.

Streams are opened with the formats of their services, side inputs without rate limits, and
intermediate streams are deduplicated. Operators that cannot run are rejected by name and source
location.

A line is built again for every operator that reads its rows. So a stream whose rows are used twice
within a stage is read there by two sources, and the two sides of a self-join have columns that
Spark can distinguish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NoReturn, Protocol, runtime_checkable

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructType

from spark_ssp.common.errors import OptionProblem, SspError
from spark_ssp.planner.graph.errors import InvalidPipelineError, kind_of
from spark_ssp.planner.graph.operators import (
    Filter,
    Graph,
    Input,
    Join,
    JoinTable,
    Merge,
    Operator,
    OperatorName,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    StreamId,
    TableSpec,
    Transform,
    by_name,
    problem_of,
    upstreams,
)
from spark_ssp.planner.graph.systems import Services, SparkFormat
from spark_ssp.planner.planning.stages import (
    MOST_SOURCES,
    fillers_of,
    order_stages,
    sources_of,
    stages_from_bootstrap,
)
from spark_ssp.planner.running.row_serde import (
    columns_of,
    invalid_keys,
    key_bytes,
    lost_types,
    value_of,
)
from spark_ssp.planner.running.table_join import join_table


@dataclass(frozen=True, slots=True, kw_only=True)
class StageQuery:
    """The DataFrame and the sink of one streaming query."""

    stage: OperatorName
    frame: DataFrame
    writer: SparkFormat
    batch_write_option: str | None
    """The option of `DropsDuplicates`, if the system has one."""
    needs_fixed_division: bool
    """As of `NeedsFixedDivision`; False for other systems."""
    keeps_state: bool
    """True if this package's operators keep state; user functions are not inspected."""


def stage_queries(graph: Graph, access: StreamAccess) -> tuple[StageQuery, ...]:
    """Return every stage in the order of `order_stages`. Calls user functions, some of them twice.
    Raises InvalidPipelineError, with operator and location, for incompatible columns and types."""
    _refuse_too_many_sources(graph)
    first = _Frames(graph=graph, access=access)
    found = tuple(first.stage(name) for name in order_stages(graph))
    # Of tables that are filled by rows joined with them, the columns are known now.
    again = _Frames(graph=graph, access=access, written=dict(first.written))
    return tuple(again.stage(q.stage) if q.stage in first.unfinished else q for q in found)


def _refuse_too_many_sources(graph: Graph) -> None:
    named = by_name(graph)
    for stage, sources in sources_of(graph).items():
        if sources is None:
            Refusal(graph.pipeline, named[stage]).refuse(
                f"a query that would read more than {MOST_SOURCES} streams at once",
                "fewer: a stream is read again for each operator that uses its line's rows",
                "put .partition_by(<columns>) after an operator that is used more than once, and "
                "continue from its result",
            )


@dataclass(kw_only=True)
class _Frames:
    graph: Graph
    access: StreamAccess
    written: dict[OperatorName, StructType] = field(default_factory=dict)
    """Columns of the intermediate streams whose stages have been built."""
    unfinished: set[OperatorName] = field(default_factory=set)
    """Stages without some fillers of their tables, which read streams of still unknown columns."""
    keeps_state: bool = False
    left_out: bool = False
    """True if the current stage is unfinished."""

    def __post_init__(self) -> None:
        self._named = by_name(self.graph)
        self._tables = {table.name: table for table in self.graph.tables}
        self._fillers = fillers_of(self.graph)
        self._from_bootstrap = stages_from_bootstrap(self.graph)

    def stage(self, name: OperatorName) -> StageQuery:
        """Build the query of a stage."""
        sink = self._named[name]
        assert isinstance(sink, PartitionBy | Output)
        refusal = Refusal(self.graph.pipeline, sink)
        with refusal.on_errors_of_services():
            writer = self.access.writer(sink.stream)
            batch_write_option = self.access.batch_write_option(sink.stream)
            needs_fixed_division = self.access.needs_fixed_division(sink.stream)
        self.keeps_state = self.left_out = False
        frame = self.rows(sink.upstream, Use.LINE)
        if not frame.isStreaming:
            refusal.refuse(
                "a frame that is not streaming",
                "rows of the streams that the stage reads",
                "return a frame derived from the function's argument",
            )
        if self.left_out:
            self.unfinished.add(name)
        ready = self._partitioned(sink, frame) if isinstance(sink, PartitionBy) else _output(frame)
        return StageQuery(
            stage=name,
            frame=ready,
            writer=writer,
            batch_write_option=batch_write_option,
            needs_fixed_division=needs_fixed_division,
            keeps_state=self.keeps_state,
        )

    # --- Rows ------------------------------------------------------------------------------------

    def rows(self, name: OperatorName, use: Use) -> DataFrame:
        """Build the rows of an operator for one of its readers."""
        operator = self._named[name]
        steps: list[Transform | Filter] = []
        # Not recursive, since a line may be long.
        while isinstance(operator, Transform | Filter):
            steps.append(operator)
            operator = self._named[operator.upstream]
        frame = self._begun(operator, use)
        for step in reversed(steps):
            frame = self._computed(step, [frame])
        return frame

    def _begun(self, operator: Operator, use: Use) -> DataFrame:
        match operator:
            case Input():
                whole = Use.SIDE_INPUT if operator.bootstrap else use
                with Refusal(self.graph.pipeline, operator).on_errors_of_services():
                    return self.access.read(
                        operator.stream, whole, keep_tasks=not operator.broadcast
                    )
            case PartitionBy():
                return self._read_back(operator, use)
            case JoinTable():
                return self._joined_with_table(operator, use)
            case SendToTable() | SideInput() | Output():
                raise TypeError(f"{operator.name} produces no rows")
            case _:
                return self._computed(operator, [self.rows(up, use) for up in upstreams(operator)])

    def _computed(
        self, operator: Transform | Filter | Merge | Join, given: list[DataFrame]
    ) -> DataFrame:
        refusal = Refusal(self.graph.pipeline, operator)
        with refusal.on_errors_of_functions():
            match operator:
                case Transform():
                    return refusal.frame(operator.function(given[0]))
                case Filter(condition=condition):
                    if isinstance(condition, str):
                        return given[0].where(condition)
                    return given[0].where(refusal.condition(condition(given[0])))
                case Join():
                    return refusal.frame(operator.combine(given[0], given[1]))
                case Merge():
                    return _merged(given, refusal)

    def _read_back(self, operator: PartitionBy, use: Use) -> DataFrame:
        schema = self.written.get(operator.name)
        if schema is None:
            raise _ColumnsUnknownError(operator.name)
        refusal = Refusal(self.graph.pipeline, operator)
        with refusal.on_errors_of_services():
            is_whole = use is Use.TABLE and operator.name in self._from_bootstrap
            frame = self.access.read_own(operator.stream, Use.SIDE_INPUT if is_whole else use)
        self.keeps_state |= self.access.drops_duplicates(operator.stream)
        # No stage writes null; as an empty string it is rejected like other foreign values.
        value = F.coalesce(F.col("value").cast("string"), F.lit(""))
        return _unpacked(frame.select(columns_of(value, schema).alias("row")), schema)

    # --- Tables ----------------------------------------------------------------------------------

    def _joined_with_table(self, operator: JoinTable, use: Use) -> DataFrame:
        refusal = Refusal(self.graph.pipeline, operator)
        line = self.rows(operator.upstream, use)
        changes = self._changes(self._tables[operator.table], refusal)
        _check_join(operator, self._tables[operator.table], line, changes, refusal)
        self.keeps_state = True
        return join_table(
            line,
            changes,
            table=operator.table,
            key=self._tables[operator.table].key,
            on=operator.on,
            how=operator.how,
        )

    def _changes(self, table: TableSpec, refusal: Refusal) -> DataFrame:
        """Build the rows that fill a table, in the order of `fillers_of`."""
        fillers = self._fillers[table.name]
        if not fillers:
            refusal.refuse(
                f"table {table.name}, which no line of the pipeline fills",
                "a table that the pipeline can read",
                f"fill table {table.name} with side_input or send_to_table",
            )
        found = [
            (filler, frame) for filler in fillers if (frame := self._filled_by(filler)) is not None
        ]
        if not found:
            raise _ColumnsUnknownError(table.name)
        for filler, frame in found:
            _check_change(table, frame, Refusal(self.graph.pipeline, filler))
        return _merged([frame for _, frame in found], Refusal(self.graph.pipeline, found[-1][0]))

    def _filled_by(self, operator: SendToTable | SideInput) -> DataFrame | None:
        use = Use.SIDE_INPUT if isinstance(operator, SideInput) else Use.TABLE
        try:
            return self.rows(operator.upstream, use)
        except _ColumnsUnknownError:
            self.left_out = True
            return None

    # --- Writing ---------------------------------------------------------------------------------

    def _partitioned(self, sink: PartitionBy, frame: DataFrame) -> DataFrame:
        refusal = Refusal(self.graph.pipeline, sink)
        refusal.refuse_missing_columns(frame, sink.columns)
        refusal.refuse_repeated_columns(frame)
        lost = lost_types(frame.schema)
        if lost:
            refusal.refuse(
                f"columns that do not round-trip as JSON: {listed(lost)}",
                "types that an intermediate stream preserves",
                "drop these columns before it, or convert them to strings, numbers or structs",
            )
        _refuse_unfit_keys(frame, sink.columns, refusal)
        before = self.written.setdefault(sink.name, frame.schema)
        if _types(before) != _types(frame.schema):
            refusal.refuse(
                f"columns {_types(frame.schema)}, including rows that return to a table",
                f"the same columns as without them: {_types(before)}",
                "cast the columns to their types",
            )
        return frame.select(
            key_bytes(frame.schema, sink.columns).alias("key"),
            value_of(frame.schema).alias("value"),
        )


class _ColumnsUnknownError(Exception):
    """The columns of a stream, or of a table, are unknown, since no stage has been built that
    writes them."""


def _output(frame: DataFrame) -> DataFrame:
    """Return the columns for the sink: unchanged if there is a column `value`; otherwise all
    columns as JSON, and the column `key`, if there is one, as the record's key too."""
    if "value" in frame.columns:
        return frame
    value = value_of(frame.schema).alias("value")
    return frame.select("key", value) if "key" in frame.columns else frame.select(value)


def _unpacked(frame: DataFrame, schema: StructType) -> DataFrame:
    return frame.select(*(F.col("row").getField(f.name).alias(f.name) for f in schema))


def _merged(frames: list[DataFrame], refusal: Refusal) -> DataFrame:
    merged = frames[0]
    for other in frames[1:]:
        different = {*merged.columns} ^ {*other.columns}
        if different:
            refusal.refuse(
                f"columns that only some of the lines have: {listed(sorted(different))}",
                f"lines with the same columns, such as {listed(merged.columns)}",
                "add these columns to each of them with transform, as nulls if necessary",
            )
        merged = merged.unionByName(other)
    return merged


# --- Checks of tables ----------------------------------------------------------------------------


def _check_change(table: TableSpec, frame: DataFrame, refusal: Refusal) -> None:
    refusal.refuse_missing_columns(frame, table.key)
    refusal.refuse_repeated_columns(frame)
    _refuse_lost(frame, refusal, f"rows of table {table.name}")
    _refuse_unfit_keys(frame, table.key, refusal)


def _check_join(
    operator: JoinTable,
    table: TableSpec,
    line: DataFrame,
    changes: DataFrame,
    refusal: Refusal,
) -> None:
    refusal.refuse_missing_columns(line, operator.on)
    refusal.refuse_repeated_columns(line)
    _refuse_lost(line, refusal, "rows")
    pairs = zip(operator.on, table.key, strict=True)
    unlike = [
        f"{on} ({line.schema[on].dataType.simpleString()}) and {table.name}.{key} "
        f"({changes.schema[key].dataType.simpleString()})"
        for on, key in pairs
        if _key_type(line.schema[on].dataType) != _key_type(changes.schema[key].dataType)
    ]
    if unlike:
        refusal.refuse(
            f"key columns of different types: {listed(unlike)}",
            "the same type on both sides",
            "cast one of them",
        )
    both = [c for c in changes.columns if c not in table.key and c in line.columns]
    if both:
        refusal.refuse(
            f"columns that rows and table {table.name} both have: {listed(both)}",
            "no common columns except the key's",
            "rename them before one of the two",
        )


def _key_type(found: Any) -> str:
    return "integer" if isinstance(found, IntegralType) else str(found.simpleString())


def _refuse_lost(frame: DataFrame, refusal: Refusal, what: str) -> None:
    lost = lost_types(frame.schema)
    if lost:
        refusal.refuse(
            f"{what} with columns that do not round-trip through state: {listed(lost)}",
            "types that state preserves",
            "drop these columns before it, or convert them to strings, numbers or structs",
        )


def _refuse_unfit_keys(frame: DataFrame, columns: tuple[str, ...], refusal: Refusal) -> None:
    unfit = invalid_keys(frame.schema, columns)
    if unfit:
        refusal.refuse(
            f"keys that contain maps: {listed(unfit)}",
            "columns whose equal values have equal JSON text",
            "choose other columns for the key",
        )


def _types(schema: StructType) -> str:
    return listed([f"{f.name} {f.dataType.simpleString()}" for f in schema])


# --- Errors of operators --------------------------------------------------------------------------


class Refusal:
    """Raises the errors of one operator."""

    def __init__(self, pipeline: str, operator: Operator) -> None:
        self._pipeline = pipeline
        self._operator = operator

    def refuse(self, found: str, expected: str, next_step: str) -> NoReturn:
        """Raise InvalidPipelineError."""
        raise self._error(found, expected, next_step)

    def _error(self, found: str, expected: str, next_step: str) -> InvalidPipelineError:
        problem = problem_of(self._operator, found, expected, next_step)
        return InvalidPipelineError(self._pipeline, [problem])

    def refuse_missing_columns(self, frame: DataFrame, wanted: Iterable[str]) -> None:
        """Raise InvalidPipelineError with the missing and the existing columns, if any is
        missing."""
        missing = [name for name in wanted if name not in frame.columns]
        if missing:
            self.refuse(
                f"no column {listed(missing)} among {listed(frame.columns)}",
                f"the key's columns: {listed(wanted)}",
                "name columns that its rows have, or add them with transform",
            )

    def refuse_repeated_columns(self, frame: DataFrame) -> None:
        """Raise InvalidPipelineError with columns that differ at most in case, if there are any."""
        times = Counter(name.lower() for name in frame.columns)
        twice = [name for name in frame.columns if times[name.lower()] > 1]
        if twice:
            self.refuse(
                f"columns of one name: {listed(twice)}",
                "names that differ in more than case",
                "rename or drop one of them with transform",
            )

    def frame(self, result: object) -> DataFrame:
        """Return a function's result if it is a DataFrame, else raise InvalidPipelineError."""
        if not isinstance(result, DataFrame):
            self.refuse(
                f"a function that returned {_type_of(result)}",
                "a function that returns a DataFrame",
                "return the resulting frame",
            )
        return result

    def condition(self, result: object) -> Column:
        """Return the result of a filter's function if it is a Column, else raise
        InvalidPipelineError."""
        if not isinstance(result, Column):
            self.refuse(
                f"a function that returned {_type_of(result)}",
                "a function that returns a Column, as frame['delay'] > 0",
                "return the condition, not the frame",
            )
        return result

    @contextmanager
    def on_errors_of_services(self) -> Iterator[None]:
        """Add the operator to errors of a service."""
        try:
            yield
        except SspError as error:
            found = f"{error.subject}: {error.found}"
            raise self._error(found, error.expected, error.next_step) from error

    @contextmanager
    def on_errors_of_functions(self) -> Iterator[None]:
        """Add the operator to Spark's errors about user code; other errors have the line that
        raised them."""
        try:
            yield
        except PySparkException as error:
            raise self._error(
                f"an expression that Spark rejects, {kind_of(error)}",
                "expressions over the columns of its rows",
                "see the cause, and correct the function or condition",
            ) from error


def listed(names: Iterable[str]) -> str:
    """Return names as text for a message."""
    return ", ".join(names) or "none"


def _type_of(result: object) -> str:
    return "nothing" if result is None else f"a {type(result).__name__}"


# --- Streams --------------------------------------------------------------------------------------


class Use(Enum):
    """The purpose for which a stage reads a stream."""

    LINE = auto()
    TABLE = auto()
    """To fill a table, which needs every record from the first."""
    SIDE_INPUT = auto()
    """To fill a table before rows are joined: each batch takes all available records, and changes
    of a table apply before the batch's rows are joined (`table_join`)."""


@runtime_checkable
class DropsDuplicates(Protocol):
    """The additional Protocol of a `System` whose writer may duplicate records after a failure."""

    @property
    def has_duplicates(self) -> bool:
        """Return whether readers get the duplicates, unless they drop them."""
        ...

    @property
    def repeat_reader_options(self) -> Mapping[str, str]:
        """Additional options of its reader, for deduplication."""
        ...

    @property
    def repeat_writer_options(self) -> Mapping[str, str]:
        """Additional options of its writer, for deduplication."""
        ...

    @property
    def batch_write_option(self) -> str:
        """Name of its writer's option with the value `<query's id>:<batch>`, for deduplication if a
        streaming query writes each batch by one batch write."""
        ...

    def drop_duplicates(self, frame: DataFrame) -> DataFrame:
        """Return the frame of a stream without duplicates, by a stateful operator."""
        ...


@runtime_checkable
class NeedsFixedDivision(Protocol):
    """The additional Protocol of a `System` whose writer may refuse queries of which Spark may
    run a batch again with its rows in other tasks (`batch_plan.changed_division`)."""

    @property
    def needs_fixed_division(self) -> bool:
        """Return whether it does."""
        ...


@runtime_checkable
class ChecksReaders(Protocol):
    """The additional Protocol of a `System` with reader options that several readers cannot
    share."""

    def reader_problems(self, streams: Sequence[str]) -> Iterator[OptionProblem]:
        """Yield the problems of these options; `streams` has one entry for each reader."""
        ...


_LIMITS: Final = ("max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccess:
    """Opens streams on one session."""

    spark: SparkSession
    services: Services

    def read(self, stream: StreamId, use: Use, *, keep_tasks: bool) -> DataFrame:
        """Read an external stream with the columns of its format."""
        found = self.services[stream.system].reader_format(
            stream.stream, from_start=use is not Use.LINE, keep_tasks=keep_tasks
        )
        return self._load(found, found.options, use)

    def read_own(self, stream: StreamId, use: Use) -> DataFrame:
        """Read an intermediate stream without duplicates, with at least a column `value`."""
        system = self.services[stream.system]
        found = system.reader_format(stream.stream, from_start=True)
        if isinstance(system, DropsDuplicates):
            options = _with(found.options, system.repeat_reader_options)
            frame = self._load(found, options, use)
            return system.drop_duplicates(frame) if system.has_duplicates else frame
        return self._load(found, found.options, use)

    def writer(self, stream: StreamId) -> SparkFormat:
        """Return the format that writes a stream so that its readers can deduplicate it."""
        system = self.services[stream.system]
        found = system.writer_format(stream.stream)
        if isinstance(system, DropsDuplicates):
            return SparkFormat(found.format, _with(found.options, system.repeat_writer_options))
        return found

    def batch_write_option(self, stream: StreamId) -> str | None:
        """Return `DropsDuplicates.batch_write_option`, None for other systems."""
        system = self.services[stream.system]
        return system.batch_write_option if isinstance(system, DropsDuplicates) else None

    def needs_fixed_division(self, stream: StreamId) -> bool:
        """Return whether a query that writes the stream needs it."""
        system = self.services[stream.system]
        return isinstance(system, NeedsFixedDivision) and system.needs_fixed_division

    def drops_duplicates(self, stream: StreamId) -> bool:
        """Return whether reading this intermediate stream needs state."""
        system = self.services[stream.system]
        return isinstance(system, DropsDuplicates) and system.has_duplicates

    def _load(self, found: SparkFormat, options: Mapping[str, str], use: Use) -> DataFrame:
        kept = {
            name: value
            for name, value in options.items()
            if use is not Use.SIDE_INPUT or not _is_limit(name)
        }
        return self.spark.readStream.format(found.format).options(**kept).load()


def _with(options: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the options with `more`, which overrides names regardless of case and blanks."""
    names = {_folded(name) for name in more}
    return {**{name: options[name] for name in options if _folded(name) not in names}, **more}


def _is_limit(option: str) -> bool:
    """Return whether it is an option such as `maxRecordsPerTrigger` or `minOffsetsPerTrigger`."""
    name = _folded(option)
    return name.startswith(_LIMITS) and name.endswith("pertrigger")


def _folded(option: str) -> str:
    """Return the name of an option as the sources compare it."""
    return option.strip().lower()
