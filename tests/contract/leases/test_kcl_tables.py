"""The rows of KCL 3's workers in DynamoDB: moto's and DynamoDB Local."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from spark_ssp.checkpoint.leases.conditional_writes import Create
from spark_ssp.checkpoint.leases.dynamodb_calls import DynamoDbCalls
from spark_ssp.checkpoint.leases.dynamodb_store import DynamoDbLeaseStore
from spark_ssp.checkpoint.leases.kcl_tables import RECHECK_S, KclTables
from spark_ssp.checkpoint.leases.lease_store import Rows, TableSettings
from spark_ssp.checkpoint.leases.worker_metrics import KclRows, LeaderRow, MetricRow, RowLocation
from spark_ssp.common.aws.service_calls import Retrier, RetryLog
from spark_ssp.common.errors import InvalidRequestError, ServiceUnavailableError
from tests.support.leases.stores import ATTEMPTS, RETRY, Mishap, answer, client, hooked, lease_store
from tests.support.leases.values import ANNE, BERT, lease

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

# On first use DynamoDB Local is fetched.
pytestmark = pytest.mark.timeout(1200)

_numbers = count()
WALL = 1_800_000_000
NOTHING = Rows(leases=(), foreign=(), malformed=())


@dataclass(kw_only=True)
class Scene:
    """An application whose lease table is there and empty."""

    application: str
    behind: DynamoDBClient
    asking: DynamoDBClient
    mishaps: deque[Mishap]
    store: DynamoDbLeaseStore
    kcl: KclTables
    now: list[float] = field(default_factory=lambda: [1000.0])

    def read(self) -> KclRows:
        return self.kcl.read(self.store.scan())

    def create(self, suffix: str, key: str) -> str:
        name = f"{self.application}-{suffix}"
        self.behind.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        return name

    def put(self, table: str, **item: Any) -> None:
        self.behind.put_item(TableName=table, Item=item)

    def items(self, table: str) -> list[dict[str, Any]]:
        return list(self.behind.scan(TableName=table, ConsistentRead=True)["Items"])


@pytest.fixture(params=["moto_dynamodb", "dynamodb_local"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    endpoint: str = request.getfixturevalue(request.param)
    application = f"app-{next(_numbers)}"
    behind, asking = client(endpoint), client(endpoint)
    mishaps = hooked(asking)
    store = lease_store(asking, TableSettings(name=application), lambda _: None)
    store.prepare()
    retrier = Retrier(
        RETRY, log=RetryLog(lambda: 0.0), sleep=lambda _: None, random=random.Random(1).random
    )
    now = [1000.0]

    def calls(table: str) -> DynamoDbCalls:
        return DynamoDbCalls(asking, table, retrier)

    kcl = KclTables(application, application, calls, monotonic=lambda: now[0])
    yield Scene(
        application=application,
        behind=behind,
        asking=asking,
        mishaps=mishaps,
        store=store,
        kcl=kcl,
        now=now,
    )
    behind.close()
    asking.close()


def metric(location: RowLocation, worker: str = "anne", *, ours: bool = False) -> MetricRow:
    return MetricRow(
        worker=ANNE if worker == "anne" else BERT, location=location, updated=WALL, ours=ours
    )


def test_without_kcl_3_there_is_nothing_and_nothing_is_made(scene: Scene) -> None:
    assert scene.read() == KclRows()
    names = scene.behind.list_tables()["TableNames"]
    assert [name for name in names if name.startswith(scene.application + "-")] == []


def test_the_tables_of_kcl_3_1_are_read(scene: Scene) -> None:
    metrics = scene.create("WorkerMetricStats", "wid")
    states = scene.create("CoordinatorState", "key")
    scene.put(metrics, wid={"S": "anne"}, lut={"N": str(WALL)}, sts={"M": {}}, opr={"M": {}})
    scene.put(
        states,
        key={"S": "Leader"},
        ownerName={"S": "anne"},
        leaseDuration={"S": "120000"},
        recordVersionNumber={"S": "a"},
    )
    scene.put(states, key={"S": "Migration3.0"}, cv={"S": "CLIENT_VERSION_3X"})
    assert scene.read() == KclRows(
        metrics=(metric(RowLocation.METRICS),),
        leaders=(
            LeaderRow(worker=ANNE, location=RowLocation.METRICS, version="a", duration_ms=120_000),
        ),
        client_versions=frozenset({"CLIENT_VERSION_3X"}),
    )


def test_a_table_that_appears_is_seen_after_a_while(scene: Scene) -> None:
    scene.read()
    metrics = scene.create("WorkerMetricStats", "wid")
    scene.put(metrics, wid={"S": "anne"}, lut={"N": str(WALL)})
    assert scene.read() == KclRows()
    scene.now[0] += RECHECK_S
    assert scene.read().metrics == (metric(RowLocation.METRICS),)


@pytest.mark.parametrize("location", RowLocation)
def test_our_row_is_written_renewed_and_removed(scene: Scene, location: RowLocation) -> None:
    table = scene.application
    if location is RowLocation.METRICS:
        table = scene.create("WorkerMetricStats", "wid")
    scene.kcl.write_own_metrics(ANNE, location, WALL - 30)
    scene.kcl.write_own_metrics(ANNE, location, WALL)
    assert scene.read().metrics == (metric(location, ours=True),)
    assert len(scene.items(table)) == 1
    assert scene.store.scan().leases == ()
    scene.kcl.remove_own_metrics(BERT, location)
    assert len(scene.items(table)) == 1
    for _ in range(2):
        scene.kcl.remove_own_metrics(ANNE, location)
        assert scene.items(table) == []


def test_the_row_of_a_kcl_worker_is_never_removed(scene: Scene) -> None:
    metrics = scene.create("WorkerMetricStats", "wid")
    scene.put(metrics, wid={"S": "anne"}, lut={"N": str(WALL)})
    scene.kcl.remove_own_metrics(ANNE, RowLocation.METRICS)
    assert len(scene.items(metrics)) == 1


def test_a_lease_is_never_overwritten_by_a_metric_row(scene: Scene) -> None:
    ours = lease("anne")
    scene.store.write(Create(lease=ours))
    with pytest.raises(InvalidRequestError):
        scene.kcl.write_own_metrics(ANNE, RowLocation.LEASES, WALL)
    assert scene.store.scan().leases == (ours,)


def test_what_passes_is_ridden_out_and_what_does_not_is_an_error(scene: Scene) -> None:
    metrics = scene.create("WorkerMetricStats", "wid")
    scene.put(metrics, wid={"S": "anne"}, lut={"N": str(WALL)})
    scene.mishaps.extend([Mishap.THROTTLED, Mishap.REFUSED])
    assert scene.kcl.read(NOTHING).metrics == (metric(RowLocation.METRICS),)
    scene.mishaps.extend([Mishap.REFUSED] * ATTEMPTS)
    with pytest.raises(ServiceUnavailableError):
        scene.kcl.read(NOTHING)


def test_tables_that_may_not_be_read_are_reported_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: Any, **_: object) -> Any:
        return answer(request, 400, "AccessDeniedException", "not for you")

    scene.asking.meta.events.register_first("before-send.dynamodb.Scan", refuse)
    with caplog.at_level(logging.WARNING, logger="spark_ssp.checkpoint"):
        for _ in range(3):
            assert scene.kcl.read(NOTHING) == KclRows()
            scene.now[0] += RECHECK_S
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    for name, line in zip(("WorkerMetricStats", "CoordinatorState"), told, strict=True):
        assert f"dynamodb:Scan on {scene.application}-{name}" in line
