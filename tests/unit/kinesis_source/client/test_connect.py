"""Connecting: where region and credentials come from, and one connection for each process."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs

import pytest
from botocore.credentials import Credentials, ReadOnlyCredentials

from spark_ssp.checkpoint.leases.kcl_tables import connect_tables
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.provided_credentials import forget_providers
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import ShardId, StreamName
from spark_ssp.kinesis_source.client import boto3_client
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis, connect, disconnect
from spark_ssp.kinesis_source.model.shard import ShardIterator, StreamRef
from spark_ssp.kinesis_source.options.parse import parse_options
from spark_ssp.kinesis_source.options.values import (
    ConnectionOptions,
    InvalidOptionsError,
    LeaseRole,
    table_connection,
)
from tests.support.fakes.direct_calls import short_ways, signed_again
from tests.support.fakes.scripted_http import (
    Reply,
    Request,
    ScriptedHttp,
    Step,
    assumed,
    reply,
    sts_refusal,
)

ORDERS = StreamRef(name=StreamName("orders"))
SHARD = ShardId("shardId-000000000000")
ITERATOR = ShardIterator("AAAA")
EMPTY = reply({"Records": [], "MillisBehindLatest": 0, "NextShardIterator": "BBBB"})
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ROLE = "arn:aws:iam::123456789012:role/reader"
LEASE_ROLE = "arn:aws:iam::210987654321:role/keeper"
KEYS = ConnectionOptions(
    region="us-east-1", aws_access_key_id="AKIDOPTION", aws_secret_access_key=SECRET
)


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No region and no credentials anywhere, unless the test puts them there."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def service_on(options: ConnectionOptions, *, attempts: int = 3) -> Boto3Kinesis:
    return Boto3Kinesis(
        create_client("kinesis", options),
        retry=RetrySettings(max_attempts=attempts, max_backoff=1),
        sleep=lambda _: None,
        role_arn=options.role_arn,
    )


def asked_with(options: ConnectionOptions) -> Request:
    """Return the request of one fetch with these options."""
    with ScriptedHttp(EMPTY) as server:
        service = service_on(replace(options, endpoint_url=server.url))
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    return server.requests[0]


def key_id(request: Request) -> str:
    return request.headers["Authorization"].split("Credential=")[1].split("/")[0]


def region(request: Request) -> str:
    return request.headers["Authorization"].split("/")[2]


# --- Region --------------------------------------------------------------------------------------


def test_no_region_is_an_error_that_names_the_option() -> None:
    with pytest.raises(InvalidOptionsError, match=r"^\[invalid-options\] region: found no region"):
        create_client("kinesis", replace(KEYS, region=None))


def test_the_region_is_the_first_that_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As docs/guide/kinesis-permissions.md lists them, here the last one first."""
    unset = replace(KEYS, region=None)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert region(asked_with(unset)) == "eu-central-1"
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    assert region(asked_with(unset)) == "ap-south-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert region(asked_with(unset)) == "eu-west-3"
    assert region(asked_with(KEYS)) == "us-east-1"


def test_an_endpoint_that_is_no_url_is_an_error_that_names_the_option() -> None:
    with pytest.raises(InvalidOptionsError, match=r"endpointUrl.* as in http://localhost:4566"):
        create_client("kinesis", replace(KEYS, endpoint_url="nonsense"))
    create_client("kinesis", replace(KEYS, endpoint_url="http://localhost:4566")).close()


def test_without_an_endpoint_it_is_the_one_of_the_region() -> None:
    made = create_client("kinesis", replace(KEYS, region="eu-west-1"))
    assert made.meta.endpoint_url == "https://kinesis.eu-west-1.amazonaws.com"
    made.close()


# --- Credentials ---------------------------------------------------------------------------------


def test_no_credentials_is_an_error_that_names_the_options_and_the_chain() -> None:
    with pytest.raises(AccessError) as caught:
        create_client("kinesis", ConnectionOptions(region="us-east-1"))
    for word in ("awsAccessKeyId", "awsProfile", "default chain"):
        assert word in str(caught.value)


def test_a_profile_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(AccessError, match=r"ProfileNotFound.*nope"):
        create_client("kinesis", ConnectionOptions(region="us-east-1", aws_profile="nope"))


def test_half_of_the_keys_is_an_error() -> None:
    with pytest.raises(InvalidOptionsError, match="awsSecretAccessKey"):
        create_client("kinesis", replace(KEYS, aws_secret_access_key=None))


