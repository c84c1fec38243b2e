"""The short way of a call: when it is taken, and when it is not."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from boto3 import Session
from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from urllib3 import HTTPConnectionPool, HTTPResponse

from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.error_translation import Severity, severity_of
from spark_ssp.common.aws.http_exchange import Response
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kinesis_source.client import responses
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    SequenceNumber,
)
from tests.support.fakes.client_http import (
    BY_ARN,
    GOOD,
    ITERATOR,
    KEYS,
    ORDERS,
    SHARD,
    client,
    fetch,
)
from tests.support.fakes.direct_calls import (
    ASKED,
    SDK_TELLS,
    direct,
    sdk_client,
    short_ways,
    signed_again,
)
from tests.support.fakes.scripted_http import ScriptedHttp, reply

# --- It is taken ---------------------------------------------------------------------------------


def test_all_calls_after_the_first_of_their_kind_go_the_short_way() -> None:
    answer = reply({"ShardIterator": "AAAA"})
    after = AfterRecord(sequence_number=SequenceNumber("49"))
    with ScriptedHttp(GOOD, GOOD, GOOD, GOOD, answer) as server:
        service = client(server.url)
        for stream in (ORDERS, BY_ARN):
            for _ in range(2):
                service.get_records(stream, SHARD, ITERATOR, limit=10)
        for _ in range(3):
            assert service.open_iterator(BY_ARN, SHARD, after) == "AAAA"
        service.close()
    assert short_ways(server) == [False, True, False, True, False, True, True]
    first, second, *_ = server.requests
    assert first.json() == second.json()
    told = {SDK_TELLS, "amz-sdk-request"}
    sent = [{name.lower() for name in request.headers} for request in (first, second)]
    assert sent[0] - told == sent[1]
    changing = {"X-Amz-Date", "Authorization", "Content-Length"}
    for name in set(second.headers) - changing:
        assert first.headers[name] == second.headers[name]


def test_a_time_is_sent_to_the_millisecond_either_way() -> None:
    times = [1_600_000_000_123, 1_600_000_000_123, 1_763_000_000_001, 1_763_000_000_000]
    with ScriptedHttp(reply({"ShardIterator": "AAAA"})) as server:
        service = client(server.url)
        for millis in times:
            service.open_iterator(ORDERS, SHARD, AtTimestamp(millis=EpochMillis(millis)))
        service.close()
    assert short_ways(server) == [False, True, True, True]
    first, second, *_ = server.requests
    assert first.json() == second.json()
    sent = [request.json()["Timestamp"] for request in server.requests]
    assert sent == [millis / 1000 for millis in times]


def test_closed_connections_are_opened_by_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        service = client(server.url)
        for _ in range(2):
            fetch(service)
            fetch(service)
            service.close()
    assert short_ways(server) == [False, True, False, True]
    assert server.connections == 2


def test_many_threads_share_what_was_learned() -> None:
    with ScriptedHttp(GOOD) as server, ThreadPoolExecutor(16) as pool:
        service = client(server.url)
        fetch(service)
        together = threading.Barrier(16)

        def work(_: int) -> list[list[bytes]]:
            together.wait()
            return [fetch(service) for _ in range(20)]

        assert list(pool.map(work, range(16))) == [[[b"hello"]] * 20] * 16
        service.close()
    assert short_ways(server) == [False] + [True] * 320
    assert server.connections <= 16


@pytest.mark.parametrize("token", [None, "token/+=="])
def test_signatures_are_of_the_day_and_the_token(token: str | None) -> None:
    day = [datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC).timestamp()]
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url, Session(aws_session_token=token, **KEYS))
        calls = DirectCalls(sdk, responses.DECODERS, now=lambda: day[0])
        sdk.get_records(**ASKED)
        assert calls.call("GetRecords", ASKED) is not None
        day[0] += 1
        assert calls.call("GetRecords", ASKED) is not None
        sdk.close()
    last, next_ = server.requests[1:]
    assert (last.headers["X-Amz-Date"], next_.headers["X-Amz-Date"]) == (
        "20261130T235959Z",
        "20261201T000000Z",
    )
    for request in (last, next_):
        assert request.headers.get("X-Amz-Security-Token") == token
        assert request.headers["Authorization"] == signed_again(
            request.headers, request.body, Credentials("test", "test-secret", token)
        )


def test_a_call_whose_signature_was_too_old_is_signed_with_the_time_of_the_next_try() -> None:
    """As after a machine slept between signing and sending."""
    text = "Signature expired: 20261130T100000Z is now earlier than 20261130T120000Z"
    refusal = reply({"__type": "InvalidSignatureException", "message": text}, status=400)
    now = [datetime(2026, 11, 30, 10, tzinfo=UTC).timestamp()]
    with ScriptedHttp(GOOD, refusal, GOOD) as server:
        sdk = sdk_client(server.url, Session(**KEYS))
        calls = DirectCalls(sdk, responses.DECODERS, now=lambda: now[0])
        sdk.get_records(**ASKED)
        with pytest.raises(ClientError) as raised:
            calls.call("GetRecords", ASKED)
        assert severity_of(raised.value) is Severity.FAULT
        now[0] += 7_200
        assert calls.call("GetRecords", ASKED) is not None
        sdk.close()
    assert short_ways(server) == [False, True, True]
    slept, awake = (request.headers for request in server.requests[1:])
    assert (slept["X-Amz-Date"], awake["X-Amz-Date"]) == ("20261130T100000Z", "20261130T120000Z")
    assert slept["Authorization"] != awake["Authorization"]


def test_each_stream_goes_where_the_sdk_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an explicit endpoint: the host may depend on the account and on the operation."""
    asked: list[tuple[str, str]] = []

    def urlopen(pool: HTTPConnectionPool, *_: object, **request: Any) -> HTTPResponse:
        assert SDK_TELLS in {name.lower() for name in request["headers"]}
        asked.append((f"{pool.scheme}://{pool.host}:{pool.port}", "long"))
        return HTTPResponse(io.BytesIO(GOOD.body), status=200, preload_content=False)

    def post(pool: HTTPConnectionPool, *_: object) -> Response:
        asked.append((f"{pool.scheme}://{pool.host}:{pool.port}", "short"))
        return Response(200, {}, GOOD.body, 0.0)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", urlopen)
    monkeypatch.setattr("spark_ssp.common.aws.botocore_bypass.post", post)
    session = Session(**KEYS)
    sdk = session.client("kinesis", config=client_config(ConnectionOptions()))
    credentials: Any = session.get_credentials()
    calls = DirectCalls(sdk, responses.DECODERS)
    for arn in (None, BY_ARN.arn, "arn:aws:kinesis:us-east-1:210987654321:stream/orders"):
        request = ASKED | ({} if arn is None else {"StreamARN": arn})
        sdk.get_records(**request)
        assert calls.call("GetRecords", request) is not None
    for owner in ("111111111111", "111111111111", "222222222222"):
        credentials.account_id = owner
        if calls.call("GetRecords", ASKED) is None:
            sdk.get_records(**ASKED)
    sdk.close()
    assert [way for _, way in asked[:6]] == ["long", "short"] * 3
    hosts = [place for place, _ in asked]
    assert hosts[0:6:2] == hosts[1:6:2]
    assert len(set(hosts[:6])) == 3
    if hasattr(credentials.get_frozen_credentials(), "account_id"):
        assert [way for _, way in asked[6:]] == ["long", "short", "long"]
        assert "111111111111" in hosts[6]
        assert hosts[6] == hosts[7]
        assert "222222222222" in hosts[8]
    else:  # an older botocore chooses no host by the credentials
        assert asked[6:] == [(hosts[0], "short")] * 3


