"""How the limits of a trigger are shared out: kept, used up, even, and nobody starves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import SequenceNumber, ShardKey
from spark_ssp.kinesis_source.model.shard import EpochMillis
from spark_ssp.kinesis_source.probing.batch_limits import (
    KEPT_RECORDS,
    UNLIMITED,
    Candidate,
    Limits,
    admit,
    admit_by_arrival,
    even_shares,
    rated_shares,
)
from spark_ssp.kinesis_source.probing.intake_rate import Intake
from spark_ssp.kinesis_source.probing.limited_end_probe import LimitShare, end_by_time, scan_ahead
from spark_ssp.kinesis_source.probing.probe_protocol import FetchPage, RecordRef, ShardCursor
from tests.support.kinesis.probes import AT_LATEST, DAY_MS, NOW, QUIET
from tests.support.kinesis.shards import key


def candidates(
    sizes: Mapping[int, Sequence[int]], behind: Mapping[int, int]
) -> dict[ShardKey, Candidate]:
    return {
        key(n): Candidate(sizes=list(of), millis_behind=behind.get(n, 0)) for n, of in sizes.items()
    }


@pytest.mark.parametrize(
    ("sizes", "behind", "limits", "admitted"),
    [
        ({}, {}, Limits(max_records=5), {}),
        ({0: [9] * 7, 1: []}, {}, UNLIMITED, {0: 7, 1: 0}),
        ({0: [1] * 9, 1: [1] * 9}, {}, Limits(max_records=10), {0: 5, 1: 5}),
        ({0: [1] * 2, 1: [1] * 99}, {}, Limits(max_records=10), {0: 2, 1: 8}),
        ({0: [1] * 9, 1: [1] * 9}, {1: 5}, Limits(max_records=9), {0: 4, 1: 5}),
        ({0: [1] * 9, 1: [1] * 9, 2: [1] * 9}, {1: 5}, Limits(max_records=1), {0: 0, 1: 1, 2: 0}),
        ({0: [1] * 9}, {}, Limits(max_records=0), {0: 1}),
        ({0: [10] * 9, 1: [10] * 9}, {}, Limits(max_bytes=100), {0: 5, 1: 5}),
        ({0: [10], 1: [10] * 90}, {}, Limits(max_bytes=100), {0: 1, 1: 9}),
        ({0: [60, 1], 1: [60, 1]}, {1: 9}, Limits(max_bytes=100), {0: 0, 1: 2}),
        ({0: [500], 1: [1] * 9}, {0: 9}, Limits(max_bytes=100), {0: 1, 1: 0}),
        ({0: [500], 1: [1] * 9}, {1: 9}, Limits(max_bytes=100), {0: 0, 1: 9}),
        ({0: [500], 1: [700]}, {1: 9}, Limits(max_bytes=100), {0: 0, 1: 1}),
        ({0: [], 1: [700]}, {0: 9}, Limits(max_bytes=100), {0: 0, 1: 1}),
        # What the bytes cut off one shard, the records may give to another.
        ({0: [50] * 9, 1: [1] * 99}, {}, Limits(max_records=20, max_bytes=100), {0: 1, 1: 19}),
        ({0: [1] * 99, 1: [200] * 9}, {}, Limits(max_records=8, max_bytes=100), {0: 8, 1: 0}),
    ],
)
def test_shares(
    sizes: Mapping[int, Sequence[int]],
    behind: Mapping[int, int],
    limits: Limits,
    admitted: Mapping[int, int],
) -> None:
    assert admit(candidates(sizes, behind), limits) == {key(n): c for n, c in admitted.items()}


_shards = st.dictionaries(
    st.integers(0, 8),
    st.builds(
        Candidate,
        sizes=st.lists(st.one_of(st.integers(1, 20), st.integers(1, 500)), max_size=30),
        millis_behind=st.integers(0, 3),
    ),
    max_size=7,
).map(lambda shards: {key(n): candidate for n, candidate in shards.items()})
_limits = st.builds(
    Limits,
    max_records=st.none() | st.integers(1, 120),
    max_bytes=st.none() | st.integers(1, 3000),
)


def total_bytes(shards: Mapping[ShardKey, Candidate], counts: Mapping[ShardKey, int]) -> int:
    return sum(sum(shards[shard].sizes[:count]) for shard, count in counts.items())


@given(shards=_shards, limits=_limits)
def test_the_limits_hold_but_for_one_record(
    shards: Mapping[ShardKey, Candidate], limits: Limits
) -> None:
    counts = admit(shards, limits)
    assert counts.keys() == shards.keys()
    assert all(0 <= counts[shard] <= len(of.sizes) for shard, of in shards.items())
    records = sum(counts.values())
    assert limits.max_records is None or records <= limits.max_records
    assert (
        limits.max_bytes is None or total_bytes(shards, counts) <= limits.max_bytes or records == 1
    )
    assert records > 0 or not any(of.sizes for of in shards.values())


@given(shards=_shards, limits=_limits)
def test_nobody_is_cut_while_there_is_room(
    shards: Mapping[ShardKey, Candidate], limits: Limits
) -> None:
    counts = admit(shards, limits)
    used = total_bytes(shards, counts)
    for shard, of in shards.items():
        if counts[shard] < len(of.sizes):
            no_record_left = sum(counts.values()) == limits.max_records
            next_size = of.sizes[counts[shard]]
            assert no_record_left or (
                limits.max_bytes is not None and used + next_size > limits.max_bytes
            )


@given(shards=_shards, total=st.integers(1, 120))
def test_records_are_shared_evenly(shards: Mapping[ShardKey, Candidate], total: int) -> None:
    """Max-min fairness to within a record: whoever is cut has as much as anybody, but one."""
    counts = admit(shards, Limits(max_records=total))
    most = max(counts.values(), default=0)
    for shard, of in shards.items():
        assert counts[shard] == len(of.sizes) or counts[shard] >= most - 1


@given(shards=_shards, limits=_limits, random=st.randoms(use_true_random=False))
def test_the_order_of_the_shards_does_not_matter(
    shards: Mapping[ShardKey, Candidate], limits: Limits, random: Random
) -> None:
    entries = list(shards.items())
    random.shuffle(entries)
    assert admit(dict(entries), limits) == admit(shards, limits)


@given(
    streams=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 900)), min_size=1, max_size=6),
    limits=st.builds(
        Limits, max_records=st.integers(1, 4), max_bytes=st.none() | st.integers(1, 300)
    ),
)
def test_no_shard_starves(streams: list[tuple[int, int]], limits: Limits) -> None:
    """Each round brings every shard (records a round, bytes a record) more than is admitted. With
    the age of the record that waits first as a shard's need, whatever has come is read in time."""
    sizes = {key(n): size for n, (_, size) in enumerate(streams)}
    rates = {key(n): rate for n, (rate, _) in enumerate(streams)}
    waiting: dict[ShardKey, list[int]] = {shard: [] for shard in rates}
    for now in range(2 * sum(rates.values())):
        for shard, rate in rates.items():
            waiting[shard] += [now] * rate
        counts = admit(
            {
                shard: Candidate(
                    sizes=[sizes[shard]] * len(times), millis_behind=now - times[0] if times else 0
                )
                for shard, times in waiting.items()
            },
            limits,
        )
        for shard, count in counts.items():
            del waiting[shard][:count]
    # One record a round goes to a shard whose first is the oldest: those of the first two rounds.
    assert all(not times or times[0] > 1 for times in waiting.values())


