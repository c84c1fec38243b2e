"""Checks that a plan can resume from the checkpoints of an earlier one.

A checkpoint belongs to a stage by name, numbers the streams that the stage reads, and depends on
the tasks of their partitions. So these contradict a recorded plan:

* a count that is smaller than the earlier one, or not a multiple of it: keys would move to other
  tasks. Fixed tasks support a multiple. Kinesis may be resharded, and outputs have no state;
* a missing or renamed stage or table, or one with other inputs, outputs or keys;
* a stage whose query reads the same streams in another order, as when a join with a table moves
  from one side of a join to the other: positions of one stream would be applied to another;
* a stream with another role in the pipeline.

New streams, stages and tables start without state and contradict nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from spark_ssp.planner.graph.errors import Note, Problem
from spark_ssp.planner.graph.names import StreamId, SystemKind
from spark_ssp.planner.graph.traversal import reached
from spark_ssp.planner.planning.partition_counts import Count, Origin
from spark_ssp.planner.planning.plan import Plan, Role, StagePlan, StreamPlan

# Under the same streams, records written under the old root would be read as well.
_START = "start the pipeline under a new checkpoint root and with other intermediate streams"
_AFRESH = f"or {_START}"


def find_contradictions(recorded: Plan, planned: Plan) -> tuple[Problem, ...]:
    """Return every difference that the checkpoints of `recorded` do not allow, in the order of that
    plan: `found` is planned, `expected` was recorded."""
    parts = (*_of_stages(recorded, planned), *_of_tables(recorded, planned))
    return (
        *_of_pipeline(recorded, planned),
        *_of_streams(recorded, planned),
        *parts,
        *_of_sources(recorded, planned, {problem.subject for problem in parts}),
    )


def find_late_tables(recorded: Plan, planned: Plan) -> tuple[Note, ...]:
    """Return warnings for tables of new stages that existing streams fill: they start with the
    records still in those streams."""
    known = {stage.name for stage in recorded.stages}
    there = {stream.stream for stream in recorded.streams if stream.role is Role.INTERMEDIATE}
    filled = {table.name: there.intersection(table.filled_by) for table in planned.tables}
    return tuple(
        Note(
            subject=f"table {table} of stage {stage.name}",
            text=f"it starts with the records still in {_names(tuple(sorted(filled[table])))}. "
            "Rows whose last change is older than the stream's retention are missing, unless it "
            "was created to fill a table or is compacted",
        )
        for stage in planned.stages
        if stage.name not in known
        for table in dict.fromkeys(stage.tables)
        if filled.get(table)
    )


def conflicting_counts(
    recorded: Plan, observed: Mapping[StreamId, int | None]
) -> tuple[Problem, ...]:
    """Return the contradictions of counts, for when no plan can be made."""
    return tuple(
        problem
        for stream in recorded.streams
        if (now := observed.get(stream.stream)) is not None
        for problem in _of_stream(
            stream, replace(stream, count=Count(partitions=now, origin=Origin.FOUND))
        )
    )


def _of_pipeline(recorded: Plan, planned: Plan) -> Iterator[Problem]:
    if recorded.pipeline != planned.pipeline:
        yield Problem(
            subject="pipeline",
            found=f"the name {planned.pipeline}",
            expected=recorded.pipeline,
            next_step=f"use a separate checkpoint root for each pipeline, {_AFRESH}",
        )


# --- Streams -------------------------------------------------------------------------------------


def _of_streams(recorded: Plan, planned: Plan) -> Iterator[Problem]:
    now = {stream.stream: stream for stream in planned.streams}
    for before in recorded.streams:
        after = now.get(before.stream)
        if after is not None:
            yield from _of_stream(before, after)


def _of_stream(before: StreamPlan, after: StreamPlan) -> Iterator[Problem]:
    if _part(before) != _part(after):
        yield Problem(
            subject=f"stream {before.stream}",
            found=_part(after),
            expected=_part(before),
            next_step=f"use it as before, {_AFRESH}",
        )
    if before.kind is SystemKind.KINESIS or before.role is Role.OUTPUT or before.broadcast:
        return
    was, is_now = before.partitions, after.partitions
    if was is None or was == is_now:
        return
    if is_now is None:
        yield Problem(
            subject=f"stream {before.stream}",
            found="no such stream",
            expected=f"{was} partitions",
            next_step=f"correct its name or its system, {_AFRESH}",
        )
    elif is_now % was:
        yield Problem(
            subject=f"stream {before.stream}",
            found=f"{is_now} partitions",
            expected=f"{was} or a multiple of it: otherwise keys would move to other tasks",
            next_step=_START
            if is_now < was
            else f"{_START}; or, if no records were written to it while it had {is_now} or no "
            f"state depends on its tasks, expand it to {was * (is_now // was + 1)} partitions "
            "(records written since stay in partitions of other tasks)",
        )


def _part(stream: StreamPlan) -> str:
    flags = (("broadcast", stream.broadcast), ("bootstrap", stream.bootstrap))
    return " ".join([*(word for word, set_ in flags if set_), stream.role.value])


# --- Stages --------------------------------------------------------------------------------------


def _of_stages(recorded: Plan, planned: Plan) -> Iterator[Problem]:
    now = {stage.name: stage for stage in planned.stages}
    known = {stage.name for stage in recorded.stages}
    fresh = [stage for stage in planned.stages if stage.name not in known]
    for before in recorded.stages:
        after = now.get(before.name)
        if after is None:
            yield _missing(before, fresh)
        else:
            yield from _of_stage(before, after)


def _missing(before: StagePlan, fresh: list[StagePlan]) -> Problem:
    alike = [s.name for s in fresh if (s.reads, s.key) == (before.reads, before.key)]
    found = f"stage {alike[0]}, which does the same" if alike else "no such stage"
    remedy = f"name it {before.name} again with name=" if alike else "restore it"
    return Problem(
        subject=f"stage {before.name}",
        found=found,
        expected=f"stage {before.name}, whose checkpoint has the positions in {_streams(before)}",
        next_step=f"{remedy}, {_AFRESH}",
    )


def _streams(stage: StagePlan) -> str:
    return ", ".join(str(stream) for stream in stage.reads)


def _of_stage(before: StagePlan, after: StagePlan) -> Iterator[Problem]:
    parts = (
        ("reads", _streams(before), _streams(after)),
        ("writes", str(before.writes), str(after.writes)),
        ("partitions by", ", ".join(before.key), ", ".join(after.key)),
        ("joins with tables", ", ".join(before.tables), ", ".join(after.tables)),
    )
    for what, was, is_now in parts:
        if was != is_now:
            yield Problem(
                subject=f"stage {before.name}",
                found=f"{what} {is_now or 'nothing'}",
                expected=f"{what} {was or 'nothing'}",
                next_step=f"leave this stage as it was and add another, {_AFRESH}",
            )


def _of_sources(recorded: Plan, planned: Plan, reported: Set[str]) -> Iterator[Problem]:
    """Yield stages with another order of sources, unless the stage was recorded without sources, or
    it or one of its tables is already `reported`."""
    now = {stage.name: stage.sources for stage in planned.stages}
    for before in recorded.stages:
        after = now.get(before.name)
        if f"stage {before.name}" in reported or _subjects(recorded, before) & reported:
            continue
        if before.sources is not None and after is not None and before.sources != after:
            yield Problem(
                subject=f"stage {before.name}",
                found=f"a query that reads {_names(after)}, in this order",
                expected=f"{_names(before.sources)}: its checkpoint has positions by number",
                next_step="restore the positions and sides of merges, joins and joins with tables, "
                f"{_AFRESH}",
            )


def _subjects(plan: Plan, stage: StagePlan) -> set[str]:
    """Return the problem subjects of the tables in a stage's query, including those through which
    others are filled."""
    joins = {table.name: table.joins for table in plan.tables}
    return {f"table {name}" for name in reached(stage.tables, lambda name: joins.get(name, ()))}


# --- Tables --------------------------------------------------------------------------------------


def _of_tables(recorded: Plan, planned: Plan) -> Iterator[Problem]:
    now = {table.name: table for table in planned.tables}
    for before in recorded.tables:
        after = now.get(before.name)
        if after is None:
            yield Problem(
                subject=f"table {before.name}",
                found="no such table",
                expected=f"table {before.name}, whose rows are kept",
                next_step=f"restore it under its name, {_AFRESH}",
            )
            continue
        parts = (
            ("key", ", ".join(before.key), ", ".join(after.key)),
            ("filled by", _names(before.filled_by), _names(after.filled_by)),
            ("filled through tables", _names(before.joins), _names(after.joins)),
        )
        for what, was, is_now in parts:
            if was != is_now:
                yield Problem(
                    subject=f"table {before.name}",
                    found=f"{what} {is_now or 'nothing'}",
                    expected=f"{what} {was or 'nothing'}",
                    next_step=f"leave this table as it was and add another, {_AFRESH}",
                )


def _names(parts: tuple[object, ...]) -> str:
    return ", ".join(str(part) for part in parts)
