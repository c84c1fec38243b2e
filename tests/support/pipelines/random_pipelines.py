"""Random small pipelines, and the planner's reference models.

The effect of partition counts on the tasks of each operator is computed by propagating counts until
nothing changes. Co-partitioned streams are found by following every line separately, with which
`planning.co_partitioning.CoPartitionGraph` must agree without storing every stream of every link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from hypothesis import assume
from hypothesis import strategies as st

from spark_ssp.planner import Pipeline, Stream, Table
from spark_ssp.planner.graph.operators import (
    Filter,
    Graph,
    Input,
    Join,
    JoinTable,
    OperatorName,
    PartitionBy,
    SendToTable,
    SideInput,
    Source,
    StateKind,
    StreamId,
    TableName,
    Transform,
    reached,
    upstreams,
)
from spark_ssp.planner.planning.co_partitioning import (
    Link,
    TableLink,
    line_successors,
    link_of,
    sources,
)
from tests.support.pipelines.examples import both, same, stream_id

MOST = 3
"""Counts are 1 to 3: enough for two to differ and a third to be the default."""

COUNTS = st.integers(1, MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A pipeline, and the partition counts of its inputs."""

    pipeline: Pipeline
    counts: Mapping[str, int]
    """By `stream_id`'s text; inputs that are left out are not there."""

    def observed(self) -> dict[StreamId, int]:
        return {stream_id(name): count for name, count in self.counts.items()}


_STEPS = (
    *("join", "join", "join_table", "join_table", "send", "partition_by", "partition_by"),
    *("side", "merge", "filter"),
)
"""Drawn as often as listed."""

_STATES = ("task", "task", "task", "shuffled", "none")


@st.composite
def pipelines(
    draw: st.DrawFn,
    *,
    unknown: bool = False,
    kinesis: bool = False,
    state: bool = False,
    own_rows: bool = False,
) -> Drawn:
    """Two or three inputs and up to eight operators over two tables. Every line ends in an output,
    so nothing is without effect. With `unknown`, some inputs have no count; with
    `kinesis`, some are streams of Kinesis, with `state` some functions keep state, and with
    `own_rows` some tables need their own rows: the pipeline may be wrong."""
    pipeline = Pipeline("p")
    counts: dict[str, int] = {}
    streams: list[Stream] = []
    for number in range(draw(st.integers(2, 3))):
        if kinesis and draw(st.booleans()):
            streams.append(pipeline.input("kinesis", f"i{number}"))
            counts[f"kinesis/i{number}"] = draw(COUNTS)
            continue
        broadcast = draw(st.integers(0, 7)) == 7
        streams.append(pipeline.input("kafka", f"i{number}", broadcast=broadcast))
        if not (unknown and draw(st.booleans())):
            counts[f"i{number}"] = draw(COUNTS)
    tables = [pipeline.table(f"t{number}", key="k") for number in range(2)]
    steps = st.sampled_from((*_STEPS, *_STATES) if state else _STEPS)
    for number, step in enumerate(draw(st.lists(steps, min_size=2, max_size=8))):
        _grow(draw, streams, tables, step, number, counts)
    # A broadcast reader fits every count, so these ends add no constraint.
    last = pipeline.input("kafka", "reader", broadcast=True)
    for table in tables:
        last = last.join_table(table)
    for number, stream in enumerate([*streams, last]):
        stream.output("kafka", f"o{number}")
    assume(own_rows or not tables_of_own_rows(pipeline.graph))
    return Drawn(pipeline=pipeline, counts=counts)


def _grow(
    draw: st.DrawFn,
    streams: list[Stream],
    tables: list[Table],
    step: str,
    number: int,
    counts: dict[str, int],
) -> None:
    stream, other = draw(st.sampled_from(streams)), draw(st.sampled_from(streams))
    table = draw(st.sampled_from(tables))
    match step:
        case "filter":
            streams.append(stream.filter("x"))
        case "task" | "shuffled" | "none":
            streams.append(stream.transform(same, state=step))
        case "merge":
            streams.append(stream.merge(other))
        case "join":
            streams.append(stream.join(other, both))
        case "send":
            stream.send_to_table(table)
        case "side":
            table.side_input(stream)
        case "join_table":
            streams.append(stream.join_table(table))
        case _:
            wish = draw(st.none() | st.none() | COUNTS)
            streams.append(stream.partition_by("k", name=f"m{number}", partitions=wish))
            if draw(st.integers(0, 3)) == 0 and wish is None:
                counts[f"p-m{number}"] = draw(COUNTS)


