"""Sources of credentials that are slow, fail once, or rotate their keys: nothing of it is final."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import orjson
import pytest
from botocore.credentials import Credentials

from spark_ssp.common.aws import clients, provided_credentials, service_calls
from spark_ssp.common.aws.clients import create_client, signer
from spark_ssp.common.aws.provided_credentials import forget_providers
from spark_ssp.common.errors import AccessError
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import SubscriptionError, UnreachableError
from spark_ssp.kinesis_source.client.subscriptions import Boto3Subscriber
from spark_ssp.kinesis_source.model.shard import ConsumerArn, TrimHorizon
from spark_ssp.kinesis_source.options.values import ConnectionOptions
from tests.support.fakes.scripted_http import ScriptedHttp, Step, refusal
from tests.unit.kinesis_source.client.test_connect import (
    EMPTY,
    ITERATOR,
    ORDERS,
    SECRET,
    SHARD,
    bare_machine,
    key_id,
    service_on,
)

__all__ = ["bare_machine"]  # a fixture of every test

REGION = ConnectionOptions(region="us-east-1")
Answer = Callable[[str, str | None, int], tuple[int, object]]
"""(path, token, number of requests for the path so far) -> (status, body)."""


class _MetadataService:
    """Answers on loopback as a machine's or a container's metadata service does."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                earlier = service.requests.count(self.path)
                service.requests.append(self.path)
                token = self.headers.get("x-aws-ec2-metadata-token")
                status, body = answer(self.path, token, earlier)
                text = body.encode() if isinstance(body, str) else orjson.dumps(body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except OSError:
                    return  # the client has given up

            do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[_MetadataService]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def keys_json(name: str) -> dict[str, str]:
    end = datetime.now(UTC) + timedelta(hours=6)
    return {
        "Code": "Success",
        "AccessKeyId": name,
        "SecretAccessKey": SECRET,
        "Token": "token",
        "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


ROLE_PATH = "/latest/meta-data/iam/security-credentials/"
TOKEN_PATH = "/latest/api/token"


def machine(delay: Callable[[int], None], *, has_role: bool = True) -> Answer:
    """Return the answers of a machine that demands tokens, the service's second version. `delay`
    waits before the token is answered."""

    def answer(path: str, token: str | None, earlier: int) -> tuple[int, object]:
        if path == TOKEN_PATH:
            delay(earlier)
            return 200, "issued"
        if token != "issued":
            return 401, ""
        if not has_role:
            return 404, ""
        return (200, "role") if path == ROLE_PATH else (200, keys_json("AKIDMACHINE"))

    return answer


@contextmanager
def metadata(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Iterator[_MetadataService]:
    with _MetadataService(answer).running() as service:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
        monkeypatch.setattr("time.sleep", lambda _: None)
        yield service


def test_a_slow_token_of_the_metadata_service_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's limit is a second."""
    never = threading.Event()

    def delay(_: int) -> None:
        never.wait(1.5)

    with metadata(machine(delay), monkeypatch) as service:
        found = signer(REGION).credentials.get_frozen_credentials()
    assert found.access_key == "AKIDMACHINE"
    assert service.requests.count(TOKEN_PATH) == 1


def test_a_token_that_does_not_come_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_METADATA_READ_S", 0.2)
    stopped = threading.Event()

    def delay(earlier: int) -> None:
        if earlier == 0:
            stopped.wait(30)

    with metadata(machine(delay), monkeypatch) as service:
        found = signer(REGION).credentials.get_frozen_credentials()
        stopped.set()
    assert found.access_key == "AKIDMACHINE"
    assert service.requests.count(TOKEN_PATH) == 2


def test_a_machine_without_a_role_has_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        metadata(machine(lambda _: None, has_role=False), monkeypatch),
        pytest.raises(AccessError, match="no credentials"),
    ):
        create_client("kinesis", REGION)


def test_a_configured_limit_of_the_metadata_service_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "7")
    (tmp_path / "config").write_text("[default]\nmetadata_service_num_attempts = 9\n")
    core = clients._patient_session()
    assert core.get_config_variable("metadata_service_timeout") == 7
    assert core.get_config_variable("metadata_service_num_attempts") == 9


def test_a_container_whose_agent_fails_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore gives up after three attempts."""

    def answer(path: str, token: str | None, earlier: int) -> tuple[int, object]:
        return (500, "") if earlier < 4 else (200, keys_json("AKIDCONTAINER"))

    with metadata(answer, monkeypatch) as service:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/role")
        monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
        found = signer(REGION).credentials.get_frozen_credentials()
    assert found.access_key == "AKIDCONTAINER"


# --- Rotation -------------------------------------------------------------------------------------

REFUSED = (
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
)


class _Rotating:
    """A source of plain keys, whose number a test raises."""

    def __init__(self, place: Callable[[str], None]) -> None:
        self._place = place
        self.rotate_to("AKIDFORMER")

    def rotate_to(self, name: str) -> None:
        self._place(name)


@pytest.fixture(params=["provider", "file"])
def rotating(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[ConnectionOptions, _Rotating]]:
    """Plain credentials of a provider, or of the shared file that a tool writes again."""
    forget_providers()
    monkeypatch.setattr(service_calls, "LOOK_PERIOD_S", 0.0)
    if request.param == "file":

        def write(name: str) -> None:
            (tmp_path / "credentials").write_text(
                f"[default]\naws_access_key_id = {name}\naws_secret_access_key = {SECRET}\n"
                f"aws_session_token = of-{name}\n"
            )

        source = _Rotating(write)
        yield REGION, source
        return
    module = ModuleType("my_company_aws")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module)["keys"] = lambda: Credentials(vars(module)["name"], SECRET, vars(module)["name"])
    source = _Rotating(lambda name: vars(module).__setitem__("name", name))
    yield replace(REGION, credentials_provider="my_company_aws:keys"), source
    forget_providers()


@pytest.mark.parametrize("code", REFUSED)
def test_keys_that_were_rotated_are_loaded_when_the_former_ones_are_refused(
    code: str, rotating: tuple[ConnectionOptions, _Rotating]
) -> None:
    options, source = rotating
    with ScriptedHttp(EMPTY, refusal(code), EMPTY) as server:
        service = service_on(replace(options, endpoint_url=server.url))
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        source.rotate_to("AKIDLATTER")
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert [key_id(each) for each in server.requests] == ["AKIDFORMER", "AKIDFORMER", "AKIDLATTER"]


def test_a_single_attempt_with_rotated_keys_is_a_fault_that_passes(
    rotating: tuple[ConnectionOptions, _Rotating],
) -> None:
    """As the sink and the probes make their calls."""
    options, source = rotating
    steps: list[Step] = [refusal("ExpiredTokenException"), EMPTY]
    with ScriptedHttp(*steps) as server:
        service = service_on(replace(options, endpoint_url=server.url))
        source.rotate_to("AKIDLATTER")
        with pytest.raises(UnreachableError):
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1, retry=False)
        service.get_records(ORDERS, SHARD, ITERATOR, limit=1, retry=False)
        service.close()
    assert [key_id(each) for each in server.requests] == ["AKIDFORMER", "AKIDLATTER"]


def test_a_subscription_with_rotated_keys_is_a_fault_that_passes(
    rotating: tuple[ConnectionOptions, _Rotating],
) -> None:
    options, source = rotating
    with ScriptedHttp(refusal("ExpiredTokenException")) as server:
        service = service_on(replace(options, endpoint_url=server.url))
        source.rotate_to("AKIDLATTER")
        subscriber = Boto3Subscriber(service.client)
        shard = ShardKey(stream=ORDERS.name, shard=SHARD)
        lasting = []
        for _ in range(2):
            with pytest.raises(SubscriptionError) as caught:
                subscriber.subscribe(ConsumerArn("arn:aws:kinesis:x"), shard, TrimHorizon())
            lasting.append(caught.value.is_lasting)
        service.close()
    assert [key_id(each) for each in server.requests] == ["AKIDFORMER", "AKIDLATTER"]
    assert lasting[0] is False


def test_keys_that_stay_the_same_fail_at_once(
    rotating: tuple[ConnectionOptions, _Rotating],
) -> None:
    options, _ = rotating
    with ScriptedHttp(refusal("ExpiredTokenException")) as server:
        service = service_on(replace(options, endpoint_url=server.url), attempts=9)
        with pytest.raises(AccessError, match="expired credentials"):
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert len(server.requests) == 1


def test_other_keys_that_are_refused_too_fail_after_a_few_attempts(
    rotating: tuple[ConnectionOptions, _Rotating],
) -> None:
    options, source = rotating
    with ScriptedHttp(refusal("UnrecognizedClientException")) as server:
        service = service_on(replace(options, endpoint_url=server.url), attempts=9)
        source.rotate_to("AKIDLATTER")
        with pytest.raises(AccessError, match="credentials that the service knows"):
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert 2 <= len(server.requests) <= 4
    assert {key_id(each) for each in server.requests[1:]} == {"AKIDLATTER"}


def written(name: str) -> str:
    return f"[default]\naws_access_key_id = {name}\naws_secret_access_key = {SECRET}\n"


BEING_WRITTEN = (
    "",
    "[default]\naws",
    "[default]\naws_access_key_id = AKIDLATTER\n",
)
FAILING_PROCESSES = (
    "echo '{",
    f"echo {SECRET} >&2; exit 1",
    "echo '{\"Version\": 1}'",
    "echo null",
    "echo '[]'",
    f"echo '\"{SECRET}\"'",
)


@pytest.mark.parametrize(
    ("is_process", "fault"),
    [
        *((False, text) for text in BEING_WRITTEN),
        *((True, text) for text in FAILING_PROCESSES),
    ],
)
def test_a_source_that_cannot_be_read_for_a_moment_leaves_the_last_keys(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    is_process: bool,
    fault: str,
) -> None:
    """A tool writes the file in place, or a `credential_process` fails once."""
    monkeypatch.setattr(provided_credentials, "PLAIN_LIFETIME_S", 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)
    source = tmp_path / ("process" if is_process else "credentials")

    def write(name: str) -> None:
        document = {"Version": 1, "AccessKeyId": name, "SecretAccessKey": SECRET}
        answer = f"echo '{orjson.dumps(document).decode()}'"
        source.write_text(answer if is_process else written(name))

    if is_process:
        (tmp_path / "config").write_text(f"[default]\ncredential_process = sh {source}\n")
    write("AKIDFORMER")
    credentials = signer(REGION).credentials
    source.write_text(fault)
    assert credentials.get_frozen_credentials().access_key == "AKIDFORMER"
    assert "could not renew credentials" in caplog.text
    assert SECRET not in caplog.text
    write("AKIDLATTER")
    assert credentials.get_frozen_credentials().access_key == "AKIDLATTER"


@pytest.mark.parametrize("fault", FAILING_PROCESSES)
def test_a_process_that_returns_no_keys_is_named_as_missing_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    (tmp_path / "process").write_text(fault)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = sh {tmp_path / 'process'}\n")
    with pytest.raises(AccessError) as caught:
        create_client("kinesis", REGION)
    # Standard error is for the user of the process.
    assert (SECRET in str(caught.value)) is (">&2" in fault)


def test_another_source_of_the_chain_replaces_only_keys_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provided_credentials, "PLAIN_LIFETIME_S", 0.0)
    monkeypatch.setattr(provided_credentials, "_PAUSE_S", 0.0)
    (tmp_path / "answer").write_bytes(orjson.dumps({"Version": 1, **keys_json("AKIDROLE")}))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path / 'answer'}\n")
    file = tmp_path / "credentials"
    file.write_text(written("AKIDFORMER"))
    with ScriptedHttp(EMPTY, EMPTY, refusal("InvalidClientTokenId"), EMPTY) as server:
        service = service_on(replace(REGION, endpoint_url=server.url))
        for text in (written("AKIDFORMER"), "", ""):
            file.write_text(text)
            service.get_records(ORDERS, SHARD, ITERATOR, limit=1)
        service.close()
    assert [key_id(each) for each in server.requests] == [
        *("AKIDFORMER", "AKIDFORMER", "AKIDFORMER", "AKIDROLE"),
    ]
