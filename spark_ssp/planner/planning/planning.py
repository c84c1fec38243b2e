"""Makes a plan from a graph and observed counts, or reports all conflicts; checks that a plan can
resume from the checkpoints of an earlier one.

A plan depends only on the graph, the counts, the settings and the plan recorded earlier. A
checkpoint belongs to a stage by name, numbers the streams that the stage reads, and depends on the
tasks of their partitions. So these contradict a recorded plan:

* a count that is smaller than the earlier one, or not a multiple of it: keys would move to other
  tasks. Fixed tasks support a multiple. Kinesis may be resharded, and outputs have no state;
* a missing or renamed stage or table, or one with other inputs, outputs or keys;
* a stage whose query reads the same streams in another order, as when a join with a table moves
  from one side of a join to the other: positions of one stream would be applied to another; or one
  that combines them otherwise, as when a join becomes a merge: states would be another operator's;
* a stream with another role in the pipeline, or of another kind of service.

New streams, stages and tables start without state and contradict nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.planner.graph.errors import Note, PartitionCountConflictError, Problem
from spark_ssp.planner.graph.operators import (
    MOST_PARTITIONS,
    Graph,
    Input,
    OperatorName,
    Output,
    PartitionBy,
    StreamId,
    SystemKind,
    derived_stream,
    is_partition_count,
    reached,
)
from spark_ssp.planner.planning.co_partitioning import CoPartitionGraph, side_inputs
from spark_ssp.planner.planning.partition_counts import (
    Agreement,
    Count,
    Origin,
    agree,
    fallback,
    find_count_problems,
)
from spark_ssp.planner.planning.plan import Plan, Role, StagePlan, StreamPlan
from spark_ssp.planner.planning.stages import stages_of, tables_of
from spark_ssp.planner.planning.validation import raise_invalid


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
                next_step="choose require or advise",
            )
            raise InvalidOptionsError("a pipeline", [problem])
        count = self.default_intermediate_partitions
        if count is not None and not is_partition_count(count):
            problem = OptionProblem(
                option="default_intermediate_partitions",
                found=repr(count),
                expected=f"a whole number, 1 to {MOST_PARTITIONS}",
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
    """Return the plan of `graph` for the observed counts (see `systems.observe`).

    `recorded` is the plan of an earlier run: a stream whose partitions have multiplied since keeps
    its tasks, and a missing intermediate stream its count. `find_contradictions` checks that the
    new plan can follow it.

    Raises InvalidPipelineError for an invalid graph, PartitionCountConflictError with every
    conflict of counts.
    """
    raise_invalid(graph)
    roles = roles_of(graph)
    before = {s.stream: s.tasks for s in recorded.streams} if recorded is not None else {}
    tasks = {stream: _tasks(observed.get(stream), before.get(stream)) for stream in roles}
    settings = settings or PlanSettings()
    agreement = _agreement(graph, observed, tasks, _kept(recorded), settings)
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
        streams=tuple(_stream_plans(graph, observed, tasks, agreement)),
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


def _kept(recorded: Plan | None) -> dict[StreamId, Count]:
    """Return the counts with which intermediate streams are created again if they are gone: those
    that an earlier plan has of them, unless their partitions had multiplied since the first one."""
    return {
        s.stream: Count(partitions=s.partitions, origin=Origin.GIVEN, like=s.stream)
        for s in (() if recorded is None else recorded.streams)
        if s.role is Role.INTERMEDIATE and s.tasks is not None and s.tasks == s.partitions
    }


def _agreement(
    graph: Graph,
    observed: Mapping[StreamId, int | None],
    tasks: Mapping[StreamId, int | None],
    kept: Mapping[StreamId, Count],
    settings: PlanSettings,
) -> Agreement:
    """Choose the partition counts. Streams without a count that are not linked to one with a count
    have that of an earlier plan, `kept`. Outputs are not linked, but their counts contribute to the
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
    linked = CoPartitionGraph(graph)
    known = {stream for group in linked.sets() if group & defined.keys() for stream in group}
    defined |= {s: kept[s] for s in wishes if s in kept and s not in known | defined.keys()}
    return agree(
        defined,
        assignable=[s for s in wishes if s not in defined],
        unknown=[s for s in roles if roles[s] is Role.INPUT and s not in defined],
        linked=linked,
        otherwise=fallback(ends, settings.default_intermediate_partitions),
        required=settings.agreement == PartitionAgreement.REQUIRE,
    )


