"""Subscriptions: messages of an event stream received in any chunks, and requests on HTTP/2, whose
host is the one that is signed, and whose proxies are those of the URL that is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from awscrt import http
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.client.http2_transport import Http2Transport
from spark_ssp.kinesis_source.client.subscriptions import (
    MAX_MESSAGE_BYTES,
    Boto3Subscriber,
    BrokenStreamError,
    Message,
    MessageStream,
)
from spark_ssp.kinesis_source.model.shard import ConsumerArn, TrimHorizon
from spark_ssp.testing.kinesis.server import encode_message


class _Client:
    """A client whose credentials cannot be loaded."""

    meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_, **__: None))

    def subscribe_to_shard(self, **_: object) -> NoReturn:
        raise AccessError("a provider", found="no keys", expected="keys", next_step="none")


def test_a_failed_provider_of_credentials_is_a_fault_of_the_subscription() -> None:
    client: Any = _Client()
    shard = ShardKey(stream=StreamName("orders"), shard=ShardId("shardId-000000000000"))
    with pytest.raises(SubscriptionError, match="no keys on SubscribeToShard") as fault:
        Boto3Subscriber(client).subscribe(ConsumerArn("arn"), shard, TrimHorizon())
    assert fault.value.code == AccessError.kind


class Chunks:
    """A body that arrives in these chunks."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    def stream(self) -> Iterator[bytes]:
        yield from self._chunks

    def close(self) -> None:
        """Nothing is open."""


def cut(data: bytes, borders: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in borders), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def read_all(chunks: Sequence[bytes]) -> Iterator[Message]:
    stream = MessageStream(Chunks(chunks))
    while (size := stream.next_size()) is not None:
        yield stream.next_message(size)


MESSAGES = st.lists(
    st.builds(
        lambda kind, payload: (kind, payload),
        st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20),
        st.binary(max_size=300),
    ),
    max_size=5,
)


@given(MESSAGES, st.lists(st.integers(0, 5_000), max_size=12))
def test_messages_arrive_whole_however_they_are_cut(
    messages: list[tuple[str, bytes]], borders: list[int]
) -> None:
    data = b"".join(encode_message({":event-type": kind}, payload) for kind, payload in messages)
    found = list(read_all(cut(data, borders)))
    assert [(each.headers[":event-type"], each.payload) for each in found] == messages


@given(st.binary(max_size=300), st.data())
def test_an_end_within_a_message_is_an_error(payload: bytes, data: st.DataObject) -> None:
    message = encode_message({":event-type": "e"}, payload)
    length = data.draw(st.integers(1, len(message) - 1))
    with pytest.raises(BrokenStreamError):
        list(read_all([message, message[:length]]))


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_damaged_message_is_an_error_that_does_not_show_it(
    payload: bytes, data: st.DataObject
) -> None:
    message = bytearray(encode_message({":event-type": "secret"}, payload))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BrokenStreamError) as caught:
        list(read_all([bytes(message)]))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 12, MAX_MESSAGE_BYTES + 1, (1 << 32) - 1])
def test_an_impossible_size_is_an_error(size: int) -> None:
    stream = MessageStream(Chunks([size.to_bytes(4, "big") + bytes(100)]))
    with pytest.raises(BrokenStreamError, match=f"{size} bytes"):
        stream.next_size()


class _Refusing:
    """A connection that records what it is to send, and fails."""

    def __init__(self) -> None:
        self.sent: list[http.HttpRequest] = []

    def is_open(self) -> bool:
        return True

    def request(self, message: http.HttpRequest, **_: object) -> Any:
        self.sent.append(message)
        raise OSError("refused")

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> _Refusing:
    refusing = _Refusing()

    def new(**_: object) -> Future[Any]:
        opening: Future[Any] = Future()
        opening.set_result(refusing)
        return opening

    monkeypatch.setattr(http.Http2ClientConnection, "new", new)
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return refusing


def _send(url: str) -> Any:
    prepared: AWSPreparedRequest = AWSRequest(method="POST", url=url, data=b"{}").prepare()
    transport = Http2Transport(
        window=1, certificates=str(_certificates()), connect_timeout=1, silence=1
    )
    return transport.send(prepared)


def _certificates() -> str:
    from botocore.httpsession import get_cert_path

    return str(get_cert_path(True))


@pytest.mark.parametrize(
    "authority",
    ["kinesis.test", "kinesis.test:443", "kinesis.test:8443", "[::1]:443", "[::1]:8443"],
)
def test_the_host_that_is_sent_is_the_one_that_is_signed(
    authority: str, connection: _Refusing
) -> None:
    url = f"https://{authority}/"
    signed = SigV4Auth(Credentials("K", "S"), "kinesis", "us-east-1").headers_to_sign(
        AWSRequest(method="POST", url=url)
    )
    with pytest.raises(OSError, match="OSError"):
        _send(url)
    assert {dict(message.headers)["host"] for message in connection.sent} == {signed["host"]}


def test_a_proxy_is_chosen_by_the_url_that_is_called(
    connection: _Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "regional.test")
    assert _send("https://account.test/") is None
    assert connection.sent == []
    with pytest.raises(OSError, match="OSError"):
        _send("https://regional.test/")
    assert connection.sent
