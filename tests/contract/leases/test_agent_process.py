"""The agent as a process: what it does to the table, and that it always ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from spark_ssp.checkpoint.agent.client import AgentClient
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report, Status
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.lease import LeaseKey, LeaseTableError
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.errors import AccessError, InvalidOptionsError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.grouping.identifiers import WorkerId
from spark_ssp.testing.kinesis.server import DynamoDbServer
from tests.support import waiting
from tests.support.leases.agent_reader import ReaderProcess
from tests.support.leases.stores import client
from tests.support.leases.values import ANNE, BERT, lease, processed

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

# On first use DynamoDB Local is fetched.
pytestmark = pytest.mark.timeout(1200)

SHARDS: Final = tuple(lease(f"shardId-{number:012d}") for number in range(4))
KEYS: Final = frozenset(row.key for row in SHARDS)
FIRST: Final = SHARDS[0].key
CREATE: Final = Report(create=SHARDS)
ALL: Final = replace(CREATE, reading=KEYS)

NEVER_MS: Final = 600_000
"""A failover time within which nothing expires: whatever is free was given back."""
SHORT_MS: Final = 6_000
CALM_MS: Final = 20_000
"""So long that nothing expires on a machine that is slow."""
WAIT_S: Final = 120

_numbers = count()

until = partial(waiting.until, what="the condition of this line", within_s=WAIT_S)


class Table:
    """A table that is not there yet, and who keeps its leases."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = f"agent-{next(_numbers)}"
        self.behind: DynamoDBClient = client(endpoint)
        self._clients: list[AgentClient] = []

    def settings(self, worker: WorkerId = ANNE, failover_ms: int = NEVER_MS) -> AgentSettings:
        return AgentSettings(
            application=self.name,
            table=TableSettings(name=self.name),
            coordination=Settings(worker=worker, failover_ms=failover_ms),
            connection=ConnectionOptions(
                region="us-east-1",
                endpoint_url=self.endpoint,
                aws_access_key_id="local",  # the name of the account in DynamoDB Local
                aws_secret_access_key="secret-in-clear",
                aws_session_token="token-in-clear",
            ),
        )

    def agent(self, worker: WorkerId = ANNE, failover_ms: int = NEVER_MS) -> AgentClient:
        return self.keep(self.settings(worker, failover_ms))

    def keep(self, settings: AgentSettings) -> AgentClient:
        made = AgentClient(settings)
        self._clients.append(made)
        return made

    def items(self) -> dict[str, dict[str, Any]]:
        found = self.behind.scan(TableName=self.name, ConsistentRead=True)["Items"]
        return {str(item["leaseKey"]["S"]): dict(item) for item in found}

    def owners(self) -> dict[str, str | None]:
        return {
            key: item.get("leaseOwner", {}).get("S") for key, item in sorted(self.items().items())
        }

    def counter(self) -> int:
        return int(self.items()[FIRST]["leaseCounter"]["N"])

    def close(self) -> None:
        for made in self._clients:
            made.close()
        self.behind.close()


OF_NOBODY: Final = dict.fromkeys(sorted(KEYS))
OF_ANNE: Final = dict.fromkeys(sorted(KEYS), "anne")


def _opened(endpoint: str) -> Iterator[Table]:
    before = set(psutil.Process().children())
    table = Table(endpoint)
    yield table
    table.close()
    assert set(psutil.Process().children()) <= before


@pytest.fixture
def table(moto_dynamodb: str) -> Iterator[Table]:
    yield from _opened(moto_dynamodb)


@pytest.fixture(params=["moto_dynamodb", "dynamodb_local"])
def any_table(request: pytest.FixtureRequest) -> Iterator[Table]:
    yield from _opened(request.getfixturevalue(request.param))


def hold(agent: AgentClient, report: Report = CREATE) -> Status:
    """Exchanges until all leases are held."""
    found: list[Status] = []

    def all_held() -> bool:
        found.append(agent.exchange(report))
        return set(found[-1].held) == KEYS

    until(all_held)
    return found[-1]


