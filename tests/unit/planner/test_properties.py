"""The planner against exhaustive search: of small pipelines every assignment is tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import event, given
from hypothesis import strategies as st

from spark_ssp.planner import PartitionCountConflictError, PlannedPipeline
from spark_ssp.planner.graph.operators import (
    Graph,
    Input,
    JoinTable,
    OperatorName,
    Output,
    PartitionBy,
    SendToTable,
    SideInput,
    StreamId,
    by_name,
    shortest_path,
    unwind,
    upstreams,
)
from spark_ssp.planner.planning.co_partitioning import CoPartitionGraph, Link
from spark_ssp.planner.planning.partition_counts import Agreement, Count, Origin, agree
from spark_ssp.planner.planning.plan import Role, from_text, to_text
from spark_ssp.planner.planning.planning import find_contradictions
from spark_ssp.planner.planning.stages import order_stages
from spark_ssp.planner.planning.validation import (
    find_buildable,
    find_graph_problems,
    find_kinesis_problems,
    is_task_bound,
)
from tests.support.pipelines.examples import planned
from tests.support.pipelines.random_pipelines import (
    COUNTS,
    Drawn,
    assignments,
    keeps_tasks_where_there_are_none,
    links,
    neighbours,
    pipelines,
    rests_on_kinesis,
    sets_that_agree,
    tables_of_own_rows,
)


def _fixed(drawn: Drawn, graph: Graph) -> dict[StreamId, int]:
    """Counts that are settled before anything is inferred."""
    wished = {
        o.stream: o.partitions
        for o in graph.operators
        if isinstance(o, PartitionBy) and o.partitions is not None
    }
    return {**wished, **drawn.observed(), **_readers(graph)}


def _readers(graph: Graph) -> dict[StreamId, int]:
    """The broadcast input that reads the tables in the end: any count will do."""
    return {o.stream: 1 for o in graph.operators if isinstance(o, Input) and o.name == "reader"}


def _sources(graph: Graph) -> dict[StreamId, bool]:
    """Every stream that is read, and whether the planner may choose its count."""
    return {
        o.stream: isinstance(o, PartitionBy)
        for o in graph.operators
        if isinstance(o, Input | PartitionBy)
    }


def _agreement(drawn: Drawn, graph: Graph, default: int) -> Agreement:
    fixed, sources = _fixed(drawn, graph), _sources(graph)
    return agree(
        {stream: Count(partitions=fixed[stream], origin=Origin.FOUND) for stream in fixed},
        assignable=[s for s in sources if sources[s] and s not in fixed],
        unknown=[s for s in sources if not sources[s] and s not in fixed],
        linked=CoPartitionGraph(graph),
        otherwise=Count(partitions=default, origin=Origin.CONFIGURED),
    )


@given(pipelines(unknown=True), COUNTS)
def test_counts_disagree_exactly_when_no_assignment_works(drawn: Drawn, default: int) -> None:
    graph = drawn.pipeline.build()
    fixed, sources = _fixed(drawn, graph), _sources(graph)
    working = list(assignments(graph, fixed, [s for s in sources if s not in fixed]))
    agreement = _agreement(drawn, graph, default)
    event(f"works: {bool(working)}")
    assert bool(agreement.disagreements) == (not working)
    # Unknown counts are trusted only where nobody else depends on them.
    for stream in sources:
        unknown = not sources[stream] and stream not in fixed
        tied = any(stream in s and len(s) > 1 for s in sets_that_agree(links(graph)))
        assert (stream in agreement.unverified) == (unknown and tied)


@given(pipelines(), COUNTS)
def test_the_plan_is_the_only_assignment_that_departs_least_from_the_default(
    drawn: Drawn, default: int
) -> None:
    graph = drawn.pipeline.build()
    fixed, sources = _fixed(drawn, graph), _sources(graph)
    free = [stream for stream in sources if stream not in fixed]
    working = list(assignments(graph, fixed, free))
    counts = {**drawn.counts, "reader": 1}
    try:
        plan = planned(drawn.pipeline, counts, default=default).plan
    except PartitionCountConflictError:
        assert not working
        return
    event(f"inferred: {len(free)}")
    departures = [sum(counts[s] != default for s in free) for counts in working]
    best = [a for a, n in zip(working, departures, strict=True) if n == min(departures)]
    assert best == [{s: plan.stream(s).partitions for s in best[0]}]


@given(pipelines(kinesis=True))
def test_what_relies_on_tasks_is_refused_exactly_when_rows_of_kinesis_reach_it(
    drawn: Drawn,
) -> None:
    refused = bool(find_kinesis_problems(drawn.pipeline.graph))
    event(f"refused: {refused}")
    assert refused == rests_on_kinesis(drawn.pipeline.graph)


@given(pipelines(kinesis=True, state=True))
def test_state_by_task_is_refused_exactly_where_no_task_owns_a_key(drawn: Drawn) -> None:
    graph = drawn.pipeline.graph
    wrong = keeps_tasks_where_there_are_none(graph)
    problems = [problem.subject.partition(" ")[2] for problem in find_graph_problems(graph)]
    event(f"wrong: {len(wrong)}")
    assert len(problems) == len(set(problems))
    refused = {o.name for o in graph.operators if is_task_bound(o)} & {*problems}
    assert refused <= wrong
    if not find_kinesis_problems(graph):
        # There, of several on one line only the first is named.
        assert refused == wrong == {*problems}


@given(pipelines(kinesis=True, state=True, own_rows=True))
def test_operators_take_rows_only_from_earlier_ones(drawn: Drawn) -> None:
    """Validation and planning rely on it: they do not look for cycles of rows and missing parts."""
    graph = drawn.pipeline.graph
    known: set[OperatorName] = set()
    for operator in graph.operators:
        assert known.issuperset(upstreams(operator))
        assert isinstance(operator, Input) == (not upstreams(operator))
        assert operator.name not in known
        known.add(operator.name)
    tables = [table.name for table in graph.tables]
    assert len(set(tables)) == len(tables)
    of_tables = [o for o in graph.operators if isinstance(o, SendToTable | SideInput | JoinTable)]
    assert {operator.table for operator in of_tables} <= {*tables}
    used = {o.stream.system for o in graph.operators if isinstance(o, Input | PartitionBy | Output)}
    assert used <= dict(graph.systems).keys()


@given(pipelines(own_rows=True))
def test_tables_are_refused_exactly_when_no_query_can_begin_to_read_them(drawn: Drawn) -> None:
    graph = drawn.pipeline.graph
    wrong = tables_of_own_rows(graph)
    event(f"wrong: {len(wrong)}")
    named = by_name(graph)
    refused = [named[OperatorName(p.subject.partition(" ")[2])] for p in find_graph_problems(graph)]
    tables = [operator.table for operator in refused if isinstance(operator, JoinTable)]
    assert len(tables) == len(refused) == len({*tables})
    assert {*tables} <= wrong
    assert bool(tables) == bool(wrong)
    if not wrong:
        order = order_stages(graph)
        for number, stage in enumerate(order):
            buildable = find_buildable(graph, written=order[:number])
            assert buildable.issuperset(upstreams(named[stage]))


@given(pipelines(unknown=True, kinesis=True), st.data())
def test_walks_along_operators_are_walks_along_ties(drawn: Drawn, data: st.DataObject) -> None:
    """The same ties and sets, and the same ways, as when every stream of every tie is known."""
    graph = drawn.pipeline.graph
    web, tied = CoPartitionGraph(graph), links(graph)
    step = neighbours(tied)
    assert web.links == tuple(tied)
    assert web.sets() == sets_that_agree(tied)
    of_sets = web.links_by_group(web.sets())
    for streams in web.sets():
        assert of_sets[min(streams)] == tuple(tie for tie in tied if tied[tie] & streams)
        starts = data.draw(st.lists(st.sampled_from(sorted(streams)), min_size=1, unique=True))
        begins: list[StreamId | Link] = [*sorted(starts)]
        came_from = web.search(sorted(starts))
        assert {v for v in came_from if isinstance(v, StreamId)} == streams
        for vertex in came_from:
            ways = [shortest_path(one, vertex, step) for one in begins]
            nearest = min((way for way in ways if way is not None), key=len)
            assert unwind(vertex, came_from) == nearest


@given(pipelines(unknown=True), COUNTS)
def test_a_disagreement_shows_a_path_that_is_there(drawn: Drawn, default: int) -> None:
    graph = drawn.pipeline.build()
    fixed, tied = _fixed(drawn, graph), links(graph)
    for path in _agreement(drawn, graph, default).disagreements:
        first, last = path.ends
        assert fixed[first] != fixed[last]
        for before, after in pairwise(path.steps):
            if isinstance(before, StreamId):
                assert not isinstance(after, StreamId)
                assert before in tied[after]
            else:
                assert isinstance(after, StreamId)
                assert after in tied[before]


@given(pipelines(unknown=True), COUNTS, st.randoms(use_true_random=False))
def test_the_order_of_the_lines_is_irrelevant(drawn: Drawn, default: int, random: Random) -> None:
    graph = drawn.pipeline.build()
    shuffled = random.sample(graph.operators, len(graph.operators))
    turned = replace(graph, operators=tuple(shuffled))
    one, two = (_agreement(drawn, g, default) for g in (graph, turned))
    assert {s: c.partitions for s, c in one.counts.items()} == {
        s: c.partitions for s, c in two.counts.items()
    }
    assert (one.sets, one.unverified) == (two.sets, two.unverified)
    assert len(one.disagreements) == len(two.disagreements)


NAMES = [f"i{number}" for number in range(3)] + [f"p-m{number}" for number in range(8)]


def _plan(drawn: Drawn) -> PlannedPipeline | None:
    try:
        return planned(drawn.pipeline, {**drawn.counts, "reader": 1})
    except PartitionCountConflictError:
        return None


@given(pipelines())
def test_a_plan_is_read_back_shown_and_does_not_contradict_itself(drawn: Drawn) -> None:
    made = _plan(drawn)
    if made is not None:
        text = to_text(made.plan)
        assert from_text(text) == made.plan
        assert to_text(from_text(text)) == text
        assert find_contradictions(made.plan, made.plan) == ()
        written = [stage.writes for stage in made.plan.stages]
        for number, stage in enumerate(made.plan.stages):
            assert not set(stage.reads) & set(written[number:])
        shown, picture = made.explain(), made.mermaid()
        for stream in made.plan.streams:
            assert str(stream.stream) in shown
            assert stream.stream.stream in picture


@given(pipelines(), st.integers(2, 5), st.sets(st.sampled_from(NAMES)))
def test_once_created_the_streams_give_the_same_plan_and_may_multiply(
    drawn: Drawn, factor: int, names: set[str]
) -> None:
    first = _plan(drawn)
    if first is None:
        return
    counts = {
        str(stream.stream): stream.partitions
        for stream in first.plan.streams
        if stream.partitions is not None
    }
    again = planned(drawn.pipeline, counts, recorded=first.plan)
    assert find_contradictions(first.plan, again.plan) == ()
    assert {s.stream: s.partitions for s in again.plan.streams} == {
        s.stream: s.partitions for s in first.plan.streams
    }
    which = {f"kafka/{name}" for name in names}
    grown = {name: counts[name] * factor if name in which else counts[name] for name in counts}
    more = planned(drawn.pipeline, grown, recorded=again.plan)
    assert find_contradictions(again.plan, more.plan) == ()
    assert {s.stream: s.tasks for s in more.plan.streams} == {
        s.stream: s.tasks for s in again.plan.streams
    }


@given(pipelines(), st.integers(1, 5), st.sets(st.sampled_from(NAMES)), st.data())
def test_streams_that_are_gone_are_created_again_as_they_were(
    drawn: Drawn, factor: int, names: set[str], data: st.DataObject
) -> None:
    """Also if others have multiplied meanwhile."""
    first = _plan(drawn)
    if first is None:
        return
    made = [s for s in first.plan.streams if s.role is Role.INTERMEDIATE]
    gone = data.draw(st.sets(st.sampled_from(made)) if made else st.just(set()))
    event(f"gone: {len(gone)}")
    counts = {
        str(s.stream): s.partitions * (factor if s.stream.stream in names else 1)
        for s in first.plan.streams
        if s.partitions is not None and s not in gone
    }
    for recorded in (first.plan, planned(drawn.pipeline, counts, recorded=first.plan).plan):
        again = planned(drawn.pipeline, counts, recorded=recorded)
        assert find_contradictions(recorded, again.plan) == ()
        for stream in gone:
            assert again.plan.stream(stream.stream).partitions == stream.partitions
