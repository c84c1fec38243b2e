"""Faults of single subscriptions. `Faults.add` injects them into calls of SubscribeToShard.

    faults.add(FailSubscription(after_events=2), operation="SubscribeToShard", shard=shard_id)

The call itself succeeds. `after_events` is the number of events, empty ones included, that the
subscription sends before the fault takes effect. A takeover and the end after five minutes come
before any fault.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailSubscription:
    """The subscription ends with an error event, for example ResourceInUseException,
    InternalFailureException or KMSThrottlingException."""

    code: str = "InternalFailureException"
    message: str = "Injected fault."
    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceSubscription:
    """The connection stays open without events for `duration_ms`; None: until it ends."""

    duration_ms: int | None = None
    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSubscription:
    """The connection is dropped in the middle of an event."""

    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSubscription:
    """The response ends as after five minutes; in a closed shard without ChildShards."""

    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyEvents:
    """The next `count` events have no records, even if some are left; the continuation moves."""

    count: int = 1
    after_events: int = 0


SubscriptionFault = (
    FailSubscription | SilenceSubscription | CutSubscription | EndSubscription | EmptyEvents
)
