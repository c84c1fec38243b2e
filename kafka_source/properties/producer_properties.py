"""Tables of a Kafka producer's properties: librdkafka's names, and translations from Java's.

Properties of both kinds of client come from `consumer_properties`. Sources: librdkafka 2.16,
CONFIGURATION.md (global and topic properties of producers); Apache Kafka's configuration
reference, producer configs, and the class behind it (ProducerConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_ssp.kafka_source.properties.consumer_properties import (
    ALIASES,
    MAX_INT,
    RANGES,
    RECOVERY,
    REFUSED,
    SUPPORTED,
    WITHOUT_EFFECT,
    PropertyNames,
    with_advice,
    words,
)

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

_SUPPORTED: Final = words(
    """
    acks batch.num.messages batch.size compression.level compression.type delivery.timeout.ms
    enable.gapless.guarantee enable.idempotence linger.ms partitioner
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    request.timeout.ms retries sticky.partitioning.linger.ms
    """
)

_ALIASES: Final[Mapping[str, str]] = {
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

_BYTES: Final = "keys and values are written as the bytes of the columns"
_PARTITIONER: Final = (
    "it applies to the Java client; use kafka.partitioner, or the column partition"
)
_TRANSACTIONS: Final = (
    "this sink writes without transactions, at least once: see includeRepeatHeaders"
)
_CALLBACK: Final = "this sink handles delivery reports itself"

_REFUSED: Final[Mapping[str, str]] = {
    **with_advice(_BYTES, "key.serializer value.serializer"),
    **with_advice(_PARTITIONER, "partitioner.class partitioner.ignore.keys"),
    **with_advice(_TRANSACTIONS, "transactional.id transaction.two.phase.commit.enable"),
    **with_advice(
        _CALLBACK,
        "delivery.report.only.error dr_cb dr_msg_cb msg_order_cmp partitioner_cb "
        "produce.offset.report",
    ),
    **with_advice("records are sent in the order of their rows", "queuing.strategy"),
}

_LEVEL: Final = "use kafka.compression.level"
_WAITING: Final = "kafka.delivery.timeout.ms limits the wait"

_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    **with_advice(_LEVEL, "compression.gzip.level compression.lz4.level compression.zstd.level"),
    **with_advice(_WAITING, "max.block.ms"),
    **with_advice(_TRANSACTIONS, "transaction.timeout.ms"),
    **with_advice(
        "librdkafka sends records without a key to a random partition, batch by batch",
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms",
    ),
    **with_advice("it is not used here", "metadata.max.idle.ms"),
}

_OWN: Final = {*_SUPPORTED, *_ALIASES, *_REFUSED, *_WITHOUT_EFFECT}

PRODUCER: Final = PropertyNames(
    client="a producer",
    supported=(SUPPORTED - _CONSUMER_ONLY) | _SUPPORTED,
    aliases={
        **{name: target for name, target in ALIASES.items() if name not in _CONSUMER_ONLY | _OWN},
        **_ALIASES,
    },
    refused={
        **{name: why for name, why in REFUSED.items() if name not in _CONSUMER_REFUSED},
        **_REFUSED,
    },
    without_effect={
        **{name: why for name, why in WITHOUT_EFFECT.items() if name not in _OWN},
        **_WITHOUT_EFFECT,
        **with_advice(
            "it is a property of consumers, and this is a sink", " ".join(_CONSUMER_ONLY)
        ),
        **with_advice(
            "it is a property of consumers, and this is a sink", " ".join(_CONSUMER_REFUSED)
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
    },
    ranges={
        **RANGES,
        "batch.size": (1, MAX_INT),
        "buffer.memory": (1, MAX_INT * 1024),
        "linger.ms": (0, 900_000),
        "max.in.flight.requests.per.connection": (1, 1_000_000),
        "max.request.size": (1_000, 1_000_000_000),
        "request.timeout.ms": (1, 900_000),
    },
)
"""The properties of a producer. The defaults are those of Java's producer: keys get the same
partitions, records may be as large, and a task needs no more memory than with Spark's own sink."""
