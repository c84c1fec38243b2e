"""Kafka's own client for Java: the oracle of the meaning of `kafka.*` options, and a reader that
shares nothing with ours. Its classes are called in a JVM of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import py4j.java_gateway
import py4j.protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, get_field, launch_gateway
from py4j.protocol import Py4JJavaError

from spark_ssp.testing.kafka.broker import install
from spark_ssp.testing.kafka.jars import java, spark_jar
from tests.support.servers.process import FIRST_COMPILER_ALONE

_MOST: Final[Mapping[str, int]] = {"INT": (1 << 31) - 1, "LONG": (1 << 63) - 1}
_CONFIGS: Final = {
    "consumer": "org.apache.kafka.clients.consumer.ConsumerConfig",
    "producer": "org.apache.kafka.clients.producer.ProducerConfig",
    "admin": "org.apache.kafka.clients.admin.AdminClientConfig",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProperty:
    """A property of a client. `accepted`: the significant numbers among those it accepts."""

    name: str
    accepted: tuple[int, ...]


class JavaClient:
    """Calls the classes of Kafka's client."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway

    def login(self, text: str) -> tuple[str, dict[str | None, str]] | None:
        """The login module and its options, of `sasl.jaas.config`; None if that is refused."""
        jvm = self._gateway.jvm
        configs = jvm.java.util.HashMap()
        configs.put("sasl.jaas.config", jvm.org.apache.kafka.common.config.types.Password(text))
        context = jvm.org.apache.kafka.common.security.JaasContext
        try:
            (entry,) = context.loadClientContext(configs).configurationEntries()
        except Py4JJavaError:
            return None
        return entry.getLoginModuleName(), dict(entry.getOptions())

    def properties(self, client: str) -> list[JavaProperty]:
        """The properties of a "consumer", "producer" or "admin"."""
        config = self._gateway.jvm
        for part in _CONFIGS[client].split("."):
            config = getattr(config, part)
        keys = config.configDef().configKeys()
        return [
            JavaProperty(name=name, accepted=tuple(_accepted(keys[name])))
            for name in sorted(keys)
            if not name.startswith("internal.")
        ]

    def read_committed(
        self, bootstrap_servers: str, topic: str, *, patience_s: float = 60
    ) -> list[tuple[int, str, str]]:
        """Return partition, key and value of the records of a topic that a reader of committed ones
        gets, each partition in its order. Raises TimeoutError if it gets none for `patience_s`,
        as while a transaction is open."""
        jvm = self._gateway.jvm
        with (
            closing(self._consumer(bootstrap_servers, "read_uncommitted")) as everything,
            closing(self._consumer(bootstrap_servers, "read_committed")) as consumer,
        ):
            partitions = jvm.java.util.ArrayList()
            for one in everything.partitionsFor(topic):
                partition = one.partition()
                partitions.add(jvm.org.apache.kafka.common.TopicPartition(topic, partition))
            ends = everything.endOffsets(partitions)
            consumer.assign(partitions)
            consumer.seekToBeginning(partitions)
            found: list[tuple[int, str, str]] = []
            deadline = time.monotonic() + patience_s
            while any(consumer.position(one) < ends[one] for one in partitions):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"a transaction of {topic} is open")
                records = consumer.poll(jvm.java.time.Duration.ofMillis(200)).iterator()
                while records.hasNext():
                    record = records.next()
                    found.append((record.partition(), record.key(), record.value()))
                    self._gateway.detach(record)
                    deadline = time.monotonic() + patience_s
            return found

    def _consumer(self, bootstrap_servers: str, isolation: str) -> Any:
        texts = "org.apache.kafka.common.serialization.StringDeserializer"
        properties = self._gateway.jvm.java.util.Properties()
        for name, value in {
            "bootstrap.servers": bootstrap_servers,
            "isolation.level": isolation,
            "key.deserializer": texts,
            "value.deserializer": texts,
        }.items():
            properties.setProperty(name, value)
        return self._gateway.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)


def _accepted(key: Any) -> Iterator[int]:
    kind = get_field(key, "type").name()
    if kind not in _MOST:
        return
    validator = get_field(key, "validator")
    for number in sorted({-1, 0, 1, 10, 1_000, 100_000, 10_000_000, (1 << 31) - 1, _MOST[kind]}):
        try:
            if validator is not None:
                validator.ensureValid(get_field(key, "name"), number)
        except Py4JJavaError:
            continue
        yield number


@contextmanager
def java_client() -> Iterator[JavaClient]:
    """Start a JVM with Kafka's classes."""
    port, token, process = launch_gateway(
        jarpath=str(spark_jar("py4j-*.jar")),
        classpath=f"{install()}/*",
        java_path=java(),
        javaopts=["-Xmx128m", "-XX:+UseSerialGC", FIRST_COMPILER_ALONE],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stdout=deque(maxlen=100),
        redirect_stderr=deque(maxlen=100),
        daemonize_redirect=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(
            port=port, auth_token=token, enable_memory_management=False
        )
    )
    # PySpark, once it runs in this process, converts the errors of every gateway by its own JVM.
    plain = py4j.protocol.get_return_value
    try:
        with mock.patch.object(py4j.java_gateway, "get_return_value", plain):
            yield JavaClient(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
