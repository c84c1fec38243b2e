"""The fluent API that describes a pipeline, in the style of the DataFrame API. Computes nothing.

    pipeline = Pipeline("delays")
    carriers = pipeline.table("carriers", key="carrier")
    carriers.side_input(pipeline.input("kafka", "carriers").transform(parse_carrier))
    by_carrier = pipeline.input("kinesis", "flights").transform(parse).partition_by("carrier")
    by_carrier.join_table(carriers).output("kafka", "named-flights")
    print(pipeline.plan(admin).explain())

Invalid arguments are rejected immediately, with the calling line; problems of the whole graph (see
`checks`) are reported together by `build`. Handles (`Stream`, `Table`) belong to one pipeline and
only name an operator in it: the graph itself consists of frozen values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ssp.planner.graph.operators import (
    DEFAULT_SYSTEMS,
    Filter,
    FrameFunction,
    Graph,
    Input,
    Join,
    JoinHow,
    JoinTable,
    Merge,
    Operator,
    OperatorName,
    Output,
    PairFunction,
    PartitionBy,
    SendToTable,
    SideInput,
    TableName,
    TableSpec,
    Transform,
    slug,
)
from spark_ssp.planner.graph.systems import Services, StreamAdmin, observe
from spark_ssp.planner.graph_state import GraphState
from spark_ssp.planner.planned_pipeline import PlannedPipeline, follow
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.planning.plan_history import newest
from spark_ssp.planner.planning.planning import PlanSettings, make_plan
from spark_ssp.planner.planning.validation import raise_invalid


class Pipeline:
    """A pipeline under construction. Not thread-safe.

    `name` is the prefix of the names of intermediate streams. `systems` maps the names of services
    to their kinds (`kafka`, `kinesis`); the default is one of each, named after its kind.
    `intermediate_system` is the default system of intermediate streams.
    """

    def __init__(
        self,
        name: str,
        *,
        systems: Mapping[str, str] = DEFAULT_SYSTEMS,
        intermediate_system: str = "kafka",
    ) -> None:
        self._draft = GraphState(name, systems)
        self._intermediate_system = intermediate_system

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._draft.pipeline

    @property
    def graph(self) -> Graph:
        """The graph described so far, unchecked."""
        return self._draft.graph()

    def input(
        self,
        system: str,
        stream: str,
        *,
        name: str | None = None,
        broadcast: bool = False,
        bootstrap: bool = False,
    ) -> Stream:
        """Read an existing stream, by default under its own name.

        `broadcast`: its count need not match any other. `bootstrap`: each stage that reads it
        starts with its first record, and each batch reads all of its available records; stages
        through which it reaches a table run to their end before the others start. Kinesis supports
        neither. A stream can be an input only once; use the result twice.
        """
        draft = self._draft
        draft.look_where()
        kind = draft.kind_of(system)
        for wanted, flag in (("broadcast", broadcast), ("bootstrap", bootstrap)):
            draft.refuse_flag_on_kinesis(f"input {stream}", wanted, flag, kind)
        source = draft.stream(system, stream, kind)
        chosen = draft.lasting_name("input", name, slug(stream))
        operator = Input(
            name=chosen,
            stream=source,
            broadcast=broadcast,
            bootstrap=bootstrap,
            place=draft.place,
        )
        draft.claim(operator)
        return Stream(self, draft.add(operator))

    def table(self, name: str, *, key: str | tuple[str, ...]) -> Table:
        """Add a table that contains the latest row of each key. Fill it by `Stream.send_to_table`
        or `Table.side_input`. A table that the pipeline does not fill is maintained outside it:
        such a pipeline can be planned, but not run."""
        self._draft.look_where()
        chosen = self._draft.table_name(name)
        columns = self._draft.columns(f"table {name}", "key", key)
        self._draft.add_table(TableSpec(name=chosen, key=columns, place=self._draft.place))
        return Table(self, chosen)

    def build(self) -> Graph:
        """Return the graph. Raises InvalidPipelineError with all of its problems."""
        raise_invalid(self.graph)
        return self.graph

    def plan(
        self,
        admin: StreamAdmin,
        *,
        settings: PlanSettings | None = None,
        root: str | None = None,
        recorded: Plan | None = None,
    ) -> PlannedPipeline:
        """Build the graph, request every stream's count from `admin`, and plan.

        `root` is the folder of the pipeline's checkpoints and of the plans of its runs: a plan that
        contradicts the newest one there is rejected (PlanContradictionError). Without a root,
        `recorded` may be the plan of an earlier run; contradictions are not checked.
        """
        self._draft.look_where()
        if root is not None and recorded is not None:
            self._draft.refuse("plan", "root and recorded", "one of them", "leave out recorded")
        graph = self.build()
        if isinstance(admin, Services):
            admin.raise_missing(graph)
        before = None if root is None else newest(root)
        observed = observe(graph, admin)
        if before is None:
            plan = make_plan(graph, observed, settings=settings, recorded=recorded)
        else:
            plan = follow(graph, observed, before.plan, settings=settings)
        return PlannedPipeline(graph=graph, plan=plan, root=root, recorded=before)

    def _of(self, handle: object, wanted: type[Stream | Table], subject: str) -> None:
        if not isinstance(handle, Stream | Table) or not isinstance(handle, wanted):
            # A table and a stream may have the same name.
            self._draft.refuse(
                subject,
                found=f"a {type(handle).__name__}",
                expected=f"a {wanted.__name__} of this pipeline",
                next_step="pass a result of input, table or a method of a Stream; join_table joins "
                "with a table, join with a stream",
            )
        if handle.pipeline is not self:
            self._draft.refuse(
                subject,
                found=f"{handle.name} of pipeline {handle.pipeline.name}",
                expected=f"a part of pipeline {self.name}",
                next_step="build both on one Pipeline, or connect them by a real stream",
            )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """A table of a pipeline under construction."""

    pipeline: Pipeline
    name: TableName

    def side_input(self, stream: Stream, *, name: str | None = None) -> Table:
        """Fill the table from `stream`: each batch takes all available records before its rows are
        joined. Stages that write `stream` run to their end before the others start."""
        draft = self.pipeline._draft
        draft.look_where()
        self.pipeline._of(stream, Stream, f"side_input of table {self.name}")
        chosen = draft.passing_name(
            "side_input", name, f"{draft.base_of(stream.name)}-into-{self.name}"
        )
        draft.add(SideInput(name=chosen, upstream=stream.name, table=self.name, place=draft.place))
        return self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream:
    """A line of records of a pipeline under construction. Methods do not modify it."""

    pipeline: Pipeline
    name: OperatorName
    """The name of the operator that produces the rows, given or derived."""

    def transform(
        self, function: FrameFunction, *, state: str = "none", name: str | None = None
    ) -> Stream:
        """Apply `function` to the DataFrame, as `DataFrame.transform` does.

        `state` declares the function's state: `none`, `shuffled` (Spark shuffles records by key, as
        in groupBy or dropDuplicates) or `task` (correct only while all records of a key are read by
        the same task: on the line of one Kafka input, after only filters and functions that group
        nothing).
        """
        draft = self._draft_here()
        chosen = draft.passing_name("transform", name, f"{draft.base_of(self.name)}-transform")
        draft.callable_given(f"transform {chosen}", function)
        return self._then(
            Transform(
                name=chosen,
                upstream=self.name,
                function=function,
                state=draft.state_kind(f"transform {chosen}", state),
                place=draft.place,
            )
        )

    def filter(self, condition: str | FrameFunction, *, name: str | None = None) -> Stream:
        """Keep the rows that match SQL text, or a function from the DataFrame to a Column."""
        draft = self._draft_here()
        chosen = draft.passing_name("filter", name, f"{draft.base_of(self.name)}-filter")
        if not isinstance(condition, str):
            draft.callable_given(f"filter {chosen}", condition)
        elif not condition.strip():
            draft.refuse(
                f"filter {chosen}", "a blank condition", "SQL or a function", "pass a condition"
            )
        return self._then(
            Filter(name=chosen, upstream=self.name, condition=condition, place=draft.place)
        )

    def merge(self, *others: Stream, name: str | None = None) -> Stream:
        """Unite the records of this line and of `others`, which have the same columns."""
        draft = self._draft_here()
        chosen = draft.passing_name("merge", name, f"{draft.base_of(self.name)}-merge")
        if not others:
            draft.refuse(
                f"merge {chosen}", "no other stream", "one or more", "pass the other streams"
            )
        for other in others:
            self.pipeline._of(other, Stream, f"merge {chosen}")
        names = (self.name, *(other.name for other in others))
        return self._then(Merge(name=chosen, upstreams=names, place=draft.place))

    def partition_by(
        self,
        *columns: str,
        name: str | None = None,
        system: str | None = None,
        stream: str | None = None,
        partitions: int | None = None,
    ) -> Stream:
        """Write an intermediate stream partitioned by `columns`, and continue from it. Its default
        name is `<pipeline>-<name>`. Without `partitions` it has the count of the streams it is
        joined with, else the planner's default."""
        draft = self._draft_here()
        derived = draft.name_with(draft.base_of(self.name), "by", *columns)
        chosen = draft.lasting_name("partition_by", name, derived)
        subject = f"partition_by {chosen}"
        chosen_system = self.pipeline._intermediate_system if system is None else system
        kind = draft.kind_of(chosen_system)
        operator = PartitionBy(
            name=chosen,
            upstream=self.name,
            columns=draft.columns(subject, "columns", columns),
            stream=draft.stream(
                chosen_system, f"{draft.pipeline}-{chosen}" if stream is None else stream, kind
            ),
            partitions=draft.count(subject, "partitions", partitions),
            place=draft.place,
        )
        draft.claim(operator)
        return self._then(operator)

    def join(self, other: Stream, combine: PairFunction, *, name: str | None = None) -> Stream:
        """Apply `combine` to this line's DataFrame and the other's, which may be the same line."""
        draft = self._draft_here()
        self.pipeline._of(other, Stream, f"join of {self.name}")
        derived = f"{draft.base_of(self.name)}-join-{draft.base_of(other.name)}"
        chosen = draft.passing_name("join", name, derived)
        draft.callable_given(f"join {chosen}", combine)
        return self._then(
            Join(name=chosen, left=self.name, right=other.name, combine=combine, place=draft.place)
        )

    def send_to_table(self, table: Table, *, name: str | None = None) -> None:
        """Put each row into `table`, as the latest of its key."""
        draft = self._draft_here()
        self.pipeline._of(table, Table, f"send_to_table of {self.name}")
        chosen = draft.passing_name(
            "send_to_table", name, f"{draft.base_of(self.name)}-to-{table.name}"
        )
        draft.add(SendToTable(name=chosen, upstream=self.name, table=table.name, place=draft.place))

    def join_table(
        self,
        table: Table,
        *,
        on: str | tuple[str, ...] | None = None,
        how: JoinHow = "inner",
        name: str | None = None,
    ) -> Stream:
        """Join each row with the table's row of its key. `on` names this line's columns that
        contain the key, by default those of the table."""
        draft = self._draft_here()
        self.pipeline._of(table, Table, f"join_table of {self.name}")
        chosen = draft.passing_name(
            "join_table", name, f"{draft.base_of(self.name)}-join-{table.name}"
        )
        return self._then(
            JoinTable(
                name=chosen,
                upstream=self.name,
                table=table.name,
                on=draft.table_columns(f"join_table {chosen}", table.name, on),
                how=draft.join_how(f"join_table {chosen}", how),
                place=draft.place,
            )
        )

    def output(self, system: str, stream: str, *, name: str | None = None) -> None:
        """Write to a stream outside of the pipeline."""
        draft = self._draft_here()
        target = draft.stream(system, stream, draft.kind_of(system))
        chosen = draft.lasting_name("output", name, slug("to", stream))
        draft.add(Output(name=chosen, upstream=self.name, stream=target, place=draft.place))

    def _draft_here(self) -> GraphState:
        self.pipeline._draft.look_where()
        return self.pipeline._draft

    def _then(self, operator: Operator) -> Stream:
        return Stream(self.pipeline, self.pipeline._draft.add(operator))
