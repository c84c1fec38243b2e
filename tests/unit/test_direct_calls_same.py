"""The short way of a call comes to what the SDK's long way comes to."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import orjson
import pytest
from boto3 import Session
from botocore.exceptions import HTTPClientError

from kinesis_source import wire
from ssp_common.aws_clients import client_config
from ssp_common.aws_faults import BODY_ERRORS, quoted
from ssp_common.connection import ConnectionOptions
from ssp_common.direct_calls import DirectCalls
from tests.support.certificates import write_certificates
from tests.support.client_http import GOOD, HTML, KEYS, SESSION, SHARD
from tests.support.direct_calls import (
    ASKED,
    direct,
    outcome,
    sdk_client,
    short_ways,
)
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

    def said(call: Any) -> object:
        try:
            answer = call()
            return wire.shards_of_answer(answer), answer.get("NextToken")
        except BODY_ERRORS as error:
            return type(error)

    with ScriptedHttp(reply({"Shards": []}), Reply(body=orjson.dumps(listing))) as server:
        sdk = sdk_client(server.url)
        calls = DirectCalls(sdk, wire.DECODERS)
        sdk.list_shards(**asked)
        short = said(lambda: calls.call("ListShards", asked))
        assert short == said(lambda: sdk.list_shards(**asked))
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
