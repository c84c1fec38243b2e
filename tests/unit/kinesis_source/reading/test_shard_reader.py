"""One shard's range against a service that follows a script, page by page."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from spark_ssp.common.errors import (
    AccessError,
    DataLossError,
    ServiceUnavailableError,
    StreamNotFoundError,
)
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client.api import InvalidPositionError
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    ShardEnd,
    TrimHorizon,
)
from tests.support.fakes.scripted import (
    CREATED,
    NOW,
    RETENTION,
    Do,
    Empty,
    Ended,
    Fail,
    FakeTime,
    Page,
    ScriptedService,
    Step,
    expire,
    shard_gone,
    throttle,
)
from tests.support.kinesis.reading import A, read, sequences, shard_of, shard_range
from tests.support.kinesis.shards import after

WITHIN_RETENTION = EpochMillis(NOW - RETENTION + CLOCK_UNCERTAINTY_MS + 1)
BEYOND_RETENTION = EpochMillis(NOW - RETENTION + CLOCK_UNCERTAINTY_MS)


# --- Start and end --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(TrimHorizon(), after(9), [7, 8, 9], id="from-the-horizon"),
        pytest.param(AtTimestamp(millis=EpochMillis(CREATED + 9)), after(10), [9, 10], id="at"),
        pytest.param(after(8), after(10), [9, 10], id="after-a-record"),
        pytest.param(after(8), after(8), [], id="nothing"),
        pytest.param(after(100), after(101), [101], id="numbers-of-other-lengths"),
    ],
)
def test_a_range_is_open_at_its_start_and_closed_at_its_end(
    start: TrimHorizon | AtTimestamp | AfterRecord, end: AfterRecord, expected: list[int]
) -> None:
    service = ScriptedService([shard_of(7, 8, 9, 10, 99, 100, 101, 102)])
    assert sequences(read(service, shard_range(A, start, end))) == expected


def test_one_page_that_holds_the_range_is_all_that_is_fetched() -> None:
    time = FakeTime()
    service = ScriptedService([shard_of(*range(1, 50))])
    assert sequences(read(service, shard_range(A, after(3), after(9)), time=time)) == [
        *range(4, 10),
    ]
    assert service.opened == [(A, after(3), True)]
    assert service.fetched == [A]
    assert service.described == 0
    assert time.waits == []


_DENIED = AccessError("a call", found="a refusal", expected="permission", next_step="grant it")
_FOREIGN = InvalidPositionError("a call", found="a refusal", expected="a position", next_step="-")


@pytest.mark.parametrize(
    ("script", "opened"),
    [
        pytest.param([], [], id="valid"),
        pytest.param([throttle()], [], id="throttled"),
        pytest.param([Page(1), throttle()], [], id="and continued"),
        pytest.param([expire()], [(A, after(4), True)], id="expired"),
        pytest.param([Fail(_DENIED)], [(A, after(4), True)], id="denied"),
        pytest.param([Fail(_FOREIGN)], [(A, after(4), True)], id="refused"),
        pytest.param([Empty(), expire()], [(A, after(4), True)], id="expired after nothing"),
        pytest.param([Page(1), expire()], [(A, after(5), True)], id="expired after a record"),
    ],
)
def test_an_iterator_that_is_handed_over_saves_the_request_for_one(
    script: list[Step], opened: list[tuple[ShardId, AfterRecord, bool]]
) -> None:
    service = ScriptedService([shard_of(3, 4, 5, 6, 7, script=script)])
    handed_over = shard_range(A, after(4), after(6), iterator="5")
    assert sequences(read(service, handed_over)) == [5, 6]
    assert service.opened == opened


@pytest.mark.parametrize("script", [[], [expire()], [Empty(), expire()], [Ended(0)]])
def test_a_start_record_that_was_trimmed_is_no_loss_after_an_iterator_either(
    script: list[Step],
) -> None:
    service = ScriptedService([shard_of(5, 6, 7, script=script)])
    handed_over = shard_range(A, after(4), after(6), seen=WITHIN_RETENTION, iterator="5")
    assert sequences(read(service, handed_over)) == [5, 6]


def test_a_start_record_that_is_trimmed_while_the_range_is_read_is_no_loss() -> None:
    """It comes alone; when the iterator after it has expired, it is gone."""
    shard = shard_of(4, 5, 6, 7)
    shard.script.extend([Page(1), Do(lambda: shard.trim(5)), expire()])
    range_ = shard_range(A, after(4), after(6), seen=WITHIN_RETENTION)
    assert sequences(read(ScriptedService([shard]), range_)) == [5, 6]


def test_a_closed_shard_is_read_until_there_is_no_next_iterator() -> None:
    shard = shard_of(1, 2, 3, closed=True, script=[Page(2), Empty(), Empty(0), Page(1)])
    time = FakeTime()
    assert sequences(read(ScriptedService([shard]), shard_range(), time=time)) == [1, 2, 3]
    # A closed shard has no other readers at its end: the fetch period does not apply.
    assert time.waits == pytest.approx([0.25, 0.001])


def test_an_empty_closed_shard_gives_nothing() -> None:
    assert read(ScriptedService([shard_of(closed=True)]), shard_range()) == []


def test_the_known_first_record_is_where_reading_begins() -> None:
    service = ScriptedService([shard_of(3, 4, 5)])
    first_known = shard_range(A, AtTimestamp(millis=EpochMillis(CREATED)), after(4), first=3)
    assert sequences(read(service, first_known)) == [3, 4]
    assert service.opened == [(A, after(3), True)]


# --- Pages ----------------------------------------------------------------------------------------


def test_an_empty_page_is_not_the_end_of_the_shard() -> None:
    shard = shard_of(1, 2, script=[Empty(), Empty(), Page(1), Empty()])
    time = FakeTime()
    rows = read(ScriptedService([shard]), shard_range(end=after(2)), time=time)
    assert sequences(rows) == [1, 2]
    assert time.waits == [0.25] * 3


def test_far_behind_there_is_no_pause_between_pages() -> None:
    shard = shard_of(*range(20), script=[Page(3)] * 6)
    time = FakeTime()
    rows = read(ScriptedService([shard]), shard_range(end=after(19)), time=time)
    assert sequences(rows) == list(range(20))
    assert time.waits == []


def test_an_end_that_is_slow_to_appear_is_waited_for() -> None:
    shard = shard_of(1, 2, 3, hidden=1)
    shard.script = deque([Page(9), Page(9), Page(9), Do(lambda: setattr(shard, "hidden", 0))])
    time = FakeTime()
    rows = read(ScriptedService([shard]), shard_range(A, after(1), after(3)), time=time)
    assert sequences(rows) == [2, 3]
    assert time.waits == pytest.approx([0.4, 0.4, 0.8])


def test_each_stay_at_the_latest_record_has_a_new_wait() -> None:
    shard = shard_of(1, 2, 3, hidden=2)

    def show(hidden: int) -> Do:
        return Do(lambda: setattr(shard, "hidden", hidden))

    page = Page(9)
    shard.script = deque([page, page, page, show(1), page, page, page, show(0)])
    time = FakeTime()
    known = shard_range(A, after(1), after(3), expected=ExpectedSize(records=2, size_bytes=2))
    rows = read(ScriptedService([shard]), known, time=time)
    assert sequences(rows) == [2, 3]
    assert time.waits == pytest.approx([0.4, 0.4, 0.8, 0.4, 0.4, 0.8])


def test_an_end_that_never_appears_is_an_error_that_names_it() -> None:
    shard = shard_of(1, 2, 3, hidden=1)
    time = FakeTime()
    with pytest.raises(ServiceUnavailableError, match=r"orders/shardId-0+: .*record 3\b"):
        read(ScriptedService([shard]), shard_range(A, after(1), after(3)), time=time)
    assert 60 <= sum(time.waits) < 70


@pytest.mark.parametrize("steps", [(Empty(0), Empty(5_000)), (Empty(0), Empty(1), Empty(900))])
def test_a_lag_now_and_then_at_the_latest_record_does_not_keep_a_task_for_ever(
    steps: tuple[Empty, ...],
) -> None:
    shard = shard_of(1, 2, 3, hidden=1, script=[Page(9), *steps * 10_000])
    time = FakeTime()
    with pytest.raises(ServiceUnavailableError, match=r"latest record for 1 min"):
        read(ScriptedService([shard]), shard_range(A, after(1), after(3)), time=time)
    assert 60 <= sum(time.waits) < 70


def test_the_end_of_a_closed_shard_is_awaited_in_the_same_way() -> None:
    shard = shard_of(1, 2, 3, script=[Page(9), *(Empty(0), Empty(5_000)) * 10_000])
    time = FakeTime()
    with pytest.raises(ServiceUnavailableError, match=r"up to its end"):
        read(ScriptedService([shard]), shard_range(A, after(1), ShardEnd()), time=time)
    assert 60 <= sum(time.waits) < 70


def test_a_range_trimmed_to_nothing_is_tolerated_despite_a_lag_now_and_then() -> None:
    shard = shard_of(script=(Empty(0), Empty(5_000)) * 10_000)
    the_range = shard_range(A, after(1), after(3))
    assert read(ScriptedService([shard]), the_range, fail_on_data_loss=False) == []


def test_empty_pages_are_followed_for_as_long_as_they_come_nearer() -> None:
    """A day without records, at one page for each five seconds of it."""
    shard = shard_of(1, 2, script=[Page(1), *map(Empty, range(86_400_000, 0, -5_000))])
    rows = read(ScriptedService([shard]), shard_range(end=after(2)))
    assert sequences(rows) == [1, 2]


def test_empty_pages_that_come_no_nearer_are_given_up() -> None:
    shard = shard_of(1, 2, script=[Page(1), *[Empty(7_000)] * 10_000])
    time = FakeTime()
    with pytest.raises(ServiceUnavailableError, match=r"came no nearer .* for 10 min"):
        read(ScriptedService([shard]), shard_range(end=after(2)), time=time)
    assert 600 <= sum(time.waits) < 601


# --- Lost data ------------------------------------------------------------------------------------


def test_a_trimmed_start_is_harmless_while_all_that_follows_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = ScriptedService([shard_of(5, 6)])
    with caplog.at_level(logging.INFO):
        rows = read(service, shard_range(A, after(2), after(6), seen=WITHIN_RETENTION))
    assert sequences(rows) == [5, 6]
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "no data was lost" in record.getMessage()
    assert service.described == 1


@pytest.mark.parametrize("seen", [BEYOND_RETENTION, None])
def test_a_trimmed_start_is_data_loss_when_what_follows_may_be_gone(
    seen: EpochMillis | None, caplog: pytest.LogCaptureFixture
) -> None:
    the_range = shard_range(A, after(2), after(6), seen=seen)
    with pytest.raises(DataLossError, match="record 5 first, after record 2 was trimmed"):
        read(ScriptedService([shard_of(5, 6)]), the_range)
    with caplog.at_level(logging.WARNING):
        rows = read(ScriptedService([shard_of(5, 6)]), the_range, fail_on_data_loss=False)
    assert sequences(rows) == [5, 6]
    assert "record 5 first, after record 2 was trimmed" in caplog.text


def test_the_trimmed_first_record_of_a_shard_that_had_to_be_read_is_data_loss() -> None:
    """As of a child, whose `seen` is its parents'."""
    the_range = shard_range(end=after(6), first=4, seen=BEYOND_RETENTION)
    with pytest.raises(DataLossError, match="record 4 was trimmed"):
        read(ScriptedService([shard_of(5, 6)]), the_range)
    rows = read(ScriptedService([shard_of(5, 6)]), the_range, fail_on_data_loss=False)
    assert sequences(rows) == [5, 6]


