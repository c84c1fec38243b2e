"""Options `kafka.*`: handed on, translated, refused by name; secrets never shown."""

from __future__ import annotations

import pickle
from itertools import combinations

import pytest

from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.property_names import (
    ALIASES,
    COMBINED,
    CONSUMER,
    PRODUCER,
    REFUSED,
    SECRETS,
    SUPPORTED,
    WITHOUT_EFFECT,
    PropertyNames,
)
from spark_ssp.kafka_source.options.translation import ParsedProperties, read_properties
from tests.support.kafka.properties import PLAIN, config_of, option_of, problem_of, reading_of

# --- Names ----------------------------------------------------------------------------------------


def test_a_name_stands_in_one_list() -> None:
    lists = [SUPPORTED, set(ALIASES), COMBINED, set(REFUSED), set(WITHOUT_EFFECT)]
    assert [one & other for one, other in combinations(lists, 2) if one & other] == []
    assert set(ALIASES.values()) <= SUPPORTED
    assert SECRETS <= SUPPORTED


def test_everything_that_could_hold_a_secret_is_one() -> None:
    """As far as names tell; a path, a URL or a time is none."""
    telling = {
        name
        for name in SUPPORTED
        if any(word in name for word in ("password", "secret", "key.pem", "passphrase", "config"))
    }
    assert telling <= SECRETS


CHECKED = {
    "isolation.level",
    "message.max.bytes",
    "receive.message.max.bytes",
    "security.protocol",
    "socket.timeout.ms",
    *CONSUMER.ranges,
}
"""Whose values are checked before librdkafka does."""


@pytest.mark.parametrize("name", sorted(SUPPORTED - CHECKED))
def test_a_name_of_librdkafka_is_handed_on(name: str) -> None:
    is_number = name.endswith((".ms", ".bytes", ".kbytes", ".messages"))
    assert bool(read_properties({f"kafka.{name}": "a b"}).problems) == is_number
    value = "77" if is_number else "a b"
    reading = read_properties({f"kafka.{name}": value})
    assert reading.problems == ()
    assert reading.properties.config()[name] == value


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_a_twin_is_translated_and_refused_beside_its_other_name(name: str) -> None:
    reading = read_properties({f"kafka.{name}": "77"})
    assert reading.problems == ()
    assert reading.properties.config()[ALIASES[name]] == "77"
    assert (ALIASES[name], name) in reading.properties.origins
    (problem,) = read_properties({f"kafka.{name}": "7", f"kafka.{ALIASES[name]}": "7"}).problems
    assert "names of the same property" in problem.found
    assert problem.next_step == f"keep kafka.{ALIASES[name]}"


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
    assert problem_of(client_id=" ").found == "an empty value"
    assert problem_of(sasl_jaas_config="").option == "kafka.sasl.jaas.config"
    (problem,) = read_properties({"kafka.client.id": None}).problems  # type: ignore[dict-item]
    assert problem.found == "an empty value"


# --- Values ---------------------------------------------------------------------------------------


def test_the_java_clients_defaults_hold_where_they_show() -> None:
    assert read_properties({}).properties.config() == {
        "isolation.level": "read_uncommitted",
        "check.crcs": "true",
        "receive.message.max.bytes": "2147483647",
        "reconnect.backoff.max.ms": "1000",
        "socket.connection.setup.timeout.ms": "10000",
    }
    given = {
        "isolation.level": "read_committed",
        "check.crcs": "false",
        "receive.message.max.bytes": "100000000",
    }
    assert config_of(**given) == given