# --- The model -----------------------------------------------------------------------------------


def works(graph: Graph, counts: Mapping[StreamId, int]) -> bool:
    """Return whether every join, and every table that is filled, meets lines of one count only."""
    flows = _flows(graph, counts)
    filled: dict[TableName, set[int]] = {}
    met: dict[TableName, set[int]] = {}
    for operator in graph.operators:
        flow = flows[operator.name]
        if isinstance(operator, Join) and len(flow) > 1:
            return False
        if isinstance(operator, SendToTable | SideInput):
            filled.setdefault(operator.table, set()).update(flow)
        if isinstance(operator, SendToTable | SideInput | JoinTable):
            met.setdefault(operator.table, set()).update(flow)
    return all(len(met[table]) <= 1 for table in filled if filled[table])


def rests_on_kinesis(graph: Graph) -> bool:
    """Return whether an operator whose tasks must own their keys gets rows from Kinesis."""
    spread = _flows(graph, {o.stream: 1 for o in graph.operators if isinstance(o, Source)})
    filled = {
        o.table
        for o in graph.operators
        if isinstance(o, SendToTable | SideInput) and spread[o.name]
    }
    from_kinesis: set[OperatorName] = set()
    for operator in graph.operators:  # built in order: the operators before it have been visited
        if isinstance(operator, Source):
            here = operator.stream.system == "kinesis"
        else:
            here = any(name in from_kinesis for name in upstreams(operator))
        if here and isinstance(operator, Join | SendToTable | SideInput):
            return True
        if here and isinstance(operator, JoinTable) and operator.table in filled:
            return True
        if here:
            from_kinesis.add(operator.name)
    return False


def keeps_tasks_where_there_are_none(graph: Graph) -> set[OperatorName]:
    """Functions with state by task whose rows are not those that the tasks of one topic read."""
    own: set[OperatorName] = set()
    """Operators whose rows are still where they were read. Built in order, as above."""
    wrong: set[OperatorName] = set()
    for operator in graph.operators:
        match operator:
            case Input():
                here = operator.stream.system == "kafka" and not operator.broadcast
            case Filter() | Transform():
                here = operator.upstream in own
            case _:
                here = False
        if isinstance(operator, Transform):
            if operator.state is StateKind.TASK and not here:
                wrong.add(operator.name)
            here = here and operator.state is not StateKind.SHUFFLED
        if here:
            own.add(operator.name)
    return wrong


def tables_of_own_rows(graph: Graph) -> set[TableName]:
    """Return the tables that no query can begin to read: each line that fills one needs the table
    before, or one that needs it; and those that need their own rows within one query."""
    operators = {operator.name: operator for operator in graph.operators}
    fillers: dict[TableName, list[OperatorName]] = {}
    for operator in graph.operators:
        if isinstance(operator, SendToTable | SideInput):
            fillers.setdefault(operator.table, []).append(operator.upstream)

    def needed(name: OperatorName, *, within_query: bool) -> set[TableName]:
        """Return the tables that a line is joined with."""
        operator = operators[name]
        if within_query and isinstance(operator, PartitionBy):
            return set()
        own = {operator.table} if isinstance(operator, JoinTable) else set()
        return own.union(*(needed(up, within_query=within_query) for up in upstreams(operator)))

    def of_lines(table: TableName) -> list[set[TableName]]:
        return [needed(line, within_query=True) for line in fillers.get(table, ())]

    read: set[TableName] = set()
    for _ in graph.tables:
        read |= {
            table.name
            for table in graph.tables
            if table.name not in fillers
            or any(needed(line, within_query=False) <= read for line in fillers[table.name])
        }
    return {
        table.name
        for table in graph.tables
        if table.name not in read
        or table.name
        in reached(set().union(*of_lines(table.name)), lambda t: set().union(*of_lines(t)))
    }