def test_keys_of_the_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "environment-token")
    request = asked_with(KEYS)
    assert key_id(request) == "AKIDOPTION"
    assert "X-Amz-Security-Token" not in request.headers
    assert key_id(asked_with(ConnectionOptions(region="us-east-1"))) == "AKIDENV"


def test_the_client_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = asked_with(KEYS).headers["User-Agent"]
    assert agent.startswith("Botocore/")
    assert " Python/" in agent
    assert agent.endswith(" spark-ssp")
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "orders-app")
    agent = asked_with(KEYS).headers["User-Agent"]
    assert agent.startswith("Botocore/")
    assert " app/orders-app " in agent
    assert agent.endswith(" spark-ssp")


def test_the_session_token_is_sent() -> None:
    request = asked_with(replace(KEYS, aws_session_token="token-of-options"))
    assert request.headers["X-Amz-Security-Token"] == "token-of-options"


def test_a_profile_gives_keys_and_region(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = x\n"
    )
    (tmp_path / "config").write_text("[profile work]\nregion = ap-south-1\n")
    request = asked_with(ConnectionOptions(aws_profile="work"))
    assert (key_id(request), region(request)) == ("AKIDPROFILE", "ap-south-1")


# --- Roles ---------------------------------------------------------------------------------------


def with_role(server: ScriptedHttp) -> ConnectionOptions:
    return replace(
        KEYS,
        endpoint_url=server.url,
        role_arn=ROLE,
        role_external_id="partner",
        sts_endpoint_url=server.url,
    )


def fetch_twice(*steps: Step, options: dict[str, str | None] | None = None) -> list[Request]:
    with ScriptedHttp(*steps) as server:
        service = service_on(replace(with_role(server), **(options or {})))  # type: ignore[arg-type]
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    return server.requests


def test_a_role_is_assumed_once_with_the_keys_of_the_options() -> None:
    requests = fetch_twice(assumed("ONE"), EMPTY)
    assert [request.operation for request in requests] == ["AssumeRole", "GetRecords", "GetRecords"]
    asked = parse_qs(requests[0].body.decode())
    assert asked["RoleArn"] == [ROLE]
    assert asked["ExternalId"] == ["partner"]
    assert asked["RoleSessionName"] == ["spark-ssp"]
    assert [key_id(request) for request in requests] == ["AKIDOPTION", "AKIDONE", "AKIDONE"]
    assert requests[1].headers["X-Amz-Security-Token"] == "token-ONE"


def test_the_role_session_may_be_named() -> None:
    requests = fetch_twice(assumed("ONE"), EMPTY, options={"role_session_name": "nightly"})
    assert parse_qs(requests[0].body.decode())["RoleSessionName"] == ["nightly"]


@pytest.mark.parametrize(
    ("given", "asks_for", "signs_with"),
    [
        ({}, (ROLE, "partner"), "AKIDROLE"),
        ({"leaseRoleArn": LEASE_ROLE}, (LEASE_ROLE, None), "AKIDROLE"),
        (
            {"leaseRoleArn": LEASE_ROLE, "leaseRoleExternalId": "own"},
            (LEASE_ROLE, "own"),
            "AKIDROLE",
        ),
        ({"leaseRoleArn": "none"}, None, "AKIDOPTION"),
    ],
)
def test_the_lease_table_may_have_another_role_than_the_streams(
    given: dict[str, str], asks_for: tuple[str, str | None] | None, signs_with: str
) -> None:
    with (
        ScriptedHttp(assumed("ROLE")) as sts,
        ScriptedHttp(EMPTY) as kinesis,
        ScriptedHttp(reply({"Items": []})) as dynamodb,
    ):
        options = parse_options(
            {
                "streamName": "orders",
                "region": "us-east-1",
                "endpointUrl": kinesis.url,
                "awsAccessKeyId": "AKIDOPTION",
                "awsSecretAccessKey": SECRET,
                "roleArn": ROLE,
                "roleExternalId": "partner",
                "roleSessionName": "nightly",
                "stsEndpointUrl": sts.url,
                "applicationName": "orders-etl",
                "dynamodbEndpointUrl": dynamodb.url,
                **given,
            }
        )
        assert options.leases is not None
        service = service_on(options.connection)
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
        connection = options.leases.connection(options.connection)
        table = TableSettings(name=options.leases.table)
        store, _ = connect_tables(
            "orders-etl", table, connection, RetrySettings(max_attempts=1, max_backoff=1)
        )
        store.scan()
        store.close()
    assert key_id(kinesis.requests[0]) == "AKIDROLE"
    assert key_id(dynamodb.requests[0]) == signs_with
    asked = [parse_qs(request.body.decode()) for request in sts.requests]
    roles = [(one["RoleArn"][0], one.get("ExternalId", [None])[0]) for one in asked]
    assert roles == [(ROLE, "partner"), *([] if asks_for is None else [asks_for])]
    assert {one["RoleSessionName"][0] for one in asked} == {"nightly"}


