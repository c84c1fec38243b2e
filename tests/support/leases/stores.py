"""Lease stores under test, in memory and on DynamoDB, with the same injected faults."""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

import boto3
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError
from botocore.httpsession import URLLib3Session

from spark_ssp.checkpoint.leases.dynamodb_calls import DECODERS, DynamoDbCalls
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.lease import Item
from spark_ssp.checkpoint.leases.lease_store import LeaseStore, TableSettings
from spark_ssp.common.aws.botocore_bypass import Answer, DirectCalls, Request
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, RetrySettings
from spark_ssp.common.options.endpoints import ConnectionOptions
from tests.support.leases.memory_store import Call, Fault, MemoryLeaseStore

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from types_boto3_dynamodb import DynamoDBClient

ATTEMPTS: Final = 4
RETRY: Final = RetrySettings(max_attempts=ATTEMPTS, max_backoff=10.0)


class Mishap(StrEnum):
    """A fault of the next call."""

    THROTTLED = "throttled"
    REFUSED = "an error, nothing was done"
    FAILED = "done, then an error"
    TIMED_OUT = "done, the reply came too late"
    DROPPED = "done, the connection broke before the reply"
    GARBLED = "done, the reply broke in its midst"


LOST_REPLIES: Final = (Mishap.FAILED, Mishap.TIMED_OUT, Mishap.DROPPED, Mishap.GARBLED)

_IN_MEMORY: Final = {
    Mishap.THROTTLED: Fault.THROTTLED,
    Mishap.REFUSED: Fault.UNAVAILABLE,
    **dict.fromkeys(LOST_REPLIES, Fault.REPLY_LOST),
}


@dataclass(kw_only=True)
class Table:
    """A new, prepared table and a store on it."""

    store: LeaseStore
    put_item: Callable[[Item], object]
    """Writes a row as another program."""
    items: Callable[[], list[Item]]
    """Returns all rows by key."""
    mishaps: deque[Mishap]
    """Faults of the next calls, in order."""
    direct: FaultyDirectCalls | None = None
    slept: list[float] = field(default_factory=list)


Maker = Callable[[], Table]


def in_memory() -> Table:
    mishaps: deque[Mishap] = deque()
    slept: list[float] = []

    def faults(_: Call) -> Fault | None:
        return _IN_MEMORY[mishaps.popleft()] if mishaps else None

    store = MemoryLeaseStore(
        faults=faults, retry=RETRY, sleep=slept.append, random=random.Random(1).random
    )
    return Table(
        store=store,
        put_item=store.put_item,
        items=lambda: list(store.items()),
        mishaps=mishaps,
        slept=slept,
    )


# --- DynamoDB ------------------------------------------------------------------------------------

_numbers = count()


_LOST_ON_THE_WAY: Final = {
    Mishap.TIMED_OUT: ReadTimeoutError,
    Mishap.DROPPED: ConnectionClosedError,
}


class FaultyDirectCalls(DirectCalls):
    """Direct calls that lose replies. A call with any other fault is left to botocore, in whose
    events it is injected. `made` counts the calls that the service has answered."""

    def __init__(self, client: BaseClient, mishaps: deque[Mishap]) -> None:
        super().__init__(client, DECODERS)
        self._mishaps = mishaps
        self.made = 0

    def call(self, operation: str, request: Request) -> Answer | None:
        if not self._mishaps:
            return self._counted(operation, request)
        lost = _LOST_ON_THE_WAY.get(self._mishaps[0])
        if lost is None or self._counted(operation, request) is None:
            return None
        self._mishaps.popleft()
        raise lost(endpoint_url=self._client.meta.endpoint_url)

    def _counted(self, operation: str, request: Request) -> Answer | None:
        try:
            answer = super().call(operation, request)
        except ClientError:
            self.made += 1
            raise
        self.made += answer is not None
        return answer


@cache
def _clients(endpoint_url: str) -> tuple[DynamoDBClient, DynamoDBClient, deque[Mishap]]:
    """Return a client without faults, one with the faults in the queue, and the queue."""
    asking = client(endpoint_url)
    return client(endpoint_url), asking, hooked(asking)


@cache
def direct_calls(endpoint_url: str) -> FaultyDirectCalls:
    """Return the direct calls of the client with faults, as a lease agent makes them."""
    _, asking, mishaps = _clients(endpoint_url)
    return FaultyDirectCalls(asking, mishaps)


