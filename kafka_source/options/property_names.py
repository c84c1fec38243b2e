"""Tables of Kafka client properties: the names of librdkafka, and translations from the Java
client. First those of a consumer and of both clients, then those of a producer.

Sources: librdkafka 2.16, CONFIGURATION.md (global and topic properties); Apache Kafka's
configuration reference, consumer and producer configs, and the classes behind it (ConsumerConfig,
ProducerConfig, CommonClientConfigs, SslConfigs, SaslConfigs, SecurityConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyNames:
    """The treatment of each name, for one kind of client. A name is in only one of the tables."""

    client: str
    """The text in messages: "a consumer"."""
    supported: frozenset[str]
    """librdkafka's names, which are passed on."""
    aliases: Mapping[str, str]
    """Other names of librdkafka's properties, with the same values."""
    refused: Mapping[str, str]
    """Names that are refused, each with its advice."""
    without_effect: Mapping[str, str]
    """Names that are left out with a warning, each with its reason."""
    defaults: Mapping[str, str]
    """Defaults of the Java client that differ from librdkafka's and matter."""
    ranges: Mapping[str, tuple[int, int]]
    """librdkafka's ranges, by the Java client's name, of properties for which the Java client
    accepts more numbers. The nearest number is used, with a warning."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def with_advice(advice: str, names: str) -> dict[str, str]:
    """Map each word of `names` to the same advice."""
    return dict.fromkeys(names.split(), advice)


SUPPORTED: Final = words(
    """
    allow.auto.create.topics api.version.fallback.ms api.version.request
    api.version.request.timeout.ms bootstrap.servers broker.address.family broker.address.ttl
    broker.version.fallback check.crcs client.dns.lookup client.id client.rack
    connections.max.idle.ms debug enable.metrics.push enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms group.id https.ca.location
    https.ca.pem isolation.level log.connection.close log_level
    max.in.flight.requests.per.connection max.partition.fetch.bytes
    message.copy.max.bytes message.max.bytes metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy queued.max.messages.kbytes
    queued.min.messages receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
    sasl.mechanism sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.sigalgs.list
    topic.metadata.propagation.max.ms topic.metadata.refresh.fast.interval.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """
)
"""librdkafka's names, which are passed on. A property of the same name in the Java client means the
same, except for the values that `property_values` translates."""

ALIASES: Final[Mapping[str, str]] = {
    # Java's name: librdkafka's.
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "sasl.oauthbearer.assertion.template.file": "sasl.oauthbearer.assertion.jwt.template.file",
    # librdkafka's own aliases: its main name.
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""Other names of librdkafka's properties, with the same values."""

SECRETS: Final = words(
    """
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.password
    ssl.key.password ssl.key.pem ssl.keystore.password
    """
)
"""Supported properties whose values are never shown."""

COMBINED: Final = words(
    """
    sasl.client.callback.handler.class sasl.jaas.config sasl.login.callback.handler.class
    ssl.keystore.type ssl.truststore.location
    ssl.truststore.password ssl.truststore.type
    """
)
"""Java's names whose translation depends on their value or on other names, by `logins`."""

_DECIDED_HERE: Final = "it is set internally"
_START: Final = "use startingOffsets: positions come from the options and from Spark's checkpoint"
_BYTES: Final = "keys and values arrive as bytes: decode them with functions of columns"
_CALLBACK: Final = "functions and libraries cannot be given in options"
_JAVA_TLS: Final = "librdkafka uses OpenSSL, which has no such setting"
_TLS_VERSION: Final = (
    "librdkafka negotiates the newest TLS version of the brokers; OpenSSL's own "
    "configuration can exclude versions"
)
_JAVA_CLASS: Final = "it names a Java class; "


