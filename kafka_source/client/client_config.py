"""Creates librdkafka clients: configuration by role, logging, and start-up errors. All `kafka.*`
options of a query apply to all its clients, except consumer properties, of which librdkafka warns
in any other client."""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.kafka_source.client.error_translation import kafka_error, redact, to_error
from spark_ssp.kafka_source.options.client_properties import (
    BOOTSTRAP_SERVERS,
    GROUP_ID,
    PREFIX,
    ClientProperties,
)
from spark_ssp.kafka_source.options.login_tokens import provided_token_callback
from spark_ssp.kafka_source.options.property_names import (
    ALIASES,
    NO_LIMIT,
    PRODUCER,
    PRODUCER_ONLY,
    RECEIVE_BYTES,
    words,
)

C = TypeVar("C")

FORMAT: Final = "kafka-ssp"
TOKEN_CALLBACK: Final = "oauth_cb"
"""confluent-kafka's name for the function that fetches a token."""


class ClientRole(StrEnum):
    """The role of a client."""

    ADMIN = "admin"
    CONSUMER = "consumer"
    PRODUCER = "producer"


CONSUMER_ONLY: Final = words(
    """
    check.crcs fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id isolation.level max.partition.fetch.bytes
    queued.max.messages.kbytes queued.min.messages
    """
)
"""The properties that librdkafka 2.16 warns about in a client other than a consumer."""

_BY_ROLE: Final[Mapping[ClientRole, Mapping[str, str]]] = {
    ClientRole.ADMIN: {},
    ClientRole.CONSUMER: {
        # Positions are stored only in Spark's checkpoint.
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        # A read must not continue after a gap by itself.
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
    },
    ClientRole.PRODUCER: {},
}

_TIMEOUT: Final = "socket.timeout.ms"
_FETCH_WAIT: Final = "fetch.wait.max.ms"
_CONSUMER_TIMEOUT_MS: Final = 10_000
_PRODUCER_TIMEOUT_MS: Final = 15_000
_MOST_TIMEOUT_MS: Final = 300_000
"""librdkafka's maximum; it refuses a longer wait for records by the name of that property."""


def _default_timeout_ms(role: ClientRole, given: Mapping[str, str]) -> int | None:
    """Return the time in which a broker must answer, where librdkafka's minute is too long: for as
    long, a suspended broker or host keeps its requests, although others lead its partitions by
    then. An acknowledgement also waits until such a replica is no longer in sync.

    Requests of an admin client have their own timeouts.
    """
    match role:
        case ClientRole.ADMIN:
            return None
        case ClientRole.CONSUMER:
            # librdkafka warns of less than a second more than the longest wait for records.
            wait_ms = given.get(_FETCH_WAIT, "")
            longest_ms = int(wait_ms) + 2_000 if wait_ms.isdecimal() else 0
            return min(max(_CONSUMER_TIMEOUT_MS, longest_ms), _MOST_TIMEOUT_MS)
        case ClientRole.PRODUCER:
            # librdkafka refuses more than the time of a transaction.
            limit_ms = given.get("transaction.timeout.ms", "")
            longest_ms = int(limit_ms) if limit_ms.isdecimal() else _PRODUCER_TIMEOUT_MS
            return min(_PRODUCER_TIMEOUT_MS, longest_ms)


def secrets_of(properties: ClientProperties) -> tuple[str, ...]:
    """Return the values that must not appear in messages."""
    external_id = None if properties.iam is None else properties.iam.role_external_id
    return (*(value for _, value in properties.secret), *([external_id] if external_id else []))