def client(endpoint_url: str) -> DynamoDBClient:
    """Return a client without botocore's retries."""
    return boto3.session.Session().client(
        "dynamodb",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=30),
    )


def lease_store(
    client: BaseClient,
    settings: TableSettings,
    sleep: Callable[[float], None],
    direct: DirectCalls | None = None,
) -> DynamoDbLeaseStore:
    """Return a store on the client, with a fixed sequence of random numbers."""
    draw = random.Random(1).random
    retrier = Retrier(RETRY, log=RetryLog(lambda: 0.0), sleep=sleep, random=draw)
    calls = DynamoDbCalls(client, settings.name, retrier, direct=direct)
    return DynamoDbLeaseStore(calls, settings, sleep=sleep)


def open_store(connection: ConnectionOptions, settings: TableSettings) -> LeaseStore:
    """Return a store with a new client, as a lease agent opens it."""
    client = create_client("dynamodb", connection, endpoint_option="dynamodbEndpointUrl")
    return lease_store(client, settings, time.sleep)


def on_dynamodb(endpoint_url: str) -> Table:
    """Return a new table there."""
    name = f"leases-{next(_numbers)}"
    slept: list[float] = []
    behind, asking, mishaps = _clients(endpoint_url)
    mishaps.clear()
    direct = direct_calls(endpoint_url)
    store = lease_store(asking, TableSettings(name=name), slept.append, direct)
    store.prepare()
    slept.clear()
    _teach(asking, name)

    def put_item(item: Item) -> None:
        behind.put_item(TableName=name, Item=dict(item))

    def items() -> list[Item]:
        found: list[Any] = behind.scan(TableName=name, ConsistentRead=True)["Items"]
        return sorted(found, key=lambda item: str(item["leaseKey"]["S"]))

    return Table(
        store=store, put_item=put_item, items=items, mishaps=mishaps, direct=direct, slept=slept
    )


def _teach(asking: DynamoDBClient, table: str) -> None:
    """Make the first calls of a table, from which the direct ones are learned."""
    asking.scan(TableName=table, ConsistentRead=True)
    with suppress(ClientError):
        asking.update_item(
            TableName=table,
            Key={"leaseKey": {"S": "absent"}},
            ConditionExpression="attribute_exists(leaseKey)",
        )


def hooked(asking: DynamoDBClient) -> deque[Mishap]:
    """Return a queue of faults for this client's calls."""
    mishaps: deque[Mishap | str] = deque()
    hook_calls(asking, lambda _: mishaps, answer, throttled=(400, "ThrottlingException"))
    return cast("deque[Mishap]", mishaps)


def hook_calls(
    client: Any,
    queue_of: Callable[[str], deque[Mishap | str]],
    error: Callable[[AWSPreparedRequest, int, str], AWSResponse],
    *,
    throttled: tuple[int, str],
) -> None:
    """Apply the faults in the queue of an operation to its calls: mishaps and error codes."""
    session = URLLib3Session()

    def before_send(
        request: AWSPreparedRequest, event_name: str, **_: object
    ) -> AWSResponse | None:
        mishaps = queue_of(event_name.rpartition(".")[2])
        if not mishaps:
            return None
        mishap = mishaps.popleft()
        if mishap is Mishap.THROTTLED:
            return error(request, *throttled)
        if mishap is Mishap.REFUSED:
            return error(request, 503, "ServiceUnavailable")
        if not isinstance(mishap, Mishap):
            return error(request, 409 if mishap.startswith("Conditional") else 403, mishap)
        given = session.send(request)
        given.content  # noqa: B018  read it, so that the call is surely done
        if mishap is Mishap.FAILED:
            return error(request, 500, "InternalServerError")
        if mishap is Mishap.TIMED_OUT:
            raise ReadTimeoutError(endpoint_url=request.url)
        if mishap is Mishap.DROPPED:
            raise ConnectionClosedError(endpoint_url=request.url)
        return Given(request.url, 200, b'{"Attri')

    client.meta.events.register("before-send", before_send)


class Given(AWSResponse):
    """An answer with a given body."""

    def __init__(self, url: str, status: int, body: bytes) -> None:
        super().__init__(url, status, HTTPHeaders(), None)
        self._content = body


def answer(request: AWSPreparedRequest, status: int, code: str, message: str = "") -> AWSResponse:
    """Return an error in DynamoDB's form."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}
    return Given(request.url, status, json.dumps(body).encode())
