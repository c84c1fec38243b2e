"""Calls that go the short way, beside those of the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import botocore.auth
import pytest
from boto3 import Session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError

from spark_ssp.common.aws.botocore_bypass import CallsInFlight, DirectCalls
from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.error_translation import BODY_ERRORS, code_of
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kinesis_source.client import messages
from spark_ssp.kinesis_source.model.shard import EpochMillis
from tests.support.fakes.scripted_http import SESSION, ScriptedHttp

ASKED: dict[str, Any] = {"ShardIterator": "AAAA", "Limit": 10}
SDK_TELLS = "amz-sdk-invocation-id"
"""A header that only the long way sends."""


def sdk_client(url: str, session: Session = SESSION, **settings: Any) -> Any:
    config = client_config(ConnectionOptions()).merge(Config(**settings))
    return session.client("kinesis", endpoint_url=url, config=config)


def direct(sdk: Any) -> DirectCalls:
    """Return calls that have learned from a first request, which takes a server's first step."""
    messages.register_parser(sdk.meta.events)
    calls = DirectCalls(sdk, messages.DECODERS)
    sdk.get_records(**ASKED)
    return calls


def in_flight(calls: DirectCalls) -> Any:
    """Return the answer of a call whose thread could have others under way, or raise its error. A
    connection must be open."""
    flight = CallsInFlight[str](calls, 1)
    try:
        assert flight.begin("GetRecords", ASKED, "mine")
        ((tag, answer),) = flight.answers()
        assert (tag, len(flight)) == ("mine", 0)
        if isinstance(answer, Exception):
            raise answer
        return answer
    finally:
        flight.close()


def short_ways(server: ScriptedHttp) -> list[bool]:
    """Of each request, whether it came the short way."""
    return [SDK_TELLS not in request.headers for request in server.requests]


def set_signing_time(patch: pytest.MonkeyPatch, now: datetime) -> None:
    """Make botocore sign at that time."""
    if hasattr(botocore.auth, "get_current_datetime"):
        patch.setattr("botocore.auth.get_current_datetime", lambda: now)
    else:  # an older botocore
        clock = SimpleNamespace(datetime=SimpleNamespace(utcnow=lambda: now))
        patch.setattr("botocore.auth.datetime", clock)


def signed_by_the_sdk(
    request: AWSRequest, credentials: Credentials, *, service: str, region: str, now: datetime
) -> str:
    """The header Authorization that botocore gives a request at that time."""
    with pytest.MonkeyPatch.context() as patch:
        set_signing_time(patch, now)
        SigV4Auth(credentials, service, region).add_auth(request)
    text: str = request.headers["Authorization"]
    return text


def signed_again(headers: Mapping[str, str], body: bytes, credentials: Credentials) -> str:
    """The header Authorization that botocore gives a request to Kinesis of these headers."""
    request = AWSRequest(
        "POST",
        f"http://{headers['Host']}/",
        headers={name: headers[name] for name in ("X-Amz-Target", "Content-Type")},
        data=body,
    )
    return signed_by_the_sdk(
        request,
        credentials,
        service="kinesis",
        region="us-east-1",
        now=datetime.strptime(headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC),
    )


def outcome(call: Any) -> object:
    """Return the outcome of a call in a comparable form, without times and ids of requests."""
    try:
        answer = call()
    except ClientError as error:
        said: Any = error.response
        # Not its text, which contains the number of attempts.
        return type(error).__name__, code_of(error), said["Error"], messages.parse_date(said)
    except BotoCoreError as error:
        return type(error).__name__
    except BODY_ERRORS:
        return "unreadable"
    try:
        page = messages.parse_page(answer, EpochMillis(5))
    except BODY_ERRORS:
        return "unreadable"
    return page, messages.parse_date(answer)
