"""Creating what a plan asks for: the intermediate streams that are not there. Nothing that is there
is altered, and nothing is created when anything stands against the plan.

Inputs and outputs are not created: who else writes or reads them decides on their count. So a plan
whose inputs or outputs are missing is refused here, rather than by the first batch of a query (or
made good by a broker that creates topics with its own default count).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline_planner.checks.co_partitioning import uses
from pipeline_planner.graph.errors import PartitionCountConflictError, Problem, SourceLocation
from pipeline_planner.graph.names import StreamId, SystemKind
from pipeline_planner.graph.operators import Graph, Input, Output, PartitionBy
from pipeline_planner.planning.plan import Plan, Role, StreamPlan
from pipeline_planner.render.explain import count_source
from pipeline_planner.services.admin import observe
from pipeline_planner.services.systems import Services, StreamExistsError, StreamUse

_log = logging.getLogger(f"spark_ssp.{__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a plan's intermediate streams. Both parts are sorted, and hold all of them."""

    created: tuple[StreamId, ...]
    """Created by this call."""
    found: tuple[StreamId, ...]
    """There already, or created by somebody else at the same time."""


def apply(graph: Graph, plan: Plan, services: Services) -> Applied:
    """Create the intermediate streams of `plan` that are missing, and check all of their counts.

    May be called again at any time, and by several processes at once: whoever comes second finds
    the streams. Raises InvalidPipelineError when a system is missing, PartitionCountConflictError
    with every conflict (before anything is created), or when a created stream has another count
    than planned; and the errors of the systems.
    """
    services.raise_missing(graph)
    before = observe(graph, services)
    _refuse(graph, obstacles(graph, plan, before))
    wanted = [stream for stream in plan.streams if stream.role is Role.INTERMEDIATE]
    use = uses(graph)
    created = [
        s.stream for s in wanted if before[s.stream] is None and _create(s, use[s.stream], services)
    ]
    after = {s: services.partition_count(s.stream.system, s.stream.stream) for s in wanted}
    at_odds = [s for s in wanted if after[s] != s.partitions]
    _refuse(graph, [_other_count(graph, s, after[s]) for s in at_odds])
    return Applied(
        created=tuple(created),
        found=tuple(s.stream for s in wanted if s.stream not in created),
    )


def obstacles(
    graph: Graph, plan: Plan, observed: Mapping[StreamId, int | None]
) -> tuple[Problem, ...]:
    """Why streams as they are now do not suit a plan: in the plan's order. Pure."""
    return tuple(
        problem
        for stream in plan.streams
        if (problem := _obstacle(graph, stream, observed[stream.stream])) is not None
    )


def _obstacle(graph: Graph, stream: StreamPlan, now: int | None) -> Problem | None:
    if now is None and stream.role is not Role.INTERMEDIATE:
        return _missing(graph, stream)
    if now is None or now == stream.partitions:
        return None
    if stream.role is Role.INTERMEDIATE:
        return _other_count(graph, stream, now)
    # Shards come and go, and nothing is tied to an output or to a broadcast stream.
    follows = stream.kind is SystemKind.KAFKA and not stream.broadcast
    return _changed(graph, stream, now) if follows and stream.role is Role.INPUT else None


def _missing(graph: Graph, stream: StreamPlan) -> Problem:
    create = f"services[{str(stream.stream.system)!r}].create({stream.stream.stream!r}, …)"
    return Problem(
        subject=f"stream {stream.stream}",
        found="no such stream",
        expected=f"an {stream.role} that is there: a pipeline creates intermediate streams alone",
        next_step="mend its name or its system"
        if stream.role is Role.INPUT
        else f"create it with the count that its readers want, for example by {create}",
        place=_place(graph, stream.stream),
    )


def _changed(graph: Graph, stream: StreamPlan, now: int) -> Problem:
    return Problem(
        subject=f"stream {stream.stream}",
        found=_partitions(now),
        expected=f"{stream.partitions}, as when it was planned",
        next_step="plan again: other counts may follow from this one",
        place=_place(graph, stream.stream),
    )


def _other_count(graph: Graph, stream: StreamPlan, now: int | None) -> Problem:
    remedy = "plan again, which takes the stream as it is, or remove it and have it created"
    return Problem(
        subject=f"stream {stream.stream}",
        found="no such stream" if now is None else _partitions(now),
        expected=f"{stream.partitions} ({count_source(stream.count)}), and a stream that is there "
        "is not altered",
        next_step=f"{remedy}; or give the intermediate stream another name with stream=",
        place=_place(graph, stream.stream),
    )


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _place(graph: Graph, stream: StreamId) -> SourceLocation | None:
    return next(
        o.place
        for o in graph.operators
        if isinstance(o, Input | PartitionBy | Output) and o.stream == stream
    )


def _create(stream: StreamPlan, use: StreamUse, services: Services) -> bool:
    """Whether it was this call that created it."""
    assert stream.partitions is not None, "a plan knows the count of what is to be created"
    try:
        system = services[stream.stream.system]
        system.create(stream.stream.stream, stream.partitions, use=use)
    except StreamExistsError:
        _log.info("Stream %s was created by somebody else at the same time.", stream.stream)
        return False
    _log.info("Created stream %s with %d partitions.", stream.stream, stream.partitions)
    return True


def _refuse(graph: Graph, problems: Sequence[Problem]) -> None:
    if problems:
        raise PartitionCountConflictError(graph.pipeline, problems)
