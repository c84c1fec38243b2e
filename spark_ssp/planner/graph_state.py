"""The state of a pipeline under construction, with the checks of arguments.

Names. A *lasting* name appears in checkpoints and at the service (inputs, intermediate streams,
outputs): a derived one depends only on its upstream, and is rejected when it is taken, since a
numeric suffix would depend on the order of the lines. A *passing* name is only displayed, so it
gets a number. Derived names start with the nearest source along the first upstreams, so operators
that are inserted, or named, in between rename nothing.
"""

from __future__ import annotations

import inspect
import ntpath
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, cast, get_args

from spark_ssp.planner.graph.errors import InvalidPipelineError, Problem, SourceLocation
from spark_ssp.planner.graph.operators import (
    LONGEST_NAME,
    LONGEST_STREAM,
    Graph,
    Input,
    JoinHow,
    Operator,
    OperatorName,
    PartitionBy,
    StateKind,
    StreamId,
    SystemKind,
    SystemName,
    TableName,
    TableSpec,
    described,
    is_name,
    is_stream_name,
    slug,
    upstreams,
)
from spark_ssp.planner.planning.validation import refused_flag

_A_NAME = f"letters, digits, '.', '_' and '-', at most {LONGEST_NAME}, a letter or digit first"


class GraphState:
    """Operators and tables so far. `place` is the location of the current call."""

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
            subject=subject,
            found=found,
            expected=expected,
            next_step=next_step,
            place=self.place,
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
        """Return a partition count: None, or 1 and more."""
        if given is not None and (type(given) is not int or given < 1):
            self.refuse(subject, f"{what}={given!r}", "1 or more", "pass a count, or leave it out")
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
