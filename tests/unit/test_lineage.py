"""Which shards may be read: parents before children, across splits, merges and expiry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.lineage import Lineage, UnnamedShardError, advance, split_waiting, start_points
from kinesis_source.model import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)
from task_grouping.identifiers import ShardId, StreamName
from tests.support.planning import listed, shard_id
from tests.support.shards import key

ORDERS = StreamName("orders")
READING = AfterRecord(sequence_number=SequenceNumber("7"))
END, TRIM, LATEST = ShardEnd(), TrimHorizon(), Latest()
NOON = AtTimestamp(millis=EpochMillis(1_700_000_000_000))

Positions = Mapping[int, Position]


def states(positions: Positions) -> dict[ShardId, ShardState]:
    return {shard_id(n): ShardState(position=position) for n, position in positions.items()}


def closed(number: int, *parents: int) -> Shard:
    return listed(number, *parents, closed=True)


def number(shard: ShardId) -> int:
    return int(shard[-12:])


def positions(entries: Mapping[ShardId, ShardState]) -> dict[int, Position]:
    return {number(shard): state.position for shard, state in entries.items()}


def gone(lineage: Lineage) -> list[int]:
    return [number(shard) for shard in lineage.vanished]


# --- One step, case by case -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    shards: Sequence[Shard]
    states: Positions = field(default_factory=dict)
    waiting: Positions = field(default_factory=dict)
    then: Positions
    still_waiting: Positions = field(default_factory=dict)
    vanished: Sequence[int] = ()
    undiscovered: bool = False


SPLIT = [closed(0), listed(1, 0), listed(2, 0)]
MERGE = [closed(0), closed(1), listed(2, 0, 1)]
CHAIN = [closed(0), closed(1, 0), closed(2, 1), listed(3, 2)]

CASES = {
    "nothing is listed": Case(shards=[], then={}),
    "open shards stay": Case(
        shards=[listed(0), listed(1)], states={0: READING, 1: TRIM}, then={0: READING, 1: TRIM}
    ),
    "a shard without parents is let in": Case(
        shards=[listed(0), listed(1)], states={0: READING}, then={0: READING, 1: TRIM}
    ),
    "children wait for a parent that is being read": Case(
        shards=SPLIT, states={0: READING}, then={0: READING}
    ),
    "children wait for a parent that has not begun": Case(
        shards=SPLIT, states={0: TRIM}, then={0: TRIM}
    ),
    "children come in when their parent is read, and it leaves": Case(
        shards=SPLIT, states={0: END}, then={1: TRIM, 2: TRIM}
    ),
    "a merge waits for both of its parents": Case(
        shards=MERGE, states={0: END, 1: READING}, then={0: END, 1: READING}
    ),
    "a merge comes in after both of its parents": Case(
        shards=MERGE, states={0: END, 1: END}, then={2: TRIM}
    ),
    "a chain is walked a generation at a time": Case(shards=CHAIN, states={0: END}, then={1: TRIM}),
    "ancestors of an entry are finished, not new": Case(
        shards=CHAIN, states={2: READING}, then={2: READING}
    ),
    "a sibling listed late comes in although the parent has left": Case(
        shards=SPLIT, states={1: READING}, then={1: READING, 2: TRIM}
    ),
    "no child listed: the parent stays and asks for them": Case(
        shards=[closed(0), listed(5)],
        states={0: END, 5: READING},
        then={0: END, 5: READING},
        undiscovered=True,
    ),
    "one of two children listed: the parent leaves": Case(
        shards=[closed(0), listed(1, 0)], states={0: END}, then={1: TRIM}
    ),
    "a child whose parent has expired unseen is let in": Case(
        shards=[listed(1, 0), listed(2, 0)], states={1: READING}, then={1: READING, 2: TRIM}
    ),
    "both parents of a merge expired": Case(shards=[listed(2, 0, 1)], then={2: TRIM}),
    "one parent expired, the other being read": Case(
        shards=[closed(1), listed(2, 0, 1)], states={1: READING}, then={1: READING}
    ),
    "one parent expired, the other read": Case(
        shards=[closed(1), listed(2, 0, 1)], states={1: END}, then={2: TRIM}
    ),
    "one parent expired, the other new": Case(shards=[closed(1), listed(2, 0, 1)], then={1: TRIM}),
    "a finished entry that has expired leaves in silence": Case(
        shards=[listed(5)], states={0: END, 5: READING}, then={5: READING}
    ),
    "an entry that expired unread has vanished": Case(
        shards=[listed(5)], states={0: READING, 5: READING}, then={5: READING}, vanished=[0]
    ),
    "children of a vanished parent come in a step later": Case(
        shards=[listed(1, 0), listed(2, 0)], states={0: READING}, then={}, vanished=[0]
    ),
    "a waiting shard that expired has vanished too": Case(
        shards=[closed(0), listed(5)],
        states={0: READING, 5: READING},
        waiting={1: NOON},
        then={0: READING, 5: READING},
        vanished=[1],
    ),
    "a waiting shard keeps its start": Case(
        shards=CHAIN,
        states={0: READING},
        waiting={1: NOON, 2: NOON, 3: READING},
        then={0: READING},
        still_waiting={1: NOON, 2: NOON, 3: READING},
    ),
    "a waiting shard comes in with its start": Case(
        shards=CHAIN,
        states={0: END},
        waiting={1: NOON, 2: NOON, 3: READING},
        then={1: NOON},
        still_waiting={2: NOON, 3: READING},
    ),
    "a waiting child counts as an entry of its parent": Case(
        shards=MERGE,
        states={0: END, 1: READING},
        waiting={2: NOON},
        then={1: READING},
        still_waiting={2: NOON},
    ),
    "a skipped shard that waits is not done before its own parent is": Case(
        shards=[closed(0), closed(1, 0), listed(2, 1)],
        states={0: READING},
        waiting={1: END},
        then={0: READING},
        still_waiting={1: END},
    ),
    "a skipped shard that comes in is done a step later": Case(
        shards=[closed(0), closed(1, 0), listed(2, 1)],
        states={0: END},
        waiting={1: END},
        then={1: END},
    ),
    "a skipped generation still waits for the one before it": Case(
        shards=CHAIN,
        states={0: READING},
        waiting={3: READING},
        then={0: READING},
        still_waiting={3: READING},
    ),
    "a skipped generation is done with the one before it": Case(
        shards=CHAIN, states={0: END}, waiting={3: READING}, then={3: READING}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_step(name: str) -> None:
    case = CASES[name]
    lineage = advance(case.shards, states(case.states), states(case.waiting))
    assert positions(lineage.states) == case.then
    assert positions(lineage.waiting) == case.still_waiting
    assert gone(lineage) == list(case.vanished)
    assert lineage.undiscovered_children == case.undiscovered


@pytest.mark.parametrize("name", CASES)
def test_a_step_does_not_depend_on_the_order_of_anything(name: str) -> None:
    case = CASES[name]
    one = advance(case.shards, states(case.states), states(case.waiting))
    other = advance(
        case.shards[::-1],
        dict(reversed(states(case.states).items())),
        dict(reversed(states(case.waiting).items())),
    )
    assert one == other
    assert list(one.states) == sorted(other.states)
    assert list(one.waiting) == sorted(other.waiting)


def test_what_was_known_of_a_shard_is_kept() -> None:
    state = ShardState(position=READING, seen=EpochMillis(5), first=SequenceNumber("3"))
    waits = ShardState(position=NOON, seen=EpochMillis(9))
    lineage = advance(
        [listed(0), closed(1), listed(2, 1)],
        {shard_id(0): state, shard_id(1): ShardState(position=TRIM)},
        {shard_id(2): waits},
    )
    assert lineage.states[shard_id(0)] is state
    assert lineage.waiting[shard_id(2)] is waits


# --- The start ------------------------------------------------------------------------------------


def starts(
    shards: Sequence[Shard], default: StartPoint | None, by_shard: Mapping[int, StartPoint]
) -> dict[int, StartPoint | ShardEnd]:
    start = StartingPosition(
        default=default, by_shard={key(n): point for n, point in by_shard.items()}
    )
    points = start_points(ORDERS, shards, start)
    return {number(shard): point for shard, point in points.items()}


@pytest.mark.parametrize(
    ("shards", "default", "by_shard", "expected"),
    [
        ([], TRIM, {}, {}),
        (SPLIT, TRIM, {}, {0: TRIM}),
        (MERGE, TRIM, {}, {0: TRIM, 1: TRIM}),
        (CHAIN[1:], TRIM, {}, {1: TRIM}),
        ([closed(1), listed(2, 0, 1)], TRIM, {}, {1: TRIM}),
        (SPLIT, LATEST, {}, {1: LATEST, 2: LATEST}),
        (CHAIN, LATEST, {}, {3: LATEST}),
        ([closed(0), listed(5)], LATEST, {}, {0: END, 5: LATEST}),
        (SPLIT, NOON, {}, {0: NOON, 1: NOON, 2: NOON}),
        (SPLIT, LATEST, {0: TRIM}, {0: TRIM, 1: LATEST, 2: LATEST}),
        (SPLIT, TRIM, {1: LATEST}, {0: TRIM, 1: LATEST, 2: TRIM}),
        (SPLIT, TRIM, {1: READING}, {0: TRIM, 1: READING, 2: TRIM}),
        (SPLIT, None, {0: TRIM, 1: NOON, 2: READING}, {0: TRIM, 1: NOON, 2: READING}),
    ],
)
def test_where_the_shards_of_a_new_stream_start(
    shards: Sequence[Shard],
    default: StartPoint | None,
    by_shard: Mapping[int, StartPoint],
    expected: Mapping[int, StartPoint | ShardEnd],
) -> None:
    assert starts(shards, default, by_shard) == expected


def test_a_shard_without_a_position_is_an_error_that_names_it() -> None:
    with pytest.raises(UnnamedShardError) as caught:
        starts(SPLIT, None, {0: TRIM})
    assert str(caught.value) == (
        "[invalid-options] option startingPosition, stream orders: found no position for "
        "shardId-000000000001, shardId-000000000002; expected a position for each shard of the "
        'stream, or a default for the rest. Next step: name them, or add "default": '
        '"trim_horizon" (or another position)'
    )


def test_a_long_list_of_shards_without_a_position_is_cut() -> None:
    with pytest.raises(UnnamedShardError, match=r"shardId-000000000009 and 4990 more;"):
        starts([listed(n) for n in range(5000)], None, {})


def test_a_position_for_a_shard_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UnnamedShardError) as caught:
        starts(SPLIT, TRIM, {7: TRIM, 1: LATEST})
    assert "shardId-000000000007, which the stream does not have" in caught.value.found
    assert "shardId-000000000001" not in caught.value.found


def test_a_position_for_another_streams_shard_is_no_error() -> None:
    start = StartingPosition(default=TRIM, by_shard={key(7, "clicks"): LATEST})
    assert start_points(ORDERS, SPLIT, start) == {shard_id(n): TRIM for n in range(3)}


@pytest.mark.parametrize(
    ("shards", "entries", "reading", "waiting"),
    [
        (SPLIT, {0: TRIM}, {0: TRIM}, {}),
        (SPLIT, {0: NOON, 1: NOON, 2: NOON}, {0: NOON}, {1: NOON, 2: NOON}),
        (SPLIT, {1: READING, 2: READING}, {1: READING, 2: READING}, {}),
        (CHAIN, {0: TRIM, 3: READING}, {0: TRIM}, {3: READING}),
        ([closed(0), listed(5)], {0: END, 5: NOON}, {0: END, 5: NOON}, {}),
        (MERGE, {0: NOON, 1: NOON, 2: NOON}, {0: NOON, 1: NOON}, {2: NOON}),
    ],
)
def test_the_entries_of_a_new_stream_are_parted(
    shards: Sequence[Shard], entries: Positions, reading: Positions, waiting: Positions
) -> None:
    now, later = split_waiting(shards, states(entries))
    assert (positions(now), positions(later)) == (reading, waiting)


# --- Whole histories ------------------------------------------------------------------------------


class Stream:
    """A stream that is split and merged at random; shards by number."""

    def __init__(self, count: int) -> None:
        self.parents: dict[int, tuple[int, ...]] = dict.fromkeys(range(count), ())
        self.open = list(range(count))
        self.expired: set[int] = set()
        self.hidden: set[int] = set()
        """Born but not listed yet: listings are behind, never with a gap in a line of descent."""

    def reshard(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.open) - 1))
        old = self.open[place : place + 1 + data.draw(st.integers(0, 1))]
        count = 1 if len(old) == 2 else 2
        born = list(range(len(self.parents), len(self.parents) + count))
        for number in born:
            self.parents[number] = tuple(old)
            if data.draw(st.booleans()) or self.hidden.intersection(old):
                self.hidden.add(number)
        self.open[place : place + len(old)] = born

    def listing(self) -> list[Shard]:
        return [
            listed(number, *parents, closed=number not in self.open)
            for number, parents in self.parents.items()
            if number not in self.expired | self.hidden
        ]

    def ancestors(self, number: int) -> set[int]:
        found: set[int] = set()
        frontier = [number]
        while frontier:
            for parent in self.parents[frontier.pop()]:
                if parent not in found:
                    found.add(parent)
                    frontier.append(parent)
        return found

    def expire(self, finished: set[int]) -> None:
        """All that is finished, with all that came before it. No listing is so far behind that a
        shard expires before its children are listed."""
        waited_for = {parent for shard in self.hidden for parent in self.parents[shard]}
        self.expired |= {
            shard
            for shard in finished - waited_for - set(self.open)
            if self.ancestors(shard) <= finished | self.expired
        }


class Query:
    """What a query does with `advance`, and in which order it meets the shards."""

    def __init__(self, stream: Stream, starting: StartingPosition) -> None:
        self.stream = stream
        listing = stream.listing()
        points = start_points(ORDERS, listing, starting)
        self.skipped = {
            number(shard.shard_id)
            for shard in listing
            if shard.closed
            and isinstance(
                starting.by_shard.get(key(number(shard.shard_id)), starting.default), Latest
            )
        }
        """The user said LATEST, and nothing can come later."""
        self.not_wanted = self.skipped | stream.expired
        self.begun: list[int] = []
        self.done: set[int] = set()
        entries = {
            shard: ShardState(position=READING if isinstance(point, Latest) else point)
            for shard, point in points.items()
        }
        self.reading, self.waiting = split_waiting(listing, entries)
        self._meet()

    def _meet(self) -> None:
        for shard, position in positions(self.reading).items():
            if shard not in self.begun and not isinstance(position, ShardEnd):
                unread = self.stream.ancestors(shard) - self.not_wanted - self.done
                assert not unread, f"{shard} before its ancestors {unread}"
                self.begun.append(shard)

    def step(self) -> None:
        lineage = advance(self.stream.listing(), self.reading, self.waiting)
        assert not lineage.vanished
        for shard in self.reading.keys() - lineage.states.keys():
            assert isinstance(self.reading[shard].position, ShardEnd)
        self.reading, self.waiting = lineage.states, lineage.waiting
        self._meet()
        self._no_entry_without_use()

    def read(self, which: Sequence[int]) -> None:
        """Read and commit these shards to their ends, where they are closed."""
        for shard in positions(self.reading).keys() & set(which) - set(self.stream.open):
            self.reading[shard_id(shard)] = ShardState(position=END)
            self.done.add(shard)

    def _no_entry_without_use(self) -> None:
        """Entries at SHARD_END stand for children that may not come in yet, or are not listed."""
        begun = {*positions(self.reading), *positions(self.waiting)}
        begun |= {older for shard in begun for older in self.stream.ancestors(shard)}
        for shard, position in positions(self.reading).items():
            if isinstance(position, ShardEnd):
                own = [
                    number(child.shard_id)
                    for child in self.stream.listing()
                    if shard_id(shard) in child.parents
                ]
                assert not own or not begun.issuperset(own)


_points: st.SearchStrategy[StartPoint] = st.sampled_from([TRIM, LATEST, NOON, READING])


def _stream_with_a_past(data: st.DataObject) -> Stream:
    stream = Stream(data.draw(st.integers(1, 4)))
    for _ in range(data.draw(st.integers(0, 6))):
        stream.reshard(data)
    if data.draw(st.booleans()):
        stream.hidden.clear()
    stream.expire(data.draw(st.sets(st.sampled_from(sorted(stream.parents)))))
    return stream


def _anywhere(data: st.DataObject, stream: Stream) -> StartingPosition:
    shards = [key(number(shard.shard_id)) for shard in stream.listing()]
    return StartingPosition(
        default=data.draw(_points),
        by_shard=data.draw(st.dictionaries(st.sampled_from(shards), _points, max_size=3)),
    )


@given(data=st.data())
def test_every_shard_is_read_once_after_all_its_ancestors(data: st.DataObject) -> None:
    """Reshards before the start and after it, listings that are behind, shards that expire."""
    stream = _stream_with_a_past(data)
    query = Query(stream, _anywhere(data, stream))
    for _ in range(data.draw(st.integers(0, 12))):
        match data.draw(st.sampled_from(["reshard", "read", "read", "reveal", "expire"])):
            case "reshard":
                stream.reshard(data)
            case "read":
                query.read(data.draw(st.lists(st.sampled_from(sorted(stream.parents)))))
            case "reveal":
                stream.hidden.clear()
            case "expire":
                stream.expire(query.done | query.skipped)
        query.step()
    stream.hidden.clear()
    for _ in range(len(stream.parents) + 1):
        query.read(list(stream.parents))
        query.step()

    assert sorted(query.begun) == sorted(stream.parents.keys() - query.not_wanted)
    assert set(positions(query.reading)) == set(stream.open)
    assert not query.waiting


def test_a_long_line_of_descent_needs_no_deep_stack() -> None:
    generations = 20_000
    shards = [closed(0), *(closed(n, n - 1) for n in range(1, generations))]
    shards.append(listed(generations, generations - 1))
    lineage = advance(shards, states({0: READING}), states({generations: READING}))
    assert positions(lineage.waiting) == {generations: READING}
    lineage = advance(shards, states({0: END}), states({generations: READING}))
    assert positions(lineage.states) == {generations: READING}
