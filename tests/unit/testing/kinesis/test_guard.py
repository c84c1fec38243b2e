"""The services accept AWS clients, not web pages; the limit of a body."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.server import MAX_BODY_BYTES, refusal

KINESIS = "Kinesis_20131202.ListStreams"
DYNAMODB = "DynamoDB_20120810.ListTables"
Answer = tuple[int, bytes, dict[str, str]]


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedKinesis]:
    with EmbeddedKinesis(dynamodb=True) as service:
        yield service


@pytest.fixture(params=["kinesis", "dynamodb"])
def served(request: pytest.FixtureRequest, running: EmbeddedKinesis) -> tuple[str, str]:
    """An endpoint, and a target that it serves."""
    if request.param == "kinesis":
        return running.endpoint_url, KINESIS
    return running.dynamodb_endpoint_url, DYNAMODB


def ask(
    url: str, headers: dict[str, str], body: bytes = b"{}", method: str = "POST", path: str = "/"
) -> Answer:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, answer.read(), found
    finally:
        connection.close()


def test_a_client_is_answered_by_any_name_of_this_machine(served: tuple[str, str]) -> None:
    url, target = served
    for host in ("127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:4567"):
        status, _, headers = ask(url, {"X-Amz-Target": target, "Host": host})
        assert status == 200
        assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "attacker.example:4567"},
        {"Host": "127.0.0.1.attacker.example"},
        {"Host": "localhost@attacker.example"},
        {"Host": ""},
        {"Origin": "https://attacker.example"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "null"},
    ],
)
def test_a_web_page_is_refused(served: tuple[str, str], headers: dict[str, str]) -> None:
    url, target = served
    for method in ("POST", "OPTIONS", "GET"):
        status, _, found = ask(url, {"X-Amz-Target": target} | headers, method=method)
        assert status == 403
        assert not [name for name in found if name.startswith("access-control")]


def test_a_request_without_a_host_is_refused() -> None:
    assert refusal(host=None, origin=None, address="127.0.0.1") is not None


def test_services_at_another_address_accept_its_name_and_no_other() -> None:
    with EmbeddedKinesis(dynamodb=True, host="127.0.0.2") as service:
        for url, target in (
            (service.endpoint_url, KINESIS),
            (service.dynamodb_endpoint_url, DYNAMODB),
        ):
            assert urlsplit(url).hostname == "127.0.0.2"
            headers = {"X-Amz-Target": target}
            assert ask(url, headers)[0] == 200
            assert ask(url, headers | {"Host": "127.0.0.3"})[0] == 403
            assert ask(url, headers | {"Host": "attacker.example"})[0] == 403


def test_a_body_has_a_largest_size(served: tuple[str, str]) -> None:
    url, target = served
    status, _, _ = ask(url, {"X-Amz-Target": target}, b" " * MAX_BODY_BYTES + b"{}")
    assert status == 413


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"X-Amz-Target": "AmazonSSM.PutParameter"}, "/", 400),
        ({"X-Amz-Target": "DynamoDBStreams_20120810.ListStreams"}, "/", 400),
        ({}, "/", 400),
        ({"X-Amz-Target": DYNAMODB}, "/moto-api/", 404),
        ({"X-Amz-Target": DYNAMODB}, "/bucket/key", 404),
    ],
)
def test_nothing_of_moto_but_dynamodb_is_served(
    running: EmbeddedKinesis, headers: dict[str, str], path: str, status: int
) -> None:
    assert ask(running.dynamodb_endpoint_url, headers, path=path)[0] == status


def test_the_credential_scope_does_not_choose_the_service(running: EmbeddedKinesis) -> None:
    """moto's own server goes by it: a target of DynamoDB would be answered by S3."""
    scope = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/s3/aws4_request, x"
    status, body, _ = ask(
        running.dynamodb_endpoint_url, {"X-Amz-Target": DYNAMODB, "Authorization": scope}
    )
    assert status == 200
    assert b"TableNames" in body


def test_a_body_without_a_length_is_refused(running: EmbeddedKinesis) -> None:
    headers = {"X-Amz-Target": DYNAMODB, "Transfer-Encoding": "chunked"}
    assert ask(running.dynamodb_endpoint_url, headers, b"0\r\n\r\n")[0] == 411


def test_a_port_that_is_taken_is_an_error(running: EmbeddedKinesis) -> None:
    port = urlsplit(running.dynamodb_endpoint_url).port
    assert port is not None
    with pytest.raises(OSError, match="in use"):
        EmbeddedKinesis(dynamodb=True, dynamodb_port=port).start()


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_cannot_be_is_an_error(port: int) -> None:
    for service in (
        EmbeddedKinesis(port=port),
        EmbeddedKinesis(dynamodb=True, dynamodb_port=port),
    ):
        with pytest.raises(OSError, match=f"port {port}; expected"):
            service.start()
