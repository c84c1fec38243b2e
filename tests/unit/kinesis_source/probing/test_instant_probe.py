"""The exact tip of a shard: the last record is found, in few calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    SequenceNumber,
    ShardIterator,
    TrimHorizon,
)
from spark_ssp.kinesis_source.probing.instant_probe import find_latest_record, resolve_latest
from spark_ssp.kinesis_source.probing.probe_protocol import (
    PROBE_RECORDS,
    OpenIterator,
    RecordRef,
    ShardCursor,
)
from tests.support.kinesis.probes import (
    DAY_MS,
    NOW,
    ModelShard,
    cursor,
    fetched,
    ms,
    opened,
    page,
    play,
    row,
)

OLDEST = ms(-DAY_MS)


def at(offset: int) -> AtTimestamp:
    return AtTimestamp(millis=ms(offset))


# --- find_latest_record, by script ---------------------------------------------------------------


def test_a_busy_shards_latest_record_takes_two_pages() -> None:
    last = row(9, -10)
    finding = play(
        find_latest_record(TrimHorizon(), NOW, oldest=OLDEST),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page([row(1, -1900)], onward="b", behind=1800)),
        (opened(at(-1000)), "c"),
        (fetched("c", PROBE_RECORDS), page([row(5, -900)], onward="d", behind=800)),
        (fetched("d", 10_000), page([row(6, -800), last], onward="e")),
    )
    assert finding.end == last
    assert (finding.at_latest, finding.closed) == (True, False)
    assert finding.cursor == ShardCursor(
        position=last.position, cached_iterator=cursor("e", at_latest=True), proven=True
    )


def test_a_record_at_the_latest_record_ends_the_search() -> None:
    finding = play(
        find_latest_record(TrimHorizon(), NOW, oldest=OLDEST),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page()),
        (opened(at(-32_000)), "b"),
        (fetched("b", PROBE_RECORDS), page([row(3, -7000, sub=4)])),
    )
    assert finding.end == row(3, -7000, sub=4)
    assert finding.at_latest


def test_an_empty_page_is_not_the_latest_record() -> None:
    finding = play(
        find_latest_record(TrimHorizon(), NOW, oldest=OLDEST),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page(onward="b", behind=1500)),
        (fetched("b", PROBE_RECORDS), page(onward="c", behind=1500)),
        (fetched("c", PROBE_RECORDS), page([row(3, -1500)])),
    )
    assert finding.end == row(3, -1500)


def test_an_empty_shard_has_no_last_record() -> None:
    finding = play(
        find_latest_record(TrimHorizon(), NOW, oldest=ms(-40_000)),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page()),
        (opened(at(-32_000)), "b"),
        (fetched("b", PROBE_RECORDS), page()),
        (opened(TrimHorizon()), "c"),
        (fetched("c", PROBE_RECORDS), page(time=7)),
    )
    assert (finding.end, finding.at_latest, finding.closed) == (None, True, False)
    assert finding.time == ms(7)
    assert finding.cursor.position == TrimHorizon()


def test_a_shard_closed_meanwhile_says_so() -> None:
    finding = play(
        find_latest_record(TrimHorizon(), NOW, oldest=OLDEST),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page(onward=None)),
    )
    assert (finding.end, finding.closed, finding.at_latest) == (None, True, False)
    assert finding.cursor.cached_iterator is None


# --- find_latest_record, against a model ---------------------------------------------------------

_offsets = st.one_of(st.integers(-DAY_MS, 0), st.integers(-60_000, 0), st.integers(-3000, 0))


def _rows(offsets: list[int]) -> list[RecordRef]:
    return [row(2 * n + 1, offset) for n, offset in enumerate(offsets)]


@given(
    offsets=st.lists(_offsets, max_size=60),
    in_order=st.booleans(),
    closed=st.booleans(),
    empties=st.integers(0, 3),
    page_records=st.integers(1, 50),
    retention=st.sampled_from([1, 1000, 10_000, 3_600_000, DAY_MS, 7 * DAY_MS]),
    vague_ms=st.sampled_from([0, 0, 1000, DAY_MS]),
)
def test_the_last_record_is_always_found(
    offsets: list[int],
    in_order: bool,
    closed: bool,
    empties: int,
    page_records: int,
    retention: int,
    vague_ms: int,
) -> None:
    """Also where arrival times go up and down, and where records outlive the retention."""
    rows = _rows(sorted(offsets) if in_order else offsets)
    shard = ModelShard(
        rows=rows,
        closed=closed,
        page_records=10_000 if vague_ms else page_records,
        vague_ms=vague_ms,
        empties=lambda call: (call % 5 == 0) * empties,
    )
    finding = shard.run(find_latest_record(TrimHorizon(), NOW, oldest=ms(-retention)))
    if closed:
        assert finding.closed
    else:
        assert finding.end == (rows[-1] if rows else None)
        assert finding.at_latest


@given(offsets=st.lists(_offsets, max_size=300), burst=st.integers(0, 20_000))
def test_the_calls_for_a_latest_record_grow_with_the_logarithm_of_its_age(
    offsets: list[int], burst: int
) -> None:
    """However many records there are: all of one instant here make up the page that is read."""
    rows = _rows(sorted([*offsets, *[min(offsets, default=0)] * burst]))
    shard = ModelShard(rows=rows)
    shard.run(find_latest_record(TrimHorizon(), NOW, oldest=OLDEST))
    widenings, halvings, looks, pages = 9, 17, 2, 4
    assert shard.calls <= (widenings + halvings) * looks + pages


class _Spans(ModelShard):
    """Notes in `spans` how much time each iterator has before it: the service may answer an empty
    page for every few minutes of it, although the shard holds no record there."""

    def _open(self, request: OpenIterator) -> ShardIterator:
        position = request.position
        spans.append(NOW - position.millis if isinstance(position, AtTimestamp) else DAY_MS)
        return super()._open(request)


spans: list[int] = []


def test_the_looks_at_an_idle_shard_go_through_little_more_than_its_retention() -> None:
    spans.clear()
    assert _Spans(rows=[]).run(find_latest_record(TrimHorizon(), NOW, oldest=OLDEST)).end is None
    assert DAY_MS <= sum(spans) <= 1.15 * DAY_MS


def test_a_latest_record_near_the_end_of_the_retention_is_not_read_up_to() -> None:
    """Many records of which the youngest is 20 hours old."""
    hour = 3_600_000
    rows = _rows([-24 * hour + n * 100 for n in range(144_000)])
    shard = ModelShard(rows=rows)
    assert shard.run(find_latest_record(TrimHorizon(), NOW, oldest=OLDEST)).end == rows[-1]
    assert shard.records_given < 100


# --- find_latest ----------------------------------------------------------------------------------


@given(
    offsets=st.lists(_offsets | st.integers(-100, 900), max_size=60),
    behind=st.integers(0, 999),
    vague_ms=st.sampled_from([0, 0, 1000, DAY_MS]),
    in_order=st.booleans(),
    closed=st.booleans(),
    page_records=st.integers(1, 50),
)
def test_latest_parts_what_came_before_from_what_comes_after(
    offsets: list[int],
    behind: int,
    vague_ms: int,
    in_order: bool,
    closed: bool,
    page_records: int,
) -> None:
    """The clock that is known may be up to a second behind the service's."""
    before = [min(offset, behind) for offset in offsets]
    rows = _rows(sorted(before) if in_order else before)
    shard = ModelShard(rows=rows, closed=closed, page_records=page_records, now=ms(behind))
    finding = shard.run(resolve_latest(NOW))
    if closed:
        assert finding.closed
    elif finding.end is not None:
        assert finding.end == rows[-1]
        assert finding.at_latest
    else:  # LATEST is the time `NOW`: nothing that is there already may have come since
        assert finding.at_latest
        assert all(record.arrival < NOW for record in rows)
        assert finding.cursor.position == at(0)


