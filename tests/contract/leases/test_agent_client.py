"""The agent as its reader has it, over processes that stand in for it."""

from __future__ import annotations

import errno
import os
import pickle
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from spark_ssp.checkpoint.agent import client as agent_client
from spark_ssp.checkpoint.agent.client import (
    MAX_OPENING_S,
    MAX_RESTARTS,
    MAX_UNANSWERED,
    RESTART_WINDOW_S,
    AgentClient,
    opening_s,
)
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report
from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.lease import LeaseKey, LeaseTableError
from spark_ssp.checkpoint.leases.lease_store import TableSettings
from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from tests.support.leases.values import ANNE, lease
from tests.support.waiting import until

SETTINGS: Final = AgentSettings(
    application="orders",
    table=TableSettings(name="orders"),
    coordination=Settings(worker=ANNE),
    connection=ConnectionOptions(region="us-east-1"),
)

STAND_IN: Final = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from spark_ssp.checkpoint.coordination.protocol import Status
from spark_ssp.checkpoint.leases.lease import LeaseTableError
from spark_ssp.checkpoint.coordination.protocol import FrameDecoder, encode_frame
from dataclasses import replace

asked = 0
frames = FrameDecoder()
while data := sys.stdin.buffer.read1(1 << 16):
    for value in frames.feed(data):
        if type(value).__name__ == "AgentSettings":
            continue
        asked += 1
        answer = Status(
            held={}, asked_for=frozenset(), rows={lease.key: lease for lease in value.create},
            outage_ms=asked, released=value.leave, problem=None,
        )
        %s
        sys.stdout.buffer.write(encode_frame(answer))
        sys.stdout.buffer.flush()
"""
"""Answers with what it was asked, and with how often."""


def stand_in(line: str = "pass") -> Callable[[], subprocess.Popen[bytes]]:
    """An agent that does `line` before it answers."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", STAND_IN % line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    return start


Start = Callable[[], "subprocess.Popen[bytes]"]


