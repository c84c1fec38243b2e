"""Assignment stores under test: on disk, in memory, on S3 and on DynamoDB."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import boto3
import fsspec
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from spark_ssp.checkpoint.assignments.aws import (
    DynamoDbAssignmentStore,
    dynamodb_where,
    s3_folder,
    s3_where,
)
from spark_ssp.checkpoint.assignments.files import FileAssignmentStore, open_assignment_store
from spark_ssp.checkpoint.assignments.store import AssignmentStore, StoreKind, parse_store_uri
from spark_ssp.common.aws.service_calls import RetrySettings
from spark_ssp.common.aws.store import S3Calls, S3Files, StoreCalls
from tests.support.leases.stores import Given, Mishap, hook_calls

ATTEMPTS: Final = 4
REGION: Final = "us-east-1"
KEYS: Final = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}


@dataclass(kw_only=True)
class Place:
    """A new, empty target for an assignment."""

    uri: str
    open: Callable[[], AssignmentStore]
    put: Callable[[int, str], object]
    """Writes a version as another program."""
    reads: deque[Mishap | str] = field(default_factory=deque)
    puts: deque[Mishap | str] = field(default_factory=deque)
    """Faults of the next calls that read or put, in order: a mishap or an error code. They have an
    effect only with a network."""
    slept: list[float] = field(default_factory=list)


Maker = Callable[[], Place]

_numbers = count()


def on_disk(folder: Path) -> Place:
    uri = f"file://{folder}/assignments/orders"

    def put(version: int, text: str) -> None:
        path = folder / "assignments" / "orders" / f"{version:08}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return Place(uri=uri, open=lambda: open_assignment_store(uri), put=put)


def in_memory() -> Place:
    uri = f"memory://tests/orders-{next(_numbers)}"

    def put(version: int, text: str) -> None:
        fsspec.filesystem("memory").pipe_file(f"{uri}/{version:08}.json", text.encode())

    return Place(uri=uri, open=lambda: open_assignment_store(uri), put=put)


def on_aws(uri: str, endpoint_url: str) -> Place:
    """Return the target of `uri`, in a new bucket or a table that does not exist yet."""
    place = parse_store_uri(uri)
    slept: list[float] = []
    behind, asking, reads, puts = _clients(place.kind.value, endpoint_url)
    reads.clear()
    puts.clear()
    if place.kind is StoreKind.S3:
        behind.create_bucket(Bucket=place.container)

    retry = RetrySettings(max_attempts=ATTEMPTS, max_backoff=10.0)

    def opened() -> AssignmentStore:
        if place.kind is StoreKind.S3:
            calls = S3Calls(asking, s3_where(place), retry=retry, sleep=slept.append)
            return FileAssignmentStore(place, S3Files(s3_folder(place), calls))
        items = StoreCalls(asking, dynamodb_where(place), retry=retry, sleep=slept.append)
        return DynamoDbAssignmentStore(place, items)

    def put(version: int, text: str) -> None:
        if place.kind is StoreKind.S3:
            key = f"{place.path}/{version:08}.json"
            behind.put_object(Bucket=place.container, Key=key, Body=text.encode())
        else:
            item = {
                "name": {"S": place.path},
                "version": {"N": str(version)},
                "assignment": {"S": text},
            }
            behind.put_item(TableName=place.container, Item=item)

    return Place(uri=uri, open=opened, put=put, reads=reads, puts=puts, slept=slept)


def on_s3(endpoint_url: str) -> Place:
    return on_aws(f"s3://assignments-{next(_numbers)}/team/orders", endpoint_url)


def on_dynamodb(endpoint_url: str) -> Place:
    return on_aws(f"dynamodb://assignments-{next(_numbers)}/team/orders", endpoint_url)


Queue = deque[Mishap | str]


@cache
def _clients(service: str, endpoint_url: str) -> tuple[Any, Any, Queue, Queue]:
    """Return a client without faults, one with the faults in the queues, and the queues."""
    asking = aws_client(service, endpoint_url)
    reads: Queue = deque()
    puts: Queue = deque()
    hook(asking, reads, puts)
    return aws_client(service, endpoint_url), asking, reads, puts


def aws_client(service: str, endpoint_url: str) -> Any:
    """Return a client without botocore's retries."""
    once = Config(retries={"total_max_attempts": 1}, read_timeout=30)
    session: Any = boto3.session.Session()
    return session.client(
        service, endpoint_url=endpoint_url, region_name=REGION, config=once, **KEYS
    )


def hook(client: Any, reads: Queue, puts: Queue) -> None:
    """Apply the faults in the queues to the client's calls."""

    def queue_of(operation: str) -> Queue:
        return puts if operation.startswith("Put") else reads

    hook_calls(client, queue_of, error, throttled=(503, "SlowDown"))


def error(request: AWSPreparedRequest, status: int, code: str) -> AWSResponse:
    """Return an error in the service's form: JSON for DynamoDB, XML for S3. Its message contains a
    signed header, as signature errors do."""
    token = request.headers.get("X-Amz-Security-Token", b"none")
    text = token.decode() if isinstance(token, bytes) else token
    message = f"the signature does not match, x-amz-security-token:{text}"
    if "X-Amz-Target" in request.headers:
        body = f'{{"__type": "com.amazonaws.dynamodb.v20120810#{code}", "message": "{message}"}}'
    else:
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Given(request.url, status, body.encode())