# --- Aligned batches ------------------------------------------------------------------------------


def _rows(sizes_and_gaps: list[tuple[int, int]]) -> list[RecordRef]:
    arrival, rows = 1_000, []
    for number, (size, gap) in enumerate(sizes_and_gaps):
        arrival += gap
        rows.append(
            RecordRef(
                sequence_number=SequenceNumber(str(number)),
                last_sub=0,
                arrival=EpochMillis(arrival),
                size_bytes=size,
            )
        )
    return rows


_logs = st.dictionaries(
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(1, 500), st.sampled_from([0, 0, 1, 7, 900])), max_size=30),
    max_size=6,
).map(lambda logs: {key(n): _rows(rows) for n, rows in logs.items()})


@given(rows=_logs, limits=_limits)
def test_the_records_that_arrived_first_are_admitted_within_the_limits(
    rows: Mapping[ShardKey, list[RecordRef]], limits: Limits
) -> None:
    counts = admit_by_arrival(rows, limits)
    assert counts.keys() == rows.keys()
    admitted = [row for shard, count in counts.items() for row in rows[shard][:count]]
    left = [row for shard, count in counts.items() for row in rows[shard][count:]]
    size = sum(row.size_bytes for row in admitted)
    assert limits.max_records is None or len(admitted) <= limits.max_records
    assert limits.max_bytes is None or size <= limits.max_bytes or len(admitted) == 1
    assert admitted or not left
    if admitted and left:
        newest, oldest = max(row.arrival for row in admitted), min(row.arrival for row in left)
        assert newest <= oldest
        # The limits are used up: the records of the next instant do not fit together.
        of_next = [row for row in left if row.arrival == oldest]
        assert (
            limits.max_records is not None and len(admitted) + len(of_next) > limits.max_records
        ) or (
            limits.max_bytes is not None
            and size + sum(row.size_bytes for row in of_next) > limits.max_bytes
        )