def test_a_lease_role_that_may_not_be_assumed_is_an_error_that_names_its_option() -> None:
    with ScriptedHttp(sts_refusal("AccessDenied", 403)) as server:
        connection = table_connection(
            with_role(server), server.url, LeaseRole(arn=LEASE_ROLE, external_id="own")
        )
        table = TableSettings(name="orders-etl")
        store, _ = connect_tables(
            "orders-etl", table, connection, RetrySettings(max_attempts=1, max_backoff=1)
        )
        with pytest.raises(AccessError) as caught:
            store.scan()
        store.close()
    assert caught.value.subject == f"option leaseRoleArn ({LEASE_ROLE})"
    assert "check leaseRoleArn, leaseRoleExternalId" in (caught.value.next_step or "")


def test_a_role_is_assumed_again_before_its_credentials_expire() -> None:
    soon = assumed("ONE", lives=timedelta(minutes=5))
    with ScriptedHttp(EMPTY) as kinesis, ScriptedHttp(soon, assumed("TWO")) as sts:
        options = replace(with_role(kinesis), sts_endpoint_url=sts.url)
        service = service_on(options)
        for _ in range(3):
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert [key_id(request) for request in sts.requests] == ["AKIDOPTION", "AKIDOPTION"]
    assert key_id(kinesis.requests[-1]) == "AKIDTWO"
    assert kinesis.requests[-1].headers["X-Amz-Security-Token"] == "token-TWO"


def test_a_fault_while_assuming_a_role_is_ridden_out() -> None:
    requests = fetch_twice(sts_refusal("ServiceUnavailable", 503), assumed("ONE"), EMPTY)
    assert [request.operation for request in requests[:3]] == [
        "AssumeRole",
        "AssumeRole",
        "GetRecords",
    ]


def test_a_role_that_may_not_be_assumed_is_an_error_that_names_it() -> None:
    with ScriptedHttp(sts_refusal("AccessDenied", 403)) as server:
        service = service_on(with_role(server))
        with pytest.raises(AccessError) as caught:
            service.describe(ORDERS)
        service.close()
    for word in ("roleArn", ROLE, "sts:AssumeRole", "roleExternalId"):
        assert word in str(caught.value)
    assert server.operations() == ["AssumeRole"]


def test_refreshed_credentials_that_are_expired_are_an_error_about_access() -> None:
    with ScriptedHttp(assumed("OLD", lives=timedelta(hours=-1))) as server:
        service = service_on(with_role(server))
        with pytest.raises(AccessError, match="expired credentials"):
            service.describe(ORDERS)
        service.close()


def test_a_role_without_credentials_to_assume_it_with() -> None:
    with pytest.raises(AccessError, match="no credentials"):
        create_client("kinesis", ConnectionOptions(region="us-east-1", role_arn=ROLE))


# --- A provider ----------------------------------------------------------------------------------


def keys_of(number: int) -> tuple[str, str, str]:
    return f"AKIDKEY{number}", f"{SECRET}{number}", f"token-{number}"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectionOptions]:
    """The options of a provider whose keys have the number in its module."""
    module = ModuleType("my_company_aws")

    class Keys:
        def get_frozen_credentials(self) -> ReadOnlyCredentials:
            number = vars(module)["number"]
            return Credentials(*keys_of(number)).get_frozen_credentials()

    vars(module).update(keys=Keys, number=1)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    forget_providers()
    yield ConnectionOptions(region="us-east-1", credentials_provider="my_company_aws:keys")
    forget_providers()


def test_each_request_has_the_newest_keys_of_a_provider(provider: ConnectionOptions) -> None:
    with ScriptedHttp(EMPTY) as server:
        service = service_on(replace(provider, endpoint_url=server.url))
        for number in (1, 2, 3):
            vars(sys.modules["my_company_aws"])["number"] = number
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert [key_id(request) for request in server.requests] == ["AKIDKEY1", "AKIDKEY2", "AKIDKEY3"]
    for number, request in enumerate(server.requests, start=1):
        keys = Credentials(*keys_of(number))
        assert request.headers["X-Amz-Security-Token"] == keys.token
        assert request.headers["Authorization"] == signed_again(request.headers, request.body, keys)
    # botocore makes the first request, later ones have its pattern.
    assert short_ways(server) == [False, True, True]


