"""The policies of the guides allow exactly the calls that are made. Every part of the product runs
once, with a proxy in front of each service that records its calls. The lease agent and the guard of
consumers are processes of their own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3
import psutil
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spark_ssp.checkpoint.assignments.files import open_assignment_store
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupByPartition
from spark_ssp.grouping.fixed_tasks import FixedTasks
from spark_ssp.kinesis_source.client import consumers
from spark_ssp.kinesis_source.client.boto3_client import disconnect
from spark_ssp.kinesis_source.sink.table_sink import KinesisBatchWriter
from spark_ssp.kinesis_source.source import KinesisBatchReader, KinesisStreamReader
from spark_ssp.planner.planning.plan_history import open_folder
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state import service_state
from tests.contract.permissions.policies import (
    ACCOUNT,
    REGION,
    Grant,
    Names,
    Need,
    grants,
    needs,
    policies,
    refused,
    unused,
)
from tests.support.fakes.clocks import ShiftedClock
from tests.support.kafka.partitions import ssps
from tests.support.operations.command import Run, run
from tests.support.servers.moto_server import MotoServer
from tests.support.servers.recording_proxy import RecordingProxy
from tests.support.waiting import until

GUIDES: Final = Path(__file__).parents[3] / "docs" / "guide"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
RECORDS: Final = 20
READER: Final = f"arn:aws:iam::{ACCOUNT}:role/orders-reader"

UNUSED: Final = {
    ("kms:Decrypt", "key"): "Kinesis calls KMS, for streams with a key of the customer",
    (
        "dynamodb:DeleteItem",
        "orders-etl",
    ): "of a lease whose shard has expired",
    ("dynamodb:GetItem", "orders-etl"): "after a write whose answer was lost",
    ("dynamodb:GetItem", "spark-ssp-acceptance-*"): "after a write whose answer was lost",
    ("dynamodb:PartiQLUpdate", "orders-etl"): "for the writes of many leases at once",
    ("dynamodb:TagResource", "orders-etl"): "by CreateTable, for its tags (API reference)",
    ("dynamodb:UpdateItem", "orders-etl-WorkerMetricStats"): "beside workers of KCL 3.0 to 3.4",
    ("dynamodb:DeleteItem", "orders-etl-WorkerMetricStats"): "beside workers of KCL 3.0 to 3.4",
    ("kinesis:GetRecords", "orders"): "with fan-out, if a subscription fails",
}
"""What is granted and not called here, with the reason; by action and the end of the resource."""


@dataclass(kw_only=True)
class Account:
    """The services of an account, each behind its proxy."""

    kinesis: EmbeddedKinesis
    clock: ShiftedClock
    proxies: Mapping[str, RecordingProxy]

    @contextmanager
    def calls(self, names: Names) -> Iterator[set[Need]]:
        """Collect the permissions that the calls in the block need."""
        found: set[Need] = set()
        for proxy in self.proxies.values():
            proxy.requests.clear()
        yield found
        disconnect()
        for service, proxy in self.proxies.items():
            found |= needs(service, list(proxy.requests), names)

    @property
    def connection(self) -> dict[str, str]:
        return {"region": REGION, "endpointUrl": self.proxies["kinesis"].url}

    def stream(self, name: str) -> dict[str, str]:
        """Create a stream with records; return the options that read it."""
        self.kinesis.state.create_stream(name, shards=2)
        for number in range(RECORDS):
            self.kinesis.state.put(name, str(number), b"{}")
        return {**self.connection, "streamName": name, "startingPosition": "trim_horizon"}


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with ExitStack() as resources:
        environment = resources.enter_context(pytest.MonkeyPatch.context())
        for name, value in KEYS.items():
            environment.setenv(name, value)
        clock = ShiftedClock()
        kinesis = resources.enter_context(EmbeddedKinesis(region=REGION, clock=clock))
        moto = MotoServer()
        resources.callback(moto.stop)
        proxies = {
            service: resources.enter_context(RecordingProxy(upstream))
            for service, upstream in (
                ("kinesis", kinesis.endpoint_url),
                ("dynamodb", moto.endpoint_url),
                ("s3", moto.endpoint_url),
                ("sts", moto.endpoint_url),
            )
        }
        environment.setenv("AWS_ENDPOINT_URL_DYNAMODB", proxies["dynamodb"].url)
        environment.setenv("AWS_ENDPOINT_URL_S3", proxies["s3"].url)
        environment.setenv("AWS_ENDPOINT_URL_STS", proxies["sts"].url)
        environment.setenv("AWS_REGION", REGION)
        client = boto3.client("s3", region_name=REGION, endpoint_url=moto.endpoint_url)
        # moto keeps the buckets of a process, in which these tests may be set up more than once.
        if "lake" not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
            client.create_bucket(
                Bucket="lake", CreateBucketConfiguration={"LocationConstraint": REGION}
            )
        yield Account(kinesis=kinesis, clock=clock, proxies=proxies)


def stream_query(options: Mapping[str, str], *, replays: bool = False) -> int:
    """Run the driver's and the tasks' part of a query until it has all records, and of one batch
    more; return the number of rows. `replays`: another driver reads all of it again, in one
    batch, whose size it does not know."""
    reader = KinesisStreamReader(options)
    rows, start = 0, reader.initialOffset()

    def batch() -> bool:
        nonlocal rows, start
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for partition in reader.partitions(start, end):
            rows += sum(batch.num_rows for batch in reader.read(partition))
        start = end
        return rows >= RECORDS

    try:
        until(batch, "all records are read")
        batch()
    finally:
        reader.stop()
    if replays:
        again = KinesisStreamReader(options)
        partitions = again.partitions(again.initialOffset(), start)
        assert sum(each.num_rows for one in partitions for each in again.read(one)) == rows
        again.stop()
    return rows


def batch_query(options: Mapping[str, str]) -> int:
    reader = KinesisBatchReader(options)
    return sum(
        batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)
    )


def guide(name: str) -> list[list[Grant]]:
    """Return the policies of a guide."""
    return [grants(policy) for policy in policies(GUIDES / name)]


def is_exact(needed: set[Need], allowed: list[Grant]) -> None:
    """Assert that the policies allow all of this, and nothing else."""
    assert refused(needed, allowed) == []
    spare = {(each.action, _place(each.resource)) for each in unused(needed, allowed)}
    assert spare - UNUSED.keys() == set()


def _place(resource: str) -> str:
    kind, _, name = resource.rpartition(":")[2].partition("/")
    return kind if kind == "key" else name


def test_streaming_and_batch_reads(account: Account) -> None:
    reading, becoming = guide("kinesis-permissions.md")
    with account.calls(Names(stream="orders")) as needed:
        options = account.stream("orders")
        assert stream_query(options) == RECORDS
        assert batch_query(options) == RECORDS
    is_exact(needed, reading)
    with account.calls(Names(stream="orders")) as needed:
        role = {"roleArn": READER, "stsEndpointUrl": account.proxies["sts"].url}
        assert batch_query({**options, **role}) == RECORDS
    is_exact(needed, [*reading, *becoming])
    is_exact({need for need in needed if need.action.startswith("sts:")}, becoming)


def test_a_stream_of_another_account(account: Account) -> None:
    trusting, sharing = policies(GUIDES / "recipes-aws.md")
    _, becoming = guide("kinesis-permissions.md")
    assert {statement["Action"] for statement in trusting["Statement"]} == {
        grant.action for grant in becoming
    }
    kinesis = account.proxies["kinesis"]
    with account.calls(Names(stream="orders")) as needed:
        options = account.stream("shared-by-policy")
        name = options.pop("streamName")
        arn = f"arn:aws:kinesis:{REGION}:{service_state.ACCOUNT}:stream/{name}"
        assert stream_query({**options, "streamARN": arn}) == RECORDS
        # A name, or nothing, would be of the caller's own account.
        assert {json.loads(call.body).get("StreamARN") for call in kinesis.requests} == {arn}
    is_exact(needed, grants(sharing))


def test_the_sink(account: Account) -> None:
    (writing,) = guide("kinesis-sink.md")
    name = "by-customer"
    account.kinesis.state.create_stream(name, shards=2)
    table = pa.table({"partitionKey": ["a", "b"], "data": [b"1", b"2"]})
    with account.calls(Names(stream=name)) as needed:
        options = {**account.connection, "streamName": name}
        writer = KinesisBatchWriter(options, from_arrow_schema(table.schema))
        writer.commit([writer.write(iter(table.to_batches()))])
        by_row = table.append_column("stream", [[name, name]])
        writer = KinesisBatchWriter(account.connection, from_arrow_schema(by_row.schema))
        writer.commit([writer.write(iter(by_row.to_batches()))])
    is_exact(needed, writing)


def test_enhanced_fan_out(account: Account) -> None:
    """A consumer of the query by its name, and one of the user by its ARN."""
    reading, _ = guide("kinesis-permissions.md")
    (pushing,) = guide("kinesis-fan-out.md")
    names = Names(stream="orders")
    pushed = {"consumerMode": "efo"}
    kinesis = account.proxies["kinesis"]
    with account.calls(names) as by_name:
        options = account.stream("pushed") | pushed | {"consumerName": "orders-etl"}
        assert stream_query(options, replays=True) == RECORDS
        until(lambda: not _guards(), "the processes that deregister have ended")
        assert any("Deregister" in call.target for call in kinesis.requests)
    with account.calls(names) as by_arn:
        options = account.stream("pushed-by-arn") | pushed | {"consumerLifecycle": "self"}
        consumer = account.kinesis.state.register_consumer("pushed-by-arn", "orders-etl")
        assert stream_query(options | {"consumerArn": consumer.arn}, replays=True) == RECORDS
    until(lambda: not _guards(), "the processes that deregister have ended")
    for needed in (by_name, by_arn):
        assert any(need.action == "kinesis:SubscribeToShard" for need in needed)
    is_exact(by_name | by_arn, [*reading, *pushing])


def _guards() -> list[psutil.Process]:
    """The processes that deregister consumers, also one that has only just been forked."""
    own = psutil.Process()
    return [
        process
        for process in own.children()
        if process.status() != psutil.STATUS_ZOMBIE
        and (consumers.__name__ in process.cmdline() or process.cmdline() == own.cmdline())
    ]


def test_leases(account: Account) -> None:
    reading, _ = guide("kinesis-permissions.md")
    (sharing,) = guide("leases.md")
    name = "shared"
    dynamodb = boto3.client(
        "dynamodb", region_name=REGION, endpoint_url=account.proxies["dynamodb"].url
    )
    # As KCL 3.0 to 3.4 has them.
    for table, key in (("CoordinatorState", "key"), ("WorkerMetricStats", "wid")):
        dynamodb.create_table(
            TableName=f"orders-etl-{table}",
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    options = {
        **account.stream(name),
        "applicationName": "orders-etl",
        "leaseTableTags": "team=orders",
        "dynamodbEndpointUrl": account.proxies["dynamodb"].url,
    }
    with account.calls(Names(stream="orders")) as needed:
        assert stream_query(options) == RECORDS
    tables = {"orders-etl", "orders-etl-CoordinatorState", "orders-etl-WorkerMetricStats"}
    assert {need.resource.rpartition("/")[2] for need in needed if "dynamodb" in need.action} <= (
        tables
    )
    is_exact(needed, [*reading, *sharing])


def test_commands_need_what_their_sections_name(account: Account, tmp_path: Path) -> None:
    options = account.stream("looked-at") | {"consumerMode": "efo", "consumerName": "orders-etl"}
    options |= {"applicationName": "orders-etl"}
    dynamodb = f"--dynamodb-endpoint-url={account.proxies['dynamodb'].url}"
    connection = [f"--region={REGION}", f"--endpoint-url={account.proxies['kinesis'].url}"]
    file = tmp_path / "options.json"
    role = {"roleArn": READER, "stsEndpointUrl": account.proxies["sts"].url}
    file.write_text(json.dumps(options | role))
    reading, becoming = guide("kinesis-permissions.md")
    commands: dict[str, Callable[[], Run]] = {
        "Leases": lambda: run(
            "leases", "orders-etl", "--stream=looked-at", "--wait=0", *connection, dynamodb
        ),
        "Shards": lambda: run("shards", "looked-at", "--oldest", *connection),
        "Status": lambda: run(
            *("status", "--applications", "--failover=1s", "--wait=2s", *connection, dynamodb),
            sleep=time.sleep,
            now_ms=lambda: time.time_ns() // 1_000_000,
        ),
        "Doctor": lambda: run("doctor", f"--options={file}", dynamodb),
        "Tail": lambda: run("tail", "looked-at", "--no-follow", *connection),
    }
    of_query = [*reading, *becoming, *guide("kinesis-fan-out.md")[0], *guide("leases.md")[0]]
    # Allowed to everybody; what the doctor does without; of which a refusal shows the time as well.
    free = ("sts:GetCallerIdentity", "kinesis:ListStreamConsumers", "kinesis:DescribeLimits")
    of_query += [Grant(action, "*") for action in free]
    for section, command in commands.items():
        with account.calls(Names(stream="orders")) as needed:
            done = command()
            assert done.code != 2, (section, done.err)
        assert needed, section
        named = set(re.findall(r"`((?:kinesis|dynamodb):\w+)`", _section("command.md", section)))
        if section in ("Leases", "Shards", "Status"):
            assert {need.action for need in needed} <= named, section
        else:
            assert refused(needed, of_query) == [], section


def test_the_acceptance(account: Account, tmp_path: Path) -> None:
    (allowed,) = guide("command.md")
    clock = account.clock

    def wait(seconds: float) -> None:
        clock.advance(int(seconds * 1000) + 1)

    connection = [f"--region={REGION}", f"--endpoint-url={account.proxies['kinesis'].url}"]
    connection.append(f"--dynamodb-endpoint-url={account.proxies['dynamodb'].url}")
    flags = ["--yes", "--json", "--lease-table", "--fan-out", f"--report={tmp_path / 'report.md'}"]
    names = Names(stream="spark-ssp-acceptance-0123456789abcdef", consumer="acceptance")
    with account.calls(names) as needed:
        done = run("acceptance", *flags, *connection, now_ms=clock.now_ms, sleep=wait)
        assert done.document()["failures"] == []
        assert done.document()["leftBehind"] == []
    is_exact(needed, allowed)


def _section(name: str, title: str) -> str:
    text = (GUIDES / name).read_text("utf-8")
    begin = text.index(f"\n## {title}\n")
    return text[begin : text.find("\n## ", begin + 1)]


def test_stores_of_assignments_and_plans(account: Account) -> None:
    table = (GUIDES / "fixed-tasks.md").read_text("utf-8")
    rows = {
        row.partition("://")[0]: set(re.findall(r"`(\w+:\w+)`", row))
        for row in re.findall(r"^\| `(.*)$", table, re.MULTILINE)
        if "://" in row
    }
    grouping = FixedTasks(grouper=GroupByPartition())
    for kind, uri in (("s3", "s3://lake/orders"), ("dynamodb", "dynamodb://assignments/orders")):
        with account.calls(Names(stream="orders")) as needed:
            store = open_assignment_store(uri, ConnectionOptions(region=REGION))
            assignment = grouping.group(NO_ASSIGNMENT, ssps({"orders": 2}))
            assert store.read() is None
            store.write(assignment, None)
            assert store.read() is not None
            store.close()
        assert {need.action for need in needed} == rows[kind]
    with account.calls(Names(stream="orders")) as needed:
        plans = open_folder("s3://lake/pipelines")
        assert plans.create("00000001.json", b"{}")
        assert list(plans.names()) == ["00000001.json"]
        assert plans.read("00000001.json") == b"{}"
        plans.close()
    assert {need.action for need in needed} == rows["s3"]
