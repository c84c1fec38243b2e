"""A task's handling of throttling, faults and expired iterators."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_ssp.common import structs
from spark_ssp.common.errors import AccessError, DataLossError, ServiceUnavailableError
from spark_ssp.kinesis_source.model.shard import RecordPage, TrimHorizon
from spark_ssp.kinesis_source.reading.shard_reader import MAX_YOUNG_EXPIRIES
from tests.support.fakes.scripted import (
    NOW,
    Do,
    Empty,
    Fail,
    FakeTime,
    Page,
    ScriptedService,
    ScriptedShard,
    Step,
    expire,
    throttle,
    unreachable,
)
from tests.support.kinesis.reading import LOCAL, A, read, sequences, shard_of, shard_range
from tests.support.kinesis.shards import after


def test_throttling_is_waited_out_and_slows_the_shard_down_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shard = shard_of(*range(8))
    shard.opening = deque([throttle()])
    shard.script = deque([Page(2), throttle(), throttle(), Page(2), Page(2), Page(2)])
    time = FakeTime()
    with caplog.at_level(logging.INFO):
        rows = read(ScriptedService([shard]), shard_range(end=after(7)), time=time)
    assert sequences(rows) == list(range(8))
    # The back-off to open, then a quarter second between pages, with the back-off for the second.
    assert time.waits == pytest.approx([0.1, 0.25, 0.1, 0.2, 0.25, 0.25])
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "too many requests; trying again in 100 ms" in record.getMessage()


def test_throttling_never_fails_a_task_and_is_warned_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An hour of it, with faults in between, each of which shows that the service was reached."""
    shard = shard_of(1, 2, script=[throttle(), unreachable()] * 360)
    time = FakeTime()
    with caplog.at_level(logging.WARNING):
        the_range = shard_range(end=after(2))
        rows = read(ScriptedService([shard]), the_range, time=time)
    assert sequences(rows) == [1, 2]
    assert 3_500 < sum(time.waits) < 3_700
    assert 50 < len(caplog.records) <= 61
    last = caplog.records[-1].getMessage()
    assert re.match(r"shard orders/shardId-0+ has been throttled for 5\d min [^(]*\(too many", last)
    assert "add shards" in last


@pytest.mark.parametrize(
    ("before", "after_it"), [(Empty(3_600_000), Empty(7_000_000)), (Empty(0), Empty(0))]
)
def test_throttling_is_no_part_of_the_wait_for_the_end_of_a_range(
    before: Empty, after_it: Empty
) -> None:
    """An hour of it, between two empty pages."""
    shard = shard_of(1, 2, script=[Page(1), before, *[throttle()] * 720, after_it])
    time = FakeTime()
    rows = read(ScriptedService([shard]), shard_range(end=after(2)), time=time)
    assert sequences(rows) == [1, 2]
    assert sum(time.waits) > 3_000


def test_a_fault_that_lasts_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    shard = shard_of(1, 2, script=[unreachable()] * 6)
    with caplog.at_level(logging.WARNING):
        rows = read(ScriptedService([shard]), shard_range(end=after(2)))
    assert sequences(rows) == [1, 2]
    (record,) = caplog.records
    assert "no connection; trying again in 400 ms (attempt 4 of 8)" in record.getMessage()


def test_a_fault_without_end_is_an_error_after_the_last_attempt() -> None:
    shard = shard_of(1, 2, script=[unreachable()] * 8)
    service = ScriptedService([shard])
    with pytest.raises(ServiceUnavailableError, match="no connection, 8 times in a row"):
        read(service, shard_range(end=after(2)))
    assert len(service.fetched) == 8


def test_faults_are_counted_from_one_after_each_answer() -> None:
    shard = shard_of(1, 2, 3, script=[*[unreachable()] * 7, Empty(), *[unreachable()] * 7, Page(1)])
    rows = read(ScriptedService([shard]), shard_range(end=after(3)))
    assert sequences(rows) == [1, 2, 3]