def process_of(agent: AgentClient) -> psutil.Process:
    assert agent.pid is not None
    return psutil.Process(agent.pid)


def gone(process: psutil.Process) -> bool:
    """Not even a zombie is left."""
    return not process.is_running()


# --- A life --------------------------------------------------------------------------------------


def test_from_no_table_to_leases_held_and_given_back(any_table: Table) -> None:
    agent = any_table.agent()
    assert set(hold(agent).rows) == KEYS
    assert any_table.owners() == OF_ANNE
    agent.exchange(replace(ALL, progress={FIRST: processed(7)}))
    agent.exchange(replace(ALL, progress={FIRST: processed(9)}))
    process = process_of(agent)
    agent.close()
    assert gone(process)
    assert any_table.owners() == OF_NOBODY
    assert any_table.items()[FIRST]["checkpoint"] == {"S": "9"}


def test_leases_are_renewed_while_the_reader_says_nothing(any_table: Table) -> None:
    agent = any_table.agent(failover_ms=SHORT_MS)
    hold(agent)
    agent.exchange(ALL)
    before = any_table.counter()
    until(lambda: any_table.counter() >= before + 7)  # two failover times and more
    assert any_table.owners() == OF_ANNE
    hold(agent, ALL)


def test_two_agents_share_and_never_read_the_same(any_table: Table) -> None:
    agents = {
        "anne": any_table.agent(failover_ms=CALM_MS),
        "bert": any_table.agent(BERT, CALM_MS),
    }
    hold(agents["anne"])
    reading: dict[str, frozenset[LeaseKey]] = {"anne": KEYS, "bert": frozenset()}

    def shared() -> bool:
        for name, agent in agents.items():
            status = agent.exchange(Report(reading=reading[name]))
            reading[name] = frozenset(status.held) - status.asked_for
            assert not reading["anne"] & reading["bert"]
        return [len(keys) for keys in reading.values()] == [2, 2]

    until(shared)
    assert sorted(str(owner) for owner in any_table.owners().values()) == [
        "anne",
        "anne",
        "bert",
        "bert",
    ]


# --- The process ---------------------------------------------------------------------------------


def test_it_is_alone_listens_nowhere_and_shows_no_secret(table: Table) -> None:
    agent = table.agent()
    hold(agent)
    process = process_of(agent)
    assert os.getsid(process.pid) == process.pid
    assert process.children() == []
    statuses = {connection.status for connection in process.net_connections(kind="inet")}
    assert psutil.CONN_LISTEN not in statuses
    seen = " ".join(process.cmdline()) + str(process.environ())
    assert "in-clear" not in seen


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_signals_of_a_terminal_are_not_for_it(table: Table, ignored: signal.Signals) -> None:
    agent = table.agent()
    hold(agent)
    process = process_of(agent)
    process.send_signal(ignored)
    hold(agent, ALL)
    assert agent.pid == process.pid


def test_on_a_stop_it_gives_leases_back_first_and_is_replaced(table: Table) -> None:
    agent = table.agent()
    hold(agent)
    process = process_of(agent)
    before = table.counter()
    process.terminate()
    until(lambda: gone(process))
    hold(agent)
    assert table.counter() >= before + 2  # given up, and taken again


def test_killed_it_is_replaced_and_nothing_is_lost(table: Table) -> None:
    agent = table.agent()
    hold(agent)
    agent.exchange(ALL)
    process = process_of(agent)
    before = table.counter()
    process.kill()
    until(lambda: gone(process) and agent.pid not in (None, process.pid))
    until(lambda: table.counter() > before)  # renewed though the reader has said nothing
    assert table.owners() == OF_ANNE
    hold(agent, ALL)


# --- Without the reader --------------------------------------------------------------------------


@pytest.fixture
def reader(table: Table) -> Iterator[ReaderProcess]:
    with ReaderProcess(table.settings(), SHARDS) as process:
        until(lambda: set(process.ask()["held"]) == KEYS)
        yield process


