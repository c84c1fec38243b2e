"""Options `kafka.*`: handed on, translated, refused by name; secrets never shown."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_source.client_properties import ClientProperties, PropertyReading, read_properties
from kafka_source.client_property_names import (
    COMBINED,
    PASSED,
    REFUSED,
    SECRETS,
    TWINS,
    WITHOUT_EFFECT,
)
from kafka_source.jaas import parse_jaas
from ssp_common.options import BadValueError, OptionProblem

PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="p\\"w = 1;";'
)


def _config(**options: str) -> dict[str, str]:
    """librdkafka's properties for the options `kafka.<name with dots>`, less the defaults."""
    reading = _read(options)
    assert reading.problems == ()
    config = reading.properties.config()
    assert config.pop("isolation.level") == "read_uncommitted"
    assert config.pop("check.crcs") == "true"
    return config


def _read(options: dict[str, str]) -> PropertyReading:
    return read_properties({f"kafka.{name.replace('_', '.')}": v for name, v in options.items()})


def _problem(**options: str) -> OptionProblem:
    (problem,) = _read(options).problems
    return problem


# --- Names ----------------------------------------------------------------------------------------


def test_a_name_stands_in_one_list() -> None:
    lists = [PASSED, set(TWINS), COMBINED, set(REFUSED), set(WITHOUT_EFFECT)]
    assert [one & other for one, other in combinations(lists, 2) if one & other] == []
    assert set(TWINS.values()) <= PASSED
    assert SECRETS <= PASSED


def test_everything_that_could_hold_a_secret_is_one() -> None:
    """As far as names tell; a path, a URL or a time is none."""
    telling = {
        name
        for name in PASSED
        if any(word in name for word in ("password", "secret", "key.pem", "passphrase", "config"))
    }
    assert telling <= SECRETS


@pytest.mark.parametrize("name", sorted(PASSED - {"isolation.level", "security.protocol"}))
def test_a_name_of_librdkafka_is_handed_on(name: str) -> None:
    reading = read_properties({f"kafka.{name}": "a b"})
    assert reading.problems == ()
    assert reading.properties.config()[name] == "a b"


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_twin_is_translated_and_refused_beside_its_other_name(name: str) -> None:
    reading = read_properties({f"kafka.{name}": "7"})
    assert reading.problems == ()
    assert reading.properties.config()[TWINS[name]] == "7"
    (problem,) = read_properties({f"kafka.{name}": "7", f"kafka.{TWINS[name]}": "7"}).problems
    assert "names of one thing" in problem.found
    assert problem.next_step == f"keep kafka.{TWINS[name]}"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_name_is_refused_by_its_name(name: str) -> None:
    (problem,) = read_properties({f"kafka.{name}": "s3cr3t"}).problems
    assert problem.option == f"kafka.{name}"
    assert REFUSED[name] in problem.next_step
    assert "s3cr3t" not in str(problem)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_name_without_effect_is_named_in_a_warning(name: str) -> None:
    reading = read_properties({f"kafka.{name}": "s3cr3t"})
    assert reading.problems == ()
    assert name not in reading.properties.config()
    (warning,) = reading.warnings
    assert warning.startswith(f"kafka.{name} has no effect: ")
    assert "s3cr3t" not in warning


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("bootstrap.server", "did you mean kafka.bootstrap.servers?"),
        ("sasl.passwort", "did you mean kafka.sasl.password?"),
        ("zzz", "remove it"),
        ("", "remove it"),
    ],
)
def test_an_unknown_name_is_an_error_that_does_not_show_its_value(
    name: str, suggestion: str
) -> None:
    (problem,) = read_properties({f"kafka.{name}": "s3cr3t"}).problems
    assert (problem.option, problem.next_step) == (f"kafka.{name}", suggestion)
    assert "s3cr3t" not in str(problem)


def test_case_does_not_matter_and_other_options_are_left_alone() -> None:
    reading = read_properties({"KAFKA.Bootstrap.Servers": " h:1 ", "kafkaConsumer.x": "", "s": "t"})
    assert reading.problems == ()
    assert reading.properties.config()["bootstrap.servers"] == "h:1"
    (problem,) = read_properties({"kafka.client.id": "a", "kafka.Client.Id": "b"}).problems
    assert problem.found == "the same name twice, in different case"


