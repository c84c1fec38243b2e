"""Requests on HTTP/2: the host that is signed is the one that is sent, proxies are those of the URL
that is called."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from awscrt import http
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import Credentials

from spark_ssp.kinesis_source.client.http2_transport import Http2Transport


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
