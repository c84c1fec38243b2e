"""The one way to a client of librdkafka: its configuration by role, its log, its refusal to start.

Whatever a query is told by `kafka.*` goes to all its clients, but for what only a consumer has:
librdkafka warns of that in any other client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from kafka_source.client_log import ClientLog
from kafka_source.client_properties import BOOTSTRAP_SERVERS, PREFIX, ClientProperties
from kafka_source.client_property_names import TWINS, words
from kafka_source.faults import error_of, to_error, without_secrets
from kafka_source.producer_property_names import PRODUCER
from ssp_common.errors import InvalidOptionsError, OptionProblem

C = TypeVar("C")

FORMAT: Final = "kafka-ssp"


class Role(StrEnum):
    """What a client is for."""

    ADMIN = "admin"
    CONSUMER = "consumer"
    PRODUCER = "producer"


CONSUMER_ONLY: Final = words(
    """
    check.crcs fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id heartbeat.interval.ms isolation.level max.partition.fetch.bytes
    max.poll.interval.ms queued.max.messages.kbytes queued.min.messages session.timeout.ms
    """
)
"""Of `PASSED`: what librdkafka 2.16 warns of in a client that is no consumer."""

_BY_ROLE: Final[Mapping[Role, Mapping[str, str]]] = {
    Role.ADMIN: {},
    Role.CONSUMER: {
        # Positions stand in Spark's checkpoint alone.
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        # Where a read must not go on by itself behind a gap.
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
    },
    Role.PRODUCER: {},
}


def secrets_of(properties: ClientProperties) -> tuple[str, ...]:
    """The values that must never show."""
    return tuple(value for _, value in properties.secret)


def client_config(
    properties: ClientProperties,
    *,
    role: Role,
    on_error: Callable[[KafkaError], None] | None = None,
) -> dict[str, Any]:
    """What a client of this role is made with: the properties, what the role asks for, and a logger
    in place of the standard error. Not for logs.

    `on_error` hears of lost connections, refused logins and the like, mostly more than once; it is
    called while the client is polled, as the logger is. It must not raise.
    """
    config: dict[str, Any] = {
        name: value
        for name, value in properties.config().items()
        if role is Role.CONSUMER or name not in CONSUMER_ONLY
    }
    config.setdefault("client.id", f"spark-ssp-{role}")
    config.update(_BY_ROLE[role])
    config["logger"] = ClientLog(role, secrets=secrets_of(properties))
    # Without one librdkafka logs each error once more.
    config["error_cb"] = on_error or (lambda error: None)
    return config


def make_client(
    factory: Callable[[dict[str, Any]], C],
    properties: ClientProperties,
    *,
    role: Role,
    on_error: Callable[[KafkaError], None] | None = None,
    more: Mapping[str, Any] | None = None,
) -> C:
    """A client by `client_config` and `more`, which wins.

    Raises InvalidOptionsError, which names the option, when librdkafka refuses the configuration: a
    value, a file that cannot be read, keys that do not fit.
    """
    config = client_config(properties, role=role, on_error=on_error) | dict(more or {})
    try:
        return factory(config)
    except KafkaException as exception:
        # Without the cause: its text may quote a secret.
        raise _refused(error_of(exception), properties, role) from None


_NAMED: Final = (
    re.compile(r'property "([a-z0-9_.]+)"'),
    re.compile(r"`([a-z0-9_.]+)`"),
    re.compile(r"\b([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+) (?:failed|must)"),
)
"""How librdkafka names a property that it refuses."""


def _refused(error: KafkaError, properties: ClientProperties, role: Role) -> Exception:
    secrets = secrets_of(properties)
    named = [name for pattern in _NAMED for name in pattern.findall(error.str())]
    if error.code() != KafkaError._INVALID_ARG:
        return to_error(error, subject=_bootstrap(properties), secrets=secrets)
    # Some have a second name, which librdkafka prefers.
    twins = PRODUCER.twins if role is Role.PRODUCER else TWINS
    name = twins.get(named[0], named[0]) if named else "*"
    value = dict(properties.public).get(name)
    given = f"{value}, of which the client says" if value else "what the client refuses"
    problem = OptionProblem(
        option=PREFIX + name,
        found=f"{given}: {without_secrets(error.str(), secrets)}",
        expected="properties that librdkafka accepts together",
        next_step="mend the option; files must be there on the driver and on every executor",
    )
    return InvalidOptionsError(FORMAT, [problem])


def _bootstrap(properties: ClientProperties) -> str:
    return f"{PREFIX}{BOOTSTRAP_SERVERS}={properties.config().get(BOOTSTRAP_SERVERS, '')}"
