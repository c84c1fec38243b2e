"""An account of `spark-ssp acceptance` in this process: the embedded service without HTTP, lease
tables in memory, and a clock that waits in no time."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from spark_ssp.checkpoint.leases.lease_store import LeaseStore
from spark_ssp.common.aws.error_translation import Severity, severity_of_code
from spark_ssp.grouping.identifiers import ShardKey
from spark_ssp.kinesis_source.client.api import SubscriptionError
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    ConsumerArn,
    EpochMillis,
    Position,
    RecordPage,
    ShardIterator,
)
from spark_ssp.operations.acceptance.account import Account, Refusal
from spark_ssp.testing.kinesis import KinesisError, KinesisState, ManualClock
from spark_ssp.testing.kinesis.state.errors import NoAnswer
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from spark_ssp.testing.kinesis.state.service_state import Delays
from spark_ssp.testing.kinesis.state.subscription import ErrorEvent, RecordsEvent, Subscription
from tests.support.fakes.in_process import InProcessKinesis
from tests.support.kinesis.pages import page
from tests.support.leases.memory_store import MemoryLeaseStore

_ATTEMPTS: Final = 3

DELAYS: Final = Delays(
    create_ms=8_000, delete_ms=6_000, reshard_ms=5_000, register_ms=3_000, deregister_ms=3_000
)


class InProcessAccount:
    """The services, and what happens at each of their calls.

    `disturb` is called with a description of each raw call, before it and after it, and of each
    wait; it may raise KeyboardInterrupt.
    """

    def __init__(
        self,
        *,
        delays: Delays = DELAYS,
        disturb: Callable[[str], None] = lambda _: None,
        seed: int = 1,
    ) -> None:
        self.clock = ManualClock()
        self.state = KinesisState(clock=self.clock, delays=delays)
        self.tables: dict[str, MemoryLeaseStore] = {}
        self.table_codes: dict[str, str] = {}
        """The refusals of DynamoDB by operation."""
        self._disturb = disturb
        self._main = threading.current_thread()
        self.account = Account(
            kinesis=_Kinesis(self),
            dynamodb=_DynamoDb(self),
            reader=InProcessKinesis(
                self.state,
                attempts=_ATTEMPTS,
                between_tries=lambda: self.clock.advance(200),
            ),
            open_leases=self._open_leases,
            open_subscriber=lambda _: _Subscriber(self),
            monotonic=lambda: self.clock.now_ms() / 1000,
            sleep=self.sleep,
            random=Random(seed).random,
        )

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.disturb("sleep")
        # Rounded up: a wait is never shorter than asked for.
        self.clock.advance(int(seconds * 1000) + 1)

    def disturb(self, event: str) -> None:
        """Call the disturbance, in the thread that Ctrl-C interrupts."""
        if threading.current_thread() is self._main:
            self._disturb(event)

    @property
    def left(self) -> set[str]:
        """The streams and tables that still exist once all changes have taken place."""
        self.clock.advance(60_000)
        return {*self.state.stream_names(), *self.tables}

    def _open_leases(self, name: str) -> LeaseStore:
        return _LeaseTable(self, name)


class _Kinesis:
    """`Calls` on the state. Transient faults are tried again as by the client."""

    def __init__(self, world: InProcessAccount) -> None:
        self._world = world

    def call(
        self, operation: str, request: Mapping[str, Any], *, retry: bool = True
    ) -> Mapping[str, Any] | Refusal:
        body = {name: _wire(value) for name, value in request.items()}
        found = Refusal(code="none")
        for _ in range(_ATTEMPTS if retry else 1):
            self._world.disturb(f"before {operation}")
            try:
                answer = self._world.state.call(operation, body)
            except NoAnswer:
                found = Refusal(code="ConnectionClosedError")
            except KinesisError as error:
                found = Refusal(code=error.code)
                if severity_of_code(error.code, error.status) is Severity.PERMANENT:
                    return found
            else:
                self._world.disturb(f"after {operation}")
                return _answer(answer)
            self._world.sleep(0.2)
        return found


def _wire(value: object) -> object:
    """Return a value of a request as JSON has it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.timestamp()
        case list():
            return [{name: _wire(each) for name, each in one.items()} for one in value]
    return value


