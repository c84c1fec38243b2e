"""The DataFrames of a pipeline's stages, built from its operators. Reads no record.

A line is built anew for every operator that takes its rows. So a stream whose rows are used twice
within a stage is read twice there, each time by a source of its own, and the two sides of a
self-join have columns that Spark can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructType

from pipeline_planner.graph.names import OperatorName, TableName
from pipeline_planner.graph.operators import (
    Filter,
    Graph,
    Input,
    Join,
    JoinTable,
    Merge,
    Operator,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    TableSpec,
    Transform,
    by_name,
    upstreams,
)
from pipeline_planner.planning.stages import MOST_SOURCES, fillers_of, sources_of
from pipeline_planner.running.row_serde import (
    columns_of,
    invalid_keys,
    key_bytes,
    lost_types,
    value_of,
)
from pipeline_planner.running.stage_errors import Refusal, listed
from pipeline_planner.running.stage_order import order_stages
from pipeline_planner.running.streams import StreamAccess, Use
from pipeline_planner.running.table_join import join_table
from pipeline_planner.services.systems import SparkFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class StageQuery:
    """What one streaming query reads and computes, and how it writes it."""

    stage: OperatorName
    frame: DataFrame
    writer: SparkFormat
    batch_write_option: str | None
    """See `streams.DropsRepeats`."""
    keeps_state: bool
    """Of this package's own operators; what the user's functions do is not known."""


def stage_queries(graph: Graph, access: StreamAccess) -> tuple[StageQuery, ...]:
    """Every stage in `order.run_order`. Calls the user's functions, some of them twice.

    Raises InvalidPipelineError, with operator and place, for what does not fit together.
    """
    _refuse_too_many_sources(graph)
    first = _Frames(graph=graph, access=access)
    found = tuple(first.stage(name) for name in order_stages(graph))
    # A table that is filled from behind its own join: now it is known which columns come back.
    again = _Frames(graph=graph, access=access, written=dict(first.written))
    return tuple(again.stage(q.stage) if q.stage in first.unfinished else q for q in found)


def _refuse_too_many_sources(graph: Graph) -> None:
    named = by_name(graph)
    for stage, sources in sources_of(graph).items():
        if sources is None:
            Refusal(graph.pipeline, named[stage]).refuse(
                f"a query that would read more than {MOST_SOURCES} streams at once",
                "fewer: a stream is read anew for each operator that takes its line's rows",
                "put .partition_by(<columns>) after what is used more than once, and go on from "
                "its result",
            )


@dataclass(kw_only=True)
class _Frames:
    graph: Graph
    access: StreamAccess
    written: dict[OperatorName, StructType] = field(default_factory=dict)
    """The columns of the intermediate streams whose stages have been built."""
    unfinished: set[OperatorName] = field(default_factory=set)
    """Stages without some of what fills their tables: it comes from streams whose columns were not
    known yet."""
    filling: tuple[TableName, ...] = ()
    """The tables whose lines are being built, for one that needs itself."""
    keeps_state: bool = False
    left_out: bool = False
    """Of the stage that is being built: it is unfinished."""

    def __post_init__(self) -> None:
        self._named = by_name(self.graph)
        self._tables = {table.name: table for table in self.graph.tables}

    def stage(self, name: OperatorName) -> StageQuery:
        """The stage of this name."""
        sink = self._named[name]
        assert isinstance(sink, PartitionBy | Output)
        refusal = Refusal(self.graph.pipeline, sink)
        with refusal.on_errors_of_services():
            writer = self.access.writer(sink.stream)
            batch_write_option = self.access.batch_write_option(sink.stream)
        self.keeps_state = self.left_out = False
        frame = self.rows(sink.upstream, Use.LINE)
        if not frame.isStreaming:
            refusal.refuse(
                "a frame that is no stream",
                "rows of the streams that the stage reads",
                "return what becomes of the function's argument",
            )
        if self.left_out:
            self.unfinished.add(name)
        ready = self._partitioned(sink, frame) if isinstance(sink, PartitionBy) else _output(frame)
        return StageQuery(
            stage=name,
            frame=ready,
            writer=writer,
            batch_write_option=batch_write_option,
            keeps_state=self.keeps_state,
        )

    # --- Rows ------------------------------------------------------------------------------------

    def rows(self, name: OperatorName, use: Use) -> DataFrame:
        """The rows of an operator, as those that take them see them."""
        operator = self._named[name]
        steps: list[Transform | Filter] = []
        # No recursion here, since a line may be long.
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
                    return self.access.read(operator.stream, whole)
            case PartitionBy():
                return self._read_back(operator, use)
            case JoinTable():
                return self._joined_with_table(operator, use)
            case SendToTable() | SideInput() | Output():
                raise TypeError(f"{operator.name} gives no rows")
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
            frame = self.access.read_own(operator.stream, use)
        self.keeps_state |= self.access.drops_duplicates(operator.stream)
        # No stage writes null; as the empty text it is refused with all else that none writes.
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
        """All rows that come into a table, in the order of `fillers_of`."""
        fillers = fillers_of(self.graph, table.name)
        if not fillers:
            refusal.refuse(
                f"table {table.name}, which no line of the pipeline fills",
                "a table that the pipeline can read",
                f"fill table {table.name} with side_input or send_to_table",
            )
        if table.name in self.filling:
            refusal.refuse(
                f"table {table.name}, on whose own rows it depends within one query",
                "rows that come back to a table through a stream",
                "put .partition_by(<the table's key>) before what fills the table, and fill it "
                "from its result",
            )
        self.filling = (*self.filling, table.name)
        try:
            found = [
                (filler, frame)
                for filler in fillers
                if (frame := self._filled_by(filler)) is not None
            ]
        finally:
            self.filling = self.filling[:-1]
        if not found:
            refusal.refuse(
                f"table {table.name}, which is filled with nothing but what was joined with it",
                "a line that fills it from elsewhere",
                f"fill table {table.name} from another line too",
            )
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
                f"columns that JSON does not bring back as they were: {listed(lost)}",
                "types that come through an intermediate stream unchanged",
                "drop these columns before it, or turn them into strings, numbers or structs",
            )
        _refuse_unfit_keys(frame, sink.columns, refusal)
        before = self.written.setdefault(sink.name, frame.schema)
        if _types(before) != _types(frame.schema):
            refusal.refuse(
                f"columns {_types(frame.schema)}, once the rows that come back to a table count",
                f"columns that they do not change: {_types(before)}",
                "give the columns their types by a cast",
            )
        return frame.select(
            key_bytes(frame.schema, sink.columns).alias("key"),
            value_of(frame.schema).alias("value"),
        )


class _ColumnsUnknownError(Exception):
    """A stream is read whose stage has not been built."""


def _output(frame: DataFrame) -> DataFrame:
    """As the sink wants it: as it is when there is a column `value`; else all columns as JSON, with
    the column `key`, if there is one, as the record's key too."""
    if "value" in frame.columns:
        return frame
    value = value_of(frame.schema).alias("value")
    return frame.select("key", value) if "key" in frame.columns else frame.select(value)


