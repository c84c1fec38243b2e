"""Lags of shards of which some cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import Position, ShardEnd, StreamRef, TrimHorizon
from spark_ssp.operations.inspection import streams
from spark_ssp.operations.inspection.streams import lags_of, try_lags


class _Unavailable:
    """A service that does not answer."""

    def __init__(self) -> None:
        self.calls = 0

    def open_iterator(self, stream: StreamRef, shard: ShardId, position: Any) -> Any:
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
    lags, errors = try_lags(positions, ConnectionOptions())
    assert lags == {**dict.fromkeys(keys), ended: 0}
    assert ([error.subject for error in errors], service.calls) == (["00"], 3)
    with pytest.raises(ServiceUnavailableError):
        lags_of(positions, ConnectionOptions())