def test_an_empty_value_is_an_error() -> None:
    assert _problem(client_id=" ").found == "an empty value"
    assert _problem(sasl_jaas_config="").option == "kafka.sasl.jaas.config"
    (problem,) = read_properties({"kafka.client.id": None}).problems  # type: ignore[dict-item]
    assert problem.found == "an empty value"


# --- Values ---------------------------------------------------------------------------------------


def test_the_java_clients_defaults_hold_where_they_show() -> None:
    assert read_properties({}).properties.config() == {
        "isolation.level": "read_uncommitted",
        "check.crcs": "true",
    }
    given = read_properties(
        {"kafka.isolation.level": "READ_COMMITTED", "kafka.check.crcs": "false"}
    )
    assert given.properties.config() == {"isolation.level": "read_committed", "check.crcs": "false"}


def test_values_that_are_written_differently() -> None:
    assert _config(ssl_endpoint_identification_algorithm="") == {
        "ssl.endpoint.identification.algorithm": "none"
    }
    assert _config(receive_buffer_bytes="-1", send_buffer_bytes="65536") == {
        "socket.receive.buffer.bytes": "0",
        "socket.send.buffer.bytes": "65536",
    }
    assert _config(security_protocol="sasl_ssl") == {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"isolation.level": "committed"}, "'committed'"),
        ({"security.protocol": "TLS"}, "'TLS'"),
        ({"sasl.kerberos.kinit.cmd": "/usr/bin/kinit"}, "a program alone"),
        ({"ssl.keystore.type": "BKS"}, "'BKS'"),
        ({"ssl.truststore.type": "BKS"}, "'BKS'"),
        ({"ssl.keystore.location": "client.jks"}, "JKS"),
        ({"ssl.keystore.location": "client", "ssl.keystore.type": "jks"}, "JKS"),
        ({"ssl.truststore.location": "ca.jks"}, "a trust store of Java"),
        ({"ssl.truststore.location": "ca.p12", "ssl.truststore.type": "PKCS12"}, "of Java"),
        ({"ssl.truststore.password": "changeit"}, "a password of certificates"),
        ({"sasl.login.callback.handler.class": "my.Handler"}, "'my.Handler', a class of Java"),
        ({"sasl.jaas.config": "x"}, "does not end with ;"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_option(options: dict[str, str], found: str) -> None:
    (problem,) = read_properties({f"kafka.{name}": v for name, v in options.items()}).problems
    assert problem.option == f"kafka.{next(iter(options))}"
    assert found in problem.found


def test_key_stores_and_authorities() -> None:
    assert _config(ssl_keystore_location="k.p12", ssl_keystore_password="p") == {
        "ssl.keystore.location": "k.p12",
        "ssl.keystore.password": "p",
    }
    assert _config(ssl_keystore_location="k.pem", ssl_keystore_type="pem") == {
        "ssl.certificate.location": "k.pem",
        "ssl.key.location": "k.pem",
    }
    assert _config(ssl_truststore_location="ca.pem", ssl_truststore_type="PEM") == {
        "ssl.ca.location": "ca.pem"
    }
    assert _config(ssl_keystore_type="PEM", ssl_keystore_key="K", ssl_key_password="p") == {
        "ssl.key.pem": "K",
        "ssl.key.password": "p",
    }


def test_a_group_of_ones_own_is_warned_of() -> None:
    reading = read_properties({"kafka.group.id": "g"})
    assert reading.properties.config()["group.id"] == "g"
    assert "groupIdPrefix has no effect" in reading.warnings[0]


# --- Logins ---------------------------------------------------------------------------------------


def test_sasl_by_jaas_is_translated() -> None:
    assert _config(sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN) == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": 'p"w = 1;',
    }
    assert _problem(sasl_jaas_config=PLAIN, sasl_username="bob").found.startswith(
        "kafka.sasl.username and kafka.sasl.jaas.config together"
    )


