"""Creates the missing intermediate streams of a plan. Existing streams are not altered, and none is
created when a stream conflicts with the plan.

Inputs and outputs are not created: their other readers and writers determine their counts. So a
plan with a missing input or output is rejected here, rather than by the first batch of a query (or
created by a broker with its own default count).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_ssp.planner.checks.co_partitioning import uses
from spark_ssp.planner.graph.errors import PartitionCountConflictError, Problem, SourceLocation
from spark_ssp.planner.graph.names import StreamId, SystemKind
from spark_ssp.planner.graph.operators import Graph, Input, Output, PartitionBy
from spark_ssp.planner.planning.plan import Plan, Role, StreamPlan
from spark_ssp.planner.render.explain import count_source
from spark_ssp.planner.services.admin import observe
from spark_ssp.planner.services.systems import Services, StreamExistsError, StreamUse

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A plan's intermediate streams, each in one of two sorted parts."""

    created: tuple[StreamId, ...]
    """Created by this call."""
    found: tuple[StreamId, ...]
    """Already existing, or created concurrently by another process."""


def apply(graph: Graph, plan: Plan, services: Services) -> Applied:
    """Create the missing intermediate streams of `plan`, and check all of their counts.

    Idempotent, also when called by several processes at once. Raises InvalidPipelineError when a
    system is missing, PartitionCountConflictError with every conflict (before any creation), or
    when a created stream has another count than planned; and the errors of the systems.
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
    conflicting = [s for s in wanted if after[s] != s.partitions]
    _refuse(graph, [_other_count(graph, s, after[s]) for s in conflicting])
    return Applied(
        created=tuple(created),
        found=tuple(s.stream for s in wanted if s.stream not in created),
    )


def obstacles(
    graph: Graph, plan: Plan, observed: Mapping[StreamId, int | None]
) -> tuple[Problem, ...]:
    """Return the conflicts of existing streams with a plan, in the plan's order."""
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
    # Kinesis may be resharded, and outputs and broadcast streams are not linked to others.
    follows = stream.kind is SystemKind.KAFKA and not stream.broadcast
    return _changed(graph, stream, now) if follows and stream.role is Role.INPUT else None


def _missing(graph: Graph, stream: StreamPlan) -> Problem:
    create = f"services[{str(stream.stream.system)!r}].create({stream.stream.stream!r}, …)"
    return Problem(
        subject=f"stream {stream.stream}",
        found="no such stream",
        expected=f"an existing {stream.role}: a pipeline creates only intermediate streams",
        next_step="correct its name or its system"
        if stream.role is Role.INPUT
        else f"create it with the count that its readers need, for example by {create}",
        place=_place(graph, stream.stream),
    )


def _changed(graph: Graph, stream: StreamPlan, now: int) -> Problem:
    return Problem(
        subject=f"stream {stream.stream}",
        found=_partitions(now),
        expected=f"{stream.partitions}, as when it was planned",
        next_step="plan again: other counts may depend on this one",
        place=_place(graph, stream.stream),
    )


def _other_count(graph: Graph, stream: StreamPlan, now: int | None) -> Problem:
    remedy = "plan again with the count of the stream, or delete it, so that it is created"
    return Problem(
        subject=f"stream {stream.stream}",
        found="no such stream" if now is None else _partitions(now),
        expected=f"{stream.partitions} ({count_source(stream.count)}): an existing stream is not "
        "altered",
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
    """Create a stream; return False if another process has created it concurrently."""
    assert stream.partitions is not None, "a plan has the counts of intermediate streams"
    try:
        system = services[stream.stream.system]
        system.create(stream.stream.stream, stream.partitions, use=use)
    except StreamExistsError:
        _log.info("stream %s was created concurrently by another process", stream.stream)
        return False
    _log.info("created stream %s with %d partitions", stream.stream, stream.partitions)
    return True


def _refuse(graph: Graph, problems: Sequence[Problem]) -> None:
    if problems:
        raise PartitionCountConflictError(graph.pipeline, problems)
