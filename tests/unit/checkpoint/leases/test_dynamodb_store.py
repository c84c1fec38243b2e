"""The lease table: created if absent, waited for, refused when it is something else; and what
DynamoDB's refusals become."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from spark_ssp.checkpoint.leases.conditional_writes import Create, Delete, Renew
from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls
from spark_ssp.checkpoint.leases.dynamodb_store import (
    DynamoDbLeaseStore,
    creation_request,
)
from spark_ssp.checkpoint.leases.lease import LeaseTableError
from spark_ssp.checkpoint.leases.lease_serializer import encode
from spark_ssp.checkpoint.leases.lease_store import Capacity, TableSettings
from spark_ssp.common.aws.clients import client_config
from spark_ssp.common.aws.provided_credentials import forget_providers
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, RetrySettings
from spark_ssp.common.errors import (
    AccessError,
    InvalidOptionsError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
)
from spark_ssp.common.options.endpoints import ConnectionOptions
from tests.support.leases.stores import open_store
from tests.support.leases.values import ANNE, lease

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

MINE = lease(counter=1, owner=ANNE)
ATTEMPTS = 3
SHAPE: dict[str, Any] = {
    "TableName": "orders-etl",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
}


@cache
def client() -> DynamoDBClient:
    return boto3.session.Session().client(
        "dynamodb",
        region_name="eu-west-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=client_config(ConnectionOptions()),
    )


class Scripted:
    """A store on a client whose answers are given; a clock that only sleeping moves."""

    def __init__(self, settings: TableSettings) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.stub = Stubber(client())
        retrier = Retrier(
            RetrySettings(max_attempts=ATTEMPTS, max_backoff=1.0),
            log=RetryLog(lambda: self.now),
            sleep=self.sleep,
            random=lambda: 1.0,
        )
        self.store = DynamoDbLeaseStore(
            DynamoDbCalls(client(), settings.name, retrier),
            settings,
            monotonic=lambda: self.now,
            sleep=self.sleep,
        )
        self.stub.activate()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def describes(self, status: str, **more: Any) -> None:
        table = SHAPE | {"TableStatus": status} | more
        self.stub.add_response("describe_table", {"Table": table}, {"TableName": "orders-etl"})

    def refuses(self, method: str, code: str, status: int = 400, message: str = "") -> None:
        self.stub.add_client_error(method, code, message, http_status_code=status)

    def creates(self, request: Mapping[str, Any]) -> None:
        self.stub.add_response("create_table", {"TableDescription": {}}, dict(request))


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    forget_providers()  # those of other tests would be asked for other keys, for half a minute
    made = Scripted(TableSettings(name="orders-etl", wait_s=20.0))
    yield made
    made.stub.assert_no_pending_responses()
    made.stub.deactivate()
    made.store.close()


# --- Creating and waiting ------------------------------------------------------------------------


def test_a_table_that_is_there_is_taken_as_it_is(scripted: Scripted) -> None:
    """As KCL 2 made it: without an index, provisioned."""
    scripted.describes("ACTIVE")
    scripted.store.prepare()
    assert scripted.slept == []


def test_a_table_is_created_and_waited_for(scripted: Scripted) -> None:
    scripted.refuses("describe_table", "ResourceNotFoundException")
    scripted.creates(
        {
            "TableName": "orders-etl",
            "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            "AttributeDefinitions": [
                {"AttributeName": "leaseKey", "AttributeType": "S"},
                {"AttributeName": "leaseOwner", "AttributeType": "S"},
            ],
            "GlobalSecondaryIndexes": [
                {
                    "IndexName": "LeaseOwnerToLeaseKeyIndex",
                    "KeySchema": [
                        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
    )
    scripted.describes("CREATING")
    scripted.describes("ACTIVE")
    scripted.store.prepare()
    assert scripted.slept == [1.0, 1.0]


def test_capacity_and_tags_are_said_when_it_is_created() -> None:
    settings = TableSettings(
        name="orders-etl",
        capacity=Capacity(read=5, write=10),
        tags=(("team", "data"), ("cost", "7")),
    )
    request = creation_request(settings)
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 10}
    assert request["BillingMode"] == "PROVISIONED"
    assert request["ProvisionedThroughput"] == units
    assert request["GlobalSecondaryIndexes"][0]["ProvisionedThroughput"] == units
    assert request["Tags"] == [{"Key": "team", "Value": "data"}, {"Key": "cost", "Value": "7"}]
    assert "Tags" not in creation_request(TableSettings(name="orders-etl"))


def test_another_worker_may_be_faster(scripted: Scripted) -> None:
    scripted.refuses("describe_table", "ResourceNotFoundException")
    scripted.refuses("create_table", "ResourceInUseException")
    scripted.describes("ACTIVE")
    scripted.store.prepare()


def test_a_table_being_deleted_is_waited_for_and_created_anew(scripted: Scripted) -> None:
    scripted.describes("DELETING")
    scripted.refuses("describe_table", "ResourceNotFoundException")
    scripted.creates(creation_request(TableSettings(name="orders-etl")))
    scripted.describes("ACTIVE")
    scripted.store.prepare()


def test_a_table_being_changed_can_be_used(scripted: Scripted) -> None:
    """KCL 3 adds its index to a table in use."""
    scripted.describes("UPDATING")
    scripted.store.prepare()


def test_waiting_ends(scripted: Scripted) -> None:
    for _ in range(21):
        scripted.describes("CREATING")
    with pytest.raises(ServiceUnavailableError, match="wait after 20 s"):
        scripted.store.prepare()


# --- Tables of another shape ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (
            {
                "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
            },
            "key HASH key (S)",
        ),
        (
            {"AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "N"}]},
            "key HASH leaseKey (N)",
        ),
        (
            {
                "KeySchema": [
                    {"AttributeName": "leaseKey", "KeyType": "HASH"},
                    {"AttributeName": "at", "KeyType": "RANGE"},
                ],
                "AttributeDefinitions": [
                    {"AttributeName": "leaseKey", "AttributeType": "S"},
                    {"AttributeName": "at", "AttributeType": "N"},
                ],
            },
            "key HASH leaseKey (S), RANGE at (N)",
        ),
    ],
)
@pytest.mark.parametrize("status", ["ACTIVE", "CREATING"])
def test_a_table_of_another_shape_is_refused(
    scripted: Scripted, shape: dict[str, Any], found: str, status: str
) -> None:
    """The first is what KCL 3.0 to 3.4 keeps beside the lease table."""
    scripted.describes(status, **shape)
    with pytest.raises(LeaseTableError) as caught:
        scripted.store.prepare()
    assert found in caught.value.found
    assert caught.value.subject == "table orders-etl"
    assert "leaseTable" in caught.value.next_step


def test_a_table_that_will_not_recover_is_refused(scripted: Scripted) -> None:
    scripted.describes("INACCESSIBLE_ENCRYPTION_CREDENTIALS")
    with pytest.raises(LeaseTableError, match="INACCESSIBLE_ENCRYPTION_CREDENTIALS"):
        scripted.store.prepare()


# --- Refusals ------------------------------------------------------------------------------------

Action = Callable[[DynamoDbLeaseStore], object]
ACTIONS: dict[str, tuple[str, Action]] = {
    "DescribeTable": ("describe_table", lambda store: store.prepare()),
    "Scan": ("scan", lambda store: store.scan()),
    "PutItem": ("put_item", lambda store: store.write(Create(lease=MINE))),
    "UpdateItem": ("update_item", lambda store: store.write(Renew(lease=MINE))),
    "DeleteItem": ("delete_item", lambda store: store.write(Delete(lease=MINE))),
}
every_action = pytest.mark.parametrize(
    ("operation", "method", "action"),
    [(operation, *rest) for operation, rest in ACTIONS.items()],
    ids=ACTIONS,
)


def refusal(scripted: Scripted, action: Action, kind: type[SspError]) -> SspError:
    with pytest.raises(kind) as caught:
        action(scripted.store)
    error = caught.value
    assert type(error) is kind
    assert "orders-etl" in error.subject
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


@every_action
def test_a_missing_permission_is_named(
    scripted: Scripted, operation: str, method: str, action: Action
) -> None:
    scripted.refuses(method, "AccessDeniedException", message="not authorized to do that")
    error = refusal(scripted, action, AccessError)
    assert error.expected == f"permission for dynamodb:{operation}"
    assert "table orders-etl" in error.next_step
    assert scripted.slept == []


def test_the_permission_to_read_a_row_is_named(scripted: Scripted) -> None:
    scripted.refuses("update_item", "ConditionalCheckFailedException")
    scripted.refuses("get_item", "AccessDeniedException")
    error = refusal(scripted, lambda store: store.write(Renew(lease=MINE)), AccessError)
    assert error.expected == "permission for dynamodb:GetItem"


def test_the_permission_to_create_is_named(scripted: Scripted) -> None:
    scripted.refuses("describe_table", "ResourceNotFoundException")
    scripted.refuses("create_table", "AccessDeniedException")
    error = refusal(scripted, lambda store: store.prepare(), AccessError)
    assert error.expected == "permission for dynamodb:CreateTable"


@every_action
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("ThrottlingException", 400),
        ("RequestLimitExceeded", 400),
        ("InternalServerError", 500),
        ("ServiceUnavailable", 503),
    ],
)
def test_a_fault_that_does_not_pass_in_time_is_reported(
    scripted: Scripted, operation: str, method: str, action: Action, code: str, status: int
) -> None:
    for _ in range(ATTEMPTS):
        scripted.refuses(method, code, status)
    error = refusal(scripted, action, ServiceUnavailableError)
    assert f"{code} on {operation}, {ATTEMPTS} times" in error.found
    assert "retry.maxAttempts" in error.next_step
    assert len(scripted.slept) == ATTEMPTS - 1


def test_the_limit_of_an_accounts_tables_is_no_matter_of_capacity(scripted: Scripted) -> None:
    scripted.refuses("describe_table", "ResourceNotFoundException")
    for _ in range(ATTEMPTS):
        scripted.refuses("create_table", "LimitExceededException")
    error = refusal(scripted, lambda store: store.prepare(), ServiceUnavailableError)
    assert "quotas" in error.next_step
    assert "capacity" not in error.next_step


@pytest.mark.parametrize("operation", ["Scan", "PutItem", "UpdateItem", "DeleteItem"])
def test_a_table_that_vanished_is_reported(scripted: Scripted, operation: str) -> None:
    method, action = ACTIONS[operation]
    scripted.refuses(method, "ResourceNotFoundException")
    error = refusal(scripted, action, LeaseTableError)
    assert "no such table" in error.found


def test_a_request_that_is_refused_is_reported(scripted: Scripted) -> None:
    scripted.refuses("scan", "ValidationException", message="TableName too short")
    error = refusal(scripted, lambda store: store.scan(), InvalidRequestError)
    assert "TableName too short" in error.found


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "ExpiredTokenException"])
def test_credentials_that_are_no_good_are_reported_without_showing_them(
    scripted: Scripted, code: str
) -> None:
    scripted.refuses("scan", code, message="the token FwoGZXIvYXdz is AKIAIOSFODNN7EXAMPLE's")
    error = refusal(scripted, lambda store: store.scan(), AccessError)
    assert "FwoGZXIvYXdz" not in str(error)
    assert "AKIA" not in str(error)


def test_a_failed_condition_without_the_row_has_it_read(scripted: Scripted) -> None:
    scripted.refuses("update_item", "ConditionalCheckFailedException")
    scripted.stub.add_response(
        "get_item", {}, {"TableName": "orders-etl", "Key": ANY, "ConsistentRead": True}
    )
    outcome = scripted.store.write(Renew(lease=MINE))
    assert outcome.__class__.__name__ == "Conflict"


# --- Opening -------------------------------------------------------------------------------------


def test_a_store_stays_in_its_process(scripted: Scripted) -> None:
    with pytest.raises(TypeError, match="open the store where it is needed"):
        pickle.dumps(scripted.store)


def test_a_url_that_is_none_names_its_option() -> None:
    connection = ConnectionOptions(
        region="us-east-1",
        endpoint_url="nonsense",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    with pytest.raises(InvalidOptionsError, match="dynamodbEndpointUrl"):
        open_store(connection, TableSettings(name="orders-etl"))


class Pages:
    """The calls of a table that is scanned, with two rows on a page."""

    def __init__(self, rows: int) -> None:
        self.rows = [lease(f"shardId-{number:012d}") for number in range(rows)]
        self.segments: list[tuple[int, int]] = []

    def ask(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        assert operation == "Scan"
        assert request["ConsistentRead"]
        segment, total = request.get("Segment", 0), request.get("TotalSegments", 1)
        self.segments.append((segment, total))
        rows = [encode(row) for row in self.rows[segment::total]]
        begin = int(request.get("ExclusiveStartKey", {"at": 0})["at"])
        more = {"LastEvaluatedKey": {"at": begin + 2}} if begin + 2 < len(rows) else {}
        return {"Items": rows[begin : begin + 2], **more}


@pytest.mark.parametrize(("rows", "segments"), [(1, 1), (2, 1), (3, 2), (9, 4)])
def test_a_large_table_is_scanned_in_segments(rows: int, segments: int) -> None:
    table: Any = Pages(rows)
    store = DynamoDbLeaseStore(table, TableSettings(name="orders-etl"))
    for scanned_in in (1, segments, segments):
        table.segments.clear()
        assert store.scan().leases == tuple(table.rows)
        assert set(table.segments) == {(n, scanned_in) for n in range(scanned_in)}
