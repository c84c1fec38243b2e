"""The verdict on a given position, against a shard of which everything is known."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import HashRange, ShardId
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    SequenceNumber,
    Shard,
    ShardEnd,
    ShardState,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.given_positions import (
    DOUBT_MS,
    PositionVerdict,
    judge_position,
)
from spark_ssp.kinesis_source.probing.probe_protocol import PositionAnswer

RETENTION_MS = 86_400_000
NOW = EpochMillis(1_700_000_000_000)
FIRST, END = 100, 200


@dataclass(frozen=True)
class Known:
    """A shard with records `left` after those `trimmed`; `strict`: foreign numbers are refused."""

    trimmed: list[int]
    left: list[int]
    closed: bool
    strict: bool
    position: int
    seen_ago: int | None

    @property
    def shard(self) -> Shard:
        return Shard(
            shard_id=ShardId("shardId-000000000000"),
            hash_range=HashRange(first=0, last=1),
            first_sequence_number=SequenceNumber(str(FIRST)),
            closed=self.closed,
            ending_sequence_number=SequenceNumber(str(END)) if self.closed else None,
        )

    @property
    def state(self) -> ShardState:
        seen = None if self.seen_ago is None else EpochMillis(NOW - self.seen_ago)
        number = SequenceNumber(str(self.position))
        return ShardState(position=AfterRecord(sequence_number=number), last_caught_up_ms=seen)

    @property
    def is_possible(self) -> bool:
        """Return whether the number is one of the shard, as the service knows."""
        last = END if self.closed else max([FIRST, *self.trimmed, *self.left])
        return FIRST <= self.position <= last

    def answer(self) -> PositionAnswer:
        if self.strict and not self.is_possible:
            return PositionAnswer(refused="a refusal", time=NOW)
        found = next((n for n in self.left if n >= self.position), None)
        return PositionAnswer(
            found=None if found is None else SequenceNumber(str(found)),
            oldest=SequenceNumber(str(self.left[0])) if self.left else None,
            time=NOW,
        )

    def verdict(self, doubted_ms: int | None = DOUBT_MS) -> PositionVerdict:
        return judge_position(
            self.state,
            self.shard,
            self.answer(),
            kept_ms=RETENTION_MS,
            doubted_ms=doubted_ms,
        )


@st.composite
def shards(draw: st.DrawFn) -> Known:
    numbers = sorted(draw(st.sets(st.integers(FIRST + 1, END - 1), max_size=8)))
    gone = draw(st.integers(0, len(numbers)))
    return Known(
        trimmed=numbers[:gone],
        left=numbers[gone:],
        closed=draw(st.booleans()),
        strict=draw(st.booleans()),
        position=draw(st.sampled_from([*numbers, FIRST, END]) | st.integers(FIRST - 20, END + 20)),
        seen_ago=draw(st.none() | st.integers(0, 2 * RETENTION_MS)),
    )


@given(shards())
def test_the_verdict_is_the_truth_about_the_shard(known: Known) -> None:
    verdict = known.verdict()
    fresh = known.seen_ago is not None and known.seen_ago < RETENTION_MS - CLOCK_UNCERTAINTY_MS
    if known.position in known.left:
        assert verdict is PositionVerdict.ACCEPTED
    elif known.closed and known.position == END:
        assert verdict is PositionVerdict.SHARD_END
    elif known.position == FIRST:
        assert verdict is PositionVerdict.SHARD_START
    elif known.strict and not known.is_possible:
        assert verdict is PositionVerdict.REFUSED
    elif known.position in known.trimmed:
        assert verdict is (PositionVerdict.ACCEPTED if fresh else PositionVerdict.LOST)
    elif known.position < FIRST or (known.left and known.left[0] < known.position):
        assert verdict is PositionVerdict.WRONG
    else:  # it may have been a record that was trimmed
        assert verdict in {PositionVerdict.ACCEPTED, PositionVerdict.LOST}


@given(shards())
def test_nothing_is_left_out_silently(known: Known) -> None:
    """An accepted position has all records after it, and the shard none before it that it would
    have returned otherwise."""
    if known.verdict() is PositionVerdict.ACCEPTED and known.position not in known.left:
        assert known.seen_ago is not None
        assert not known.left or known.left[0] > known.position


@given(shards())
def test_no_answer_is_no_verdict(known: Known) -> None:
    verdict = judge_position(known.state, known.shard, None, kept_ms=RETENTION_MS)
    assert verdict is PositionVerdict.UNKNOWN
    if known.verdict(None) is not known.verdict():
        assert known.verdict(None) is PositionVerdict.UNKNOWN


@given(
    shards(),
    st.sampled_from([TrimHorizon(), ShardEnd(), AtTimestamp(millis=NOW)]),
)
def test_only_records_can_be_wrong(known: Known, position: Position) -> None:
    state = ShardState(position=position)
    verdict = judge_position(state, known.shard, known.answer(), kept_ms=RETENTION_MS)
    assert verdict is PositionVerdict.ACCEPTED
