"""Whether a plan may go on from the checkpoints of an earlier one.

A checkpoint belongs to a stage by name, numbers the streams that the stage reads, and has the tasks
of their partitions. So these contradict a recorded plan:

* a count that is no multiple of the earlier one, or smaller: keys would move to other tasks. A
  multiple is fine: fixed tasks take it. Shards of Kinesis may come and go, and nothing rests on an
  output;
* a stage or a table that is gone or was renamed, and one that reads, writes or is keyed otherwise;
* a stage whose query reads the same streams in another order, as when a join with a table moves
  from one side of a join to the other: positions of one would be taken for another's;
* a stream that has become something else to the pipeline.

New streams, stages and tables start with nothing and contradict nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from pipeline_planner.graph.errors import Note, Problem
from pipeline_planner.graph.names import StreamId, SystemKind
from pipeline_planner.graph.traversal import reached
from pipeline_planner.planning.partition_counts import Count, Origin
from pipeline_planner.planning.plan import Plan, Role, StagePlan, StreamPlan

# What was written under the old root would be read as well.
_START = "start the pipeline under a new checkpoint root and with other intermediate streams"
_AFRESH = f"or {_START}"


def find_contradictions(recorded: Plan, planned: Plan) -> tuple[Problem, ...]:
    """Every difference that the checkpoints of `recorded` cannot follow, in the order of that plan:
    what is `found` is planned, what is `expected` was recorded."""
    parts = (*_of_stages(recorded, planned), *_of_tables(recorded, planned))
    return (
        *_of_pipeline(recorded, planned),
        *_of_streams(recorded, planned),
        *parts,
        *_of_sources(recorded, planned, {problem.subject for problem in parts}),
    )


def find_late_tables(recorded: Plan, planned: Plan) -> tuple[Note, ...]:
    """Return warnings for tables of new stages that existing streams fill: they begin with the
    records still in those streams."""
    known = {stage.name for stage in recorded.stages}
    there = {stream.stream for stream in recorded.streams if stream.role is Role.INTERMEDIATE}
    filled = {table.name: there.intersection(table.filled_by) for table in planned.tables}
    return tuple(
        Note(
            subject=f"table {table} of stage {stage.name}",
            text=f"it begins with what {_names(tuple(sorted(filled[table])))} still has. Rows "
            "whose last change is older than the stream's retention are missing, unless it was "
            "created to fill a table or is compacted",
        )
        for stage in planned.stages
        if stage.name not in known
        for table in dict.fromkeys(stage.tables)
        if filled.get(table)
    )


def conflicting_counts(
    recorded: Plan, observed: Mapping[StreamId, int | None]
) -> tuple[Problem, ...]:
    """The contradictions that counts alone make: what there is to say where no plan can be made."""
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
            next_step=f"give each pipeline a checkpoint root of its own, {_AFRESH}",
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
            next_step=f"mend its name or its system, {_AFRESH}",
        )
    elif is_now % was:
        yield Problem(
            subject=f"stream {before.stream}",
            found=f"{is_now} partitions",
            expected=f"{was} or a multiple of it: otherwise keys would move to other tasks",
            next_step=_START
            if is_now < was
            else f"{_START}; or, if nothing was written to it "
            f"while it had {is_now} or nothing rests on its tasks, expand it to "
            f"{was * (is_now // was + 1)} partitions (what was written meanwhile stays in "
            "partitions of other tasks)",
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
    remedy = f"call it {before.name} again with name=" if alike else "put it back"
    return Problem(
        subject=f"stage {before.name}",
        found=found,
        expected=f"stage {before.name}, whose checkpoint says how far {_streams(before)} was read",
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


def _of_sources(recorded: Plan, planned: Plan, told: Set[str]) -> Iterator[Problem]:
    """Nothing of stages that were recorded before sources were, nor where what is `told` of a stage
    or of tables says already why the order is another."""
    now = {stage.name: stage.sources for stage in planned.stages}
    for before in recorded.stages:
        after = now.get(before.name)
        if f"stage {before.name}" in told or _subjects(recorded, before) & told:
            continue
        if before.sources is not None and after is not None and before.sources != after:
            yield Problem(
                subject=f"stage {before.name}",
                found=f"a query that reads {_names(after)}, in this order",
                expected=f"{_names(before.sources)}: its checkpoint has positions by number",
                next_step="put merges, joins and joins with tables back where they were, each on "
                f"its side, {_AFRESH}",
            )


def _subjects(plan: Plan, stage: StagePlan) -> set[str]:
    """What is said of the tables that a stage's query holds, those through which others are filled
    among them."""
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
                next_step=f"put it back under its name, {_AFRESH}",
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