def test_a_role_is_assumed_with_the_keys_of_a_provider(provider: ConnectionOptions) -> None:
    changes = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"))
    changes |= {"credentials_provider": provider.credentials_provider}
    requests = fetch_twice(assumed("ONE"), EMPTY, options=changes)
    assert requests[0].operation == "AssumeRole"
    assert [key_id(request) for request in requests] == ["AKIDKEY1", "AKIDONE", "AKIDONE"]


# --- One connection for each process -------------------------------------------------------------


def test_a_connection_is_kept_by_its_options() -> None:
    options = replace(KEYS, endpoint_url="http://127.0.0.1:1")
    try:
        first = connect(options)
        assert connect(replace(options)) is first
        assert connect(replace(options, retry_max_attempts=2)) is not first
    finally:
        disconnect()
    assert connect(options) is not first
    disconnect()


def test_a_process_keeps_the_connections_that_it_asked_for_last_and_closes_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when credentials of a session are given as options, and renewed now and then."""
    monkeypatch.setattr(boto3_client, "MAX_CONNECTIONS", 3)
    with ScriptedHttp(EMPTY) as server:
        options = replace(KEYS, endpoint_url=server.url)

        def session(number: int) -> Boto3Kinesis:
            return connect(replace(options, aws_session_token=f"token-{number}"))

        try:
            lasting, first = session(-1), session(0)
            first.get_records(ORDERS, SHARD, ITERATOR, limit=1)
            for number in range(1, 4):
                session(number)
                assert session(-1) is lasting
                assert len(boto3_client._connections) <= 3
            assert session(0) is not first
            # One that was closed under its holder's hands works on, by a new socket.
            first.get_records(ORDERS, SHARD, ITERATOR, limit=1)
            first.close()
        finally:
            disconnect()
    assert [request.headers["X-Amz-Security-Token"] for request in server.requests] == [
        "token-0",
        "token-0",
    ]
    assert server.connections == 2


def test_threads_share_one_connection() -> None:
    together = threading.Barrier(16)
    options = replace(KEYS, endpoint_url="http://127.0.0.1:1")

    def work(_: int) -> object:
        together.wait()
        return connect(options)

    try:
        with ThreadPoolExecutor(16) as pool:
            assert len({id(made) for made in pool.map(work, range(16))}) == 1
    finally:
        disconnect()


def test_a_failed_attempt_to_connect_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ConnectionOptions(region="us-east-1", endpoint_url="http://127.0.0.1:1")
    with pytest.raises(AccessError):
        connect(options)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    connect(options)
    disconnect()


def test_a_connection_is_not_pickled() -> None:
    made = connect(replace(KEYS, endpoint_url="http://127.0.0.1:1"))
    try:
        with pytest.raises(TypeError, match="connect"):
            pickle.dumps(made)
    finally:
        disconnect()


def test_no_text_tells_the_secrets(caplog: pytest.LogCaptureFixture) -> None:
    token = "FwoGZXIvYXdzEXAMPLETOKEN"
    with ScriptedHttp(Reply(status=500), EMPTY) as server:
        options = replace(KEYS, endpoint_url=server.url, aws_session_token=token)
        with caplog.at_level(logging.DEBUG, "spark_ssp"):
            service = service_on(options)
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        texts = [caplog.text, repr(service), str(service), repr(vars(service))]
        service.close()
    assert caplog.records
    for text in texts:
        assert SECRET not in text
        assert token not in text


_FORKING = f"""
import os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # the process has one thread of its own
from spark_ssp.kinesis_source.client import boto3_client
from spark_ssp.kinesis_source.options.values import ConnectionOptions
options = ConnectionOptions(
    region="us-east-1", endpoint_url="http://127.0.0.1:1",
    aws_access_key_id="a", aws_secret_access_key="{SECRET}",
)
before = boto3_client.connect(options)
boto3_client._connecting.acquire()  # as another thread of the parent might, at that moment
child = os.fork()
if child == 0:
    signal.alarm(60)
    made = boto3_client.connect(options)
    os._exit(0 if made is not before and boto3_client.connect(options) is made else 3)
boto3_client._connecting.release()
_, status = os.waitpid(child, 0)
assert boto3_client.connect(options) is before
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_connects_anew_even_if_a_thread_was_connecting() -> None:
    root = Path(boto3_client.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _FORKING],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
