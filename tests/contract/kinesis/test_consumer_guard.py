"""The process that deregisters a query's consumers at its end, beside real queries' processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.boto3_client import connect, disconnect
from spark_ssp.kinesis_source.client.consumers import GuardSettings, start_guard
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from spark_ssp.kinesis_source.reading import fan_out
from spark_ssp.kinesis_source.reading.fan_out import open_fan_out
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.support.waiting import until

_DEADLINE_S = 60


@pytest.fixture
def kinesis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedKinesis]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with EmbeddedKinesis() as service:
        service.state.create_stream("orders")
        service.state.register_consumer("orders", "etl")
        service.state.register_consumer("orders", "another")
        yield service


def settings(kinesis: EmbeddedKinesis, **changes: object) -> GuardSettings:
    values = {
        "streams": (StreamRef(name=StreamName("orders")),),
        "consumer_name": "etl",
        "endpoint": kinesis.endpoint_url,
        "connection": ConnectionOptions(
            region="us-east-1",
            endpoint_url=kinesis.endpoint_url,
            aws_access_key_id="local",
            aws_secret_access_key="local",
        ),
    }
    return GuardSettings(**{**values, **changes})  # type: ignore[arg-type]


def names(kinesis: EmbeddedKinesis) -> list[str]:
    state = kinesis.state
    return [each.name for each in state.consumers("orders").all(state.clock.now_ms())]


def test_the_last_query_of_a_machine_deregisters(kinesis: EmbeddedKinesis) -> None:
    first, second = start_guard(settings(kinesis)), start_guard(settings(kinesis))
    first.close()
    first.wait(_DEADLINE_S)
    assert sorted(names(kinesis)) == ["another", "etl"]
    second.close()
    second.wait(_DEADLINE_S)
    assert names(kinesis) == ["another"]
    assert not list(Path(os.environ["TMPDIR"]).glob("*/*.consumer"))


def test_a_deleted_stream_leaves_no_consumer_of_another_stream(kinesis: EmbeddedKinesis) -> None:
    streams = tuple(StreamRef(name=StreamName(name)) for name in ("deleted", "orders"))
    guard = start_guard(settings(kinesis, streams=streams))
    guard.close()
    guard.wait(_DEADLINE_S)
    assert names(kinesis) == ["another"]


def test_a_batch_read_ends_with_the_process_of_its_application(kinesis: EmbeddedKinesis) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as application:
        guard, second = (start_guard(settings(kinesis, watched=application.pid)) for _ in "12")
        second.wait(_DEADLINE_S)  # one process for all reads of an application
        # One that was started later has ended: this one ignores the end of its pipe.
        later = start_guard(settings(kinesis, consumer_name="another"))
        later.close()
        later.wait(_DEADLINE_S)
        assert names(kinesis) == ["etl"]
        application.communicate(b"\n")
    guard.wait(_DEADLINE_S)
    assert names(kinesis) == []


def test_two_ways_to_one_service_share_a_lock(kinesis: EmbeddedKinesis) -> None:
    """As a region in an option and in the environment."""
    connection = replace(settings(kinesis).connection, region="eu-west-1")
    first = start_guard(settings(kinesis))
    second = start_guard(settings(kinesis, connection=connection))
    second.close()
    second.wait(_DEADLINE_S)
    assert "etl" in names(kinesis)
    first.close()
    first.wait(_DEADLINE_S)
    assert names(kinesis) == ["another"]


def test_the_consumer_of_a_query_with_leases_remains(
    kinesis: EmbeddedKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of an application, whose other workers may not own a lease now."""
    started: list[GuardSettings] = []
    monkeypatch.setattr(fan_out, "start_guard", started.append)
    given = {"streamName": "orders", "region": "us-east-1", "endpointUrl": kinesis.endpoint_url}
    given |= {"consumerMode": "efo", "awsAccessKeyId": "local", "awsSecretAccessKey": "local"}
    for more in ({"consumerName": "etl"}, {"applicationName": "etl", "trigger": "processingTime"}):
        options = parse_options(given | more)
        assert open_fan_out(options, connect(options.connection)) is not None
    assert [each.consumer_name for each in started] == ["etl"]
    disconnect()


def test_a_query_that_was_killed_is_at_its_end(kinesis: EmbeddedKinesis) -> None:
    program = (
        "import pickle, sys; "
        "from spark_ssp.kinesis_source.client.consumers import start_guard; "
        "guard = start_guard(pickle.load(sys.stdin.buffer)); print('ready', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as query:
        assert query.stdin is not None
        assert query.stdout is not None
        query.stdin.write(pickle.dumps(settings(kinesis)))
        query.stdin.flush()
        assert query.stdout.readline() == b"ready\n"
        assert "etl" in names(kinesis)
        query.send_signal(signal.SIGKILL)
    until(lambda: names(kinesis) == ["another"], "the consumer is deregistered")
