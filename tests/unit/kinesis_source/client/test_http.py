"""The client over real HTTP against a server that misbehaves."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.kinesis_source.client.api import ThrottledError
from tests.support.fakes.clocks import ManualTime
from tests.support.fakes.scripted_http import (
    GOOD,
    HTML,
    ORDERS,
    Cut,
    Drop,
    Reply,
    ScriptedHttp,
    Silence,
    Step,
    client,
    fetch,
    refusal,
)

TRANSIENT: dict[str, Step] = {
    "throttled": refusal("ProvisionedThroughputExceededException"),
    "limit": refusal("LimitExceededException"),
    "kms throttled": refusal("KMSThrottlingException"),
    "internal failure": refusal("InternalFailure", status=500),
    "html 502": Reply(status=502, body=HTML, content_type="text/html"),
    "html 503": Reply(status=503, body=b"<html>no</html>", content_type="text/html"),
    "empty 500": Reply(status=500, body=b""),
    "empty 400": Reply(status=400, body=b""),
    "list 500": Reply(status=500, body=b"[]"),
    "html 200": Reply(body=b"<html>captive</html>", content_type="text/html"),
    "null 200": Reply(body=b"null"),
    "no records 200": Reply(body=b"{}"),
    "base64 200": Reply(body=GOOD.body.replace(b"aGVsbG8=", b"aGVsbG8")),
    "cut": Cut(body=GOOD.body, sent=50),
    "dropped": Drop(),
}


@pytest.mark.parametrize("step", TRANSIENT.values(), ids=TRANSIENT.keys())
def test_transient_faults_are_ridden_out(step: Step) -> None:
    clock = ManualTime()
    with ScriptedHttp(step, step, GOOD) as server:
        service = client(server.url, clock)
        assert fetch(service) == [b"hello"]
        service.close()
    assert len(server.requests) == 3
    assert len(clock.slept) == 2
    assert sum(service.retries().values()) == 2


@pytest.mark.parametrize("step", TRANSIENT.values(), ids=TRANSIENT.keys())
def test_an_impatient_call_tries_once(step: Step) -> None:
    clock = ManualTime()
    with ScriptedHttp(step, GOOD) as server:
        service = client(server.url, clock)
        with pytest.raises(ThrottledError) as caught:
            fetch(service, retry=False)
        service.close()
    assert len(server.requests) == 1
    assert clock.slept == []
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_lasting_fault_ends_with_the_limit_of_attempts() -> None:
    with ScriptedHttp(refusal("ServiceUnavailable", status=503)) as server:
        service = client(server.url)
        with pytest.raises(ServiceUnavailableError, match=r"ServiceUnavailable .* 4 times"):
            fetch(service)
        service.close()
    assert len(server.requests) == 4


def test_a_silent_service_is_given_up_after_the_read_timeout() -> None:
    with ScriptedHttp(Silence()) as server:
        service = client(server.url, read_timeout_ms=100)
        with pytest.raises(ServiceUnavailableError, match="ReadTimeoutError"):
            fetch(service)
        service.close()
    assert len(server.requests) == 4


def test_an_absent_endpoint_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        clock = ManualTime()
        with pytest.raises(ServiceUnavailableError) as caught:
            client(url, clock).describe(ORDERS)
    text = str(caught.value)
    for word in (url, "EndpointConnectionError", "endpointUrl", "retry.maxAttempts", "orders"):
        assert word in text
    assert sum(clock.slept) <= 10


def test_connections_are_kept_alive() -> None:
    with ScriptedHttp(GOOD) as server:
        service = client(server.url)
        for _ in range(20):
            fetch(service)
        service.close()
    assert len(server.requests) == 20
    assert server.connections == 1


def test_many_threads_keep_a_connection_each(caplog: pytest.LogCaptureFixture) -> None:
    threads = 32
    together = threading.Barrier(threads)
    with (
        ScriptedHttp(GOOD) as server,
        caplog.at_level(logging.WARNING),
        ThreadPoolExecutor(threads) as pool,
    ):
        service = client(server.url)

        def work(_: int) -> None:
            for _ in range(5):
                together.wait()
                assert fetch(service) == [b"hello"]

        list(pool.map(work, range(threads)))
        service.close()
    assert server.connections <= threads
    assert caplog.records == []


def test_retries_are_warned_of_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    throttle = refusal("ProvisionedThroughputExceededException", "private words")
    with ScriptedHttp(throttle, throttle, throttle, GOOD) as server:
        service = client(server.url)
        with caplog.at_level(logging.WARNING, "spark_ssp"):
            fetch(service)
        service.close()
    assert len(caplog.records) == 1
    assert "ProvisionedThroughputExceededException on GetRecords" in caplog.text
    assert "orders" in caplog.text
    assert "private" not in caplog.text
    assert service.retries() == {("GetRecords", "ProvisionedThroughputExceededException"): 3}


def test_nothing_of_the_answer_gets_into_an_error() -> None:
    with ScriptedHttp(Cut(body=GOOD.body, sent=len(GOOD.body) - 3)) as server:
        service = client(server.url)
        with pytest.raises(ServiceUnavailableError) as caught:
            fetch(service)
        service.close()
    assert "aGVsbG8" not in str(caught.value)
    assert "hello" not in str(caught.value)


def test_a_quota_that_a_new_stream_would_exceed_is_an_error_and_not_waited_out() -> None:
    """Of any other call this error means throttling."""
    exceeded = refusal("LimitExceededException", "too many shards")
    with ScriptedHttp(exceeded) as server:
        service = client(server.url)
        with pytest.raises(ServiceUnavailableError, match=r"LimitExceeded.* on CreateStream, 4"):
            service.create_stream(ORDERS, 1_000)
        service.close()
    with ScriptedHttp(*[exceeded] * 9, GOOD) as server:
        service = client(server.url)
        assert fetch(service) == [b"hello"]
        service.close()
