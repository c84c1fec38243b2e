"""Values through pipes, changes of a status among them, and how an agent asks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.agent.process import with_short_timeouts
from spark_ssp.checkpoint.coordination.protocol import (
    AgentSettings,
    FrameDecoder,
    Report,
    Status,
    apply_change,
    encode_frame,
    to_change,
)
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey, LeaseTableError
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from tests.support.leases.values import ANNE, BERT, lease

_values = st.one_of(st.none(), st.text(), st.binary(max_size=300), st.lists(st.integers()))


@given(st.lists(_values, max_size=5), st.integers(1, 50))
def test_values_arrive_in_order_however_they_are_cut(values: list[object], size: int) -> None:
    data = b"".join(encode_frame(value) for value in values)
    frames = FrameDecoder()
    found: list[object] = []
    for begin in range(0, len(data), size):
        found += frames.feed(data[begin : begin + size])
    assert found == values


def test_reports_and_errors_arrive() -> None:
    report = Report(create=(lease(),), reading=frozenset({lease().key}))
    error = LeaseTableError("table x", found="a", expected="b", next_step="c")
    first, second = FrameDecoder().feed(encode_frame(report) + encode_frame(error))
    assert first == report
    assert isinstance(second, LeaseTableError)
    assert str(second) == str(error)


SECRET = ConnectionOptions(
    aws_access_key_id="key-in-clear",
    aws_secret_access_key="secret-in-clear",
    aws_session_token="token-in-clear",
    role_external_id="external-in-clear",
)


def _settings(connection: ConnectionOptions) -> AgentSettings:
    return AgentSettings(
        application="orders",
        table=TableSettings(name="orders"),
        coordination=Settings(worker=ANNE),
        connection=connection,
    )


def test_settings_show_no_secret_and_carry_them() -> None:
    settings = _settings(SECRET)
    assert "in-clear" not in repr(settings)
    assert "in-clear" not in str(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize("failover_ms", [7_500, 10_000, 60_000, 600_000])
@pytest.mark.parametrize("attempts", [1, 2, 8])
def test_no_call_takes_longer_than_a_third_of_the_failover_time(
    failover_ms: int, attempts: int
) -> None:
    connection, retry = with_short_timeouts(
        ConnectionOptions(retry_max_attempts=attempts), failover_ms
    )
    assert connection.connect_timeout_ms > 0
    assert connection.read_timeout_ms > 0
    once = connection.connect_timeout_ms + connection.read_timeout_ms
    waits = (retry.max_attempts - 1) * retry.max_backoff * 1000
    assert retry.max_attempts * once + waits <= failover_ms / 3
    assert 1 <= retry.max_attempts <= attempts


@pytest.mark.parametrize("failover_ms", [1_000, 2_000, 5_000])
def test_a_healthy_table_has_the_time_that_it_needs(failover_ms: int) -> None:
    connection, retry = with_short_timeouts(ConnectionOptions(), failover_ms)
    assert connection.connect_timeout_ms == 500
    assert connection.read_timeout_ms == 500
    assert retry.max_backoff <= 0.2


def test_what_the_user_asks_for_is_never_exceeded() -> None:
    hasty = ConnectionOptions(
        retry_max_attempts=1, retry_max_backoff_ms=7, connect_timeout_ms=5, read_timeout_ms=6
    )
    assert with_short_timeouts(hasty, 600_000) == (
        hasty,
        RetrySettings(max_attempts=1, max_backoff=0.007),
    )


_KEYS = st.integers(min_value=0, max_value=5)


@st.composite
def _statuses(draw: st.DrawFn) -> Status:
    leases = [
        lease(
            shard=f"shardId-{number:012d}",
            counter=draw(st.integers(min_value=0, max_value=3)),
            owner=draw(st.sampled_from([ANNE, BERT])),
            extra_attributes=draw(st.sampled_from([{}, {"colour": {"S": "blue"}}])),
        )
        for number in sorted(draw(st.sets(_KEYS)))
    ]
    rows = {row.key: row for row in leases}
    held = sorted(draw(st.sets(st.sampled_from(sorted(rows)))) if rows else [])
    return Status(
        held={key: rows[key] for key in held},
        asked_for=frozenset(held[:1]),
        rows=rows,
        outage_ms=draw(st.integers(min_value=0, max_value=9)),
        released=draw(st.booleans()),
        problem=None,
    )


@given(st.lists(_statuses(), min_size=1, max_size=5))
def test_changes_give_each_status_in_turn(statuses: list[Status]) -> None:
    sent: Mapping[LeaseKey, Lease] = {}
    received: Mapping[LeaseKey, Lease] = {}
    for status in statuses:
        found = apply_change(received, to_change(sent, status))
        assert found == status
        assert list(found.rows) == sorted(found.rows)
        assert [row.extra_attributes for row in found.rows.values()] == [
            row.extra_attributes for row in status.rows.values()
        ]
        sent, received = status.rows, found.rows


@given(_statuses())
def test_a_status_that_stays_has_no_rows(status: Status) -> None:
    change = to_change(status.rows, status)
    assert (change.changed, change.removed) == ((), ())
