"""Options `kafka.sasl.*`: Java's login modules and handlers, translated or refused by name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.kafka_source.options.logins import parse_jaas, region_of
from spark_ssp.kafka_source.options.property_names import CONSUMER, PRODUCER, PropertyNames
from spark_ssp.kafka_source.options.translation import ParsedProperties, read_properties
from tests.support.kafka.properties import PLAIN, config_of, problem_of, reading_of

STRIMZI = "OAuthBearerLoginModule required oauth.client.id=a oauth.client.secret=b"


def test_sasl_by_jaas_is_translated() -> None:
    assert config_of(sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN) == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": 'p"w = 1;',
    }
    assert problem_of(sasl_jaas_config=PLAIN, sasl_username="bob").found.startswith(
        "kafka.sasl.username and kafka.sasl.jaas.config together"
    )


def test_scram_kerberos_and_oauth() -> None:
    scram = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule"
    assert config_of(sasl_jaas_config=f"{scram} REQUIRED\n username=bob password = 'x' ;") == {
        "sasl.username": "bob",
        "sasl.password": "x",
    }
    kerberos = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        'keyTab="/etc/k.keytab" principal="reader@EXAMPLE.COM" serviceName="kafka";'
    )
    assert config_of(sasl_jaas_config=kerberos) == {
        "sasl.kerberos.keytab": "/etc/k.keytab",
        "sasl.kerberos.principal": "reader@EXAMPLE.COM",
        "sasl.kerberos.service.name": "kafka",
    }
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    credentials = 'clientId="c" clientSecret="s" scope="a b" extension_b="2" extension_a="1"'
    assert config_of(sasl_jaas_config=f"{oauth} {credentials};") == {
        "sasl.oauthbearer.client.id": "c",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.scope": "a b",
        "sasl.oauthbearer.extensions": "a=1,b=2",
    }
    assert config_of(sasl_jaas_config=f"{oauth} ;") == {}
    strimzi = 'oauth.client.id="c" oauth.client.secret="s" oauth.token.endpoint.uri="https://h/t"'
    handler = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
    assert config_of(
        sasl_jaas_config=f"{oauth} {strimzi};", sasl_login_callback_handler_class=handler
    ) == {
        "sasl.oauthbearer.client.id": "c",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://h/t",
    }
    scram = "ScramLoginModule required username=a password=b tokenauth=false;"
    assert config_of(sasl_jaas_config=scram) == {"sasl.username": "a", "sasl.password": "b"}


def test_kafkas_own_oauth_handler_is_librdkafkas_oidc() -> None:
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    assert config_of(sasl_login_callback_handler_class=handler) == {
        "sasl.oauthbearer.method": "oidc"
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (";", "begin with a class and required"),
        ("PlainLoginModule", "does not end with ;"),
        ("PlainLoginModule required username=a password=s3cr3t", "does not end with ;"),
        ('PlainLoginModule required password="s3cr3t ;', "does not end with ;"),
        ("PlainLoginModule username=a password=s3cr3t;", "begin with a class and required"),
        ("PlainLoginModule required username=a password s3cr3t;", "other than key=value"),
        ("PlainLoginModule required username a password=s3cr3t;", "other than key=value"),
        ("PlainLoginModule required username a s3cr3t;", "something other than key=value"),
        ("PlainLoginModule required username=a password=;", "a key without a value"),
        ("PlainLoginModule required username=a;", "PlainLoginModule without password"),
        ("ScramLoginModule required username=a password=s3cr3t tokenauth=true;", "tokenauth"),
        ("ScramLoginModule required username=a password=my s3cr3t=x;", "an unknown key in place 3"),
        (
            "OAuthBearerLoginModule required clientId=a clientSecret=b oauth_audience=s3cr3t;",
            "an unknown key in place 3",
        ),
        (
            "PlainLoginModule required username=a password=b unsecuredLoginStringClaim_sub=s3cr3t;",
            "with unsecuredLoginStringClaim_sub",
        ),
        ("OAuthBearerLoginModule required oauth.client.id=a;", "without oauth.client.secret"),
        (
            f'{STRIMZI} oauth.token.endpoint.uri="https://u:s3cr3t@h";',
            "a URL with @",
        ),
        ("OAuthBearerLoginModule required clientId=a;", "without clientSecret"),
        ("Krb5LoginModule required useTicketCache=true;", "Krb5LoginModule with useTicketCache"),
        ("Krb5LoginModule required keyTab=k;", "Krb5LoginModule without principal"),
        ("my.own.LoginModule required;", "the login module my.own.LoginModule"),
        ("PlainLoginModule required a=b; Other required s3cr3t=c;", "more than one login module"),
    ],
)
def test_a_login_that_cannot_be_translated_is_refused_without_its_secrets(
    text: str, found: str
) -> None:
    problem = problem_of(sasl_jaas_config=text)
    assert found in problem.found
    assert problem.option == "kafka.sasl.jaas.config"
    assert "s3cr3t" not in str(problem)


quoted = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(quoted, quoted, st.sampled_from("\"'"))
def test_every_password_survives_quoting(user: str, password: str, mark: str) -> None:
    def quote(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace(mark, "\\" + mark)
        return mark + escaped.replace("\n", "\\n").replace("\r", "\\r") + mark

    text = f"PlainLoginModule required username={quote(user)} password={quote(password)};"
    assert parse_jaas(text).options == {"username": user, "password": password}


@given(st.text())
def test_every_text_is_a_login_or_refused(text: str) -> None:
    with suppress(BadValueError):  # Anything else that is raised fails the test.
        parse_jaas(text)


# --- AWS's IAM ------------------------------------------------------------------------------------

MSK = "software.amazon.msk.auth.iam"
BROKERS = "b-1.orders.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098"
JAVA_IAM = {
    "bootstrap.servers": BROKERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": f"{MSK}.IAMLoginModule required;",
    "sasl.client.callback.handler.class": f"{MSK}.IAMClientCallbackHandler",
}
TOKEN_IAM = {
    "bootstrap.servers": BROKERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
    "required;",
    "sasl.login.callback.handler.class": f"{MSK}.IAMOAuthBearerLoginCallbackHandler",
    "sasl.client.callback.handler.class": f"{MSK}.IAMOAuthBearerLoginCallbackHandler",
}
SHORT_IAM = {
    "bootstrap.servers": BROKERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
}


@pytest.mark.parametrize("names", [CONSUMER, PRODUCER])
@pytest.mark.parametrize("options", [JAVA_IAM, TOKEN_IAM, SHORT_IAM])
def test_amazons_login_is_a_token_in_each_of_its_forms(
    options: dict[str, str], names: PropertyNames
) -> None:
    reading = read_properties({f"kafka.{name}": value for name, value in options.items()}, names)
    assert reading.problems == ()
    assert reading.properties.iam == ConnectionOptions(region="eu-west-1")
    config = reading.properties.config()
    assert config["sasl.mechanism"] == "OAUTHBEARER"
    assert not [name for name in config if name.startswith(("sasl.jaas", "sasl.oauth", "sasl.log"))]


def _iam(module_options: str, **more: str) -> ParsedProperties:
    module = f"{MSK}.IAMLoginModule required {module_options};"
    return reading_of({**JAVA_IAM, "sasl.jaas.config": module, **more})


def test_a_profile_or_a_role_of_amazons_login() -> None:
    assert _iam("awsProfileName='etl' awsDebugCreds=true").properties.iam == ConnectionOptions(
        region="eu-west-1", aws_profile="etl"
    )
    role = _iam(
        'awsRoleArn="arn:aws:iam::1:role/r" awsRoleSessionName=s awsRoleExternalId=s3cr3t '
        "awsStsRegion=us-east-1"
    ).properties
    assert role.iam == ConnectionOptions(
        region="us-east-1",
        role_arn="arn:aws:iam::1:role/r",
        role_session_name="s",
        role_external_id="s3cr3t",
    )
    assert "s3cr3t" not in repr(role)
    assert "s3cr3t" not in repr(role.iam)


@pytest.mark.parametrize(
    ("change", "option", "found"),
    [
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism", "'PLAIN' with a login of AWS's IAM"),
        ({"sasl.jaas.config": PLAIN}, "sasl.jaas.config", "PlainLoginModule with a login of AWS"),
        (
            {"sasl.jaas.config": f"{MSK}.IAMLoginModule required awsProfileName=p awsRoleArn=r;"},
            "sasl.jaas.config",
            "awsProfileName and awsRoleArn",
        ),
        (
            {"sasl.jaas.config": f"{MSK}.IAMLoginModule required awsRoleAccessKeyId=s3cr3t;"},
            "sasl.jaas.config",
            "with awsRoleAccessKeyId",
        ),
        (
            {"sasl.client.callback.handler.class": "my.Handler"},
            "sasl.client.callback.handler.class",
            "'my.Handler'",
        ),
        # librdkafka would hand it to the callback, or fetch tokens by itself.
        ({"sasl.oauthbearer.config": "s3cr3t"}, "sasl.oauthbearer.config", "another kind"),
        ({"sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.method", "another kind"),
    ],
)
def test_amazons_login_beside_another_is_refused(
    change: dict[str, str], option: str, found: str
) -> None:
    (problem,) = reading_of({**JAVA_IAM, **change}).problems
    assert problem.option == f"kafka.{option}"
    assert found in problem.found
    assert "s3cr3t" not in str(problem)


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        (BROKERS, "eu-west-1"),
        ("a:1,boot-x.c1.kafka-serverless.us-gov-west-1.amazonaws.com:9098", "us-gov-west-1"),
        ("b-1.x.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("kafka.example.com:9098", None),
    ],
)
def test_the_region_is_that_of_the_brokers(servers: str, region: str | None) -> None:
    assert region_of(servers) == region
