"""A shard that falls silent after a burst is read to its tip in a few triggers, however long ago
the burst was, and so is a shard that takes records again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from spark_ssp.kinesis_source.batch_planner import BatchPlanner
from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, Offset
from spark_ssp.kinesis_source.model.shard import AfterRecord
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.probing.batch_limits import UNLIMITED
from spark_ssp.testing.kinesis import KinesisState, Limits, ManualClock
from tests.support.fakes.in_process import InProcessKinesis

STREAM = "orders"
SHARD = "shardId-000000000000"
RECORD = b"x" * 300


class _Query:
    """A query on one shard, with a clock that moves by what is asked for."""

    def __init__(self, record: bytes = RECORD) -> None:
        self._record = record
        self._clock = ManualClock()
        self._state = KinesisState(clock=self._clock)
        self._state.create_stream(STREAM, shards=1)
        self._seconds = 0.0
        self._planner = BatchPlanner(
            parse_options(
                {"streamName": STREAM, "region": "x", "startingPosition": "trim_horizon"}
            ),
            InProcessKinesis(self._state),
            monotonic=lambda: self._seconds,
            sleep=self.wait,
        )
        self._offset: Offset = BEFORE_FIRST_BATCH

    def wait(self, seconds: float) -> None:
        self._seconds += seconds
        self._clock.advance(round(seconds * 1000))

    def put(self, records: int, *, over_ms: int) -> None:
        for number in range(records):
            self._state.put(STREAM, "key", self._record)
            step = over_ms * (number + 1) // records - over_ms * number // records
            self.wait(step / 1000)

    def trigger(self) -> bool:
        """Whether there was a batch."""
        end = self._planner.next_offset(self._offset, UNLIMITED)
        self._offset = self._offset if end is None else end
        return end is not None

    def behind(self) -> int:
        log = self._state.shard(STREAM, SHARD).log
        (state,) = self._offset.states.values()
        assert isinstance(state.position, AfterRecord)
        return log.end - log.after_number(int(state.position.sequence_number))

    def count_calls(self, *, strict: bool) -> Callable[[], Mapping[str, int]]:
        """The calls from now on, by operation; under the limits of the service if `strict`."""
        self._state.set_limits(Limits.strict() if strict else Limits())
        self._state.calls.reset()
        return self._state.calls.by_operation

    def batches_to_latest(self, *, every_seconds: float, at_most: int) -> None:
        batches = 0
        for _ in range(2 * at_most):
            batches += self.trigger()
            if self.behind() == 0:
                break
            self.wait(every_seconds)
        assert (self.behind(), batches <= at_most) == (0, True), f"{batches} batches"

    def close(self) -> None:
        self._planner.close()


@pytest.mark.parametrize("silent_seconds", [0.3, 3, 20, 600, 3600])
@pytest.mark.parametrize("burst_ms", [2_000, 20_000])
@pytest.mark.parametrize("every_seconds", [1, 60])
def test_a_burst_that_is_over_is_read_in_a_few_triggers(
    silent_seconds: float, burst_ms: int, every_seconds: int
) -> None:
    query = _Query()
    query.put(20_000, over_ms=burst_ms)
    query.wait(silent_seconds)
    query.batches_to_latest(every_seconds=every_seconds, at_most=2 if silent_seconds < 60 else 6)
    query.close()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("silent_seconds", [10, 15, 20, 25, 30, 40, 50, 60])
def test_a_backlog_that_has_ended_takes_two_batches_and_twelve_looks(
    silent_seconds: float, strict: bool
) -> None:
    """One of four shards of 200,000 records of 200 bytes, put within 20 seconds."""
    query = _Query(record=b"x" * 200)
    query.put(50_000, over_ms=20_000)
    query.wait(silent_seconds)
    calls = query.count_calls(strict=strict)
    query.batches_to_latest(every_seconds=2, at_most=2)
    assert calls()["GetRecords"] <= 12
    query.close()


@pytest.mark.parametrize("every_seconds", [25, 60])
def test_a_backlog_that_has_ended_takes_two_batches_however_slow_they_are(
    every_seconds: float,
) -> None:
    query = _Query(record=b"x" * 200)
    query.put(50_000, over_ms=20_000)
    query.wait(60)
    calls = query.count_calls(strict=True)
    query.batches_to_latest(every_seconds=every_seconds, at_most=2)
    assert calls()["GetRecords"] <= 12
    query.close()


def test_records_of_one_moment_are_read_a_page_at_a_time() -> None:
    query = _Query()
    query.put(10_000, over_ms=1)
    query.wait(30)
    query.batches_to_latest(every_seconds=1, at_most=4)
    query.close()


def test_after_a_silence_the_query_stays_near_the_latest_record_of_a_steady_flow() -> None:
    query = _Query()
    query.put(2_000, over_ms=1_000)
    query.wait(3600)
    query.batches_to_latest(every_seconds=1, at_most=6)
    for _ in range(10):
        query.put(1_500, over_ms=2_000)
        query.trigger()
    assert query.behind() < 1_500
    query.close()