def _unpacked(frame: DataFrame, schema: StructType) -> DataFrame:
    return frame.select(*(F.col("row").getField(f.name).alias(f.name) for f in schema))


def _merged(frames: list[DataFrame], refusal: Refusal) -> DataFrame:
    merged = frames[0]
    for other in frames[1:]:
        apart = {*merged.columns} ^ {*other.columns}
        if apart:
            refusal.refuse(
                f"columns that only some of the lines have: {listed(sorted(apart))}",
                f"lines of the same columns, as {listed(merged.columns)}",
                "give each of them these columns with transform, as nulls if need be",
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
            "no common columns but the key's",
            "rename them before one of the two",
        )


def _key_type(found: Any) -> str:
    return "integer" if isinstance(found, IntegralType) else str(found.simpleString())


def _refuse_lost(frame: DataFrame, refusal: Refusal, what: str) -> None:
    lost = lost_types(frame.schema)
    if lost:
        refusal.refuse(
            f"{what} with columns that state does not bring back as they were: {listed(lost)}",
            "types that can be kept",
            "drop these columns before it, or turn them into strings, numbers or structs",
        )


def _refuse_unfit_keys(frame: DataFrame, columns: tuple[str, ...], refusal: Refusal) -> None:
    unfit = invalid_keys(frame.schema, columns)
    if unfit:
        refusal.refuse(
            f"keys with maps in them: {listed(unfit)}",
            "columns whose equal values have equal texts",
            "choose other columns for the key",
        )


def _types(schema: StructType) -> str:
    return listed([f"{f.name} {f.dataType.simpleString()}" for f in schema])