REFUSED: Final[Mapping[str, str]] = {
    **with_advice(_START, "auto.offset.reset"),
    **with_advice(_BYTES, "key.deserializer value.deserializer"),
    **with_advice(
        "positions are stored only in Spark's checkpoint",
        "enable.auto.commit auto.commit.enable enable.auto.offset.store offset.store.method "
        "offset.store.path offset.store.sync.interval.ms",
    ),
    **with_advice(
        _DECIDED_HERE, "enable.partition.eof default_topic_conf enabled_events log.queue"
    ),
    **with_advice(
        "records are delivered unchanged: interceptors are not supported",
        "interceptor.classes interceptors",
    ),
    **with_advice(
        _CALLBACK,
        "background_event_cb closesocket_cb connect_cb consume_cb error_cb log_cb "
        "oauthbearer_token_refresh_cb offset_commit_cb opaque open_cb plugin.library.paths "
        "rebalance_cb resolve_cb socket_cb ssl.certificate.verify_cb ssl.engine.id "
        "ssl.engine.location ssl.providers ssl_ca ssl_certificate ssl_engine_callback_data ssl_key "
        "stats_cb throttle_cb internal.termination.signal",
    ),
    **with_advice(_JAVA_TLS, "ssl.engine.factory.class security.providers"),
    **with_advice(f"{_JAVA_CLASS}kafka.sasl.mechanism is enough", "sasl.login.class"),
    **with_advice(
        f"{_JAVA_CLASS}for OAuth set kafka.sasl.oauthbearer.method to oidc",
        "sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class",
    ),
    **with_advice(
        f"{_JAVA_CLASS}set the values themselves, from the secret store of your program",
        "config.providers",
    ),
    **with_advice("internal topics are never read", "exclude.internal.topics"),
    **with_advice(
        "librdkafka uses only sasl.oauthbearer.sub.claim.name to find a token's claims",
        "sasl.oauthbearer.scope.claim.name sasl.oauthbearer.header.urlencode",
    ),
    **with_advice(
        "leave the topic out of subscribe, assign or subscribePattern",
        "topic.blacklist",
    ),
}
"""Names that are refused, each with its advice: both applying and ignoring them would change the
records or the login."""

_NO_GROUP: Final = "this source assigns partitions itself, without a consumer group"
_REFRESH: Final = "librdkafka renews logins itself"
_PRODUCER: Final = "it is a property of producers, and this is a source"
_NO_USE: Final = "it is not used here"

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    **with_advice(
        _NO_GROUP,
        "auto.commit.interval.ms coordinator.query.interval.ms group.instance.id group.protocol "
        "group.protocol.type group.remote.assignor heartbeat.interval.ms max.poll.interval.ms "
        "partition.assignment.strategy rebalance.timeout.ms session.timeout.ms "
        "share.acknowledgement.mode share.acquire.mode",
    ),
    **with_advice(
        "messages are fetched in batches of a size that suits Arrow",
        "consume.callback.max.messages max.poll.records",
    ),
    **with_advice(
        "kafka.socket.timeout.ms and pollTimeout limit the wait", "default.api.timeout.ms"
    ),
    **with_advice(
        "kafka.socket.connection.setup.timeout.ms is the only limit",
        "socket.connection.setup.timeout.max.ms",
    ),
    **with_advice(_TLS_VERSION, "ssl.enabled.protocols ssl.protocol"),
    **with_advice(
        _JAVA_TLS,
        "ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation "
        "ssl.trustmanager.algorithm",
    ),
    **with_advice(
        "the metrics of the Java client do not exist here",
        "auto.include.jmx.reporter metric.reporters metrics.num.samples metrics.recording.level "
        "metrics.sample.window.ms statistics.interval.ms",
    ),
    **with_advice(
        _REFRESH,
        "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor "
        "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms "
        "sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter "
        "sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms",
    ),
    **with_advice(
        "only brokers validate tokens",
        "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
        "sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url",
    ),
    **with_advice(
        _PRODUCER,
        "acks batch.num.messages batch.size buffer.memory compression.codec compression.level "
        "compression.type delivery.timeout.ms enable.gapless.guarantee enable.idempotence "
        "delivery.report.only.error dr_cb dr_msg_cb key.serializer linger.ms max.block.ms "
        "max.request.size message.send.max.retries message.timeout.ms msg_order_cmp partitioner "
        "partitioner.class partitioner_cb produce.offset.report "
        "queue.buffering.backpressure.threshold queue.buffering.max.kbytes "
        "queue.buffering.max.messages queue.buffering.max.ms queuing.strategy "
        "request.required.acks retries "
        "sticky.partitioning.linger.ms transaction.timeout.ms transactional.id value.serializer",
    ),
    **with_advice(
        _NO_USE,
        "builtin.features enable.random.seed log.thread.name reconnect.backoff.jitter.ms "
        "socket.blocking.max.ms topic.metadata.refresh.fast.cnt",
    ),
}
"""Names that only tune features that this source does not have: they cause a warning."""

