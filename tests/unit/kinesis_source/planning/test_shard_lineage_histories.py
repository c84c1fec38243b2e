"""Random histories of reshards: every shard is read once, after all its ancestors."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Latest,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
    StartPoint,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import advance_lineage
from spark_ssp.kinesis_source.probing.initial_positions import split_waiting, start_points
from tests.support.kinesis.planning import listed, number, positions, shard_id, states
from tests.support.kinesis.shards import key

ORDERS = StreamName("orders")
READING = AfterRecord(sequence_number=SequenceNumber("7"))
END, TRIM, LATEST = ShardEnd(), TrimHorizon(), Latest()
NOON = AtTimestamp(millis=EpochMillis(1_700_000_000_000))


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
        for shard in born:
            self.parents[shard] = tuple(old)
            if data.draw(st.booleans()) or self.hidden.intersection(old):
                self.hidden.add(shard)
        self.open[place : place + len(old)] = born

    def listing(self) -> list[Shard]:
        return [
            listed(shard, *parents, closed=shard not in self.open)
            for shard, parents in self.parents.items()
            if shard not in self.expired | self.hidden
        ]

    def ancestors(self, shard: int) -> set[int]:
        found: set[int] = set()
        pending = [shard]
        while pending:
            for parent in self.parents[pending.pop()]:
                if parent not in found:
                    found.add(parent)
                    pending.append(parent)
        return found

    def expire(self, finished: set[int]) -> None:
        """All that is finished, with all that came before it. No listing is so far behind that a
        shard expires before its children are listed."""
        waited_for = {parent for shard in self.hidden for parent in self.parents[shard]}
        may = finished - waited_for - set(self.open)
        self.expired |= {shard for shard in may if self.ancestors(shard) <= may | self.expired}


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
        lineage = advance_lineage(self.stream.listing(), self.reading, self.waiting)
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
    shards = [
        listed(0, closed=True),
        *(listed(n, n - 1, closed=True) for n in range(1, generations)),
    ]
    shards.append(listed(generations, generations - 1))
    lineage = advance_lineage(shards, states({0: READING}), states({generations: READING}))
    assert positions(lineage.waiting) == {generations: READING}
    lineage = advance_lineage(shards, states({0: END}), states({generations: READING}))
    assert positions(lineage.states) == {generations: READING}
