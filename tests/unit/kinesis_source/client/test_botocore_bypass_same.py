"""Direct calls have the same results as calls of the SDK."""

from __future__ import annotations

import gzip
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from boto3 import Session
from botocore import xform_name
from botocore.exceptions import HTTPClientError

from spark_ssp.common.aws.botocore_bypass import DirectCalls
from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.error_translation import BODY_ERRORS, quoted
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kinesis_source.client import responses
from tests.support.fakes.client_http import GOOD, HTML, KEYS, SESSION, SHARD
from tests.support.fakes.direct_calls import (
    ASKED,
    direct,
    outcome,
    sdk_client,
    short_ways,
)
from tests.support.fakes.scripted_http import (
    JSON,
    Cut,
    Drop,
    Packets,
    Reply,
    ScriptedHttp,
    Silence,
    Step,
    refusal,
    reply,
)
from tests.support.kinesis.certificates import write_certificates


def head(*more: str, status: int = 200, version: str = "1.1") -> bytes:
    """Of an answer, with these headers beside the usual ones."""
    lines = [f"HTTP/{version} {status} Said", "Date: Tue, 14 Nov 2023 22:13:20 GMT"]
    return "\r\n".join([*lines, f"Content-Type: {JSON}", *more, "", ""]).encode()


def pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def chunk(body: bytes) -> bytes:
    """As HTTP frames it."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def chunks(body: bytes, size: int) -> list[bytes]:
    return [chunk(piece) for piece in pieces(body, size)]


LAST_CHUNK = chunk(b"")
LONG = head(f"Content-Length: {len(GOOD.body)}")
NO = refusal("ExpiredIteratorException", "too old")
CHUNKED = head("Transfer-Encoding: chunked")
CHUNKED_NO = head("Transfer-Encoding: chunked", status=400)

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
    "refused in chunks": Packets([CHUNKED_NO, *chunks(NO.body, 40), LAST_CHUNK]),
    "cut in a chunk": Packets([CHUNKED, b"ff\r\n{"], kept=False),
    "the head cut": Packets([LONG[:30]], kept=False),
    "compressed": replace(NO, body=gzip.compress(NO.body), headers={"Content-Encoding": "gzip"}),
}

SAME_PAGE: dict[str, Step] = {
    "chunked": Packets([CHUNKED, *chunks(GOOD.body, 40), LAST_CHUNK]),
    "one chunk": Packets([CHUNKED + chunk(GOOD.body) + LAST_CHUNK]),
    "closed": replace(GOOD, headers={"Connection": "close"}),
    "until the end": Packets([head("Connection: close"), GOOD.body], kept=False),
    "HTTP 1.0": Packets([head(version="1.0"), GOOD.body], kept=False),
    "the head in packets": Packets([*pieces(LONG, 25), GOOD.body]),
    "the head's end with the body": Packets([LONG[:-3], LONG[-3:] + GOOD.body]),
    "the body in packets": Packets([LONG, *pieces(GOOD.body, 40)]),
    "continue first": Packets([b"HTTP/1.1 100 Continue\r\n\r\n", LONG, GOOD.body]),
}
"""The content of `GOOD`, sent in other ways."""


@pytest.mark.parametrize("step", SAME_PAGE.values(), ids=SAME_PAGE.keys())
def test_a_page_is_the_same_however_it_is_sent(step: Step) -> None:
    with ScriptedHttp(GOOD, GOOD, step) as server:
        sdk = sdk_client(server.url)
        calls = direct(sdk)
        usual = outcome(lambda: sdk.get_records(**ASKED))
        for _ in range(2):  # The second one in any state of the connection.
            assert outcome(lambda: calls.call("GetRecords", ASKED)) == usual
            assert outcome(lambda: sdk.get_records(**ASKED)) == usual
        sdk.close()
    assert short_ways(server) == [False, False, True, False, True, False]


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


def _come_to_the_same(
    operation: str, asked: dict[str, Any], first: Reply, body: bytes, read: Callable[[Any], object]
) -> None:
    """Return the values or the error of this body. `first` is the answer to learn from."""

    def said(call: Callable[[], Any]) -> object:
        try:
            return read(call())
        except BODY_ERRORS as error:
            return type(error)

    with ScriptedHttp(first, Reply(body=body)) as server:
        sdk = sdk_client(server.url)
        calls = DirectCalls(sdk, responses.DECODERS)
        long: Callable[..., Any] = getattr(sdk, xform_name(operation))
        long(**asked)
        short = said(lambda: calls.call(operation, asked))
        assert short == said(lambda: long(**asked))
        sdk.close()
    assert short_ways(server) == [False, True, False]


@pytest.mark.parametrize(
    "body", [b'{"ShardIterator": "AAAA"}', b"{}", b'{"ShardIterator": null}', b"[]", b"", b"{"]
)
def test_iterators_come_to_the_same(body: bytes) -> None:
    asked = {"StreamName": "orders", "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}
    first = reply({"ShardIterator": "A"})
    _come_to_the_same("GetShardIterator", asked, first, body, lambda a: a.get("ShardIterator"))


def _listed(**more: object) -> dict[str, object]:
    return {
        "ShardId": SHARD,
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        "SequenceNumberRange": {"StartingSequenceNumber": "49"},
        **more,
    }


LISTINGS: dict[str, object] = {
    "one": {"Shards": [_listed()], "NextToken": "more"},
    "none": {"Shards": []},
    "merged": {"Shards": [_listed(ParentShardId="a", AdjacentParentShardId="b")]},
    "closed": {
        "Shards": [
            _listed(
                SequenceNumberRange={"StartingSequenceNumber": "49", "EndingSequenceNumber": "50"}
            )
        ]
    },
    "new members": {"Shards": [_listed(Colour="red")], "Total": 7},
    "nulls": {"Shards": [_listed(ParentShardId=None)], "NextToken": None},
    "no keys": {"Shards": [_listed(HashKeyRange={"StartingHashKey": "0"})]},
    "a number": {"Shards": [_listed(ShardId=7)]},
    "no shards": {"NextToken": "more"},
    "null": {"Shards": None},
}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS.keys())
def test_listings_come_to_the_same(listing: object) -> None:
    asked = {"StreamName": "orders"}

    def read(answer: Any) -> object:
        return responses.parse_shards(answer), answer.get("NextToken")

    body = orjson.dumps(listing)
    _come_to_the_same("ListShards", asked, reply({"Shards": []}), body, read)


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
    """A server with a certificate of a private authority, `ca.pem`."""
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
