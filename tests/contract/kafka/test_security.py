"""Logins at a secured Kafka, from the options of a query to an answer; no secret is shown."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ssp.common.errors import AccessError, InvalidOptionsError, SspError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.error_translation import ErrorKind
from spark_ssp.kafka_source.group_committer import GroupOffsets
from spark_ssp.kafka_source.model.topic import LogicalOffset, Subscribe, partition_of
from spark_ssp.kafka_source.options import iam_token
from spark_ssp.kafka_source.options.login_tokens import stop_token_refresh
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer, ReadError
from spark_ssp.kafka_source.reading.pool import ConsumerKey, ConsumerPool
from spark_ssp.kafka_source.sink import producer as producing
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.markers import CompletedBatch, Write
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.table_sink import write_in_transaction, write_rows
from spark_ssp.kafka_source.sink.transactions import record_completed
from spark_ssp.testing.kafka.jars import java
from tests.support.kafka.reading import (
    TaskReading,
    open_messages,
    open_native,
    options_for,
    part,
)
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.kinesis.certificates import write_key_store
from tests.support.servers import kafka_security
from tests.support.servers.kafka_security import (
    CLIENT_SECRET,
    PASSWORD,
    USER,
    SecureKafka,
    unsigned_token,
)
from tests.support.waiting import until

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OAUTH_CALLBACK = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
WRONG = "wrong-battery-9921"
STORE_PASSWORD = "changeit-3391"
SECRETS = (PASSWORD, WRONG, CLIENT_SECRET, STORE_PASSWORD)
PARTITIONS = 3

Settings = dict[str, str]


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecureKafka]:
    with SecureKafka() as found:
        yield found


@pytest.fixture(scope="module")
def topic(kafka: SecureKafka) -> Iterator[StreamName]:
    with KafkaTopics({"bootstrap.servers": kafka.broker.bootstrap_servers}) as topics:
        yield StreamName(topics.create(PARTITIONS))


def with_password(kafka: SecureKafka, mechanism: str, password: str) -> dict[str, str]:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return {
        "kafka.bootstrap.servers": kafka.broker.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="{USER}" password="{password}";',
    }


def with_token(kafka: SecureKafka, secret: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": kafka.broker.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": OAUTH_CALLBACK,
        "kafka.sasl.oauthbearer.token.endpoint.url": kafka.tokens.url,
        "kafka.sasl.jaas.config": f'{OAUTH} required clientId="{USER}" clientSecret="{secret}";',
    }


def with_function(kafka: SecureKafka, name: str = "provided_token", **given: object) -> Settings:
    return {
        "kafka.bootstrap.servers": kafka.broker.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "tokenProvider": f"{kafka_security.__name__}:{name}",
        "tokenProviderSecretArguments": json.dumps(given),
    }


def with_certificate(kafka: SecureKafka) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": kafka.broker.address("SSL"),
        "kafka.security.protocol": "SSL",
        "kafka.ssl.ca.location": str(kafka.authority),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(kafka.client),
    }


def keytool(*arguments: object) -> bytes:
    """Run Java's tool for key stores, with one password for all of them."""
    program = Path(java()).with_name("keytool") if "/" in java() else "keytool"
    command = [str(one) for one in (program, *arguments, "-storepass", STORE_PASSWORD)]
    return subprocess.run(command, check=True, capture_output=True).stdout


def with_key_store(kafka: SecureKafka) -> dict[str, str]:
    """By stores of Java (JKS), after the advice of the refusal of each was followed."""
    folder = kafka.client.parent
    write_key_store(kafka.client, folder / "given.p12", STORE_PASSWORD)
    source, target = folder / "client.jks", folder / "client.p12"
    password = ("-srcstorepass", STORE_PASSWORD)
    for one, other, kind in ((folder / "given.p12", source, "JKS"), (source, target, "PKCS12")):
        if not other.exists():
            keytool(
                *("-importkeystore", "-srckeystore", one, *password),
                *("-destkeystore", other, "-deststoretype", kind),
            )
    trusted, exported = folder / "trust.jks", folder / "exported.pem"
    if not trusted.exists():
        authority = ("-alias", "ca", "-file", kafka.authority, "-noprompt")
        keytool("-importcert", "-keystore", trusted, *authority)
    exported.write_bytes(keytool("-list", "-rfc", "-keystore", trusted))

    given = {
        "kafka.bootstrap.servers": kafka.broker.address("SSL"),
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.location": str(source),
        "kafka.ssl.keystore.password": STORE_PASSWORD,
        "kafka.ssl.truststore.location": str(trusted),
        "kafka.ssl.truststore.password": STORE_PASSWORD,
    }
    with pytest.raises(InvalidOptionsError) as caught:
        parse_options({**given, "subscribe": "t"})
    advice = {problem.option: problem.next_step for problem in caught.value.problems}
    assert "keytool -importkeystore -srckeystore" in advice["kafka.ssl.keystore.location"]
    assert "-deststoretype PKCS12" in advice["kafka.ssl.keystore.location"]
    assert "keytool -list -rfc -keystore" in advice["kafka.ssl.truststore.location"]
    assert advice["kafka.ssl.truststore.password"] == "remove it"
    kept = {name: value for name, value in given.items() if "truststore" not in name}
    return kept | {
        "kafka.ssl.keystore.location": str(target),
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.ca.location": str(exported),
    }


