"""Clients of librdkafka: made by role, quiet on the standard error, refused by name."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.kafka_source.client.client_config import (
    CONSUMER_ONLY,
    ClientLog,
    ClientRole,
    LineLimiter,
    client_config,
    create_client,
    create_group_client,
    secrets_of,
)
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.property_names import ALIASES, PRODUCER, SUPPORTED
from spark_ssp.kafka_source.options.translation import read_properties
from spark_ssp.kafka_source.reading.pool import check_consumers
from tests.support.kafka.reading import open_messages, open_native

EVERYTHING_OF_CONSUMERS = {
    **dict.fromkeys(sorted(CONSUMER_ONLY), "10000"),
    "check.crcs": "true",
    "fetch.max.bytes": "10000000",
    "group.id": "g",
    "isolation.level": "read_committed",
}


def properties(**more: str) -> ClientProperties:
    values = {"bootstrap.servers": "127.0.0.1:1"} | {
        name.replace("_", "."): value for name, value in more.items()
    }
    return ClientProperties(public=tuple(sorted(values.items())))


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, text: str, *values: object) -> None:
        self.lines.append(text % values)


@pytest.mark.parametrize(
    "given",
    [
        {},
        EVERYTHING_OF_CONSUMERS,
        {"receive.message.max.bytes": "2000000"},
        {"receive.message.max.bytes": "300000000", "fetch.max.bytes": "200000000"},
        {"message.max.bytes": "900000000", "socket.timeout.ms": "1500"},
    ],
)
@pytest.mark.parametrize("is_sink", [True, False])
def test_a_consumer_of_no_records_takes_what_the_others_take(
    given: dict[str, str], is_sink: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of an answer may be below librdkafka's default for a fetch."""
    raw = {f"kafka.{name}": value for name, value in given.items() if name != "group.id"}
    raw["kafka.bootstrap.servers"] = "127.0.0.1:1"
    read = read_properties(raw, PRODUCER) if is_sink else read_properties(raw)
    if is_sink:
        create_client(Producer, read.properties, role=ClientRole.PRODUCER)
    else:
        check_consumers(read.properties, "g")
    consumer = create_group_client(read.properties, "g", on_commit=lambda *_: None)
    consumer.poll(0.1)
    consumer.close()
    assert "CONFWARN" not in caplog.text


@pytest.mark.parametrize("role", list(ClientRole))
def test_librdkafka_has_nothing_to_warn_of(role: ClientRole) -> None:
    told = Lines()
    given = properties(**EVERYTHING_OF_CONSUMERS)
    if role is ClientRole.CONSUMER:
        config = client_config(given, role=role)
        consumer = Consumer(config | {"logger": told})
        consumer.poll(0.1)
        consumer.close()
    else:
        factory = AdminClient if role is ClientRole.ADMIN else Producer
        factory(client_config(given, role=role) | {"logger": told}).poll(0.1)

    assert [line for line in told.lines if "CONFWARN" in line] == []


def test_librdkafka_would_warn_without() -> None:
    told = Lines()
    config: dict[str, Any] = {**EVERYTHING_OF_CONSUMERS, "logger": told}
    AdminClient(config).poll(0.1)
    names = {name: ALIASES.get(name, name) for name in (*SUPPORTED, *ALIASES)}
    warned = {
        name
        for said, name in names.items()
        if any(f" {said} is a consumer" in line for line in told.lines)
    }
    assert warned == CONSUMER_ONLY


def test_a_consumer_neither_commits_nor_rewinds() -> None:
    config = client_config(properties(), role=ClientRole.CONSUMER)
    assert config["enable.auto.commit"] == "false"
    assert config["enable.auto.offset.store"] == "false"
    assert config["auto.offset.reset"] == "error"
    assert config["enable.partition.eof"] == "true"
    assert client_config(properties(), role=ClientRole.PRODUCER).keys() == {
        "bootstrap.servers",
        "client.id",
        "error_cb",
        "logger",
        "socket.timeout.ms",
    }


@pytest.mark.parametrize(
    ("role", "given", "timeout_ms"),
    [
        (ClientRole.ADMIN, {}, None),
        (ClientRole.CONSUMER, {}, "10000"),
        (ClientRole.CONSUMER, {"fetch_wait_max_ms": "30000"}, "32000"),
        (ClientRole.CONSUMER, {"socket_timeout_ms": "60000"}, "60000"),
        (ClientRole.PRODUCER, {}, "15000"),
        (ClientRole.PRODUCER, {"socket_timeout_ms": "60000"}, "60000"),
    ],
)
def test_a_broker_must_answer_soon_unless_the_user_says_otherwise(
    role: ClientRole, given: dict[str, str], timeout_ms: str | None
) -> None:
    assert client_config(properties(**given), role=role).get("socket.timeout.ms") == timeout_ms