def _stream_plans(
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


# --- Compatibility --------------------------------------------------------------------------------


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


def find_doubts(recorded: Plan | None, planned: Plan) -> tuple[Note, ...]:
    """Return warnings of unintended effects of a plan after `recorded`, the newest plan under
    its root, None for a new root."""
    found = {s.stream for s in planned.streams if s.count.origin is Origin.FOUND}
    doubts = tuple(found_streams(recorded, planned, found))
    if recorded is None:
        return doubts
    return (
        *doubts,
        *_lost_streams(recorded, planned),
        *_late_tables(recorded, planned),
        *_late_readers(recorded, planned),
    )


def _lost_streams(recorded: Plan, planned: Plan) -> Iterator[Note]:
    """Yield intermediate streams that a plan under the root has, and that no longer exist."""
    before = {stream.stream for stream in recorded.streams}
    for stream in planned.streams:
        if (
            stream.role is Role.INTERMEDIATE
            and stream.count.origin is not Origin.FOUND
            and stream.stream in before
        ):
            yield Note(
                subject=f"stream {stream.stream}",
                text="it was planned before and does not exist. If it was never created, it is "
                "now; if it was deleted, its unread records are lost, and the checkpoints of the "
                f"stages that read it have positions in it: {_START}",
            )


def found_streams(
    recorded: Plan | None, planned: Plan, found: Collection[StreamId]
) -> Iterator[Note]:
    """Yield intermediate streams of derived names that exist (`found`), though no plan under the
    root has them. A run that stopped before it recorded its plan leaves such streams too."""
    before = set() if recorded is None else {stream.stream for stream in recorded.streams}
    new = {*found} - before
    writers = {stage.writes: stage.name for stage in planned.stages}
    for stream in planned.streams:
        if (
            stream.role is Role.INTERMEDIATE
            and stream.stream in new
            and stream.stream.stream == derived_stream(planned.pipeline, writers[stream.stream])
        ):
            yield Note(
                subject=f"stream {stream.stream}",
                text="it exists already, and no plan under this root has it. If another pipeline "
                "or root uses it, each reads the records of both: give this pipeline another name, "
                f"or partition_by {writers[stream.stream]} another stream with stream=",
            )


def _late_tables(recorded: Plan, planned: Plan) -> tuple[Note, ...]:
    """Return tables of new stages that existing streams fill: they start with the records still in
    those streams."""
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


def _late_readers(recorded: Plan, planned: Plan) -> Iterator[Note]:
    """Yield existing streams that only filled tables, and that a stage now reads for each record:
    only such streams may be compacted."""
    read_before = {stream for stage in recorded.stages for stream in stage.reads}
    there = {stream.stream for stream in recorded.streams if stream.role is Role.INTERMEDIATE}
    unread = there - read_before
    for stream in planned.streams:
        if stream.stream not in unread or stream.count.origin is not Origin.FOUND:
            continue
        readers = tuple(stage.name for stage in planned.stages if stream.stream in stage.reads)
        if readers:
            yield Note(
                subject=f"stream {stream.stream}",
                text=f"it has only filled tables until now, and {_names(readers)} needs all of its "
                "records. If it is compacted (table_topic_config), some are removed before they "
                "are read: set its cleanup.policy to delete, or write another stream for such "
                "stages by a separate partition_by",
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
    kinesis = SystemKind.KINESIS in {before.kind, after.kind}
    if kinesis or before.role is Role.OUTPUT or before.broadcast:
        return
    was, is_now = before.partitions, after.partitions
    if was is None or was == is_now:
        return
    if is_now is None or after.count.origin is not Origin.FOUND:
        yield Problem(
            subject=f"stream {before.stream}",
            found="no such stream",
            expected=f"{was} partitions",
            next_step=_to_restore(before, after.count.origin),
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


def _to_restore(before: StreamPlan, origin: Origin) -> str:
    """Return the next step for an input or an intermediate stream that is missing. `origin` is that
    of the count with which it would be created."""
    if before.role is Role.INPUT:
        return f"correct its name or its system, {_AFRESH}"
    if origin is Origin.GIVEN and before.partitions == before.tasks:
        return (
            "leave partitions= out, so that it is created as it was, without its unread records; "
            f"{_AFRESH}"
        )
    return _START


def _part(stream: StreamPlan) -> str:
    flags = (("broadcast", stream.broadcast), ("bootstrap", stream.bootstrap))
    flagged = [word for word, is_set in flags if is_set]
    return " ".join([*flagged, stream.role.value, "of", stream.kind.value])


# --- Stages --------------------------------------------------------------------------------------


def _of_stages(recorded: Plan, planned: Plan) -> Iterator[Problem]:
    now = {stage.name: stage for stage in planned.stages}
    known = {stage.name for stage in recorded.stages}
    missing = [stage for stage in recorded.stages if stage.name not in now]
    fresh = [stage for stage in planned.stages if stage.name not in known]
    renamed = _renamed(missing, fresh)
    for before in recorded.stages:
        after = now.get(before.name)
        if after is None:
            yield _missing(before, renamed.get(before.name))
        else:
            yield from _of_stage(before, after)


def _renamed(
    missing: Sequence[StagePlan], fresh: Sequence[StagePlan]
) -> dict[OperatorName, OperatorName]:
    """Return the new name of each missing stage, where only one fresh stage does the same, and no
    other missing stage did it."""
    alike = {before.name: _alike(before, fresh) for before in missing}
    times = Counter(name for names in alike.values() for name in names)
    return {
        name: names[0] for name, names in alike.items() if len(names) == 1 and times[names[0]] == 1
    }


def _alike(before: StagePlan, fresh: Sequence[StagePlan]) -> list[OperatorName]:
    """Return the stages that may be another stage under another name: those that write the same
    stream, if there are any. An intermediate stream is renamed with its stage, an output is not."""
    same = [
        after
        for after in fresh
        if (before.reads, before.key, before.tables) == (after.reads, after.key, after.tables)
        and before.sources in {None, after.sources}
        and before.shape in {None, after.shape}
    ]
    found = [after for after in same if after.writes == before.writes]
    return [after.name for after in (found if found or not before.key else same)]


def _missing(before: StagePlan, renamed: OperatorName | None) -> Problem:
    found = "no such stage" if renamed is None else f"stage {renamed}, which does the same"
    remedy = "restore it" if renamed is None else f"name it {before.name} again with name="
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
    return _differences("stage", before.name, parts)


def _differences(what: str, name: str, parts: Iterable[tuple[str, str, str]]) -> Iterator[Problem]:
    for part, was, is_now in parts:
        if was != is_now:
            yield Problem(
                subject=f"{what} {name}",
                found=f"{part} {is_now or 'nothing'}",
                expected=f"{part} {was or 'nothing'}",
                next_step=f"leave this {what} as it was and add another, {_AFRESH}",
            )


def _of_sources(recorded: Plan, planned: Plan, reported: Set[str]) -> Iterator[Problem]:
    """Yield stages whose queries read their sources in another order, or combine them otherwise,
    unless the stage was recorded without that, or it or one of its tables is already `reported`."""
    now = {stage.name: stage for stage in planned.stages}
    for before in recorded.stages:
        after = now.get(before.name)
        if f"stage {before.name}" in reported or _subjects(recorded, before) & reported:
            continue
        if after is None or after.sources is None:
            continue
        if before.sources not in {None, after.sources}:
            found = f"a query that reads {_names(after.sources)}, in this order"
            expected = f"{_names(before.sources or ())}: its checkpoint has positions by number"
        elif before.shape not in {None, after.shape}:
            found = f"a query that computes {after.shape}"
            expected = f"{before.shape}: its checkpoint has states by number"
        else:
            continue
        yield Problem(
            subject=f"stage {before.name}",
            found=found,
            expected=expected,
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
        yield from _differences("table", before.name, parts)


def _names(parts: tuple[object, ...]) -> str:
    return ", ".join(str(part) for part in parts)
