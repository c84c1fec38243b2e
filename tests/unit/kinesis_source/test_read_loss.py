"""The rule by which records count as lost, against a naive model of a shard that is trimmed."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.data_loss import Evidence, Verdict, admit_child, judge

RETENTION_MS = 60_000
CREATED = EpochMillis(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A shard, what a query knew of it, and what it finds in the end. `arrivals` are the records'
    times; the query has read those below `read`. Records below `trimmed` are gone. `told` is the
    time as the service told it, `now` as it was."""

    arrivals: tuple[int, ...]
    read: int
    trimmed: int
    now: int
    told: int
    start: ShardState
    begun: bool

    @property
    def found(self) -> SequenceNumber | None:
        """The first record at the start or behind it."""
        lowest = max(self.trimmed, self.read - isinstance(self.start.position, AfterRecord))
        return number(lowest) if lowest < len(self.arrivals) else None

    @property
    def lost(self) -> bool:
        """Whether a record is gone that the query was to read."""
        return self.begun and self.trimmed > self.read

    @property
    def provably_whole(self) -> bool:
        """Whether what the query knows rules out that a record is gone."""
        state = self.start
        position = state.position
        anchor = position.sequence_number if isinstance(position, AfterRecord) else state.first
        met = anchor is not None and anchor == self.found
        return met or (
            state.last_caught_up_ms is not None
            and self.told - state.last_caught_up_ms < RETENTION_MS - CLOCK_UNCERTAINTY_MS
        )


def number(index: int) -> SequenceNumber:
    return SequenceNumber(str(100 + index))


NEAR = st.sampled_from([-2_500, -2_000, -1_000, -1, 0, 1, 1_000, 1_999, 2_500, 70_000])
"""What happens close to the end of the retention matters most."""


@st.composite
def lives(draw: st.DrawFn) -> Life:
    gaps = draw(st.lists(st.sampled_from([0, 1, 900, 2_000, 30_000]), max_size=4))
    arrivals = tuple(sum(gaps[: index + 1]) for index in range(len(gaps)))
    read = draw(st.just(0) | st.integers(0, len(arrivals)))
    begun = bool(read) or draw(st.booleans())
    # At any time between two records the query may have seen that none followed, by a clock that
    # is told late.
    before = arrivals[read - 1] if read else 0
    after = arrivals[read] if read < len(arrivals) else before + 30_000
    seen_at = draw(st.none() | st.integers(before, after))
    told_late = st.integers(0, CLOCK_UNCERTAINTY_MS - 1)
    seen = None if seen_at is None else EpochMillis(max(0, seen_at - draw(told_late)))
    then = draw(st.sampled_from([0, before, after, *arrivals, seen_at or 0]))
    now = max(after, then + RETENTION_MS + draw(NEAR))
    # The service may keep a record for longer than it promises, never for less.
    expired = sum(arrival + RETENTION_MS <= now for arrival in arrivals)
    trimmed = draw(st.just(expired) | st.integers(0, expired))
    position: Position = AtTimestamp(millis=EpochMillis(0))
    if read:
        position = AfterRecord(sequence_number=number(read - 1))
    elif draw(st.booleans()):
        position = TrimHorizon()
    first = number(0) if not read and arrivals and draw(st.booleans()) else None
    start = ShardState(position=position, last_caught_up_ms=seen, first=first)
    if begun:
        start = admit_child(start, CREATED)
    return Life(
        arrivals=arrivals,
        read=read,
        trimmed=trimmed,
        now=now,
        told=now - draw(told_late),
        start=start,
        begun=begun or start.last_caught_up_ms is not None,
    )


@given(lives())
def test_no_lost_record_is_overlooked_and_none_is_called_lost_that_cannot_be(life: Life) -> None:
    evidence = Evidence(found=life.found, time=EpochMillis(life.told), kept_ms=RETENTION_MS)
    verdict = judge(life.start, evidence)
    if life.lost:
        assert verdict is Verdict.LOST
    if life.provably_whole:
        assert verdict is Verdict.WHOLE
    if not life.begun:
        assert verdict in (Verdict.WHOLE, Verdict.NOT_PROMISED)


@given(lives(), st.booleans())
def test_a_shard_that_has_not_been_begun_is_whole_while_a_parent_is_listed(
    life: Life, recreated: bool
) -> None:
    evidence = Evidence(
        found=life.found,
        time=EpochMillis(life.told),
        kept_ms=RETENTION_MS,
        parent_listed=True,
        recreated=recreated,
    )
    verdict = judge(life.start, evidence)
    if recreated:
        assert verdict is Verdict.RECREATED
    elif isinstance(life.start.position, TrimHorizon):
        assert verdict is Verdict.WHOLE
