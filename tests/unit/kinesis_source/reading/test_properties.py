"""With any pages and faults, a range yields the naive slice of its shards, each time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import DataLossError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.ranges import ExpectedSize, RangeEnd, RangeStart, ShardRange
from spark_ssp.kinesis_source.model.shard import AfterRecord, EpochMillis, ShardEnd, TrimHorizon
from tests.support.fakes.scripted import (
    NOW,
    Empty,
    Page,
    Rec,
    ScriptedService,
    ScriptedShard,
    Step,
    expire,
    throttle,
)
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kinesis.reading import Row, read, shard_range
from tests.support.kinesis.shards import after


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A shard, a range of it, and the user records of the shard in order."""

    range: ShardRange
    records: tuple[Rec, ...]
    users: tuple[Row, ...]
    closed: bool

    @property
    def expected(self) -> list[Row]:
        return [row for row in self.users if _lies_within(row, self.range)]

    @property
    def whole_records(self) -> list[tuple[int, bytes]]:
        """Return the expected rows without de-aggregation: each record with unread parts."""
        start, end = self.range.start, self.range.end
        unread = {
            row.sequence
            for row in self.users
            if not isinstance(start, AfterRecord) or (row.sequence, row.sub) > _place(start)
        }
        return [
            (record.sequence, record.data)
            for record in self.records
            if record.sequence in unread
            and (not isinstance(end, AfterRecord) or record.sequence <= int(end.sequence_number))
        ]


def _lies_within(row: Row, range_: ShardRange) -> bool:
    place = (row.sequence, row.sub)
    start, end = range_.start, range_.end
    return (not isinstance(start, AfterRecord) or place > _place(start)) and (
        not isinstance(end, AfterRecord) or place <= _place(end)
    )


def _place(position: AfterRecord) -> tuple[int, int]:
    return int(position.sequence_number), position.sub


@st.composite
def cases(draw: st.DrawFn, shard: ShardId) -> Case:
    records: list[Rec] = []
    users: list[Row] = []
    sequence = draw(st.integers(1, 10**6))
    for step, user_count in draw(
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=25)
    ):
        sequence += step
        held = [
            Put(partition_key=f"u{n}", data=b"%d.%d" % (sequence, n)) for n in range(user_count)
        ]
        data = aggregate(held) if held else b"%d" % sequence
        records.append(Rec(sequence=sequence, data=data, key="k"))
        users.extend(
            Row(shard, sequence, sub, put.partition_key, put.data) for sub, put in enumerate(held)
        )
        if not held:
            users.append(Row(shard, sequence, 0, "k", data))
    places = [(row.sequence, row.sub) for row in users]
    begin = draw(st.none() | st.integers(0, len(places) - 1))
    finish = draw(st.none() | st.integers(begin or 0, len(places) - 1))
    first = records[0].sequence if begin is None and draw(st.booleans()) else None
    start: RangeStart = TrimHorizon() if begin is None else after(*places[begin])
    end: RangeEnd = ShardEnd() if finish is None else after(*places[finish])
    expected = draw(
        st.none()
        | st.builds(
            ExpectedSize, records=st.integers(0, 60), size_bytes=st.none() | st.integers(0, 10**8)
        )
    )
    return Case(
        range=shard_range(shard, start, end, first=first, expected=expected),
        records=tuple(records),
        users=tuple(users),
        closed=finish is None or draw(st.booleans()),
    )


SLOTS = st.integers(1, 3).flatmap(
    lambda count: st.tuples(*(cases(ShardId(f"shardId-{number:012}")) for number in range(count)))
)
LIMITS = st.sampled_from([1, 3_000, 64 << 20])


@st.composite
def scripts(draw: st.DrawFn) -> deque[Step]:
    """Pages and faults, never as many faults in a row as make the reader give up."""
    blocks = draw(
        st.lists(
            st.one_of(
                st.integers(1, 4).map(lambda n: [Page(n)]),
                st.integers(1, 3_000).map(lambda behind: [Empty(behind)]),
                st.integers(1, 3).map(lambda n: [throttle() for _ in range(n)] + [Page(1)]),
                st.integers(1, 3).map(lambda n: [expire() for _ in range(n)] + [Page(2)]),
            ),
            max_size=20,
        )
    )
    return deque(step for block in blocks for step in block)