def ask(options: dict[str, str], topic: StreamName) -> int:
    """How many partitions have an end."""
    service = connect(parse_options({**options, "subscribe": topic}))
    count = service.describe(Subscribe(topics=(topic,)))[topic].partition_count
    ends = service.list_offsets(
        [partition_of(topic, number) for number in range(count)], LogicalOffset.LATEST
    )
    assert set(ends.values()) == {0}
    return len(ends)


def refusal(options: dict[str, str], topic: StreamName) -> AccessError:
    with pytest.raises(AccessError) as caught:
        ask(options, topic)
    return caught.value


@pytest.fixture
def secret_free_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of every level, checked for secrets at the end."""
    with caplog.at_level(logging.DEBUG):
        yield caplog
    text = "\n".join([caplog.text, *(str(record.__dict__) for record in caplog.records)])
    assert [secret for secret in SECRETS if secret in text] == []


def assert_nothing_secret(error: SspError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    for text in (str(error), repr(error), repr(copy), repr(error.__cause__), repr(error.args)):
        assert [one for one in SECRETS if one in text] == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.usefixtures("secret_free_log")
def test_passwords(kafka: SecureKafka, topic: StreamName, mechanism: str) -> None:
    options = with_password(kafka, mechanism, PASSWORD) | {"kafka.debug": "security,broker"}
    assert ask(options, topic) == PARTITIONS
    assert PASSWORD not in repr(parse_options({**options, "subscribe": topic}))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password(
    kafka: SecureKafka, topic: StreamName, mechanism: str, secret_free_log: pytest.LogCaptureFixture
) -> None:
    options = with_password(kafka, mechanism, WRONG)
    error = refusal(options, topic)

    assert error.subject.startswith("kafka.bootstrap.servers=127.0.0.1:")
    assert "uthentication failed" in error.found
    assert "kafka.sasl.jaas.config" in error.next_step
    assert_nothing_secret(error)
    # Other lines count those that clients of earlier tests have suppressed.
    address = options["kafka.bootstrap.servers"]
    warnings = [
        one
        for one in secret_free_log.records
        if one.levelno >= logging.WARNING
        and (one.name.endswith(".parse") or address in one.getMessage())
    ]
    assert 0 < len(warnings) <= 4


def test_a_mechanism_that_brokers_do_not_have(kafka: SecureKafka, topic: StreamName) -> None:
    error = refusal(with_password(kafka, "SCRAM-SHA-512", PASSWORD), topic)
    assert "SCRAM-SHA-512" in error.found
    assert "kafka.sasl.mechanism" in error.next_step


def test_a_denied_topic(kafka: SecureKafka) -> None:
    with KafkaTopics({"bootstrap.servers": kafka.broker.bootstrap_servers}) as topics:
        denied = StreamName(topics.create())
        kafka.deny(USER, denied)
        error = refusal(with_password(kafka, "PLAIN", PASSWORD), denied)

    assert error.subject == f"topic {denied}"
    assert "TOPIC_AUTHORIZATION_FAILED" in error.found
    assert "ACLs" in error.next_step


@pytest.mark.parametrize("opened", [open_native, open_messages], ids=["native", "messages"])
def test_reading_needs_nothing_of_groups(
    kafka: SecureKafka,
    opened: Callable[[ConsumerKey], PartitionConsumer],
    secret_free_log: pytest.LogCaptureFixture,
) -> None:
    """A user who may describe and read the topic, and do nothing else, reads it."""
    reading = TaskReading(with_password(kafka, "PLAIN", PASSWORD), ConsumerPool(create=opened))
    key = ConsumerKey(client=options_for(reading.settings).client, group_id="test")
    with KafkaTopics({"bootstrap.servers": kafka.broker.bootstrap_servers}) as topics:
        topic = topics.create()
        topics.put(topic, [Record(value=b"v")] * 10)
        kafka.let_read(USER, topic)
        kafka.deny_groups(USER)
        with reading.pool.acquire(key, {}) as consumer:
            consumer.assign({partition_of(StreamName(topic), 0): 10})
            fault = first_fault(consumer)
            assert consumer.last_error() is None
        # Once with the consumer that was refused, once with another one.
        offsets = [reading.offsets(part(topic, 0, 0, 10))]
        reading.pool.close()
        offsets.append(reading.offsets(part(topic, 0, 0, 10)))
        reading.pool.close()

    assert fault.kind is ErrorKind.GROUP_ACCESS
    assert "GROUP_AUTHORIZATION_FAILED" in fault.error.found
    assert offsets == [[(0, n) for n in range(10)]] * 2
    # But that the options warn of a login without encryption.
    warned = [one for one in secret_free_log.records if one.levelno >= logging.WARNING]
    assert [one for one in warned if not one.name.endswith("options.parse")] == []


@pytest.mark.usefixtures("secret_free_log")
def test_a_sink_that_writes_exactly_once_needs_what_the_guide_says() -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
    with (
        SecureKafka() as kafka,
        KafkaTopics({"bootstrap.servers": kafka.broker.bootstrap_servers}) as topics,
    ):
        topic = topics.create(1)
        settings = with_password(kafka, "PLAIN", PASSWORD) | {
            "topic": topic,
            "deliveryGuarantee": "exactly-once",
            "transactionName": "by-customer",
            "kafka.delivery.timeout.ms": "30000",
        }
        options = parse_sink_options(settings)
        sink = f"by-customer/{topic}"

        def write(batch: int) -> None:
            attempt = Write(sink=sink, task=0, batch=batch)
            write_in_transaction([rows], SinkColumns(value=0), options, attempt, "run")
            completed = CompletedBatch(batch=batch, tasks=1)
            record_completed(options.client, sink, topic, completed)

        kafka.let_write_exactly_once("another", topic, "by-customer")
        with pytest.raises(AccessError) as caught:
            write(0)
        assert "ssp/" in caught.value.next_step
        assert_nothing_secret(caught.value)
        kafka.let_write_exactly_once(USER, topic, "by-customer")
        write(0)
        write(1)


@pytest.mark.usefixtures("secret_free_log")
def test_a_denied_group_takes_no_offsets(kafka: SecureKafka, topic: StreamName) -> None:
    kafka.deny_groups(USER)
    options = options_for(with_password(kafka, "PLAIN", PASSWORD))
    offsets = GroupOffsets(options.client, "lag")
    with pytest.raises(AccessError) as caught:
        offsets.commit({partition_of(topic, 0): 1}, 20)
    offsets.close()
    assert caught.value.subject == "consumer group lag"
    assert "GROUP_AUTHORIZATION_FAILED" in caught.value.found
    assert "read with this group (ACLs)" in caught.value.next_step
    assert_nothing_secret(caught.value)


NUMBERS_OF_JAVA = {
    "kafka.batch.size": "0",
    "kafka.connections.max.idle.ms": "-1",
    "kafka.fetch.max.bytes": "1",
    "kafka.fetch.min.bytes": "0",
    "kafka.max.request.size": "2147483647",
    "kafka.metadata.max.age.ms": "0",
    "kafka.request.timeout.ms": "600000",
    "kafka.retries": "0",
    "kafka.retry.backoff.ms": "0",
    "kafka.session.timeout.ms": "600000",
}
"""Which librdkafka does not take: what is used instead works."""

LOGINS: dict[str, Callable[[SecureKafka], dict[str, str]]] = {
    "plain": lambda kafka: with_password(kafka, "PLAIN", PASSWORD),
    "scram": lambda kafka: with_password(kafka, "SCRAM-SHA-256", PASSWORD),
    "token": lambda kafka: with_token(kafka, CLIENT_SECRET),
    "function": with_function,
    "certificate": with_certificate,
    "pkcs12": with_key_store,
    "numbers of java": lambda kafka: with_certificate(kafka) | NUMBERS_OF_JAVA,
}


@pytest.mark.usefixtures("secret_free_log")
@pytest.mark.parametrize("opened", [open_native, open_messages], ids=["native", "messages"])
@pytest.mark.parametrize("login", LOGINS.values(), ids=LOGINS.keys())
def test_records_are_written_and_read_with_every_login(
    kafka: SecureKafka,
    login: Callable[[SecureKafka], dict[str, str]],
    opened: Callable[[ConsumerKey], PartitionConsumer],
) -> None:
    settings = login(kafka)
    values = [b"one", b"two", b"three"]
    reading = TaskReading(settings, ConsumerPool(create=opened))
    with KafkaTopics({"bootstrap.servers": kafka.broker.bootstrap_servers}) as topics:
        topic = topics.create(1)
        batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        options = parse_sink_options(settings | {"topic": topic})
        assert write_rows([batch], SinkColumns(value=0), options, None) == len(values)
        rows = reading.rows(part(topic, 0, 0, len(values)))
        reading.pool.close()
    producing._producers.clear()
    assert [row["value"] for row in rows] == values


def first_fault(consumer: PartitionConsumer) -> ReadError:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for event in consumer.poll(10, 0.2):
            if isinstance(event, ReadError):
                return event
    raise AssertionError("nothing was refused")


@pytest.mark.usefixtures("secret_free_log")
def test_tokens(kafka: SecureKafka, topic: StreamName) -> None:
    assert ask(with_token(kafka, CLIENT_SECRET), topic) == PARTITIONS


@pytest.mark.usefixtures("secret_free_log")
def test_a_wrong_secret_of_a_client(kafka: SecureKafka, topic: StreamName) -> None:
    error = refusal(with_token(kafka, WRONG), topic)
    assert "kafka.sasl.jaas.config" in error.next_step
    assert_nothing_secret(error)


@pytest.mark.usefixtures("secret_free_log")
def test_a_token_of_a_function_that_brokers_refuse(kafka: SecureKafka, topic: StreamName) -> None:
    settings = with_function(kafka, "wrong_token", secret=WRONG) | {"kafka.debug": "all"}
    error = refusal(settings, topic)
    assert "tokenProvider" in error.next_step
    assert_nothing_secret(error)
    stop_token_refresh()


LIFE_S = 8
"""Of a token, whose next one comes after half of that: brokers let nobody log in again within a
second, so the one that is sent must still have some seconds."""


@pytest.mark.parametrize("login", ["aws", "function"])
def test_a_login_by_tokens_stays_logged_in(
    kafka: SecureKafka,
    monkeypatch: pytest.MonkeyPatch,
    secret_free_log: pytest.LogCaptureFixture,
    login: str,
) -> None:
    """With tokens of a few seconds, after which the broker ends a connection that was not renewed;
    for AWS one that this broker understands, in place of the one that Amazon's do."""
    fetched: list[float] = []

    def fetch(*_: object) -> tuple[str, float]:
        fetched.append(time.time())
        return unsigned_token(LIFE_S), time.time() + LIFE_S / 2

    settings = with_function(kafka)
    if login == "aws":
        settings = {name: settings[name] for name in settings if name.startswith("kafka.")}
        settings["kafka.sasl.mechanism"] = "AWS_MSK_IAM"
    monkeypatch.setattr(iam_token, "iam_token", fetch)
    monkeypatch.setattr(kafka_security, "provided_token", fetch)
    stop_token_refresh()
    readings = [
        TaskReading(settings, ConsumerPool(create=make)) for make in (open_native, open_messages)
    ]
    with KafkaTopics({"bootstrap.servers": kafka.broker.bootstrap_servers}) as topics:
        topic = topics.create(1)
        options = parse_sink_options(settings | {"topic": topic})
        service = connect(parse_options(settings | {"subscribe": topic}))

        def write_and_read(written: int) -> None:
            batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
            assert write_rows([batch], SinkColumns(value=0), options, None) == 1
            assert service.describe(Subscribe(topics=(StreamName(topic),)))
            for reading in readings:
                assert len(reading.rows(part(topic, 0, 0, written))) == written

        write_and_read(1)
        # All clients rest while their first tokens expire.
        expired = time.time() + LIFE_S
        until(lambda: fetched[-1] > expired, "tokens are renewed")
        write_and_read(2)
        for reading in readings:
            reading.pool.close()
    producing._producers.clear()
    stop_token_refresh()
    assert [one.getMessage() for one in secret_free_log.records if "FAIL" in one.getMessage()] == []