def test_an_expired_iterator_is_replaced_without_loss_or_repetition() -> None:
    shard = shard_of(
        1, 2, 3, 4, 5, script=[expire(), Page(2), expire(), expire(), Page(2), expire(), Page(9)]
    )
    service = ScriptedService([shard])
    rows = read(service, shard_range(end=after(5)))
    assert sequences(rows) == [1, 2, 3, 4, 5]
    horizon = (A, TrimHorizon(), False)
    assert service.opened == [
        horizon, horizon, (A, after(2), True), (A, after(2), True), (A, after(3), True),
    ]  # fmt: skip


def test_iterators_that_expire_at_once_are_given_up() -> None:
    shard = shard_of(1, 2, script=[expire()] * MAX_YOUNG_EXPIRIES)
    service = ScriptedService([shard])
    with pytest.raises(ServiceUnavailableError, match="old iterator, 5 times in a row"):
        read(service, shard_range(end=after(2)))


def test_records_trimmed_while_an_iterator_expires_do_not_go_unnoticed() -> None:
    shard = shard_of(1, 2, 3, 4, 5)
    shard.script = deque([Page(2), Do(lambda: shard.trim(4)), expire()])
    service = ScriptedService([shard])
    with pytest.raises(DataLossError, match="record 4 first, after record 2 was trimmed"):
        read(service, shard_range(end=after(5), seen=NOW))


def test_other_errors_reach_the_caller_as_they_are() -> None:
    denied = AccessError("a call", found="no permission", expected="it", next_step="ask")
    shard = shard_of(1, 2, script=[Fail(denied)])
    with pytest.raises(AccessError) as raised:
        read(ScriptedService([shard]), shard_range(end=after(2)))
    assert raised.value is denied


# --- Single answers that are not believed ---------------------------------------------------------


class Truncating(ScriptedService):
    """Leaves out the next iterator of each answer that `wrong` picks by its number, from 0."""

    def __init__(self, shard: ScriptedShard, wrong: Callable[[int], bool], behind: int) -> None:
        super().__init__([shard])
        self._wrong = wrong
        self._behind = behind

    def get_records(self, *args: Any, **named: Any) -> RecordPage:
        number = len(self.fetched)
        page = super().get_records(*args, **named)
        if self._wrong(number):
            return structs.replace(page, next_iterator=None, millis_behind_latest=self._behind)
        return page


@pytest.mark.parametrize("wrong", [{0}, {0, 2}, {1, 3, 5}, set(range(99))], ids=str)
def test_a_last_page_that_is_not_at_the_latest_record_is_asked_for_again(wrong: set[int]) -> None:
    """Every other answer, or all of them: each brings records, so the shard is read to its end."""
    shard = shard_of(*range(1, 30), closed=True, script=[Page(7)] * 99)
    service = Truncating(shard, wrong.__contains__, behind=9_000)
    assert sequences(read(service, shard_range())) == list(range(1, 30))


def test_a_last_page_that_is_repeated_is_believed() -> None:
    shard = shard_of(1, 2, closed=True)
    service = Truncating(shard, lambda _: True, behind=9_000)
    assert sequences(read(service, shard_range())) == [1, 2]
    assert len(service.fetched) == 2


# --- Next steps of errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "hidden"),
    [
        pytest.param([unreachable()] * 8, 0, id="unreachable"),
        pytest.param([Page(1), *[expire()] * MAX_YOUNG_EXPIRIES], 0, id="iterators-refused"),
        pytest.param([], 1, id="the-end-does-not-appear"),
        pytest.param([Page(1), *[Empty(7_000)] * 2_500], 0, id="no-nearer-to-the-tip"),
    ],
)
def test_the_batch_that_failed_is_read_in_full_when_it_is_repeated(
    script: list[Step], hidden: int
) -> None:
    shard = shard_of(1, 2, 3)
    shard.script, shard.hidden = deque(script), hidden
    service = ScriptedService([shard])
    with pytest.raises(ServiceUnavailableError, match="restart the query, which repeats the batch"):
        read(service, shard_range(end=after(3)))
    shard.script.clear()
    shard.hidden = 0
    assert sequences(read(service, shard_range(end=after(3)))) == [1, 2, 3]


def test_more_attempts_outlast_a_longer_fault() -> None:
    shard = shard_of(1, 2, script=[unreachable()] * 8)
    more = replace(LOCAL, retry_max_attempts=9)
    rows = read(ScriptedService([shard]), shard_range(end=after(2)), connection=more)
    assert sequences(rows) == [1, 2]
