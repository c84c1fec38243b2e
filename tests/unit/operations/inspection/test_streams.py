"""Lags of positions, and of shards of which some cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    Position,
    SequenceNumber,
    ShardEnd,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.operations.inspection import streams
from spark_ssp.operations.inspection.streams import lags_of, try_lags
from spark_ssp.testing.kinesis import KinesisState, ManualClock, UnusualAnswers
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.kcl.kpl import Put, aggregate
from tests.support.kinesis.shards import key


class _Unavailable:
    """A service that does not answer."""

    def __init__(self) -> None:
        self.calls = 0

    def open_iterator(
        self, stream: StreamRef, shard: ShardId, position: Any, *, inclusive: bool
    ) -> Any:
        self.calls += 1
        raise ServiceUnavailableError(shard, found="none", expected="one", next_step="wait")


def test_a_stream_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure costs all retries of a call. One is reported; other streams are measured."""
    service = _Unavailable()
    monkeypatch.setattr(streams, "connect", lambda connection: service)
    monkeypatch.setattr(streams, "_THREADS", 1)
    keys = [ShardKey(stream=StreamName("a"), shard=ShardId(f"{n:02}")) for n in range(40)]
    ended = ShardKey(stream=StreamName("b"), shard=ShardId("0"))
    positions: dict[ShardKey, Position] = {
        **{key: TrimHorizon() for key in keys},
        ended: ShardEnd(),
    }
    lags, errors = try_lags(positions, ConnectionOptions(), {})
    assert lags == {**dict.fromkeys(keys), ended: 0}
    assert ([error.subject for error in errors], service.calls) == (["00"], 3)
    with pytest.raises(ServiceUnavailableError):
        lags_of(positions, ConnectionOptions(), {})


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.sampled_from([UnusualAnswers(), UnusualAnswers.all()]),
    st.data(),
)
def test_the_lag_is_the_age_of_the_first_unread_user_record(
    sizes: list[int], answers: UnusualAnswers, data: st.DataObject
) -> None:
    """Which may be in the same aggregate as the last one that was read. 0 user records: a record
    that is not aggregated."""
    clock = ManualClock()
    state = KinesisState(clock=clock, answers=answers)
    state.create_stream("orders", 1)
    users: list[tuple[Position, int]] = []
    for size in sizes:
        clock.advance(60_000)
        puts = [Put(partition_key="a", data=b"%d" % n) for n in range(size)]
        number = state.put("orders", "a", aggregate(puts) if puts else b"plain").sequence_number
        users += [
            (AfterRecord(sequence_number=SequenceNumber(number), sub=sub), clock.now_ms())
            for sub in range(max(1, size))
        ]
    clock.advance(60_000)
    read = data.draw(st.integers(0, len(users)))
    position = users[read - 1][0] if read else TrimHorizon()
    expected = clock.now_ms() - users[read][1] if read < len(users) else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "connect", lambda _: InProcessKinesis(state))
        assert lags_of({key(0): position}, ConnectionOptions(), {}) == {key(0): expected}