def agent_of(reader: ReaderProcess) -> psutil.Process:
    return psutil.Process(reader.ask()["agent"])


def test_a_reader_that_ends_without_a_word(table: Table, reader: ReaderProcess) -> None:
    agent = agent_of(reader)
    reader.hang_up()
    until(lambda: gone(agent))
    assert table.owners() == OF_NOBODY


def test_a_reader_that_is_killed(table: Table, reader: ReaderProcess) -> None:
    agent = agent_of(reader)
    reader.process.kill()
    until(lambda: gone(agent))
    assert table.owners() == OF_NOBODY


def test_a_reader_that_is_killed_while_another_process_holds_its_pipes(
    table: Table, reader: ReaderProcess
) -> None:
    agent = agent_of(reader)
    sleeper = psutil.Process(reader.ask("spill")["pid"])
    reader.process.kill()
    reader.process.wait()
    try:
        until(lambda: gone(agent))
        assert sleeper.is_running()
    finally:
        sleeper.kill()
    assert table.owners() == OF_NOBODY


def test_a_reader_that_is_stopped(table: Table) -> None:
    with ReaderProcess(table.settings(failover_ms=SHORT_MS), SHARDS) as reader:
        until(lambda: set(reader.ask()["held"]) == KEYS)
        agent = agent_of(reader)
        reader.process.send_signal(signal.SIGSTOP)
        before = table.counter()
        until(lambda: table.counter() >= before + 4)
        assert table.owners() == OF_ANNE
        reader.process.send_signal(signal.SIGCONT)
        until(lambda: set(reader.ask()["held"]) == KEYS)
    until(lambda: gone(agent))


def test_a_reader_that_is_killed_while_dynamodb_is_down() -> None:
    server = DynamoDbServer()
    server.start()
    table = Table(server.endpoint_url)
    try:
        with ReaderProcess(table.settings(), SHARDS) as reader:
            until(lambda: set(reader.ask()["held"]) == KEYS)
            agent = agent_of(reader)
            server.stop()
            reader.process.kill()
            until(lambda: gone(agent))
    finally:
        server.stop()
        table.close()


def test_a_reader_that_is_killed_while_the_table_is_not_there_yet(table: Table) -> None:
    settings = table.settings()
    nowhere = replace(settings.connection, endpoint_url="http://127.0.0.1:9")
    with ReaderProcess(replace(settings, connection=nowhere), SHARDS) as reader:
        reader._send("exchange")
        children: list[psutil.Process] = []

        def started() -> bool:
            children[:] = psutil.Process(reader.process.pid).children()
            return bool(children)

        until(started)
        reader.process.kill()
        until(lambda: all(gone(child) for child in children))


# --- What cannot be used -------------------------------------------------------------------------


def test_a_table_of_another_shape(table: Table) -> None:
    table.behind.create_table(
        TableName=table.name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    agent = table.agent()
    with pytest.raises(LeaseTableError, match="a table with key"):
        agent.exchange(CREATE)
    assert agent.pid is None


class _Refusing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"__type":"x#AccessDeniedException","Message":"User: x is not authorized"}'
        self.send_response(400)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_missing_permission_is_the_error_that_names_it(table: Table) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        settings = table.settings()
        refusing = replace(
            settings.connection, endpoint_url=f"http://127.0.0.1:{server.server_address[1]}"
        )
        agent = table.keep(replace(settings, connection=refusing))
        with pytest.raises(AccessError, match="dynamodb:DescribeTable"):
            agent.exchange(CREATE)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_options_that_cannot_be_used(table: Table) -> None:
    settings = table.settings()
    wrong = replace(settings.connection, endpoint_url="nonsense")
    with pytest.raises(InvalidOptionsError, match="dynamodbEndpointUrl"):
        table.keep(replace(settings, connection=wrong)).exchange(CREATE)
