"""The short way of a call: it is taken, and comes to what the SDK's long way comes to."""

from __future__ import annotations

import io
import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from boto3 import Session
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import HTTPConnectionPool, HTTPResponse

from kinesis_source import wire
from kinesis_source.model import AfterRecord, AtTimestamp, EpochMillis, SequenceNumber
from ssp_common.aws_clients import client_config
from ssp_common.aws_faults import BODY_ERRORS, code_of, quoted
from ssp_common.connection import ConnectionOptions
from ssp_common.direct_calls import DirectCalls
from ssp_common.signing import Scope, authorization, signing_key
from tests.support.certificates import write_certificates
from tests.support.client_http import BY_ARN, GOOD, ITERATOR, ORDERS, SESSION, SHARD, client, fetch
from tests.support.scripted_http import (
    Cut,
    Drop,
    Reply,
    ScriptedHttp,
    Silence,
    Step,
    refusal,
    reply,
)

ASKED: dict[str, Any] = {"ShardIterator": "AAAA", "Limit": 10}
KEYS: dict[str, Any] = {
    "region_name": "us-east-1",
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test-secret",
}
_NO_HEADERS: Any = {}
SDK_TELLS = "amz-sdk-invocation-id"
"""A header that only the long way sends."""


def sdk_client(url: str, session: Session = SESSION, **settings: Any) -> Any:
    config = client_config(ConnectionOptions()).merge(Config(**settings))
    return session.client("kinesis", endpoint_url=url, config=config)


def direct(sdk: Any) -> DirectCalls:
    """Calls that have learned how, if they can; a server's first step goes on it."""
    wire.install(sdk.meta.events)
    calls = DirectCalls(sdk, wire.DECODERS)
    sdk.get_records(**ASKED)
    return calls


def short_ways(server: ScriptedHttp) -> list[bool]:
    """Of each request, whether it came the short way."""
    return [SDK_TELLS not in request.headers for request in server.requests]


# --- Signatures ----------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=40)
PLAIN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)


@given(
    keys=st.tuples(TEXT, TEXT, st.none() | TEXT),
    scope=st.builds(lambda region, service: Scope(region=region, service=service), PLAIN, PLAIN),
    body=st.binary(max_size=300),
    moment=st.integers(946_684_800, 4_102_444_800),
    target=PLAIN,
    port=st.integers(1, 65535),
)
def test_a_signature_is_what_botocore_makes_of_it(
    keys: tuple[str, str, str | None],
    scope: Scope,
    body: bytes,
    moment: int,
    target: str,
    port: int,
) -> None:
    access_key, secret_key, token = keys
    now = datetime.fromtimestamp(moment, UTC)
    url = f"https://kinesis.example:{port}/"
    request = AWSRequest("POST", url, headers={"X-Amz-Target": target}, data=body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda: now)
        credentials = Credentials(access_key, secret_key, token)
        SigV4Auth(credentials, scope.service, scope.region).add_auth(request)
    text = now.strftime("%Y%m%dT%H%M%SZ")
    host = "kinesis.example" if port == 443 else f"kinesis.example:{port}"
    headers = {"host": host, "x-amz-date": text, "x-amz-target": target}
    made = authorization(
        access_key=access_key,
        key=signing_key(secret_key, text[:8], scope),
        scope=scope,
        path="/",
        headers=headers | ({} if token is None else {"x-amz-security-token": token}),
        body=body,
    )
    assert made == request.headers["Authorization"]


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
    assert {name for name in first.headers if name not in told} == set(second.headers)
    changing = {"X-Amz-Date", "Authorization", "Content-Length"}
    for name in set(second.headers) - changing:
        assert first.headers[name] == second.headers[name]


def test_a_time_is_left_to_the_sdk() -> None:
    position = AtTimestamp(millis=EpochMillis(1_600_000_000_123))
    with ScriptedHttp(reply({"ShardIterator": "AAAA"})) as server:
        service = client(server.url)
        for _ in range(3):
            service.open_iterator(ORDERS, SHARD, position)
        service.close()
    assert short_ways(server) == [False, False, False]
    assert {request.json()["Timestamp"] for request in server.requests} == {1_600_000_000.123}


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
        calls = DirectCalls(sdk, wire.DECODERS, now=lambda: day[0])
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
        assert request.headers["Authorization"] == _signed_again(
            request.headers, request.body, token
        )


def _signed_again(headers: Mapping[str, str], body: bytes, token: str | None) -> str:
    moment = headers["X-Amz-Date"]
    request = AWSRequest(
        "POST",
        f"http://{headers['Host']}/",
        headers={name: headers[name] for name in ("X-Amz-Target", "Content-Type")},
        data=body,
    )
    with pytest.MonkeyPatch.context() as patch:
        now = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        patch.setattr("botocore.auth.get_current_datetime", lambda: now)
        credentials = Credentials("test", "test-secret", token)
        SigV4Auth(credentials, "kinesis", "us-east-1").add_auth(request)
    text: str = request.headers["Authorization"]
    return text