def client_config(
    properties: ClientProperties,
    *,
    role: ClientRole,
    on_error: Callable[[KafkaError], None] | None = None,
) -> dict[str, Any]:
    """Return the configuration of a client: the properties, those of its role, and a logger instead
    of standard error. It must not be logged.

    `on_error` receives lost connections, failed logins and the like, mostly more than once; like
    the logger, it is called while the client is polled. It must not raise.
    """
    config: dict[str, Any] = {
        name: value
        for name, value in properties.config().items()
        if role is ClientRole.CONSUMER or name not in CONSUMER_ONLY
    }
    config.setdefault("client.id", f"spark-ssp-{role}")
    timeout_ms = _default_timeout_ms(role, config)
    if timeout_ms is not None:
        config.setdefault(_TIMEOUT, str(timeout_ms))
    config.update(_BY_ROLE[role])
    config["logger"] = ClientLog(role, secrets=secrets_of(properties))
    # Without a callback, librdkafka logs each error a second time.
    config["error_cb"] = on_error or (lambda error: None)
    if properties.token_provider is not None:
        config[TOKEN_CALLBACK] = provided_token_callback(
            properties.token_provider, logger=config["logger"]
        )
    elif properties.iam is not None:
        # Imported here because the AWS SDK is slow to import, and most logins do not need it.
        from spark_ssp.kafka_source.options.iam_token import iam_token_callback

        config[TOKEN_CALLBACK] = iam_token_callback(
            properties.iam, config.get(BOOTSTRAP_SERVERS, ""), logger=config["logger"]
        )
    return config