MAX_INT: Final = (1 << 31) - 1

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "connections.max.idle.ms": (0, MAX_INT),
    "metadata.max.age.ms": (1, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": (0, MAX_INT),
    "receive.buffer.bytes": (0, 100_000_000),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "reconnect.backoff.ms": (0, 3_600_000),
    "retry.backoff.max.ms": (1, 300_000),
    "retry.backoff.ms": (1, 300_000),
    "sasl.oauthbearer.assertion.claim.exp.seconds": (1, MAX_INT),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": (0, MAX_INT),
    "sasl.kerberos.min.time.before.relogin": (0, 86_400_000),
    "send.buffer.bytes": (0, 100_000_000),
    "socket.connection.setup.timeout.ms": (1_000, MAX_INT),
}
"""Ranges of both kinds of client."""

RECOVERY: Final[Mapping[str, str]] = {
    "reconnect.backoff.max.ms": "1000",
    "socket.connection.setup.timeout.ms": "10000",
}
"""Defaults of both kinds of client: the Java client's, by which brokers that come back, and hosts
that do not answer, are noticed sooner."""

RECEIVE_BYTES: Final = "receive.message.max.bytes"
NO_LIMIT: Final = str(MAX_INT)
"""The largest value of `RECEIVE_BYTES`, above any response."""

CONSUMER: Final = PropertyNames(
    client="a consumer",
    supported=SUPPORTED,
    aliases=ALIASES,
    refused=REFUSED,
    without_effect=WITHOUT_EFFECT,
    defaults={
        **RECOVERY,
        "isolation.level": "read_uncommitted",
        "check.crcs": "true",
        # It bounds a decompressed record batch too, and Java's client has no such limit.
        RECEIVE_BYTES: NO_LIMIT,
    },
    ranges={
        **RANGES,
        "fetch.max.bytes": (0, 2_147_483_135),
        "fetch.max.wait.ms": (0, 300_000),
        "fetch.min.bytes": (1, 100_000_000),
        "max.partition.fetch.bytes": (1, 1_000_000_000),
        "request.timeout.ms": (10, 300_000),
    },
)


# --- The producer ---------------------------------------------------------------------------------

_CONSUMER_ONLY: Final = words(
    """
    allow.auto.create.topics check.crcs fetch.error.backoff.ms fetch.max.bytes
    fetch.max.wait.ms fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id isolation.level max.partition.fetch.bytes
    queued.max.messages.kbytes queued.min.messages
    """
)
"""Supported or translated only for a consumer."""

_CONSUMER_REFUSED: Final = words(
    """
    auto.commit.enable auto.offset.reset enable.auto.commit enable.auto.offset.store
    enable.partition.eof exclude.internal.topics key.deserializer offset.store.method
    offset.store.path offset.store.sync.interval.ms topic.blacklist value.deserializer
    """
)
"""Refused for a consumer, without effect for a producer."""

PRODUCER_ONLY: Final = words(
    """
    acks batch.num.messages batch.size compression.level compression.type delivery.timeout.ms
    enable.gapless.guarantee enable.idempotence linger.ms partitioner
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    request.timeout.ms retries sticky.partitioning.linger.ms transaction.timeout.ms
    """
)
"""The properties that librdkafka has only for producers."""