def test_each_stream_goes_where_the_sdk_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an endpoint of its own: the host may depend on the account and on the operation."""
    asked: list[tuple[str, str]] = []

    def urlopen(pool: HTTPConnectionPool, *_: object, **request: Any) -> HTTPResponse:
        short = SDK_TELLS not in {name.lower() for name in request["headers"]}
        asked.append((f"{pool.scheme}://{pool.host}:{pool.port}", "short" if short else "long"))
        return HTTPResponse(io.BytesIO(GOOD.body), status=200, preload_content=False)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", urlopen)
    account = ["111111111111"]
    session = Session(**KEYS)
    sdk = session.client("kinesis", config=client_config(ConnectionOptions()))
    credentials: Any = session.get_credentials()
    calls = DirectCalls(sdk, wire.DECODERS)
    for arn in (None, BY_ARN.arn, "arn:aws:kinesis:us-east-1:210987654321:stream/orders"):
        request = ASKED | ({} if arn is None else {"StreamARN": arn})
        sdk.get_records(**request)
        assert calls.call("GetRecords", request) is not None
    for owner in account * 2 + ["222222222222"]:
        credentials.account_id = owner
        if calls.call("GetRecords", ASKED) is None:
            sdk.get_records(**ASKED)
    sdk.close()
    assert [way for _, way in asked] == ["long", "short"] * 3 + ["long", "short", "long"]
    hosts = [place for place, _ in asked]
    assert hosts[0:6:2] == hosts[1:6:2]
    assert len(set(hosts[:6])) == 3
    assert "111111111111" in hosts[6]
    assert hosts[6] == hosts[7]
    assert "222222222222" in hosts[8]


# --- What is unusual is left to the SDK ----------------------------------------------------------


def _header_of_others(sdk: Any) -> None:
    def add(request: Any, **_: object) -> None:
        request.headers["X-Audit"] = "yes"

    sdk.meta.events.register("before-sign.kinesis.GetRecords", add)


def _a_query(sdk: Any) -> None:
    def change(request: Any, **_: object) -> None:
        request.url += "?place=here"

    sdk.meta.events.register("before-sign.kinesis.GetRecords", change)


@pytest.mark.parametrize("change", [_header_of_others, _a_query], ids=["header", "query"])
def test_requests_that_someone_changes_stay_with_the_sdk(change: Any) -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        change(sdk)
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
    def answer(request: Any, **_: object) -> AWSResponse:
        class Raw(io.BytesIO):
            def stream(self) -> Iterator[bytes]:
                yield self.read()

        return AWSResponse(request.url, 200, _NO_HEADERS, Raw(GOOD.body))

    sdk = sdk_client("http://127.0.0.1:1")
    sdk.meta.events.register(event, answer)
    assert direct(sdk).call("GetRecords", ASKED) is None
    sdk.close()


def test_requests_that_a_general_handler_changes_stay_with_the_sdk() -> None:
    def add(request: Any, **_: object) -> None:
        request.headers["X-Audit"] = "yes"

    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        sdk.meta.events.register("before-send", add)
        assert direct(sdk).call("GetRecords", ASKED) is None
        sdk.close()


@pytest.mark.parametrize("error", [AttributeError("gone"), TypeError("another signature")])
def test_a_botocore_with_other_private_parts_is_used_as_it_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> None:
        raise error

    monkeypatch.setattr("ssp_common.direct_calls._pool", changed)
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


# --- It comes to the same ------------------------------------------------------------------------

HTML = b"<!DOCTYPE html><html><body>Bad Gateway \xff</body></html>"

STEPS: dict[str, Step] = {
    "records": GOOD,
    "none": reply({"Records": [], "MillisBehindLatest": 7}),
    "no date": reply({"Records": []}, date=None),
    "no key": Reply(body=GOOD.body.replace(b'"PartitionKey"', b'"Key"')),
    "null": Reply(body=b"null"),
    "nothing": Reply(body=b""),
    "text": Reply(body=b"<html>captive</html>", content_type="text/html"),
    "base64": Reply(body=GOOD.body.replace(b"aGVsbG8=", b"aGVsbG8")),
    "accepted": Reply(status=202, body=GOOD.body),
    "throttled": refusal("ProvisionedThroughputExceededException", "slow down"),
    "expired": refusal("ExpiredIteratorException", "too old"),
    "unknown": refusal("com.amazon.coral.service#NewException", "who knows"),
    "colon": refusal("ResourceNotFoundException:http://internal.amazon.com/", "no such shard"),
    "denied": refusal("AccessDeniedException", "not you", status=403),
    "failure": refusal("InternalFailure", status=500),
    "html 502": Reply(status=502, body=HTML, content_type="text/html"),
    "list 500": Reply(status=500, body=b"[]"),
    "empty 400": Reply(status=400, body=b""),
    "empty 503": Reply(status=503, body=b""),
    "elsewhere": Reply(status=307, body=b"", headers={"Location": "http://127.0.0.1:1/"}),
    "dropped": Drop(),
}


def outcome(call: Any) -> object:
    """What a call came to, in a form to compare; times and ids of requests aside."""
    try:
        answer = call()
    except ClientError as error:
        said: Any = error.response
        # Not its text, in which the SDK tells how often it tried.
        return type(error).__name__, code_of(error), said["Error"], wire.date_of_answer(said)
    except BotoCoreError as error:
        return type(error).__name__
    except BODY_ERRORS:
        return "unreadable"
    try:
        page = wire.page_of_answer(answer, EpochMillis(5))
    except BODY_ERRORS:
        return "unreadable"
    return page, wire.date_of_answer(answer)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_both_ways_come_to_the_same(step: Step) -> None:
    with ScriptedHttp(GOOD, step) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        short = outcome(lambda: calls.call("GetRecords", ASKED))
        long = outcome(lambda: sdk.get_records(**ASKED))
        sdk.close()
    assert short == long
    assert short_ways(server) == [False, True, False]


def test_silence_is_the_same_error() -> None:
    with ScriptedHttp(GOOD, Silence()) as server:
        sdk = sdk_client(server.url, read_timeout=0.5)
        calls = direct(sdk)
        short = outcome(lambda: calls.call("GetRecords", ASKED))
        assert short == outcome(lambda: sdk.get_records(**ASKED)) == "ReadTimeoutError"
        sdk.close()
    assert short_ways(server) == [False, True, False]


def test_a_cut_body_is_told_for_what_it_is() -> None:
    """The long way finds a body that does not parse; both are tried again."""
    with ScriptedHttp(GOOD, Cut(body=GOOD.body, sent=50)) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == "ConnectionClosedError"
        assert outcome(lambda: sdk.get_records(**ASKED)) == "unreadable"
        sdk.close()


@pytest.mark.parametrize(
    "body", [b'{"ShardIterator": "AAAA"}', b"{}", b'{"ShardIterator": null}', b"[]", b"", b"{"]
)
def test_iterators_come_to_the_same(body: bytes) -> None:
    asked = {"StreamName": "orders", "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}

    def said(call: Any) -> object:
        try:
            return call().get("ShardIterator")
        except BODY_ERRORS as error:
            return type(error)

    with ScriptedHttp(reply({"ShardIterator": "A"}), Reply(body=body)) as server:
        sdk = sdk_client(server.url)
        calls = DirectCalls(sdk, wire.DECODERS)
        sdk.get_shard_iterator(**asked)
        short = said(lambda: calls.call("GetShardIterator", asked))
        assert short == said(lambda: sdk.get_shard_iterator(**asked))
        sdk.close()
    assert short_ways(server) == [False, True, False]


def test_an_endpoint_that_went_away_is_the_same_error() -> None:
    with ScriptedHttp(GOOD) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
    short = outcome(lambda: calls.call("GetRecords", ASKED))
    assert short == outcome(lambda: sdk.get_records(**ASKED)) == "EndpointConnectionError"
    sdk.close()


def test_a_header_that_cannot_be_sent_is_not_told() -> None:
    with ScriptedHttp(GOOD) as server:
        session = Session(aws_session_token="token", **KEYS)
        sdk = sdk_client(server.url, session)
        calls = direct(sdk)
        credentials = session.get_credentials()
        assert credentials is not None
        credentials.token = "private\nwords"
        for call in (lambda: calls.call("GetRecords", ASKED), lambda: sdk.get_records(**ASKED)):
            with pytest.raises(HTTPClientError) as caught:
                call()
            assert "private" not in quoted(caught.value)
            assert "words" not in quoted(caught.value)
        sdk.close()


# --- TLS -----------------------------------------------------------------------------------------


def tls(folder: Path) -> ssl.SSLContext:
    """A server with a certificate of an authority of its own, `ca.pem`."""
    folder.mkdir()
    write_certificates(folder, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def test_certificates_are_checked_on_the_short_way_too(tmp_path: Path) -> None:
    with ScriptedHttp(GOOD, tls=tls(tmp_path / "known")) as server:
        sdk = SESSION.client(
            "kinesis",
            endpoint_url=server.url,
            verify=str(tmp_path / "known" / "ca.pem"),
            config=client_config(ConnectionOptions()),
        )
        calls = direct(sdk)
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == outcome(
            lambda: sdk.get_records(**ASKED)
        )
    assert short_ways(server) == [False, True, False]
    port = int(server.url.rpartition(":")[2])
    with ScriptedHttp(GOOD, tls=tls(tmp_path / "other"), port=port) as impostor:
        assert outcome(lambda: calls.call("GetRecords", ASKED)) == "SSLError"
        assert outcome(lambda: sdk.get_records(**ASKED)) == "SSLError"
    assert impostor.requests == []
    sdk.close()