def create_client(
    factory: Callable[[dict[str, Any]], C],
    properties: ClientProperties,
    *,
    role: ClientRole,
    on_error: Callable[[KafkaError], None] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> C:
    """Create a client with `client_config`, overridden by `overrides`.

    Raises InvalidOptionsError, which names the option, if librdkafka rejects the configuration: a
    value, an unreadable file, or keys that do not match. Raises AccessError if the login needs an
    AWS identity and this process has none, or a token that the user's function does not return, and
    ServiceUnavailableError while no token is issued.
    """
    config = client_config(properties, role=role, on_error=on_error) | dict(overrides or {})
    try:
        return factory(config)
    except KafkaException as exception:
        # Without the cause: its text may quote a secret.
        raise _rejection(kafka_error(exception), properties, role) from None


_OF_RECORDS: Final = CONSUMER_ONLY | PRODUCER_ONLY
_COMMIT_WAIT_MS: Final = "5000"
_OnCommit = Callable[[KafkaError | None, Sequence[TopicPartition]], None]


def create_group_client(
    properties: ClientProperties,
    group: str,
    *,
    on_error: Callable[[KafkaError], None] | None = None,
    on_commit: _OnCommit | None = None,
) -> Consumer:
    """Create a consumer for the offsets of a group, which is no member of it and fetches no
    records. `on_commit`, if it commits, is called with the answers. Raises the errors of
    `create_client`.

    Without the properties of fetches and of producers, and without a limit of an answer: librdkafka
    refuses one below its default for a fetch, which only consumers of records lower.
    """
    public = tuple(entry for entry in properties.public if entry[0] not in _OF_RECORDS)
    overrides: dict[str, Any] = {
        GROUP_ID: group,
        RECEIVE_BYTES: NO_LIMIT,
        # Wait for transactions that have ended and are not applied yet.
        "isolation.level": "read_committed",
    }
    if on_commit is not None:
        overrides["on_commit"] = on_commit
        # So long a commit waits for a coordinator, also when the client is closed.
        overrides["session.timeout.ms"] = _COMMIT_WAIT_MS
    return create_client(
        Consumer,
        replace(properties, public=public),
        role=ClientRole.CONSUMER,
        on_error=on_error,
        overrides=overrides,
    )


_NAMED: Final = (
    re.compile(r'property "([a-z0-9_.]+)"'),
    re.compile(r"`([a-z0-9_.]+)`"),
    re.compile(r"parse (ssl\.[a-z.]+)"),
    re.compile(r"\b([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+) (?:failed|must)"),
)
"""The patterns by which librdkafka names a property that it rejects."""


_OLD_KEYSTORE: Final = re.compile(r"PKCS#12 .*\bunsupported\b.*\b(?:RC2|3DES|DES|RC4)\b", re.DOTALL)
OLD_KEYSTORE_STEP: Final = (
    "write the file again with an algorithm of today, as Java 8 did not, by Java 17 or newer: "
    "keytool -importkeystore -srckeystore <it> -destkeystore <new>.p12 -deststoretype PKCS12; or, "
    "as PEM for kafka.ssl.certificate.location and kafka.ssl.key.location, by OpenSSL 3: openssl "
    "pkcs12 -legacy -in <it> -out <new>.pem"
)
_NO_PROVIDER: Final = "No provider for SASL mechanism"


def _rejection(error: KafkaError, properties: ClientProperties, role: ClientRole) -> Exception:
    secrets = secrets_of(properties)
    text = error.str()
    if error.code() != KafkaError._INVALID_ARG:
        return to_error(error, subject=_bootstrap(properties), secrets=secrets)
    if text.find(_NO_PROVIDER) >= 0:
        return InvalidOptionsError(FORMAT, [_no_provider(text, properties)])
    named = [name for pattern in _NAMED for name in pattern.findall(text)]
    # librdkafka prefers the second name of properties that have two.
    aliases = PRODUCER.aliases if role is ClientRole.PRODUCER else ALIASES
    names = [aliases.get(name, name) for name in named] or ["*"]
    origins, public = dict(properties.origins), dict(properties.public)
    # Of properties that conflict, name one that the user set.
    name = next((one for one in names if one in origins), names[0])
    given = (
        f"{public[name]}, rejected by the client" if name in public else "a rejection by the client"
    )
    problem = OptionProblem(
        option=properties.option(name),
        found=f"{given}: {redact(text, secrets)}",
        expected="properties that librdkafka accepts together",
        next_step=OLD_KEYSTORE_STEP
        if _OLD_KEYSTORE.search(text)
        else "correct the option; a file must exist, under the same path, on the driver and on "
        "every executor",
    )
    return InvalidOptionsError(FORMAT, [problem])


def _no_provider(text: str, properties: ClientProperties) -> OptionProblem:
    """Return the remedies for a missing SASL mechanism: the wheels of confluent-kafka do not
    include Kerberos, the default of both clients."""
    public = dict(properties.public)
    mechanism = public.get("sasl.mechanism")
    return OptionProblem(
        option=PREFIX + "sasl.mechanism",
        found=f"{mechanism or 'no mechanism, which means GSSAPI'} (Kerberos), which this build of "
        "librdkafka does not include"
        if mechanism in (None, "GSSAPI")
        else f"{mechanism}, which this build of librdkafka does not include",
        expected=f"one that it includes: {text.rpartition('options: ')[2]}",
        next_step="set kafka.sasl.mechanism to one that the brokers have too (PLAIN, "
        "SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM); or, for Kerberos, install "
        "librdkafka with libsasl2 and build confluent-kafka against it on the driver and on every "
        "executor: pip install --no-binary confluent-kafka confluent-kafka",
    )


def _bootstrap(properties: ClientProperties) -> str:
    return f"{PREFIX}{BOOTSTRAP_SERVERS}={properties.config().get(BOOTSTRAP_SERVERS, '')}"


# --- Log ------------------------------------------------------------------------------------------
#
# librdkafka reconnects by itself, so its errors are logged as warnings; the call that fails reports
# the effect on a query. It repeats a line with every attempt, ten times a second while a broker is
# unavailable: here all clients of a process together log each kind of line of each broker once per
# period, with the number of lines suppressed.

PERIOD_S: Final = 60.0
_MAX_KINDS: Final = 1_000

_VARYING: Final = re.compile(
    r"\(after [^()]*(?:\(s\)[^()]*)?\)"  # the time, and the lines that librdkafka suppressed
    r"|/(?:bootstrap|\d+)(?=[\]: ])"  # a broker's node id, which is unknown at first
    r"|\[[^\[\]]*#(?:producer|consumer)-\d+\]|\d+ms|(?<![\w.:])\d+(?![\w.:])"
)
"""The varying parts of lines of one kind: durations, counts, and the client."""


@dataclass(slots=True)
class _Kind:
    """The lines of one kind: the last one that was logged, its time, and the number since."""

    logger: str
    level: int
    line: str
    logged_at: float
    suppressed: int = 0

    def summary(self) -> tuple[str, int, str]:
        return self.logger, self.level, f"{_times(self.suppressed)}: {self.line}"


@dataclass(slots=True, kw_only=True)
class LineLimiter:
    """Decides which lines are logged. Thread-safe."""

    monotonic: Callable[[], float] = time.monotonic
    _kinds: dict[tuple[str, str], _Kind] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, logger: str, level: int, line: str) -> list[tuple[str, int, str]]:
        """Return the lines to log now, each with its logger and level: this one, unless one of its
        kind was logged recently, and the counts of suppressed lines of other kinds."""
        now = self.monotonic()
        key = (logger, _VARYING.sub("", line))
        with self._lock:
            known = self._kinds.pop(key, None)
            if known is not None and now - known.logged_at < PERIOD_S:
                known.suppressed += 1
                self._kinds[key] = known
                return self._summaries(now - PERIOD_S)
            admitted = self._summaries(now - PERIOD_S)
            if len(self._kinds) >= _MAX_KINDS:
                admitted += self._summaries(now)
            self._kinds[key] = _Kind(logger, level, line, now)
        if known is not None and known.suppressed:
            line += f" (and {_times(known.suppressed)} since the last one)"
        return [*admitted, (logger, level, line)]

    def drain(self) -> list[tuple[str, int, str]]:
        """Return the counts of all suppressed lines, and forget them."""
        with self._lock:
            return self._summaries(self.monotonic())

    def after_fork(self) -> None:
        """Start without lines, in a child process: another thread may have held the lock."""
        self._lock = threading.Lock()
        self._kinds = {}

    def _summaries(self, logged_before: float) -> list[tuple[str, int, str]]:
        """Remove the kinds last logged before a time, and return the counts of their lines."""
        old = [key for key, one in self._kinds.items() if one.logged_at <= logged_before]
        removed = [self._kinds.pop(key) for key in old]
        return [one.summary() for one in removed if one.suppressed]


