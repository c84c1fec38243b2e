"""Tokens of Amazon MSK's IAM: their form, whose they are, and errors whose advice helps."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.credentials import Credentials

from spark_ssp.common.aws.provided_credentials import forget_providers
from spark_ssp.common.errors import AccessError, ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kafka_source.client.client_config import TOKEN_CALLBACK, ClientRole, client_config
from spark_ssp.kafka_source.client.error_translation import redact
from spark_ssp.kafka_source.options import iam_token as module
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.iam_token import iam_token
from spark_ssp.kafka_source.options.login_tokens import stop_token_refresh
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.translation import read_properties
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from tests.support.fakes.direct_calls import set_signing_time
from tests.support.fakes.scripted_http import ScriptedHttp, assumed, sts_refusal

BROKERS = "b-1.orders.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
ROLE = ConnectionOptions(region="eu-west-1", role_arn="arn:aws:iam::1:role/etl")


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No region and no credentials anywhere, unless the test puts them there."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    stop_token_refresh()
    module._signer.cache_clear()
    yield
    stop_token_refresh()
    module._signer.cache_clear()


def set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a+session/token==")


def url_of(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def fields_of(token: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url_of(token)).query)


def test_a_token_is_that_of_amazons_own_signer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is what aws-msk-iam-sasl-signer-python 1.0.2 gives for the same time and keys."""
    set_keys(monkeypatch)
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    set_signing_time(monkeypatch, now)
    token, expires = iam_token(ConnectionOptions(region="us-east-1"), BROKERS)
    assert url_of(token) == (
        "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
        "&X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIDEXAMPLE%2F20260102%2Feu-west-1%2Fkafka-cluster%2Faws4_request"
        "&X-Amz-Date=20260102T030405Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host"
        "&X-Amz-Security-Token=a%2Bsession%2Ftoken%3D%3D"
        "&X-Amz-Signature=2db4ab02082c24119eddac7b8767a0da25b5a26d17ffe116d2fc1fc85ba6cae8"
        "&User-Agent=spark-ssp"
    )
    assert "=" not in token
    assert expires == now.timestamp() + 600


def test_a_token_is_never_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    set_keys(monkeypatch)
    token, _ = iam_token(ConnectionOptions(region="eu-west-1"), BROKERS)
    assert redact(f"refused {token} of {url_of(token)}") == (
        "refused *** of https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect"
        "&X-Amz-Algorithm=AWS4-HMAC-SHA256&***"
        f"&X-Amz-Date={fields_of(token)['X-Amz-Date'][0]}&X-Amz-Expires=900"
        "&X-Amz-SignedHeaders=host&***&***&User-Agent=spark-ssp"
    )


# --- Whose they are -------------------------------------------------------------------------------


def test_a_role_is_assumed_once_and_again_before_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_keys(monkeypatch)
    soon = assumed("ONE", lives=timedelta(minutes=9))
    with ScriptedHttp(soon, assumed("TWO")) as sts:
        login = replace(ROLE, sts_endpoint_url=sts.url, role_external_id="partner")
        tokens = [iam_token(login, BROKERS)[0] for _ in range(3)]
    asked = [parse_qs(request.body.decode()) for request in sts.requests]
    assert [one["RoleArn"] for one in asked] == [["arn:aws:iam::1:role/etl"]] * 2
    assert asked[0]["ExternalId"] == ["partner"]
    assert fields_of(tokens[-1])["X-Amz-Security-Token"] == ["token-TWO"]