_SINK_ALIASES: Final[Mapping[str, str]] = {
    # Java's name: librdkafka's.
    "buffer.memory": "queue.buffering.max.kbytes",
    "max.request.size": "message.max.bytes",
    # librdkafka's own aliases: its main name, or the one that Java's client also has.
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}

_SINK_BYTES: Final = "keys and values are written as the bytes of the columns"
_SINK_PARTITIONER: Final = (
    "it applies to the Java client; use kafka.partitioner, or the column partition"
)
_SINK_TRANSACTIONS: Final = "deliveryGuarantee=exactly-once chooses the transactions"
_SINK_CALLBACK: Final = "this sink handles delivery reports itself"

_SINK_REFUSED: Final[Mapping[str, str]] = {
    **with_advice(_SINK_BYTES, "key.serializer value.serializer"),
    **with_advice(_SINK_PARTITIONER, "partitioner.class partitioner.ignore.keys"),
    **with_advice(_SINK_TRANSACTIONS, "transactional.id transaction.two.phase.commit.enable"),
    **with_advice(
        _SINK_CALLBACK,
        "delivery.report.only.error dr_cb dr_msg_cb msg_order_cmp partitioner_cb "
        "produce.offset.report",
    ),
    **with_advice("records are sent in the order of their rows", "queuing.strategy"),
}

_SINK_LEVEL: Final = "use kafka.compression.level"
_SINK_WAITING: Final = "kafka.delivery.timeout.ms limits the wait"

_SINK_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    **with_advice(
        _SINK_LEVEL, "compression.gzip.level compression.lz4.level compression.zstd.level"
    ),
    **with_advice(_SINK_WAITING, "max.block.ms"),
    **with_advice(
        "librdkafka sends records without a key to a random partition, batch by batch",
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms",
    ),
    **with_advice("it is not used here", "metadata.max.idle.ms"),
}

_SINK_OWN: Final = {*PRODUCER_ONLY, *_SINK_ALIASES, *_SINK_REFUSED, *_SINK_WITHOUT_EFFECT}

PRODUCER: Final = PropertyNames(
    client="a producer",
    supported=(SUPPORTED - _CONSUMER_ONLY) | PRODUCER_ONLY,
    aliases={
        **{
            name: target
            for name, target in ALIASES.items()
            if name not in _CONSUMER_ONLY | _SINK_OWN
        },
        **_SINK_ALIASES,
    },
    refused={
        **{name: why for name, why in REFUSED.items() if name not in _CONSUMER_REFUSED},
        **_SINK_REFUSED,
    },
    without_effect={
        **{name: why for name, why in WITHOUT_EFFECT.items() if name not in _SINK_OWN},
        **_SINK_WITHOUT_EFFECT,
        **dict.fromkeys(
            (*_CONSUMER_ONLY, *_CONSUMER_REFUSED),
            "it is a property of consumers, and this is a sink",
        ),
    },
    defaults={
        **RECOVERY,
        "acks": "all",
        "delivery.timeout.ms": "120000",
        "enable.idempotence": "true",
        "message.max.bytes": "1048576",
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": "32768",
        # Not a default of the Java client, which has a minute: a task may take longer, and brokers
        # allow 15.
        "transaction.timeout.ms": "600000",
    },
    ranges={
        **RANGES,
        "batch.size": (1, MAX_INT),
        "buffer.memory": (1, MAX_INT * 1024),
        "linger.ms": (0, 900_000),
        "max.in.flight.requests.per.connection": (1, 1_000_000),
        "max.request.size": (1_000, 1_000_000_000),
        "request.timeout.ms": (1, 900_000),
        "transaction.timeout.ms": (1_000, MAX_INT),
    },
)
"""The properties of a producer. The defaults are those of Java's producer: keys get the same
partitions, records may be as large, and a task needs no more memory than with Spark's own sink."""