def test_shares_follow_the_rates_of_the_shards() -> None:
    keys = [key(n) for n in range(4)]
    cursors = {
        shard: ShardCursor(
            reached_ms=EpochMillis(0),
            record_bytes=1.0,
            intake=Intake(records=rate, size_bytes=rate, millis=1_000.0) if rate else None,
        )
        for shard, rate in zip(keys, (30.0, 10.0, 0.0, 0.0), strict=True)
    }
    shares = rated_shares(keys, Limits(max_records=1_000), cursors)
    assert [shares[shard].records for shard in keys] == [375, 125, 250, 250]
    unknown = rated_shares(keys, Limits(max_bytes=4_000), dict.fromkeys(keys, ShardCursor()))
    assert {share.size_bytes for share in unknown.values()} == {1_000}


@pytest.mark.parametrize("count", [1, 20, 200, 1_000, 2_500, 10_000])
def test_what_is_read_beyond_the_shares_is_bounded_for_all_shards(count: int) -> None:
    keys = [key(n) for n in range(count)]
    share = even_shares(keys, Limits(max_bytes=2_000 * count))[keys[0]]
    small = replace(AT_LATEST, record_bytes=20.0)

    def fetched(share: LimitShare) -> int:
        request = next(scan_ahead(QUIET, small, NOW, DAY_MS, share))
        assert isinstance(request, FetchPage)
        return request.limit

    beyond = fetched(share) - fetched(replace(share, lookahead_bytes=0))
    assert beyond * count <= KEPT_RECORDS
    assert beyond > 0 or count > 1_000


def test_ends_that_are_found_by_time_span_the_same_time() -> None:
    """By their rates alone, the busiest shard would be read beyond the others, and cut for them."""
    keys = [key(n) for n in range(8)]
    rates = [600.0, 300.0] + [10.0] * 6
    cursors = {
        shard: ShardCursor(
            reached_ms=EpochMillis(0),
            record_bytes=1_000.0,
            intake=Intake(records=rate, size_bytes=1_000 * rate, millis=1_000.0, largest=1_000),
        )
        for shard, rate in zip(keys, rates, strict=True)
    }
    limit = 64_000_000
    shares = rated_shares(keys, Limits(max_bytes=limit), cursors)
    sizes = [shares[shard].size_bytes or 0 for shard in keys]
    assert sizes[0] == sizes[1] == pytest.approx(limit * 450 / 960, rel=0.01)
    assert sizes[2:] == [pytest.approx(limit * 10 / 960, rel=0.01)] * 6
    assert sum(sizes) <= limit
    end = end_by_time(cursors[keys[0]], replace(shares[keys[0]], until=None))
    assert {share.until for share in shares.values()} == {end}
    rated = rated_shares(keys, Limits(max_bytes=limit).for_interval(60_000), cursors)
    sizes = [rated[shard].size_bytes or 0 for shard in keys]
    assert sizes == [pytest.approx(limit * rate / 960, rel=0.01) for rate in rates]
    assert {share.until for share in rated.values()} == {limit // 960}
