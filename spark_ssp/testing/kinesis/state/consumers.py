"""The consumers of enhanced fan-out that are registered with one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spark_ssp.testing.kinesis.core.errors import in_use, limit_exceeded, not_found
from spark_ssp.testing.kinesis.state.subscription import Subscription


class ConsumerStatus(StrEnum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(slots=True, kw_only=True)
class Consumer:
    """A registered consumer. Mutable: `newest` has its latest subscription to each shard, by shard
    id, ended ones included."""

    name: str
    arn: str
    created_ms: int
    active_from_ms: int
    deleted_from_ms: int | None = None
    tags: dict[str, str] = field(default_factory=dict)
    newest: dict[str, Subscription] = field(default_factory=dict)

    def status(self, now_ms: int) -> ConsumerStatus:
        if self.deleted_from_ms is not None:
            return ConsumerStatus.DELETING
        return ConsumerStatus.ACTIVE if now_ms >= self.active_from_ms else ConsumerStatus.CREATING


class Consumers:
    """The consumers of the stream with `stream_arn`. Times are passed as `now_ms`; not
    thread-safe."""

    def __init__(self, stream_arn: str) -> None:
        self._stream_arn = stream_arn
        self._consumers: dict[str, Consumer] = {}
        self._last_second: dict[str, int] = {}  # in the ARN of each name's latest consumer

    def all(self, now_ms: int) -> list[Consumer]:
        """Return the consumers that are not deleted, by name."""
        gone = [
            consumer.name
            for consumer in self._consumers.values()
            if consumer.deleted_from_ms is not None and consumer.deleted_from_ms <= now_ms
        ]
        for name in gone:
            del self._consumers[name]
        return sorted(self._consumers.values(), key=lambda consumer: consumer.name)

    def get(self, name: str, now_ms: int) -> Consumer:
        """Return the consumer; raise ResourceNotFound if it does not exist."""
        for consumer in self.all(now_ms):
            if consumer.name == name:
                return consumer
        raise not_found(f"Consumer {name} of stream {self._stream_arn} not found.")

    def check_room(self, now_ms: int, *, limit: int | None, creating_limit: int | None) -> None:
        """Raise LimitExceeded if the stream already has `limit` consumers, or `creating_limit` of
        them are CREATING; None means no limit."""
        consumers = self.all(now_ms)
        if limit is not None and len(consumers) >= limit:
            raise limit_exceeded(
                f"Stream {self._stream_arn} already has {len(consumers)} consumers; the limit is "
                f"{limit}."
            )
        creating = sum(c.status(now_ms) is ConsumerStatus.CREATING for c in consumers)
        if creating_limit is not None and creating >= creating_limit:
            raise limit_exceeded(
                f"{creating} consumers of stream {self._stream_arn} are CREATING; the limit is "
                f"{creating_limit}."
            )

    def register(
        self, name: str, now_ms: int, *, delay_ms: int, tags: Mapping[str, str] | None = None
    ) -> Consumer:
        """Add a consumer that is ACTIVE after `delay_ms`. Raises ResourceInUse if the name exists.

        Its ARN contains the second of its creation, a later one than that of an earlier consumer
        with this name.
        """
        if any(consumer.name == name for consumer in self.all(now_ms)):
            raise in_use(f"Consumer {name} of stream {self._stream_arn} already exists.")
        created_ms = max(now_ms, (self._last_second.get(name, -1) + 1) * 1000)
        self._last_second[name] = created_ms // 1000
        consumer = Consumer(
            name=name,
            arn=f"{self._stream_arn}/consumer/{name}:{created_ms // 1000}",
            created_ms=created_ms,
            active_from_ms=now_ms + delay_ms,
            tags=dict(tags or {}),
        )
        self._consumers[name] = consumer
        return consumer

    def deregister(self, name: str, now_ms: int, *, delay_ms: int) -> None:
        """Delete a consumer, which is DELETING for `delay_ms`."""
        consumer = self.get(name, now_ms)
        if consumer.deleted_from_ms is None:
            consumer.deleted_from_ms = now_ms + delay_ms
