"""Subscriptions over generated histories: takeover, limits, faults, and what a reader receives."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.testing.kinesis import (
    KinesisError,
    KinesisState,
    Limits,
    ManualClock,
    UnusualAnswers,
)
from spark_ssp.testing.kinesis.state.faults import (
    CutSubscription,
    EmptyEvents,
    EndSubscription,
    FailSubscription,
    SilenceSubscription,
    SubscriptionFault,
)
from spark_ssp.testing.kinesis.state.subscription import (
    LIFE_MS,
    TAKEOVER_MS,
    ErrorEvent,
    RecordsEvent,
    Subscription,
)

FIRST = "shardId-000000000000"
BYTES_PER_SECOND = 100
SIZE = 300
"""Two records, an event, take longer than the five seconds before a takeover."""


@dataclass(frozen=True)
class Put:
    count: int


@dataclass(frozen=True)
class Advance:
    milliseconds: int


@dataclass(frozen=True)
class Subscribe:
    consumer: int
    faults: tuple[SubscriptionFault, ...]


@dataclass(frozen=True)
class Deliver:
    """Every open subscription sends what is due."""


@dataclass(frozen=True)
class Split:
    """The shard is closed."""


Action = Put | Advance | Subscribe | Deliver | Split
AFTER = st.integers(min_value=0, max_value=3)
FAULTS: st.SearchStrategy[SubscriptionFault] = st.one_of(
    st.builds(FailSubscription, after_events=AFTER),
    st.builds(CutSubscription, after_events=AFTER),
    st.builds(EndSubscription, after_events=AFTER),
    st.builds(EmptyEvents, count=st.integers(min_value=1, max_value=3), after_events=AFTER),
    st.builds(
        SilenceSubscription,
        duration_ms=st.sampled_from([None, 1_000, 20_000]),
        after_events=AFTER,
    ),
)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Put, st.integers(min_value=1, max_value=5)),
    st.builds(Advance, st.sampled_from([1, 400, 1_000, 3_000, TAKEOVER_MS, LIFE_MS - 1])),
    st.builds(
        Subscribe,
        st.integers(min_value=0, max_value=1),
        st.lists(FAULTS, max_size=2).map(tuple),
    ),
    st.builds(Deliver),
    st.builds(Deliver),
)


@dataclass
class Reader:
    """A consumer that always continues after the last continuation it received."""

    arn: str
    continuation: int | None = None
    received: list[bytes] = field(default_factory=list)
    at_end: bool = False
    opened_ms: int | None = None
    open: list[Subscription] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)


class World:
    """One shard, two readers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = KinesisState(
            clock=self.clock,
            limits=Limits(pushed_bytes_per_consumer_and_shard=BYTES_PER_SECOND),
            answers=UnusualAnswers(event_records=2),
        )
        self.state.create_stream("orders")
        names = ("one", "two")
        self.readers = [Reader(self.state.register_consumer("orders", n).arn) for n in names]

    def act(self, action: Action) -> None:
        match action:
            case Put(count=count) if self.state.shard("orders", FIRST).is_open:
                for _ in range(count):
                    number = len(self.state.records("orders", FIRST))
                    self.state.put("orders", "", b"%*d" % (SIZE, number))
            case Advance(milliseconds=milliseconds):
                self.clock.advance(milliseconds)
            case Subscribe(consumer=consumer, faults=faults):
                self.subscribe(self.readers[consumer], faults)
            case Deliver():
                for reader in self.readers:
                    self.deliver(reader)
            case Split() if self.state.shard("orders", FIRST).is_open:
                self.state.split("orders", FIRST)

    def subscribe(self, reader: Reader, faults: tuple[SubscriptionFault, ...] = ()) -> None:
        """Check that the call is refused within five seconds of a successful one, and only then."""
        if reader.at_end:
            return
        position = {"Type": "TRIM_HORIZON"}
        if reader.continuation is not None:
            number = str(reader.continuation)
            position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": number}
        injections = [self.state.faults.add(fault) for fault in faults]
        now_ms, opened_ms = self.clock.now_ms(), reader.opened_ms
        body = {"ConsumerARN": reader.arn, "ShardId": FIRST, "StartingPosition": position}
        if opened_ms is not None and now_ms < opened_ms + TAKEOVER_MS:
            with pytest.raises(KinesisError, match="ResourceInUseException"):
                self.state.call("SubscribeToShard", body)
        else:
            found = self.state.call("SubscribeToShard", body)
            assert isinstance(found, Subscription)
            reader.opened_ms = now_ms
            reader.open.append(found)
        assert not [i for i in injections if not i.exhausted]

    def deliver(self, reader: Reader) -> None:
        """Only the newest subscription sends records; older ones end with an error."""
        for index, subscription in enumerate(reader.open):
            newest = index == len(reader.open) - 1
            while not subscription.ended:
                step = self.state.next_step(subscription)
                subscription = step.subscription
                if isinstance(step.event, RecordsEvent):
                    assert newest
                    if not step.cut:
                        self.receive(reader, step.event)
                elif isinstance(step.event, ErrorEvent):
                    assert step.subscription.ended
                    assert newest or step.event.code == "ResourceInUseException"
                if step.event is None:
                    assert newest
                    break
            reader.open[index] = subscription
        reader.open = [subscription for subscription in reader.open if not subscription.ended]
        age = [self.clock.now_ms() - subscription.opened_ms for subscription in reader.open]
        assert all(milliseconds < LIFE_MS for milliseconds in age)

    def receive(self, reader: Reader, event: RecordsEvent) -> None:
        now_ms = self.clock.now_ms()
        log = self.state.shard("orders", FIRST).log
        reader.received += [record.data for record in event.records]
        following = len(reader.received)
        if event.records:
            for at_ms, size in reader.sent[-1:]:
                assert now_ms >= at_ms + size * 1000 // BYTES_PER_SECOND
            reader.sent.append((now_ms, sum(record.size for record in event.records)))
        assert (event.millis_behind_latest > 0) == (following < log.end) or not event.records
        if event.continuation is None:
            reader.at_end = True
            assert following == log.end
            assert event.child_shards is not None
            assert len(event.child_shards) == 2
            return
        assert event.child_shards is None
        continuation = int(event.continuation)
        assert reader.continuation is None or continuation > reader.continuation
        assert log.after_number(continuation) == following
        reader.continuation = continuation


@given(st.lists(ACTIONS, max_size=30), st.lists(ACTIONS, max_size=10))
def test_a_reader_that_continues_receives_each_record_once(
    before: list[Action], after: list[Action]
) -> None:
    world = World()
    for action in [*before, Split(), *after]:
        world.act(action)
    expected = [record.data for record in world.state.records("orders", FIRST)]
    for reader in world.readers:
        for _ in range(len(expected) + 1):
            world.clock.advance(TAKEOVER_MS)
            world.subscribe(reader)
            world.deliver(reader)
            world.clock.advance(1_000)
        assert reader.at_end
        assert reader.received == expected
    assert world.state.subscriptions("orders") == []