def test_the_trimmed_first_record_of_a_query_is_no_data_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    the_range = shard_range(end=after(6), first=4)
    assert sequences(read(ScriptedService([shard_of(5, 6)]), the_range)) == [5, 6]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "begins with record 5, the oldest one left" in record.getMessage()
    with pytest.raises(DataLossError, match=r"record 7 in its place.*record 6"):
        read(ScriptedService([shard_of(7)]), the_range)


def test_the_first_record_is_no_excuse_once_it_has_been_read() -> None:
    shard = shard_of(4, 5, 6)
    shard.script = deque([Page(1), Do(lambda: shard.trim(5)), expire()])
    with pytest.raises(DataLossError, match="record 4 was trimmed"):
        read(ScriptedService([shard]), shard_range(end=after(6), first=4))


def test_passing_the_end_is_data_loss_and_what_passed_it_is_left_to_the_next_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    the_range = shard_range(A, after(2), after(5))
    with pytest.raises(DataLossError, match=r"record 6 in its place.*record 5"):
        read(ScriptedService([shard_of(2, 3, 6)]), the_range)
    with caplog.at_level(logging.WARNING):
        rows = read(ScriptedService([shard_of(2, 3, 6)]), the_range, fail_on_data_loss=False)
    assert sequences(rows) == [3]
    assert "record 6 in its place" in caplog.text