def _answer(answer: object) -> Mapping[str, Any]:
    """Return an answer as botocore parses it."""
    if isinstance(answer, RecordsPage):
        found: dict[str, Any] = {
            "Records": [
                {
                    "SequenceNumber": record.sequence_number,
                    "Data": record.data,
                    "ApproximateArrivalTimestamp": _time(record.arrival_ms / 1000),
                }
                | ({} if record.partition_key is None else {"PartitionKey": record.partition_key})
                for record in answer.records
            ],
            "MillisBehindLatest": answer.millis_behind_latest,
        }
        if answer.next_iterator is not None:
            found["NextShardIterator"] = answer.next_iterator
        if answer.child_shards is not None:
            found["ChildShards"] = answer.child_shards
        return found
    assert isinstance(answer, dict)
    summary = answer.get("StreamDescriptionSummary")
    if summary is None:
        return answer
    created = _time(summary["StreamCreationTimestamp"])
    return {"StreamDescriptionSummary": {**summary, "StreamCreationTimestamp": created}}


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# --- Lease tables --------------------------------------------------------------------------------


class _LeaseTable(MemoryLeaseStore):
    def __init__(self, world: InProcessAccount, name: str) -> None:
        super().__init__(sleep=world.sleep)
        self._world = world
        self._name = name

    def prepare(self) -> None:
        """Create the table."""
        self._world.disturb("before CreateTable")
        self._world.tables[self._name] = self
        self._world.disturb("after CreateTable")

    def close(self) -> None:
        """Nothing is open."""


class _DynamoDb:
    def __init__(self, world: InProcessAccount) -> None:
        self._world = world

    def call(
        self, operation: str, request: Mapping[str, Any], *, retry: bool = True
    ) -> Mapping[str, Any] | Refusal:
        self._world.disturb(f"before {operation}")
        name = request["TableName"]
        if operation in self._world.table_codes:
            return Refusal(code=self._world.table_codes[operation])
        if name not in self._world.tables:
            return Refusal(code="ResourceNotFoundException")
        if operation == "DeleteTable":
            del self._world.tables[name]
        self._world.disturb(f"after {operation}")
        return {}


# --- Subscriptions -------------------------------------------------------------------------------


class _Subscriber:
    """`Subscriber` on the state."""

    def __init__(self, world: InProcessAccount) -> None:
        self._world = world

    def subscribe(
        self,
        consumer: ConsumerArn,
        shard: ShardKey,
        position: Position,
        *,
        inclusive: bool = False,
    ) -> _Subscription:
        starting: dict[str, Any] = {"Type": "TRIM_HORIZON"}
        if isinstance(position, AfterRecord):
            kind = "AT_SEQUENCE_NUMBER" if inclusive else "AFTER_SEQUENCE_NUMBER"
            starting = {"Type": kind, "SequenceNumber": position.sequence_number}
        body = {"ConsumerARN": consumer, "ShardId": shard.shard, "StartingPosition": starting}
        try:
            opened = self._world.state.call("SubscribeToShard", body)
        except KinesisError as error:
            raise _failed(error.code) from error
        except NoAnswer as error:
            raise _failed("ConnectionClosedError") from error
        assert isinstance(opened, Subscription)
        return _Subscription(self._world, opened)

    def close(self) -> None:
        """Nothing is open."""


class _Subscription:
    def __init__(self, world: InProcessAccount, subscription: Subscription) -> None:
        self._world = world
        self._subscription = subscription
        self._event: RecordsEvent | None = None

    def next_size(self) -> int | None:
        while not self._subscription.ended:
            step = self._world.state.next_step(self._subscription)
            self._subscription = step.subscription
            if isinstance(step.event, ErrorEvent):
                raise _failed(step.event.code)
            if step.cut:
                raise _failed("BrokenStreamError")
            if step.event is not None:
                self._event = step.event
                return step.event.size + 100
            self._world.clock.advance(500)
        return None

    def next_page(self) -> RecordPage:
        event = self._event
        assert event is not None
        return page(
            [record.data for record in event.records],
            keys=[record.partition_key for record in event.records],
            numbers=[record.sequence_number for record in event.records],
            arrivals=[record.arrival_ms for record in event.records],
            following=None if event.continuation is None else ShardIterator(event.continuation),
            behind=event.millis_behind_latest,
            now=EpochMillis(self._world.clock.now_ms()),
        )

    def close(self) -> None:
        self._world.state.close_subscription(self._subscription)


def _failed(code: str) -> SubscriptionError:
    error = SubscriptionError("shard", found=code, expected="events", next_step="poll")
    error.code = code
    return error