def test_latest_of_a_quiet_shard_takes_two_calls() -> None:
    finding = play(
        resolve_latest(NOW),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page(onward="b", time=3)),
    )
    assert finding.end is None
    assert finding.cursor.cached_iterator == cursor("b", 3, at_latest=True)


def test_latest_of_a_busy_shard_is_after_its_last_record() -> None:
    finding = play(
        resolve_latest(NOW),
        (opened(at(-2000)), "a"),
        (fetched("a", PROBE_RECORDS), page([row(1, -1999)], onward="b", behind=1999)),
        (fetched("b", 10_000), page([row(2, -5), row(3, -1, sub=7)], onward="c", behind=1)),
        (fetched("c", 10_000), page(onward="d", time=2)),
    )
    assert finding.end == row(3, -1, sub=7)
    assert finding.cursor.position == AfterRecord(sequence_number=SequenceNumber("3"), sub=7)
    assert finding.time == ms(2)


def test_an_answer_of_the_wrong_kind_is_an_error() -> None:
    with pytest.raises(TypeError, match="an OpenIterator is answered by an iterator, not PageView"):
        play(resolve_latest(NOW), (opened(at(-2000)), page()))
    with pytest.raises(TypeError, match="a FetchPage is answered by a PageView, not str"):
        play(resolve_latest(NOW), (opened(at(-2000)), "a"), (fetched("a", PROBE_RECORDS), "b"))
