"""Values through pipes, and how an agent asks."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.checkpoint.agent.framing import FrameDecoder, encode_frame
from spark_ssp.checkpoint.agent.settings import AgentSettings, with_short_timeouts
from spark_ssp.checkpoint.coordination.protocol import Report
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.errors import LeaseTableError
from spark_ssp.checkpoint.leases.table_schema import TableSettings
from spark_ssp.common.aws.retries import RetrySettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from tests.support.leases.values import ANNE, lease

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