def test_scram_kerberos_and_oauth() -> None:
    scram = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule"
    assert parse_jaas(f"{scram} REQUIRED\n username=bob password = 'x' ;") == {
        "sasl.username": "bob",
        "sasl.password": "'x'",
    }
    assert parse_jaas(
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        'keyTab="/etc/k.keytab" principal="reader@EXAMPLE.COM" serviceName="kafka";'
    ) == {
        "sasl.kerberos.keytab": "/etc/k.keytab",
        "sasl.kerberos.principal": "reader@EXAMPLE.COM",
        "sasl.kerberos.service.name": "kafka",
    }
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    assert parse_jaas(
        f'{oauth} clientId="c" clientSecret="s" scope="a b" extension_b="2" extension_a="1";'
    ) == {
        "sasl.oauthbearer.client.id": "c",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.scope": "a b",
        "sasl.oauthbearer.extensions": "a=1,b=2",
    }
    assert parse_jaas(f"{oauth} ;") == {}


def test_kafkas_own_oauth_handler_is_librdkafkas_oidc() -> None:
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    assert _config(sasl_login_callback_handler_class=handler) == {"sasl.oauthbearer.method": "oidc"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "does not end with ;"),
        ("PlainLoginModule", "does not end with ;"),
        ("PlainLoginModule required username=a password=s3cr3t", "does not end with ;"),
        ('PlainLoginModule required password="s3cr3t ;', "unclosed quotation mark"),
        ("PlainLoginModule username=a password=s3cr3t;", "begin with a class and required"),
        ("PlainLoginModule required username=a password s3cr3t;", "a key or a value missing"),
        ("PlainLoginModule required username a password=s3cr3t;", "a key or a value missing"),
        ("PlainLoginModule required username a s3cr3t;", "something other than key=value"),
        ("PlainLoginModule required username=a username=s3cr3t;", "with a key twice"),
        ("PlainLoginModule required username=a;", "PlainLoginModule without password"),
        ("ScramLoginModule required username=a password=s3cr3t tokenauth=true;", "other keys"),
        ("OAuthBearerLoginModule required clientId=a;", "without clientSecret"),
        ("Krb5LoginModule required useTicketCache=true;", "Krb5LoginModule with useTicketCache"),
        ("Krb5LoginModule required keyTab=k;", "Krb5LoginModule without principal"),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "msk.auth.iam.IAMLoginModule"),
        ("PlainLoginModule required a=b; Other required s3cr3t=c;", "other than key=value"),
    ],
)
def test_a_login_that_cannot_be_translated_is_refused_without_its_secrets(
    text: str, found: str
) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_jaas(text)
    fault = caught.value.faults[0]
    assert found in fault.found
    assert "s3cr3t" not in str(fault)


quoted = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(quoted, quoted)
def test_every_password_survives_quoting(user: str, password: str) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = f"PlainLoginModule required username={quote(user)} password={quote(password)};"
    assert parse_jaas(text) == {"sasl.username": user, "sasl.password": password}


@given(st.text())
def test_every_text_is_a_login_or_refused(text: str) -> None:
    with suppress(BadValueError):  # Anything else that is raised fails the test.
        parse_jaas(text)


# --- Secrets --------------------------------------------------------------------------------------


def test_secrets_are_in_the_config_and_in_the_pickle_but_never_in_a_text() -> None:
    reading = read_properties(
        {"kafka.sasl.jaas.config": PLAIN.replace("p\\", "s3cr3t\\"), "kafka.client.id": "me"}
        | {f"kafka.{name}": "s3cr3t" for name in SECRETS - {"sasl.password"}}
    )
    properties = reading.properties
    assert reading.problems == ()
    assert "s3cr3t" in properties.config()["sasl.password"]
    assert pickle.loads(pickle.dumps(properties)) == properties
    assert hash(properties) == hash(pickle.loads(pickle.dumps(properties)))
    for text in (repr(properties), str(properties), f"{properties}", repr(reading)):
        assert "s3cr3t" not in text
        assert "client.id=me" in text
        assert "sasl.password=***" in text


@pytest.mark.parametrize("url", ["https://me:s3cr3t@host/token", "me:s3cr3t@host", "//s3cr3t@h"])
def test_an_endpoint_for_tokens_with_a_password_is_refused_without_it(url: str) -> None:
    reading = read_properties({"kafka.sasl.oauthbearer.token.endpoint.url": url})
    (problem,) = reading.problems
    assert problem.option == "kafka.sasl.oauthbearer.token.endpoint.url"
    assert "kafka.sasl.oauthbearer.client.secret" in problem.next_step
    assert "s3cr3t" not in repr(reading)


def test_no_properties_are_no_text() -> None:
    assert repr(ClientProperties()) == "ClientProperties()"
