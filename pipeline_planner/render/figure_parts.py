"""What there is to see of a pipeline: a box for each stream, stage and table, and what flows where.

The operators of a stage stand in its box, those one after the other as rows of one chain. A line
that two stages go on from is drawn in both: each stage's query computes it. What a line does before
it fills a table has a box too. Pure; `picture` gives all this its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline_planner.graph.names import OperatorName, StreamId, TableName
from pipeline_planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    Operator,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    by_name,
    upstreams,
)
from pipeline_planner.planning.plan import Plan
from pipeline_planner.planning.stages import operators_before

Ender = PartitionBy | Output | SendToTable | SideInput
"""What ends a line: with rows written, or put into a table."""

End = StreamId | TableName
"""Where rows come from or go to, seen from a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Operators one after the other, each taking the rows of the one before alone. The first may
    take several lines, any may look into a table."""

    rows: tuple[Operator, ...]

    @property
    def name(self) -> str:
        """The first operator's: no two chains of a section share it."""
        return self.rows[0].name


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Rows that go from a chain, or from an end, to a row of a chain; to None: out of the section.

    `side` counts the lines that the row takes: 0 for the left of a join, 1 for its right.
    """

    source: OperatorName | StreamId | TableName
    target: OperatorName | None
    side: int = 0
    looks: bool = False
    """Whether the target looks rows up there, rather than taking all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All between the streams that are read and one end. `reads` and `looks_into` are in the order
    in which rows come together, left before right."""

    ender: Ender
    reads: tuple[StreamId, ...]
    looks_into: tuple[TableName, ...]
    chains: tuple[Chain, ...]
    flows: tuple[Flow, ...]

    @property
    def goal(self) -> End:
        """Where its rows go."""
        if isinstance(self.ender, SendToTable | SideInput):
            return self.ender.table
        return self.ender.stream

    @property
    def is_stage(self) -> bool:
        """Whether it is one of the plan's stages; else it fills a table."""
        return isinstance(self.ender, PartitionBy | Output)


def sections(graph: Graph, plan: Plan) -> tuple[Section, ...]:
    """The plan's stages, in its order, then what fills tables, in the graph's."""
    named = by_name(graph)
    fillers = [o for o in graph.operators if isinstance(o, SendToTable | SideInput)]
    enders = [*(named[stage.name] for stage in plan.stages), *fillers]
    return tuple(_section(named, ender) for ender in enders if isinstance(ender, Ender))


def _section(named: Mapping[OperatorName, Operator], ender: Ender) -> Section:
    before = operators_before(named, ender.upstream)
    sources = {o.name: o.stream for o in before if isinstance(o, Input | PartitionBy)}
    inner = _in_order([o for o in before if o.name not in sources])
    return Section(
        ender=ender,
        reads=tuple(dict.fromkeys(sources.values())),
        looks_into=tuple(dict.fromkeys(o.table for o in before if isinstance(o, JoinTable))),
        chains=_chains(inner),
        flows=(
            *(flow for operator in inner for flow in _flows(operator, sources)),
            Flow(source=sources.get(ender.upstream, ender.upstream), target=None),
        ),
    )


def _in_order(operators: Sequence[Operator]) -> list[Operator]:
    """Each after those whose rows it takes."""
    left = {operator.name: operator for operator in operators}
    found: list[Operator] = []
    while left:
        ready = [o for o in left.values() if not any(name in left for name in upstreams(o))]
        assert ready, "a graph that is right has no cycle within a section"
        found += ready
        for operator in ready:
            del left[operator.name]
    return found


def _flows(operator: Operator, sources: Mapping[OperatorName, StreamId]) -> Iterable[Flow]:
    for side, name in enumerate(upstreams(operator)):
        yield Flow(source=sources.get(name, name), target=operator.name, side=side)
    if isinstance(operator, JoinTable):
        yield Flow(source=operator.table, target=operator.name, looks=True)


def _chains(operators: Sequence[Operator]) -> tuple[Chain, ...]:
    takers: dict[OperatorName, list[OperatorName]] = {o.name: [] for o in operators}
    for operator in operators:
        for name in upstreams(operator):
            takers.setdefault(name, []).append(operator.name)
    chains: dict[OperatorName, list[Operator]] = {}
    head: dict[OperatorName, OperatorName] = {}
    for operator in operators:
        ups = upstreams(operator)
        follows = len(ups) == 1 and ups[0] in head and len(takers[ups[0]]) == 1
        head[operator.name] = head[ups[0]] if follows else operator.name
        chains.setdefault(head[operator.name], []).append(operator)
    return tuple(Chain(rows=tuple(rows)) for rows in chains.values())