class Clients:
    """Makes clients, and closes them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._made: list[AgentClient] = []

    def __call__(self, start: Start) -> AgentClient:
        client = AgentClient(SETTINGS, start=start, monotonic=lambda: self.now)
        self._made.append(client)
        return client

    def close(self) -> None:
        for client in self._made:
            client.close()


@pytest.fixture
def make() -> Iterator[Clients]:
    before = set(psutil.Process().children())
    clients = Clients()
    yield clients
    clients.close()
    assert set(psutil.Process().children()) <= before


def replaced(client: AgentClient, old: int) -> int:
    """Waits for another process than `old`."""
    until(lambda: client.pid not in (None, old), "the process is replaced")
    assert client.pid is not None
    return client.pid


# --- Asking --------------------------------------------------------------------------------------


def test_reports_are_answered_in_turn_by_one_process(make: Clients) -> None:
    client = make(stand_in())
    assert client.pid is None
    for number in range(1, 4):
        status = client.exchange(Report(create=(lease(),), leave=True))
        assert (status.outage_ms, list(status.rows), status.released) == (
            number,
            [lease().key],
            True,
        )


def test_a_report_of_many_megabytes_arrives(make: Clients) -> None:
    many = tuple(
        lease(f"shardId-{number:012d}", extra_attributes={"x": {"S": "x" * 5_000}})
        for number in range(1_000)
    )
    status = make(stand_in()).exchange(Report(create=many))
    assert tuple(status.rows.values()) == many


def test_an_error_of_the_agent_is_raised_as_it_is_and_the_next_exchange_begins_anew(
    make: Clients, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    client = make(
        stand_in(
            f"""
        import os
        if not os.path.exists({str(mended)!r}):
            answer = LeaseTableError("table x", found="a", expected="b", next_step="c")
        """
        )
    )
    for _ in range(MAX_RESTARTS + 2):
        with pytest.raises(LeaseTableError, match="table x: found a"):
            client.exchange(Report())
        assert client.pid is None
    mended.touch()
    assert client.exchange(Report()).outage_ms == 1


# --- Losing it -----------------------------------------------------------------------------------


def test_an_agent_that_dies_between_exchanges_is_replaced_at_once_and_gets_the_last_report(
    make: Clients, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the leases to create, which may have been finished and deleted since, and with the
    listing as an old one."""
    reported = tmp_path / "reported"
    client = make(
        stand_in(
            f"""
        with open({str(reported)!r}, "a") as file:
            print(len(value.create), value.listed_before, file=file)
        """
        )
    )
    client.exchange(Report(create=(lease(),), listed=frozenset({lease().key})))
    assert client.pid is not None
    first = client.pid
    os.kill(first, signal.SIGKILL)
    replaced(client, first)
    assert not psutil.pid_exists(first)  # not even as a zombie
    # It was told the last report before, by the thread that reaps.
    assert client.exchange(Report()).outage_ms == 2
    assert reported.read_text().splitlines() == ["1 False", "0 True", "0 False"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "status -9" in caplog.text


def refused(folder: Path, started: str) -> Start:
    """An agent whose table does not answer if the number of files in the folder is as `started`."""
    return stand_in(
        f"""
        import os
        if len(os.listdir({str(folder)!r})) {started}:
            answer = LeaseTableError("table x", found="a", expected="b", next_step="c")
        """
    )


def test_a_restart_that_fails_while_the_reader_is_busy_is_logged_and_repeated(
    make: Clients, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table does not answer the second agent, and the third does not start."""
    monkeypatch.setattr(agent_client, "RETRY_PAUSE_S", 0.01)
    agent = refused(tmp_path, "== 2")

    def start() -> subprocess.Popen[bytes]:
        (tmp_path / str(len(os.listdir(tmp_path)))).touch()
        if len(os.listdir(tmp_path)) == 3:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return agent()

    client = make(start)
    client.exchange(Report())
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    until(lambda: len(os.listdir(tmp_path)) == 4, "the fourth is started")
    assert client.exchange(Report()).outage_ms == 2
    failed = [record for record in caplog.records if "could not restart" in record.getMessage()]
    assert [type(error) for record in failed for error in record.args or ()] == [
        LeaseTableError,
        ServiceUnavailableError,
    ]
    assert len(os.listdir(tmp_path)) == 4


def test_a_failed_restart_is_not_repeated_after_the_reader_has_met_the_error(
    make: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "RETRY_PAUSE_S", 1.0)
    agent = refused(tmp_path, "> 1")

    def start() -> subprocess.Popen[bytes]:
        (tmp_path / str(len(os.listdir(tmp_path)))).touch()
        return agent()

    client = make(start)
    client.exchange(Report())
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    until(lambda: len(os.listdir(tmp_path)) == 2, "the second is started")
    with pytest.raises(LeaseTableError):
        client.exchange(Report())
    started = len(os.listdir(tmp_path))
    for watcher in client._watchers:
        watcher.join(10)
        assert not watcher.is_alive()
    assert len(os.listdir(tmp_path)) == started


def test_a_new_agent_gets_the_last_listing(make: Clients) -> None:
    """A reader says it only when it changes. An error ends the agent as well."""
    client = make(
        stand_in(
            """
        answer = LeaseTableError("told", found=str(sorted(value.listed or ())), expected="b",
                                 next_step=str(value.listed_before))
        """
        )
    )
    listed = frozenset({LeaseKey("a"), LeaseKey("b")})
    told = [Report(), Report(listed=listed), Report(), Report(listed=frozenset())]
    found = []
    for report in told:
        with pytest.raises(LeaseTableError) as caught:
            client.exchange(report)
        found.append((caught.value.found, caught.value.next_step))
    assert found == [
        ("[]", "False"),
        ("['a', 'b']", "False"),
        ("['a', 'b']", "True"),
        ("[]", "False"),
    ]


def test_an_agent_that_lives_does_not_get_a_report_again(make: Clients) -> None:
    client = make(stand_in("answer = replace(answer, released=value.listed is not None)"))
    assert client.exchange(Report(listed=frozenset({LeaseKey("a")}))).released
    assert not client.exchange(Report()).released


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(
    make: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may interrupt an exchange between the question and the answer."""
    client = make(stand_in())
    client.exchange(Report())
    wait = agent_client._wait

    def interrupted(pipe: int, event: int, deadline: float) -> None:
        wait(pipe, event, deadline)
        if event == select.POLLIN:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(agent_client, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.exchange(Report())
    assert client.pid is None
    assert client.exchange(Report(create=(lease(),))).rows == {lease().key: lease()}


def test_an_agent_that_dies_during_an_exchange_is_replaced_and_asked_again(
    make: Clients, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "died"
    client = make(
        stand_in(
            f"""
        import os
        if not os.path.exists({str(mark)!r}):
            open({str(mark)!r}, "w").close()
            os._exit(3)
        """
        )
    )
    assert client.exchange(Report(create=(lease(),))).rows == {lease().key: lease()}
    assert "starting another" in caplog.text


def test_an_agent_that_dies_again_and_again_is_an_error(make: Clients) -> None:
    started: list[int] = []

    def start() -> subprocess.Popen[bytes]:
        process = stand_in("sys.exit(5)")()
        started.append(process.pid)
        return process

    client = make(start)
    with pytest.raises(ServiceUnavailableError, match="lease agent"):
        client.exchange(Report())
    assert len(started) == MAX_UNANSWERED
    with pytest.raises(ServiceUnavailableError):
        client.exchange(Report())
    assert len(started) == MAX_RESTARTS + 1
    make.now += RESTART_WINDOW_S + 1
    with pytest.raises(ServiceUnavailableError):
        client.exchange(Report())
    assert len(started) == MAX_RESTARTS + 1 + MAX_UNANSWERED


HANGS = """
        while True:
            __import__("time").sleep(60)
"""


def test_agents_that_live_and_never_answer_are_an_error_however_long_they_take(
    make: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes longer to be given up than losses are counted for."""
    monkeypatch.setattr(agent_client, "ANSWER_TIMEOUT_S", 0.3)
    started: list[int] = []

    def start() -> subprocess.Popen[bytes]:
        make.now += RESTART_WINDOW_S + 1
        process = stand_in(HANGS)()
        started.append(process.pid)
        return process

    settings = replace(
        SETTINGS,
        table=replace(SETTINGS.table, wait_s=0),
        connection=replace(
            SETTINGS.connection, retry_max_attempts=1, connect_timeout_ms=100, read_timeout_ms=100
        ),
    )
    client = AgentClient(settings, start=start, monotonic=lambda: make.now)
    with pytest.raises(ServiceUnavailableError, match="no answer from 3 processes in a row"):
        client.exchange(Report())
    assert len(started) == MAX_UNANSWERED
    client.close()


@pytest.mark.parametrize(
    ("attempts", "longest"), [(1, SETTINGS.table.wait_s), (50, 2_490), (100, MAX_OPENING_S)]
)
def test_an_agent_may_open_its_table_for_as_long_as_the_table_or_a_call_may_take(
    attempts: int, longest: float
) -> None:
    """Not for both, one after the other, nor for the days that options permit."""
    connection = replace(SETTINGS.connection, retry_max_attempts=attempts)
    assert opening_s(replace(SETTINGS, connection=connection)) == longest


def test_an_error_after_all_permitted_retries_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "ANSWER_TIMEOUT_S", 0.3)
    line = """
        __import__("time").sleep(1)
        answer = LeaseTableError("table x", found="a", expected="b", next_step="c")
        """
    settings = replace(
        SETTINGS,
        table=replace(SETTINGS.table, wait_s=0),
        connection=replace(SETTINGS.connection, retry_max_attempts=30, read_timeout_ms=1_000),
    )
    client = AgentClient(settings, start=stand_in(line))
    with pytest.raises(LeaseTableError):
        client.exchange(Report())
    client.close()


def test_any_answer_forgives_what_came_before(make: Clients, tmp_path: Path) -> None:
    client = make(
        stand_in(
            f"""
        import os
        marks = {str(tmp_path)!r}
        before = len(os.listdir(marks))
        open(os.path.join(marks, str(before)), "w").close()
        if before % 3 != 2:
            os._exit(3)
        answer = LeaseTableError("table x", found="a", expected="b", next_step="c")
        """
        )
    )
    for _ in range(2):
        make.now += RESTART_WINDOW_S + 1
        with pytest.raises(LeaseTableError):
            client.exchange(Report())


def test_closing_does_not_wait_for_an_answer_that_never_comes(
    make: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The thread that reaps has started another agent, and waits for it."""
    monkeypatch.setattr(agent_client, "SHUTDOWN_TIMEOUT_S", 0.2)
    mark = tmp_path / "answered"
    client = make(
        stand_in(
            f"""
        import os, time
        while os.path.exists({str(mark)!r}):
            time.sleep(60)
        open({str(mark)!r}, "w").close()
        """
        )
    )
    client.exchange(Report())
    first = client.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    second = replaced(client, first)
    client.close()
    assert not psutil.pid_exists(second)


def test_a_process_that_cannot_be_started_is_an_error_that_says_so(make: Clients) -> None:
    def start() -> subprocess.Popen[bytes]:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with pytest.raises(ServiceUnavailableError, match="Cannot allocate memory"):
        make(start).exchange(Report())


# --- The end -------------------------------------------------------------------------------------


def test_closing_waits_for_the_end_and_leaves_no_zombie(make: Clients) -> None:
    client = make(stand_in())
    client.exchange(Report())
    pid = client.pid
    assert pid is not None
    client.close()
    assert not psutil.pid_exists(pid)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.exchange(Report())


def test_closing_one_that_was_never_asked_starts_nothing(make: Clients) -> None:
    def start() -> subprocess.Popen[bytes]:
        raise AssertionError("started")

    make(start).close()


def test_an_agent_that_does_not_end_is_ended(
    make: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "SHUTDOWN_TIMEOUT_S", 0.1)
    client = make(
        stand_in(
            """
        sys.stdout.buffer.write(encode_frame(answer))
        sys.stdout.buffer.flush()
        while True:
            __import__("time").sleep(60)
        """
        )
    )
    client.exchange(Report())
    pid = client.pid
    assert pid is not None
    client.close()
    assert not psutil.pid_exists(pid)


# --- Processes -----------------------------------------------------------------------------------


def test_a_client_is_not_pickled(make: Clients) -> None:
    with pytest.raises(TypeError, match="agent"):
        pickle.dumps(make(stand_in()))


def test_a_fork_neither_asks_nor_holds_the_pipes(make: Clients) -> None:
    """A Python that serves others by forking may be the reader's parent or, after it, its child."""
    client = make(stand_in())
    client.exchange(Report())
    pid = client.pid
    assert pid is not None
    told_read, told_write = os.pipe()
    wait_read, wait_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        fork = os.fork()
    if fork == 0:
        os.close(wait_write)
        try:
            client.exchange(Report())
        except RuntimeError:
            os.write(told_write, b"refused")
        os.read(wait_read, 1)
        os._exit(0)
    os.close(told_write)
    try:
        assert os.read(told_read, 100) == b"refused"
        assert client.exchange(Report()).outage_ms == 2
        client.close()  # ends though the fork lives
        assert not psutil.pid_exists(pid)
    finally:
        for pipe in (wait_write, wait_read, told_read):
            os.close(pipe)
        os.waitpid(fork, 0)