# --- Unusual answers are left to the SDK ---------------------------------------------------------


def _a_header(request: Any, **_: object) -> None:
    request.headers["X-Audit"] = "yes"


def _a_query(request: Any, **_: object) -> None:
    request.url += "?place=here"


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ("before-sign.kinesis.GetRecords", _a_header),
        ("before-sign.kinesis.GetRecords", _a_query),
        ("before-send", _a_header),
    ],
    ids=["header", "query", "header by a general handler"],
)
def test_requests_that_someone_changes_stay_with_the_sdk(event: str, change: Any) -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        sdk.meta.events.register(event, change)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


def test_an_endpoint_with_a_path_stays_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url + "/aws")
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


def test_a_proxy_stays_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client("http://kinesis.invalid", proxies={"http": server.url})
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


@pytest.mark.parametrize("event", ["before-send", "before-send.kinesis"])
def test_answers_that_a_handler_makes_up_stay_with_the_sdk(event: str) -> None:
    no_headers: Any = {}

    def answer(request: Any, **_: object) -> AWSResponse:
        class Raw(io.BytesIO):
            def stream(self) -> Iterator[bytes]:
                yield self.read()

        return AWSResponse(request.url, 200, no_headers, Raw(GOOD.body))

    sdk = sdk_client("http://127.0.0.1:1")
    sdk.meta.events.register(event, answer)
    assert direct(sdk).call("GetRecords", ASKED) is None
    sdk.close()


@pytest.mark.parametrize("error", [AttributeError("gone"), TypeError("another signature")])
def test_a_botocore_with_other_private_parts_is_used_as_it_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise error

    monkeypatch.setattr("spark_ssp.common.aws.botocore_bypass._pool", changed)
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()
    assert short_ways(server) == [False]


def test_unsigned_requests_stay_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url, signature_version=UNSIGNED)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


def test_text_that_is_not_unicode_stays_with_the_sdk() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        assert calls.call("GetRecords", ASKED) is not None
        odd = {"ShardIterator": "\ud800", "Limit": 1}
        assert calls.call("GetRecords", odd) is None
        sdk.get_records(**odd)
        sdk.close()
    assert short_ways(server) == [False, True, False]