@pytest.mark.usefixtures("secret_free_log")
def test_certificates(kafka: SecureKafka, topic: StreamName) -> None:
    assert ask(with_certificate(kafka), topic) == PARTITIONS


def test_a_broker_that_is_not_trusted(kafka: SecureKafka, topic: StreamName) -> None:
    options = with_certificate(kafka)
    del options["kafka.ssl.ca.location"]
    error = refusal(options, topic)
    assert "certificate verify failed" in error.found
    assert "kafka.ssl.ca.location" in error.next_step


def test_a_client_without_certificate(kafka: SecureKafka, topic: StreamName) -> None:
    options = with_certificate(kafka)
    del options["kafka.ssl.keystore.location"]
    error = refusal(options, topic)
    assert "certificate" in error.found
    assert "kafka.ssl.keystore.location" in error.next_step


def test_a_file_that_is_not_there(kafka: SecureKafka, topic: StreamName) -> None:
    options = with_certificate(kafka) | {"kafka.ssl.ca.location": "/nowhere/ca.pem"}
    with pytest.raises(InvalidOptionsError) as caught:
        ask(options, topic)
    assert [problem.option for problem in caught.value.problems] == ["kafka.ssl.ca.location"]
    assert "/nowhere/ca.pem" in str(caught.value)