def test_a_shard_that_ends_before_the_range_is_data_loss() -> None:
    the_range = shard_range(A, after(2), after(5))
    with pytest.raises(DataLossError, match="end of the shard"):
        read(ScriptedService([shard_of(2, 3, closed=True)]), the_range)
    rows = read(ScriptedService([shard_of(2, 3, closed=True)]), the_range, fail_on_data_loss=False)
    assert sequences(rows) == [3]


def test_a_closed_shard_without_its_start_record_is_judged_too() -> None:
    closed = shard_of(closed=True)
    with pytest.raises(DataLossError, match="no record first"):
        read(ScriptedService([closed]), shard_range(A, after(2), ShardEnd()))
    harmless = shard_range(A, after(2), ShardEnd(), seen=WITHIN_RETENTION)
    assert read(ScriptedService([closed]), harmless) == []


@pytest.mark.parametrize("start", [TrimHorizon(), after(2)])
def test_a_range_of_which_nothing_is_left_is_data_loss(start: TrimHorizon | AfterRecord) -> None:
    the_range = shard_range(A, start, after(5))
    with pytest.raises(DataLossError):
        read(ScriptedService([shard_of()]), the_range)
    assert read(ScriptedService([shard_of()]), the_range, fail_on_data_loss=False) == []


def test_a_shard_that_expired_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    def service() -> ScriptedService:
        shard = shard_of(1, 2, 3, script=[Page(2), shard_gone()])
        return ScriptedService([shard])

    the_range = shard_range(end=after(3))
    with pytest.raises(DataLossError, match=r"no such shard \(shard-not-found\)"):
        read(service(), the_range)
    with caplog.at_level(logging.WARNING):
        rows = read(service(), the_range, fail_on_data_loss=False)
    assert sequences(rows) == [1, 2]
    assert "no such shard (shard-not-found)" in caplog.text


