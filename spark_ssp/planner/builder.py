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

import inspect
import ntpath
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, cast, get_args

from spark_ssp.planner.graph.errors import InvalidPipelineError, Problem, SourceLocation
from spark_ssp.planner.graph.operators import (
    DEFAULT_INTERMEDIATE_SYSTEM,
    DEFAULT_SYSTEMS,
    LONGEST_NAME,
    LONGEST_STREAM,
    MOST_PARTITIONS,
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
    StateKind,
    StreamId,
    SystemKind,
    SystemName,
    TableName,
    TableSpec,
    Transform,
    derived_stream,
    described,
    is_name,
    is_partition_count,
    is_stream_name,
    slug,
    upstreams,
)
from spark_ssp.planner.graph.systems import Services, StreamAdmin, System, observe
from spark_ssp.planner.planned_pipeline import PlannedPipeline, follow
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.planning.plan_history import newest
from spark_ssp.planner.planning.planning import PlanSettings, make_plan
from spark_ssp.planner.planning.validation import raise_invalid, refused_flag

# --- The state, with the checks of arguments ------------------------------------------------------

_A_NAME = f"letters, digits, '.', '_' and '-', at most {LONGEST_NAME}, a letter or digit first"


class GraphState:
    """Operators and tables so far. `place` is the location of the current call.

    A *lasting* name appears in checkpoints and at the service (inputs, intermediate streams,
    outputs): a derived one depends only on its upstream, and is rejected when it is taken, since a
    numeric suffix would depend on the order of the lines. A *passing* name is only displayed, so it
    gets a number. Derived names start with the nearest source along the first upstreams, so
    operators that are inserted, or named, in between rename nothing.
    """

    def __init__(self, pipeline: str, systems: Mapping[str, str]) -> None:
        self.pipeline = pipeline
        self.place: SourceLocation | None = None
        self._operators: dict[OperatorName, Operator] = {}
        self._tables: dict[TableName, TableSpec] = {}
        self._sources: dict[StreamId, Input | PartitionBy] = {}
        self._bases: dict[OperatorName, OperatorName] = {}
        self._numbers: dict[str, int] = {}
        """The last number of each derived name. Names are never released."""
        self.look_where()
        self._check_name("pipeline", pipeline)
        of_kinds = isinstance(systems, Mapping)
        self.require(of_kinds, "pipeline", "systems", systems, "kinds of systems by name")
        self._systems = {self._system(name): self._kind(name, systems[name]) for name in systems}

    def look_where(self) -> None:
        """Record the line of the user's code that is executed."""
        self.place = find_call_site()

    def graph(self) -> Graph:
        """Return the graph so far, unchecked."""
        return Graph(
            pipeline=self.pipeline,
            systems=tuple(sorted(self._systems.items())),
            operators=tuple(self._operators.values()),
            tables=tuple(self._tables[name] for name in sorted(self._tables)),
        )

    def add(self, operator: Operator) -> OperatorName:
        """Add an operator whose name is known to be free."""
        self._operators[operator.name] = operator
        if not isinstance(operator, Input | PartitionBy):
            self._bases[operator.name] = self.base_of(upstreams(operator)[0])
        return operator.name

    def add_table(self, table: TableSpec) -> None:
        """Add a table whose name is known to be free."""
        self._tables[table.name] = table

    def refuse(self, subject: str, found: str, expected: str, next_step: str) -> NoReturn:
        """Raise InvalidPipelineError with the location of the call."""
        problem = Problem(
            subject=subject, found=found, expected=expected, next_step=next_step, place=self.place
        )
        raise InvalidPipelineError(self.pipeline, [problem])

    # --- Names -----------------------------------------------------------------------------------

    def base_of(self, name: OperatorName) -> OperatorName:
        """Return the prefix of names derived from an operator: its source, the first of several."""
        return self._bases.get(name, name)

    def lasting_name(self, method: str, given: str | None, derived: str) -> OperatorName:
        """Return the given name, else the derived one; reject it when another operator has it."""
        name = OperatorName(derived if given is None else given)
        self._check_name(f"name of {method}", name)
        if (other := self._operators.get(name)) is not None:
            self._refuse_taken(method, name, f"{described(other)} ({other.place})")
        return name

    def passing_name(self, method: str, given: str | None, derived: str) -> OperatorName:
        """Return the given name, rejected when taken; else the derived one, numbered if taken."""
        if given is not None:
            return self.lasting_name(method, given, derived)
        # A long one may be truncated: it is only displayed.
        stem = derived[: LONGEST_NAME - 8]
        number = self._numbers.get(stem, 1)
        name = OperatorName(stem if number == 1 else f"{stem}-{number}")
        while name in self._operators:
            number += 1
            name = OperatorName(f"{stem}-{number}")
        self._numbers[stem] = number
        return name

    def table_name(self, given: str) -> TableName:
        """Return a table's name; reject it when another table has it."""
        name = TableName(given)
        self._check_name("name of table", given)
        if (other := self._tables.get(name)) is not None:
            self._refuse_taken("table", given, f"table {other.name} ({other.place})")
        return name

    def _check_name(self, subject: str, name: object) -> None:
        if not isinstance(name, str) or not is_name(name):
            self.refuse(subject, repr(name), _A_NAME, "pass a name of that form")

    def _refuse_taken(self, method: str, name: str, by: str) -> NoReturn:
        self.refuse(
            f"{method} {name}",
            found=f"a name that {by} has already",
            expected="unique names within a pipeline",
            next_step="give one of the two another name with name=",
        )

    # --- Systems and streams ---------------------------------------------------------------------

    def _system(self, name: str) -> SystemName:
        self._check_name("name of a system", name)
        return SystemName(name)

    def _kind(self, system: str, kind: str) -> SystemKind:
        try:
            return SystemKind(kind)
        except ValueError:
            known = ", ".join(sorted(SystemKind))
            self.refuse(f"system {system}", repr(kind), known, "name the kind of service it is")

    def kind_of(self, system: object) -> SystemKind:
        """Return the kind of a system; reject one that the pipeline does not name."""
        kind = self._systems.get(SystemName(system)) if isinstance(system, str) else None
        if kind is None:
            self.refuse(
                f"system {system!r}",
                found="no such system",
                expected=", ".join(sorted(self._systems)),
                next_step="use one of these, or name it in Pipeline(systems=…)",
            )
        return kind

    def name_with(self, *parts: object) -> str:
        """Return a derived name of the parts that are strings: others are rejected elsewhere."""
        return slug(*(part for part in parts if isinstance(part, str)))

    def stream(self, system: str, stream: object, kind: SystemKind) -> StreamId:
        """Return a stream's id; reject a name that is not valid at a service of that kind."""
        if not isinstance(stream, str) or not is_stream_name(stream, kind):
            self.refuse(
                f"stream of system {system}",
                found=repr(stream),
                expected=f"letters, digits, '.', '_' and '-', at most {LONGEST_STREAM[kind]}",
                next_step="name a stream that can exist there",
            )
        return StreamId(system=SystemName(system), stream=stream)

    def claim(self, operator: Input | PartitionBy) -> None:
        """Reject a stream that is already an input or an intermediate stream."""
        other = self._sources.get(operator.stream)
        if other is not None:
            is_input = isinstance(operator, Input)
            self.refuse(
                described(operator),
                found=f"{operator.stream}, which {described(other)} ({other.place}) reads already",
                expected="one input per stream" if is_input else "a separate intermediate stream",
                next_step="use the result of the first call twice"
                if is_input
                else "name another with stream=",
            )
        self._sources[operator.stream] = operator

    def refuse_flag_on_kinesis(
        self, subject: str, flag: str, wanted: bool, kind: SystemKind
    ) -> None:
        """Reject broadcast and bootstrap on Kinesis: Samza's consumer of Kinesis has neither."""
        if wanted and kind is SystemKind.KINESIS:
            found, expected, next_step = refused_flag(flag)
            self.refuse(subject, found=found, expected=expected, next_step=next_step)

    # --- Other arguments -------------------------------------------------------------------------

    def columns(self, subject: str, what: str, given: object) -> tuple[str, ...]:
        """Return names of columns: one or more, not blank, without duplicates."""
        # A Spark Column would iterate endlessly, and its text is an expression.
        columns: tuple[object, ...] = tuple(given) if isinstance(given, tuple | list) else (given,)
        texts = [one for one in columns if isinstance(one, str) and one.strip()]
        if not columns or len(set(texts)) != len(columns):
            shown = tuple(c if isinstance(c, str) else f"a {type(c).__name__}" for c in columns)
            self.refuse(
                subject,
                found=f"{what} {shown}",
                expected="distinct names of columns",
                next_step="pass each column's name as a separate string",
            )
        return tuple(texts)

    def table_columns(
        self, subject: str, table: TableName, on: str | tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """Return the columns that contain a table's key: as many as the key has."""
        key = self._tables[table].key
        columns = key if on is None else self.columns(subject, "on", on)
        if len(columns) != len(key):
            self.refuse(
                subject,
                found=f"on {', '.join(columns)}",
                expected=f"as many columns as the key of table {table}: {', '.join(key)}",
                next_step="name them in the key's order",
            )
        return columns

    def count(self, subject: str, what: str, given: int | None) -> int | None:
        """Return a partition count, or None."""
        if given is not None and not is_partition_count(given):
            expected = f"1 to {MOST_PARTITIONS}"
            self.refuse(subject, f"{what}={given!r}", expected, "pass a count, or leave it out")
        return given

    def state_kind(self, subject: str, given: str) -> StateKind:
        """Return the kind of state of a string."""
        try:
            return StateKind(given)
        except ValueError:
            known = ", ".join(StateKind)
            self.refuse(subject, f"state={given!r}", known, "declare where the function's state is")

    def join_how(self, subject: str, given: str) -> JoinHow:
        """Return the type of a join with a table."""
        if given not in get_args(JoinHow):
            known = ", ".join(get_args(JoinHow))
            self.refuse(subject, f"how={given!r}", known, "choose one of these")
        return cast(JoinHow, given)

    def root(self, given: object) -> str | None:
        """Return a root as text."""
        root = os.fspath(given) if isinstance(given, os.PathLike) else given
        if root is not None and (not isinstance(root, str) or not root.strip()):
            # Without its text, which may contain a password.
            self.refuse(
                "plan",
                found="a blank root"
                if isinstance(root, str)
                else f"root of type {type(root).__name__}",
                expected="a path or a URI",
                next_step="pass the folder of the pipeline's checkpoints, or leave root out",
            )
        return root

    def arguments_of_plan(self, admin: object, settings: object, recorded: object) -> None:
        """Reject arguments of another type."""
        # A system has a method of the same name.
        counts = callable(getattr(admin, "partition_count", None))
        is_admin = counts and not isinstance(admin, System)
        self.require(is_admin, "plan", "admin", admin, "Services, or another StreamAdmin")
        is_valid = isinstance(settings, PlanSettings | None)
        self.require(is_valid, "plan", "settings", settings, "PlanSettings")
        self.require(isinstance(recorded, Plan | None), "plan", "recorded", recorded, "a Plan")

    def require(self, valid: bool, subject: str, what: str, given: object, expected: str) -> None:
        """Reject an argument of another type unless it is valid."""
        if not valid:
            self.refuse(
                subject,
                found=f"{what} of type {type(given).__name__}",
                expected=expected,
                next_step=f"correct {what}",
            )

    def callable_given(self, subject: str, function: object) -> None:
        """Reject an argument that is not callable, such as the result of a call."""
        if not callable(function):
            self.refuse(
                subject,
                found=f"a {type(function).__name__}",
                expected="a function of DataFrames",
                next_step="pass the function itself, without calling it",
            )


# --- The line of the user's code ------------------------------------------------------------------

_PACKAGE: Final = __name__.partition(".")[0]


def find_call_site() -> SourceLocation | None:
    """Return the nearest stack line outside this package; None where Python has no frames."""
    frame = inspect.currentframe()
    while frame is not None and _is_own(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return None
    return SourceLocation(file=shown(frame.f_code.co_filename), line=frame.f_lineno)


def shown(file: str) -> str:
    """Return a file relative to the working directory if it is below it, else only its last part,
    since the rest differs between machines. The same holds if the working directory is the root of
    the file system or a home directory."""
    try:
        # A path that is absolute only on another operating system is below no folder here.
        if os.path.isabs(file) or not ntpath.isabs(file):
            folder = Path.cwd()
            if folder not in (Path(folder.anchor), Path(os.path.expanduser("~"))):
                return Path(os.path.abspath(file)).relative_to(folder).as_posix()
    except (OSError, ValueError):
        pass  # the directory is gone, or not above the file
    return os.path.basename(ntpath.basename(file))


def _is_own(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE


# --- The handles ----------------------------------------------------------------------------------


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
        intermediate_system: str = DEFAULT_INTERMEDIATE_SYSTEM,
    ) -> None:
        self._draft = GraphState(name, systems)
        self._intermediate_system = intermediate_system
        if intermediate_system != DEFAULT_INTERMEDIATE_SYSTEM:
            self._draft.kind_of(intermediate_system)

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
        for flag, wanted in (("broadcast", broadcast), ("bootstrap", bootstrap)):
            is_flag = isinstance(wanted, bool)
            draft.require(is_flag, f"input {stream}", flag, wanted, "True or False")
            draft.refuse_flag_on_kinesis(f"input {stream}", flag, wanted, kind)
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
        root: str | os.PathLike[str] | None = None,
        recorded: Plan | None = None,
    ) -> PlannedPipeline:
        """Build the graph, request every stream's count from `admin`, and plan.

        `root` is the folder of the pipeline's checkpoints and of the plans of its runs: a plan that
        contradicts the newest one there is rejected (PlanContradictionError). Without a root,
        `recorded` may be the plan of an earlier run; contradictions are not checked.
        """
        draft = self._draft
        draft.look_where()
        draft.arguments_of_plan(admin, settings, recorded)
        folder = draft.root(root)
        if folder is not None and recorded is not None:
            draft.refuse("plan", "root and recorded", "one of them", "leave out recorded")
        graph = self.build()
        if isinstance(admin, Services):
            admin.raise_missing(graph)
        before = None if folder is None else newest(folder)
        observed = observe(graph, admin)
        if folder is None:
            plan = make_plan(graph, observed, settings=settings, recorded=recorded)
        else:
            newest_plan = None if before is None else before.plan
            plan = follow(graph, observed, newest_plan, settings=settings)
        return PlannedPipeline(graph=graph, plan=plan, root=folder, recorded=before)

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
                chosen_system,
                derived_stream(draft.pipeline, chosen) if stream is None else stream,
                kind,
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