def _flows(graph: Graph, counts: Mapping[StreamId, int]) -> dict[OperatorName, set[int]]:
    """The counts over which the rows of each operator are spread."""
    flows: dict[OperatorName, set[int]] = {o.name: set() for o in graph.operators}
    changed = True
    while changed:
        changed = False
        for operator in graph.operators:
            new: set[int] = set()
            match operator:
                case Input():
                    new = set() if operator.broadcast else {counts[operator.stream]}
                case PartitionBy():
                    new = {counts[operator.stream]}
                case _:
                    new = new.union(*(flows[name] for name in upstreams(operator)))
            if isinstance(operator, JoinTable):
                for filler in graph.operators:
                    if (
                        isinstance(filler, SendToTable | SideInput)
                        and filler.table == operator.table
                    ):
                        new |= flows[filler.name]
            changed |= new != flows[operator.name]
            flows[operator.name] = new
    return flows


def assignments(
    graph: Graph, fixed: Mapping[StreamId, int], free: list[StreamId]
) -> Iterator[dict[StreamId, int]]:
    """All assignments of counts to `free` that work."""
    for values in product(range(1, MOST + 1), repeat=len(free)):
        counts = {**fixed, **dict(zip(free, values, strict=True))}
        if works(graph, counts):
            yield counts


# --- Co-partitioned streams -----------------------------------------------------------------------


Tied = dict[Link, frozenset[StreamId]]


def lines(graph: Graph) -> dict[OperatorName, frozenset[StreamId]]:
    """Return the streams whose lines reach each operator; broadcast ones too. A source begins its
    line, so it is reached by its own stream (the producers of an intermediate stream are not
    followed)."""
    follow = line_successors(graph)
    found: dict[OperatorName, set[StreamId]] = {o.name: set() for o in graph.operators}
    for source in sources(graph):
        for name in reached([source.name], follow):
            found[name].add(source.stream)
    return {name: frozenset(streams) for name, streams in found.items()}


def links(graph: Graph) -> Tied:
    """The streams of each tie, in graph order; ties of none are left out."""
    broadcast = {o.stream for o in graph.operators if isinstance(o, Input) and o.broadcast}
    through = {name: streams - broadcast for name, streams in lines(graph).items()}
    filled = {
        operator.table
        for operator in graph.operators
        if isinstance(operator, SendToTable | SideInput) and through[operator.name]
    }
    found: Tied = {}
    for operator in graph.operators:
        tie = link_of(operator)
        streams = through[operator.name]
        if tie is None or not streams or (isinstance(tie, TableLink) and tie.table not in filled):
            continue
        found[tie] = found.get(tie, frozenset()) | streams
    return found


def sets_that_agree(tied: Tied) -> tuple[frozenset[StreamId], ...]:
    """Streams tied to each other, directly or through others: disjoint sets, sorted by their first
    stream. Every stream of a tie is in one of them."""
    step = neighbours(tied)
    found: list[frozenset[StreamId]] = []
    done: set[StreamId] = set()
    for stream in sorted({s for streams in tied.values() for s in streams}):
        if stream not in done:
            start: list[StreamId | Link] = [stream]
            here = frozenset(v for v in reached(start, step) if isinstance(v, StreamId))
            done |= here
            found.append(here)
    return tuple(found)


def neighbours(tied: Tied) -> Callable[[StreamId | Link], list[StreamId | Link]]:
    """From a stream its ties, in the order of `tied`; from a tie its streams, sorted."""
    of_stream: dict[StreamId, list[Link]] = {}
    for tie, streams in tied.items():
        for stream in streams:
            of_stream.setdefault(stream, []).append(tie)

    def step(vertex: StreamId | Link) -> list[StreamId | Link]:
        if isinstance(vertex, StreamId):
            return list(of_stream.get(vertex, ()))
        return [*sorted(tied[vertex])]

    return step