def service_of(slot: Sequence[Case], data: st.DataObject) -> ScriptedService:
    return ScriptedService(
        ScriptedShard(
            shard_id=case.range.shard,
            records=list(case.records),
            closed=case.closed,
            script=data.draw(scripts(), label=f"script of {case.range.shard}"),
        )
        for case in slot
    )


def rows_by_shard(rows: Sequence[Row], slot: Sequence[Case]) -> list[list[Row]]:
    return [[row for row in rows if row.shard == case.range.shard] for case in slot]


@given(SLOTS, LIMITS, st.integers(1, 30), st.data())
def test_a_slot_gives_the_naive_slice_and_a_replay_the_same(
    slot: tuple[Case, ...], limit: int, page: int, data: st.DataObject
) -> None:
    for _ in range(2):
        rows = read(
            service_of(slot, data),
            *(case.range for case in slot),
            max_bytes_in_flight=limit,
            max_records_per_fetch=page,
        )
        assert rows_by_shard(rows, slot) == [case.expected for case in slot]


@given(SLOTS, st.data())
def test_without_de_aggregation_kinesis_records_come_whole(
    slot: tuple[Case, ...], data: st.DataObject
) -> None:
    rows = read(service_of(slot, data), *(case.range for case in slot), deaggregate=False)
    found = [[(row.sequence, row.data) for row in part] for part in rows_by_shard(rows, slot)]
    assert found == [case.whole_records for case in slot]


@given(cases(ShardId("shardId-000000000000")), st.data())
def test_successive_ranges_join_without_gap_or_overlap(case: Case, data: st.DataObject) -> None:
    places = sorted(
        data.draw(st.sets(st.integers(0, len(case.users) - 1), min_size=1), label="ends")
    )
    ends = [after(case.users[place].sequence, case.users[place].sub) for place in places]
    starts: list[RangeStart] = [TrimHorizon(), *ends[:-1]]
    rows = [
        row
        for start, end in zip(starts, ends, strict=True)
        for row in read(service_of([case], data), replace(case.range, start=start, end=end))
    ]
    assert rows == list(case.users[: places[-1] + 1])


@given(cases(ShardId("shardId-000000000000")), st.data())
def test_trimmed_records_are_never_missed_in_silence(case: Case, data: st.DataObject) -> None:
    first = case.records[0].number if isinstance(case.range.start, TrimHorizon) else None
    range_ = replace(case.range, expect_first=first, start_caught_up_ms=EpochMillis(0))
    horizon = data.draw(
        st.sampled_from([record.sequence for record in case.records] + [1 << 100]), label="trim"
    )

    def service() -> ScriptedService:
        scripted = service_of([case], data)
        scripted.shards[range_.shard].trim(horizon)
        return scripted

    left = [row for row in case.expected if row.sequence >= horizon]
    start, lowest = range_.start, case.records[0].sequence
    if isinstance(start, AfterRecord):
        lowest = int(start.sequence_number)
    if lowest >= horizon:
        assert read(service(), range_) == case.expected
        return
    with pytest.raises(DataLossError):
        read(service(), range_)
    assert read(service(), range_, fail_on_data_loss=False) == left
    end = range_.end
    end_is_there = isinstance(end, ShardEnd) or int(end.sequence_number) >= horizon
    if isinstance(start, TrimHorizon) and end_is_there:
        # Records trimmed before the query had read any record are not a loss.
        assert read(service(), replace(range_, start_caught_up_ms=None)) == left
    if left == case.expected and left and isinstance(start, AfterRecord):
        # Only records read before are gone, which is proven.
        assert read(service(), replace(range_, start_caught_up_ms=NOW)) == case.expected
