"""Rows of the lease table and shards of a query: keys, positions, rows of an earlier life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.leases.lease import (
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    is_forward,
)
from spark_ssp.common.errors import IncompatibleStateError, InvalidOptionsError
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.leases.lease_decision import from_checkpoint, reached
from spark_ssp.kinesis_source.leases.lease_session import to_checkpoint
from spark_ssp.kinesis_source.leases.lease_table import check_leases_match, make_lease_keys
from spark_ssp.kinesis_source.model.shard import (
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
    StreamDescription,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.options.starting_position import parse_start, resolve_start
from tests.support.kinesis.shards import key
from tests.support.leases.values import lease, processed

NOON = AtTimestamp(millis=EpochMillis(1_763_700_000_000))
FROM_TRIM = StartingPosition(default=TrimHorizon())


def description(name: str) -> StreamDescription:
    return StreamDescription(
        name=StreamName(name),
        arn=f"arn:aws:kinesis:eu-west-1:123456789012:stream/{name}",
        created=EpochMillis(1_700_000_000_999),
        retention_ms=86_400_000,
    )


def after(number: int, sub: int = 0) -> AfterRecord:
    return AfterRecord(sequence_number=SequenceNumber(str(number)), sub=sub)


# --- Keys -----------------------------------------------------------------------------------------


def test_a_single_stream_is_not_named() -> None:
    names = make_lease_keys([description("orders")])
    assert names.key(key(3)) == "shardId-000000000003"
    assert names.shard(lease("shardId-000000000003")) == key(3)


def test_several_streams_are_named_as_the_kcl_names_them() -> None:
    names = make_lease_keys([description("orders"), description("clicks")])
    wanted = "123456789012:clicks:1700000000:shardId-000000000003"
    assert names.key(key(3, "clicks")) == wanted
    row = lease("shardId-000000000003", stream=names.streams[StreamName("clicks")])
    assert row.key == wanted
    assert names.shard(row) == key(3, "clicks")


def test_rows_of_other_streams_are_nobodys() -> None:
    names = make_lease_keys([description("orders"), description("clicks")])
    other = make_lease_keys([description("orders"), description("views")])
    row = lease("shardId-000000000003", stream=other.streams[StreamName("views")])
    assert names.shard(row) is None


# --- Rows of an earlier life ----------------------------------------------------------------------


def listed(first: int) -> dict[StreamName, dict[ShardId, Shard]]:
    shard = Shard(
        shard_id=key(0).shard,
        hash_range=HashRange(first=0, last=MAX_HASH_KEY),
        first_sequence_number=SequenceNumber(str(first)),
        closed=False,
    )
    return {key(0).stream: {key(0).shard: shard}}


def test_rows_for_another_number_of_streams_are_refused() -> None:
    one, two = (
        make_lease_keys([description("a")]),
        make_lease_keys([description("a"), description("b")]),
    )
    plain = lease()
    named = lease(stream=two.streams[StreamName("a")])
    check_leases_match([plain], one, {}, table="t")
    check_leases_match([named], two, {}, table="t")
    for rows, names in (([named], one), ([plain], two)):
        with pytest.raises(IncompatibleStateError, match="another applicationName") as raised:
            check_leases_match(rows, names, {}, table="t")
        assert raised.value.subject == "lease table t"


def test_progress_before_the_shards_first_record_is_another_streams() -> None:
    names = make_lease_keys([description("orders")])
    row = lease(progress=processed(99))
    check_leases_match([row], names, listed(99), table="t")
    check_leases_match([row], names, {}, table="t")
    check_leases_match([lease()], names, listed(100), table="t")
    with pytest.raises(IncompatibleStateError, match="new applicationName"):
        check_leases_match([row], names, listed(100), table="t")


# --- Positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "progress"),
    [
        (after(12, 3), processed(12, 3)),
        (TrimHorizon(), StartAtTrimHorizon()),
        (NOON, StartAtTimestamp(at_ms=NOON.millis)),
        (ShardEnd(), ShardEnded()),
    ],
)
def test_a_position_and_its_progress_say_the_same(position: Position, progress: Progress) -> None:
    assert to_checkpoint(ShardState(position=position)) == progress
    assert from_checkpoint(progress, FROM_TRIM) == position


def test_latest_counts_from_when_it_was_written() -> None:
    assert from_checkpoint(StartAtLatest(since_ms=NOON.millis), FROM_TRIM) == NOON
    assert from_checkpoint(StartAtLatest(), FROM_TRIM) == Latest()


def test_a_time_that_only_a_kcl_worker_knows_is_asked_of_the_query() -> None:
    row = StartAtTimestamp(at_ms=None)
    assert from_checkpoint(row, StartingPosition(default=NOON)) == NOON
    before = resolve_start(
        parse_start("-24h"), [StreamName("orders")], NOON.millis, deaggregate=True
    )
    for start in (FROM_TRIM, before):
        with pytest.raises(InvalidOptionsError) as raised:
            from_checkpoint(row, start)
        assert [problem.option for problem in raised.value.problems] == ["startingPosition"]


@pytest.mark.parametrize(
    ("progress", "position", "further"),
    [
        (processed(12), after(12), False),
        (processed(12, 1), after(12), True),
        (processed(100), after(99, 5), True),
        (processed(9), after(10), False),
        (processed(9), TrimHorizon(), True),
        (processed(9), NOON, True),
        (processed(9), ShardEnd(), False),
        (ShardEnded(), after(10), True),
        (ShardEnded(), ShardEnd(), False),
        (StartAtTrimHorizon(), after(10), False),
        (StartAtLatest(), TrimHorizon(), False),
        (StartAtTimestamp(at_ms=None), NOON, False),
    ],
)
def test_the_further_one_wins(progress: Progress, position: Position, further: bool) -> None:
    assert is_behind(position, reached(progress)) is further


_numbers = st.integers(0, 1 << 186)


@given(_numbers, st.integers(0, 9), _numbers, st.integers(0, 9))
def test_further_means_the_same_on_both_sides(row: int, rs: int, own: int, os: int) -> None:
    further = is_behind(after(own, os), reached(processed(row, rs)))
    written = to_checkpoint(ShardState(position=after(own, os)))
    assert isinstance(written, Processed)
    assert is_forward(written, processed(row, rs)) is (further or (row, rs) == (own, os))