def _times(count: int) -> str:
    return f"{count} more such line{'' if count == 1 else 's'}"


_OF_PROCESS: Final = LineLimiter()


class ClientLog:
    """The `logger` of a client. Thread-safe. Debug lines, which `kafka.debug` enables, and
    informational ones are all logged, on level DEBUG."""

    def __init__(
        self, name: str, *, secrets: Collection[str] = (), limiter: LineLimiter = _OF_PROCESS
    ) -> None:
        """Log as `spark_ssp.kafka_source.NAME`. `secrets` are masked."""
        self._logger = logging.getLogger(f"spark_ssp.kafka_source.{name}")
        self._secrets = tuple(secrets)
        self._limiter = limiter

    def log(self, level: int, text: str, *values: object) -> None:
        """Log one line of librdkafka."""
        line = redact(text % values if values else text, self._secrets)
        if level <= logging.INFO:
            self._logger.debug("%s", line)
            return
        _write(self._limiter.admit(self._logger.name, min(level, logging.WARNING), line))


def _write(lines: Iterable[tuple[str, int, str]]) -> None:
    for logger, level, line in lines:
        logging.getLogger(logger).log(level, "%s", line)


os.register_at_fork(after_in_child=_OF_PROCESS.after_fork)
# Where logging is not configured, Python writes these to standard error, as it did the lines that
# they count.
atexit.register(lambda: _write(_OF_PROCESS.drain()))