def test_values_that_are_written_differently() -> None:
    assert config_of(ssl_endpoint_identification_algorithm="") == {
        "ssl.endpoint.identification.algorithm": "none"
    }
    assert config_of(receive_buffer_bytes="-1", send_buffer_bytes="65536") == {
        "socket.receive.buffer.bytes": "0",
        "socket.send.buffer.bytes": "65536",
    }
    assert config_of(security_protocol="sasl_ssl") == {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"isolation.level": "committed"}, "'committed'"),
        ({"security.protocol": "TLS"}, "'TLS'"),
        ({"message.max.bytes": "1m"}, "'1m'"),
        ({"receive.message.max.bytes": "1m"}, "'1m'"),
        ({"sasl.kerberos.kinit.cmd": "/usr/bin/kinit"}, "a program without arguments"),
        ({"ssl.keystore.type": "BKS"}, "'BKS'"),
        ({"ssl.truststore.type": "BKS"}, "'BKS'"),
        ({"ssl.keystore.location": "client.jks"}, "JKS"),
        ({"ssl.keystore.location": "client", "ssl.keystore.type": "jks"}, "JKS"),
        ({"sasl.client.callback.handler.class": "my.Handler"}, "'my.Handler', a Java class"),
        ({"ssl.truststore.location": "ca.jks"}, "a Java trust store"),
        (
            {"ssl.truststore.location": "ca.p12", "ssl.truststore.type": "PKCS12"},
            "a Java trust store",
        ),
        ({"ssl.truststore.password": "changeit"}, "a password of certificates"),
        ({"sasl.login.callback.handler.class": "my.Handler"}, "'my.Handler', a Java class"),
        ({"sasl.jaas.config": "x"}, "does not end with ;"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_option(options: dict[str, str], found: str) -> None:
    (problem,) = read_properties({f"kafka.{name}": v for name, v in options.items()}).problems
    assert problem.option == f"kafka.{next(iter(options))}"
    assert found in problem.found


def test_key_stores_and_authorities() -> None:
    assert config_of(ssl_keystore_location="k.p12", ssl_keystore_password="p") == {
        "ssl.keystore.location": "k.p12",
        "ssl.keystore.password": "p",
    }
    assert config_of(ssl_keystore_location="k.pem", ssl_keystore_type="pem") == {
        "ssl.certificate.location": "k.pem",
        "ssl.key.location": "k.pem",
    }
    assert config_of(ssl_truststore_location="ca.pem", ssl_truststore_type="PEM") == {
        "ssl.ca.location": "ca.pem"
    }
    assert config_of(ssl_keystore_type="PEM", ssl_keystore_key="K", ssl_key_password="p") == {
        "ssl.key.pem": "K",
        "ssl.key.password": "p",
    }


def test_a_key_store_is_what_its_type_says_whatever_its_name() -> None:
    assert config_of(ssl_keystore_location="k.jks", ssl_keystore_type="PKCS12") == {
        "ssl.keystore.location": "k.jks"
    }


@pytest.mark.parametrize(
    ("option", "value", "used"),
    [
        ("request.timeout.ms", "600000", "300000"),
        ("retry.backoff.ms", "0", "1"),
        ("metadata.max.age.ms", "0", "1"),
        ("metadata.max.age.ms", "86400001", "86400000"),
        ("fetch.max.bytes", "65536", "1000000"),
    ],
)
def test_a_number_that_only_the_java_client_takes_is_replaced_with_a_warning(
    option: str, value: str, used: str
) -> None:
    reading = reading_of({option: value})
    assert reading.problems == ()
    assert reading.properties.config()[ALIASES.get(option, option)] == used
    (warning,) = reading.warnings
    assert warning.startswith(f"kafka.{option}={value} is ")
    assert f"{used} " in warning


@pytest.mark.parametrize("names", [CONSUMER, PRODUCER], ids=lambda names: names.client)
@pytest.mark.parametrize("value", ["15m", "5 s", "1e5", "1_000", "0x10", "soon"])
def test_a_number_with_a_unit_is_refused_as_by_the_java_client(
    names: PropertyNames, value: str
) -> None:
    """librdkafka reads only the digits before it."""
    others = {"socket.timeout.ms", "topic.metadata.refresh.interval.ms"}
    others |= (
        {"fetch.wait.max.ms", "fetch.message.max.bytes", "queued.max.messages.kbytes"}
        if names is CONSUMER
        else {"queue.buffering.max.ms", "retries", "max.in.flight", "batch.num.messages"}
    )
    given = ({*names.ranges} | others) - {"request.timeout.ms", "linger.ms"}
    reading = read_properties({f"kafka.{name}": value for name in given}, names)
    assert {problem.option for problem in reading.problems} == {f"kafka.{name}" for name in given}
    assert all(value in problem.found for problem in reading.problems)
    reading = read_properties({"kafka.request.timeout.ms": value}, names)
    assert [problem.option for problem in reading.problems] == ["kafka.request.timeout.ms"]


def test_what_the_java_client_derives_from_other_properties() -> None:
    assert config_of(reconnect_backoff_ms="20000")["reconnect.backoff.max.ms"] == "20000"
    assert config_of(reconnect_backoff_max_ms="10")["reconnect.backoff.ms"] == "10"
    assert config_of(connections_max_idle_ms="-1") == {"connections.max.idle.ms": "0"}
    assert config_of(fetch_min_bytes="0") == {"fetch.min.bytes": "1"}


def _produced(**options: str) -> ParsedProperties:
    return read_properties({option_of(name): value for name, value in options.items()}, PRODUCER)


def test_a_producers_values_mean_what_they_mean_to_the_java_client() -> None:
    assert _produced(batch_size="0").properties.config()["batch.size"] == "1"
    without = _produced(retries="0")
    assert without.properties.config()["enable.idempotence"] == "false"
    assert without.warnings == ()
    (problem,) = _produced(retries="0", enable_idempotence="true").problems
    assert problem.option == "kafka.retries"
    for name in ("max_in_flight_requests_per_connection", "max_in_flight"):
        many = _produced(**{name: "6"})
        assert many.properties.config()["enable.idempotence"] == "false"
        (warning,) = many.warnings
        assert warning.startswith(f"{option_of(name)}=6 turns idempotence off")
        (problem,) = _produced(**{name: "6"}, enable_idempotence="true").problems
        assert problem.option == option_of(name)
        assert _produced(**{name: "5"}).properties.config()["enable.idempotence"] == "true"
    longest = _produced(max_request_size="2147483647")
    assert longest.properties.config()["message.max.bytes"] == "1000000000"
    assert len(longest.warnings) == 1
    assert _produced(linger_ms="0.5").properties.config()["linger.ms"] == "0.5"
    patient = _produced(linger_ms="100000", request_timeout_ms="60000")
    assert patient.properties.config()["delivery.timeout.ms"] == "160000"


def test_a_group_of_ones_own_is_warned_of() -> None:
    reading = read_properties({"kafka.group.id": "g"})
    assert reading.properties.config()["group.id"] == "g"
    assert "groupIdPrefix has no effect" in reading.warnings[0]


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