def test_a_profile_is_that_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[etl]\naws_access_key_id = AKIDETL\naws_secret_access_key = {SECRET}\n"
    )
    token, _ = iam_token(ConnectionOptions(region="eu-west-1", aws_profile="etl"), BROKERS)
    assert fields_of(token)["X-Amz-Credential"][0].startswith("AKIDETL/")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module with a function that returns keys for a name."""
    made = ModuleType("my_company_aws")
    vars(made)["keys"] = lambda name: Credentials(f"AKID{name}", SECRET, f"token-{name}")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    forget_providers()
    yield made
    forget_providers()


PROVIDED = {
    "credentialsProvider": "my_company_aws:keys",
    "credentialsProviderSecretArguments": '{"name": "VAULT"}',
}
MSK = {
    "kafka.bootstrap.servers": BROKERS,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
}


@pytest.mark.parametrize(
    "client",
    [
        lambda: parse_options({**MSK, **PROVIDED, "subscribe": "orders"}).client,
        lambda: parse_sink_options({**MSK, **PROVIDED}).client,
    ],
    ids=["source", "sink"],
)
def test_a_provider_signs_the_tokens_of_source_and_sink(
    provider: ModuleType, client: Callable[[], ClientProperties]
) -> None:
    config = client_config(client(), role=ClientRole.ADMIN)
    token, _ = config[TOKEN_CALLBACK](None)
    assert fields_of(token)["X-Amz-Credential"][0].startswith("AKIDVAULT/")
    assert fields_of(token)["X-Amz-Security-Token"] == ["token-VAULT"]
    assert "VAULT" not in repr(client())


def test_a_provider_of_a_store_signs_its_requests() -> None:
    options = parse_options(
        {**MSK, **PROVIDED, "subscribe": "orders", "assignmentStore": "dynamodb://assignments/a"}
    )
    assert options.store_connection == ConnectionOptions(
        credentials_provider="my_company_aws:keys",
        credentials_provider_secret_arguments='{"name": "VAULT"}',
    )


def test_a_provider_without_effect_on_a_sink_is_named(caplog: pytest.LogCaptureFixture) -> None:
    parse_sink_options({"kafka.bootstrap.servers": "h:1", **PROVIDED})
    assert "credentialsProvider has no effect" in caplog.text
    assert "VAULT" not in caplog.text


# --- Errors ---------------------------------------------------------------------------------------


def test_without_credentials_a_client_is_not_made_until_the_advice_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = read_properties(
        {
            "kafka.bootstrap.servers": BROKERS,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "AWS_MSK_IAM",
        }
    ).properties
    with pytest.raises(AccessError) as caught:
        client_config(client, role=ClientRole.ADMIN)
    assert "AWS_ACCESS_KEY_ID" in caught.value.next_step
    set_keys(monkeypatch)
    fetch = client_config(client, role=ClientRole.ADMIN)[TOKEN_CALLBACK]
    assert url_of(fetch(None)[0]).startswith("https://kafka.eu-west-1.")


def test_without_a_region_the_advice_is_to_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    set_keys(monkeypatch)
    with pytest.raises(AccessError, match="no AWS region") as caught:
        iam_token(ConnectionOptions(), "kafka.example.com:9098")
    assert "AWS_DEFAULT_REGION" in caught.value.next_step
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    token, _ = iam_token(ConnectionOptions(), "kafka.example.com:9098")
    assert url_of(token).startswith("https://kafka.eu-west-3.")


def test_a_profile_that_does_not_exist_is_named() -> None:
    with pytest.raises(AccessError, match="etl") as caught:
        iam_token(ConnectionOptions(region="eu-west-1", aws_profile="etl"), BROKERS)
    assert "awsProfileName" in caught.value.next_step


def test_a_provider_that_fails_is_named_without_its_text(provider: ModuleType) -> None:
    class Keys:
        def get_frozen_credentials(self) -> Credentials:
            raise LookupError(SECRET)

    vars(provider)["keys"] = Keys
    login = ConnectionOptions(region="eu-west-1", credentials_provider="my_company_aws:keys")
    with pytest.raises(AccessError, match="LookupError when its credentials were ref") as caught:
        iam_token(login, BROKERS)
    assert caught.value.subject == "option credentialsProvider (my_company_aws:keys)"
    assert SECRET not in str(caught.value)
    with pytest.raises(AccessError, match="no other in the module"):
        iam_token(replace(login, credentials_provider="my_company_aws:other"), BROKERS)


def test_a_role_that_is_denied_or_throttled_is_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_keys(monkeypatch)
    for code, kind in (("AccessDenied", AccessError), ("Throttling", ServiceUnavailableError)):
        with (
            ScriptedHttp(sts_refusal(code, 403 if kind is AccessError else 400)) as sts,
            pytest.raises(kind, match=code) as caught,
        ):
            iam_token(replace(ROLE, sts_endpoint_url=sts.url), BROKERS)
        assert SECRET not in str(caught.value)
