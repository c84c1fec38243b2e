"""Makes a plan from a graph and the observed counts, or reports all conflicts.

A plan depends only on the graph, the counts, the settings and the plan recorded earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.planner.checks.co_partitioning import CoPartitionGraph, side_inputs
from spark_ssp.planner.checks.validation import raise_invalid
from spark_ssp.planner.graph.errors import PartitionCountConflictError
from spark_ssp.planner.graph.names import StreamId, SystemKind
from spark_ssp.planner.graph.operators import Graph, Input, Output, PartitionBy
from spark_ssp.planner.planning.count_conflicts import find_count_problems
from spark_ssp.planner.planning.partition_counts import Agreement, Count, Origin, agree, fallback
from spark_ssp.planner.planning.plan import Plan, Role, StreamPlan
from spark_ssp.planner.planning.stages import stages_of, tables_of


class PartitionAgreement(StrEnum):
    """The treatment of joined streams with different partition counts."""

    REQUIRE = "require"
    """The plan is rejected."""
    ADVISE = "advise"
    """The plan has a note. Spark shuffles rows by key, so joins are correct anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Settings of the user. Raises InvalidOptionsError for an invalid value."""

    default_intermediate_partitions: int | None = None
    """The count of intermediate streams that neither `partitions=` nor a joined stream defines."""
    agreement: str = PartitionAgreement.REQUIRE
    """"require" rejects different counts of joined streams, "advise" notes them."""

    def __post_init__(self) -> None:
        if self.agreement not in tuple(PartitionAgreement):
            problem = OptionProblem(
                option="agreement",
                found=repr(self.agreement),
                expected="require or advise",
                next_step="choose one of these",
            )
            raise InvalidOptionsError("a pipeline", [problem])
        count = self.default_intermediate_partitions
        if count is not None and (type(count) is not int or count < 1):
            problem = OptionProblem(
                option="default_intermediate_partitions",
                found=repr(count),
                expected="a whole number, 1 or more",
                next_step="pass a count, or leave it out for the largest of the pipeline's inputs "
                "and outputs",
            )
            raise InvalidOptionsError("a pipeline", [problem])


def make_plan(
    graph: Graph,
    observed: Mapping[StreamId, int | None],
    *,
    settings: PlanSettings | None = None,
    recorded: Plan | None = None,
) -> Plan:
    """Return the plan of `graph` for the observed counts (see `admin.observe`).

    `recorded` is the plan of an earlier run: a stream whose partitions have multiplied since keeps
    its tasks. `plan_compatibility` checks that the new plan can follow it.

    Raises InvalidPipelineError for an invalid graph, PartitionCountConflictError with every
    conflict of counts.
    """
    raise_invalid(graph)
    roles = roles_of(graph)
    before = {s.stream: s.tasks for s in recorded.streams} if recorded is not None else {}
    tasks = {stream: _tasks(observed.get(stream), before.get(stream)) for stream in roles}
    settings = settings or PlanSettings()
    agreement = _agreement(graph, observed, tasks, settings)
    problems = find_count_problems(
        graph,
        agreement,
        observed,
        recorded=before.keys(),
        required=settings.agreement == PartitionAgreement.REQUIRE,
    )
    if problems:
        raise PartitionCountConflictError(graph.pipeline, problems)
    return Plan(
        pipeline=graph.pipeline,
        streams=tuple(_streams(graph, observed, tasks, agreement)),
        stages=stages_of(graph),
        tables=tables_of(graph),
        sets=agreement.sets,
    )


def roles_of(graph: Graph) -> dict[StreamId, Role]:
    """Return the role of every stream of a graph, sorted by stream."""
    found: dict[StreamId, Role] = {}
    for operator in graph.operators:
        match operator:
            case Input():
                found[operator.stream] = Role.INPUT
            case PartitionBy():
                found[operator.stream] = Role.INTERMEDIATE
            case Output():
                found[operator.stream] = Role.OUTPUT
            case _:
                pass
    return {stream: found[stream] for stream in sorted(found)}


def _tasks(now: int | None, before: int | None) -> int | None:
    """Return the number of tasks that the keys of an existing stream are distributed over. `before`
    is that of an earlier plan."""
    return before if before is not None and now is not None and not now % before else now


def _agreement(
    graph: Graph,
    observed: Mapping[StreamId, int | None],
    tasks: Mapping[StreamId, int | None],
    settings: PlanSettings,
) -> Agreement:
    """Choose the partition counts. Outputs are not linked, but their counts contribute to the
    fallback. Side inputs do not, as in Samza: a table is often read from a topic with many more
    partitions."""
    roles, aside = roles_of(graph), side_inputs(graph)
    wishes = {o.stream: o.partitions for o in graph.operators if isinstance(o, PartitionBy)}
    defined: dict[StreamId, Count] = {}
    for stream in roles:
        count, wish = tasks[stream], wishes.get(stream)
        if count is not None:
            defined[stream] = Count(partitions=count, origin=Origin.FOUND)
        elif wish is not None:
            defined[stream] = Count(partitions=wish, origin=Origin.GIVEN)
    ends = {
        stream: observed.get(stream)
        for stream, role in roles.items()
        if role is not Role.INTERMEDIATE and stream not in aside
    }
    return agree(
        defined,
        assignable=[s for s in wishes if s not in defined],
        unknown=[s for s in roles if roles[s] is Role.INPUT and s not in defined],
        linked=CoPartitionGraph(graph),
        otherwise=fallback(ends, settings.default_intermediate_partitions),
        required=settings.agreement == PartitionAgreement.REQUIRE,
    )


def _streams(
    graph: Graph,
    observed: Mapping[StreamId, int | None],
    tasks: Mapping[StreamId, int | None],
    agreement: Agreement,
) -> Iterator[StreamPlan]:
    inputs = {o.stream: o for o in graph.operators if isinstance(o, Input)}
    for stream, role in roles_of(graph).items():
        kind = graph.kind_of(stream.system)
        read_in = inputs.get(stream)
        broadcast = read_in is not None and read_in.broadcast
        now = observed.get(stream)
        if now is not None:
            count = Count(partitions=now, origin=Origin.FOUND)
        else:
            unknown = Count(partitions=None, origin=Origin.UNKNOWN)
            count = agreement.counts.get(stream, unknown)
        fixed = kind is SystemKind.KAFKA and role is not Role.OUTPUT and not broadcast
        yield StreamPlan(
            stream=stream,
            kind=kind,
            role=role,
            count=count,
            tasks=(tasks[stream] or count.partitions) if fixed else None,
            broadcast=broadcast,
            bootstrap=read_in is not None and read_in.bootstrap,
        )