def test_clients_are_named_unless_the_user_names_them() -> None:
    assert client_config(properties(), role=ClientRole.ADMIN)["client.id"] == "spark-ssp-admin"
    assert client_config(properties(client_id="mine"), role=ClientRole.ADMIN)["client.id"] == "mine"


@pytest.mark.parametrize(
    ("role", "name", "value", "option"),
    [
        (ClientRole.PRODUCER, "acks", "some", "kafka.acks"),
        (ClientRole.ADMIN, "fetch.message.max.bytes", "some", "kafka.max.partition.fetch.bytes"),
        (ClientRole.ADMIN, "socket.timeout.ms", "soon", "kafka.socket.timeout.ms"),
        (ClientRole.ADMIN, "https.ca.location", "/nowhere", "kafka.https.ca.location"),
        (ClientRole.ADMIN, "ssl.keystore.location", "/nowhere", "kafka.ssl.keystore.password"),
        (ClientRole.ADMIN, "ssl.ca.location", "/nowhere", "kafka.ssl.ca.location"),
    ],
)
def test_a_refusal_names_the_option(role: ClientRole, name: str, value: str, option: str) -> None:
    given = ClientProperties(public=((name, value), ("security.protocol", "ssl")))
    with pytest.raises(InvalidOptionsError) as caught:
        create_client(Producer if role is ClientRole.PRODUCER else AdminClient, given, role=role)
    assert [problem.option for problem in caught.value.problems] == [option]