@pytest.mark.parametrize("sign", ["shard", "position", "start", "end"])
def test_a_recreated_stream_is_named_as_such_and_not_read(
    sign: str, caplog: pytest.LogCaptureFixture
) -> None:
    def service() -> ScriptedService:
        shard = shard_of(5, 6)
        if sign == "shard":
            shard.script = deque([shard_gone()])
        if sign == "position":
            refused = InvalidPositionError("", found="x", expected="y", next_step="z")
            shard.opening = deque([Fail(refused)])
        return ScriptedService([shard], created=EpochMillis(CREATED + 1))

    passed = shard_range(end=after(3))
    the_range = passed if sign == "end" else shard_range(A, after(2), after(6), seen=NOW)
    with pytest.raises(DataLossError, match="deleted and created again"):
        read(service(), the_range)
    with caplog.at_level(logging.WARNING):
        assert read(service(), the_range, fail_on_data_loss=False) == []
    assert "deleted and created again" in caplog.text


def test_a_deleted_stream_is_named_as_such() -> None:
    gone = StreamNotFoundError("a call", found="no stream", expected="it", next_step="mend")

    def service() -> ScriptedService:
        shard = shard_of(5, 6, script=[Fail(gone)])
        scripted = ScriptedService([shard])
        scripted.describe_error = gone
        return scripted

    the_range = shard_range(end=after(6))
    with pytest.raises(DataLossError, match="the stream deleted"):
        read(service(), the_range)
    assert read(service(), the_range, fail_on_data_loss=False) == []


def test_a_refused_start_of_the_same_stream_is_data_loss_or_the_rest_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a replay of a batch; a new one is planned from another start."""

    def service() -> ScriptedService:
        shard = shard_of(5, 6, 7)
        refused = InvalidPositionError("", found="a bad number", expected="y", next_step="z")
        shard.opening = deque([Fail(refused)])
        return ScriptedService([shard])

    the_range = shard_range(A, after(2), after(6))
    with pytest.raises(DataLossError, match=r"a bad number \(invalid-position\)"):
        read(service(), the_range)
    with caplog.at_level(logging.WARNING):
        assert sequences(read(service(), the_range, fail_on_data_loss=False)) == [5, 6]
    assert "a bad number (invalid-position)" in caplog.text


@pytest.mark.parametrize("records", [0, 1])
def test_one_page_without_an_iterator_is_no_end_before_the_last_record(records: int) -> None:
    shard = shard_of(3, 4, 5, script=[Ended(records)])
    rows = read(ScriptedService([shard]), shard_range(end=after(5)))
    assert sequences(rows) == [3, 4, 5]