def test_a_refusal_names_the_option_as_it_was_written() -> None:
    option = "kafka.fetch.message.max.bytes"
    raw = {option: "-7", "kafka.group.id": "g", "kafka.bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(InvalidOptionsError) as caught:
        create_client(Consumer, read_properties(raw).properties, role=ClientRole.CONSUMER)
    assert [problem.option for problem in caught.value.problems] == [option]


@pytest.mark.parametrize("remedy", ["keytool", "openssl"])
def test_a_key_store_of_java_8_is_refused_with_the_command_that_converts_it(
    remedy: str, tmp_path: Path
) -> None:
    """The command is taken from the error, and the client takes its result."""
    old, made = tmp_path / "old.p12", tmp_path / ("new.p12" if remedy == "keytool" else "new.pem")
    secret = "changeit"
    run_keytool(
        "-genkeypair",
        "-alias",
        "a",
        "-keyalg",
        "RSA",
        "-dname",
        "CN=orders",
        "-storetype",
        "PKCS12",
        "-keystore",
        str(old),
        "-storepass",
        secret,
    )
    common = (("security.protocol", "SSL"), ("bootstrap.servers", "127.0.0.1:1"))
    given = ClientProperties(
        public=(*common, ("ssl.keystore.location", str(old))),
        secret=(("ssl.keystore.password", secret),),
    )
    with pytest.raises(InvalidOptionsError) as caught:
        create_client(AdminClient, given, role=ClientRole.ADMIN)
    (problem,) = caught.value.problems
    assert problem.option == "kafka.ssl.keystore.location"
    command = re.search(rf"{remedy} [^;:]+", problem.next_step)
    assert command is not None
    words = command[0].replace("<it>", str(old)).replace(f"<new>{made.suffix}", str(made)).split()
    if remedy == "keytool":
        words += ["-srcstorepass", secret, "-deststorepass", secret]
        files, password = ["ssl.keystore.location"], "ssl.keystore.password"
    else:
        words += ["-passin", f"pass:{secret}", "-passout", f"pass:{secret}"]
        files, password = ["ssl.certificate.location", "ssl.key.location"], "ssl.key.password"
    subprocess.run(words, check=True, capture_output=True)
    taken = ClientProperties(
        public=(*common, *((name, str(made)) for name in files)), secret=((password, secret),)
    )
    create_client(AdminClient, taken, role=ClientRole.ADMIN)


def run_keytool(*arguments: str) -> None:
    legacy = "-J-Dkeystore.pkcs12.legacy"
    subprocess.run(["keytool", legacy, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize("given", [{}, {"sasl_mechanism": "GSSAPI"}])
@pytest.mark.parametrize(
    ("role", "factory"),
    [
        (ClientRole.ADMIN, AdminClient),
        (ClientRole.CONSUMER, Consumer),
        (ClientRole.PRODUCER, Producer),
    ],
)
def test_kerberos_is_refused_where_librdkafka_lacks_it(
    role: ClientRole, factory: Any, given: dict[str, str]
) -> None:
    """As the wheels of confluent-kafka do."""
    with pytest.raises(InvalidOptionsError) as caught:
        create_client(
            factory, properties(security_protocol="SASL_SSL", group_id="g", **given), role=role
        )
    (problem,) = caught.value.problems
    assert problem.option == "kafka.sasl.mechanism"
    assert "GSSAPI (Kerberos), which this build of librdkafka does not" in problem.found
    assert "OAUTHBEARER" in problem.expected
    assert "--no-binary confluent-kafka" in problem.next_step


@pytest.mark.parametrize("make", [open_native, open_messages])
def test_what_tasks_could_not_be_made_with_is_refused_on_the_driver(make: Any) -> None:
    raw = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.ssl.ca.location": "/nowhere"}
    client = read_properties({**raw, "kafka.security.protocol": "SSL"}).properties
    with pytest.raises(InvalidOptionsError) as caught:
        check_consumers(client, "group", create=make)
    assert [problem.option for problem in caught.value.problems] == ["kafka.ssl.ca.location"]
    check_consumers(read_properties(raw).properties, "group", create=make)


def test_a_refusal_tells_no_secret() -> None:
    given = ClientProperties(
        public=(("security.protocol", "ssl"), ("ssl.certificate.pem", "no certificate")),
        secret=(("ssl.key.pem", "hunter2-hunter2"), ("socket.timeout.ms", "hunter2")),
    )
    assert secrets_of(given) == ("hunter2-hunter2", "hunter2")
    with pytest.raises(InvalidOptionsError) as caught:
        create_client(AdminClient, given, role=ClientRole.ADMIN)
    assert "hunter2" not in str(caught.value)


# --- The log --------------------------------------------------------------------------------------

FAIL = "FAIL [%s] [thrd:%s]: %s: Connect to ipv4#%s failed: Connection refused (%s)"


def refused(log: ClientLog, number: int, broker: str = "127.0.0.1:1") -> None:
    """As librdkafka says it, of a broker that it knows by its address at first."""
    name = f"{broker}/{('bootstrap', 1)[number % 2]}"
    when = f"after {number}ms in state CONNECT"
    more = f", {number} identical error(s) suppressed" if number % 3 else ""
    log.log(logging.ERROR, FAIL, f"x#producer-{number}", name, name, broker, when + more)


def test_repeated_lines_are_logged_now_and_then_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    lines = LineLimiter(monotonic=lambda: now)
    # A client that replaces another one tells it of the same broker.
    logs = [ClientLog("admin", limiter=lines) for _ in range(2)]
    with caplog.at_level(logging.DEBUG, "spark_ssp.kafka_source"):
        for number in range(100):
            refused(logs[number % 2], number)
        refused(logs[0], 1, "127.0.0.2:1")
        now = 61.0
        refused(logs[1], 1)

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert caplog.records[0].name == "spark_ssp.kafka_source.admin"
    assert "127.0.0.2:1 failed" in caplog.records[1].getMessage()
    assert caplog.records[2].getMessage().endswith("(and 99 more such lines since the last one)")


def test_the_last_lines_that_were_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    lines = LineLimiter(monotonic=lambda: now)
    log = ClientLog("admin", limiter=lines)
    with caplog.at_level(logging.DEBUG, "spark_ssp.kafka_source"):
        for number in range(3):
            refused(log, number)
        now = 61.0
        log.log(logging.ERROR, "another line")
        log.log(logging.ERROR, "another line")

    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 3
    assert texts[1].startswith("2 more such lines: FAIL")
    assert [text for _, _, text in lines.drain()] == ["1 more such line: another line"]
    assert lines.drain() == []


def test_different_lines_are_all_logged_and_levels_kept(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("admin", limiter=LineLimiter())
    with caplog.at_level(logging.DEBUG, "spark_ssp.kafka_source"):
        log.log(logging.INFO, "FAIL 10.0.0.1:9092/1: Disconnected")
        log.log(logging.ERROR, "FAIL 10.0.0.1:9092/1: Connection refused")
        log.log(logging.ERROR, "FAIL 10.0.0.2:9092/2: Connection refused")
        log.log(logging.CRITICAL, "the end")
        for _ in range(2):
            log.log(logging.DEBUG, "asked for")

    levels = [record.levelname for record in caplog.records]
    assert levels == ["DEBUG", "WARNING", "WARNING", "WARNING", "DEBUG", "DEBUG"]


def test_a_line_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("admin", secrets=["hunter2"], limiter=LineLimiter())
    with caplog.at_level(logging.DEBUG, "spark_ssp.kafka_source"):
        for level in (logging.DEBUG, logging.ERROR):
            log.log(level, "alice says hunter2")
    assert [record.getMessage() for record in caplog.records] == ["alice says ***"] * 2
