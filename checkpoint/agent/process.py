"""The lease agent's process: threads around the event loop, and its shutdown.

`client.py` starts it. It always exits by itself: when its pipe closes, when its parent is gone
(another process may have inherited the pipe), or on SIGTERM; if releasing the leases hangs, a
watchdog ends it. It ignores SIGINT and SIGHUP, which a terminal sends to whole process groups.

It has no port. Its standard output is the pipe to the reader; all other output goes to standard
error, which is the driver's.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import BinaryIO, Final, NoReturn

from spark_ssp.checkpoint.agent.event_loop import (
    SHUTDOWN_MS,
    Event,
    Job,
    JobFailed,
    LeaseAgent,
    Ports,
    ReaderExited,
    ReportReceived,
    TableOpened,
    WritesCompleted,
    run_guarded,
)
from spark_ssp.checkpoint.coordination.protocol import (
    AgentSettings,
    FrameDecoder,
    Report,
    Status,
    encode_frame,
    to_change,
)
from spark_ssp.checkpoint.leases.kcl_tables import connect_tables
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.common.aws.service_calls import RetrySettings, retry_settings
from spark_ssp.common.errors import SspError
from spark_ssp.common.logs import show_logs
from spark_ssp.common.options.endpoints import ConnectionOptions

_log = logging.getLogger(__name__)

WATCHDOG_S: Final = SHUTDOWN_MS / 1000 + 2
"""The maximum lifetime of the process after its reader has exited."""
CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that advances while the machine is suspended, if there is one: other workers take the
leases during that time."""
_PARENT_CHECK_S: Final = 1.0
WRITERS: Final = 16
"""Threads for writes."""
READERS: Final = 2
"""Threads for scans."""
GATHER_S: Final = 0.05
"""The time for which the results of many writes are gathered."""
_CHUNK: Final = 1 << 16

Inbox = queue.SimpleQueue[Event]


def main() -> NoReturn:
    """Run the process, from the settings on its pipe to its exit."""
    parent = os.getppid()
    answers = os.dup(1)
    os.dup2(2, 1)
    inbox: Inbox = queue.SimpleQueue()
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _begin_shutdown(inbox, "SIGTERM received"))
    show_logs()
    try:
        frames = FrameDecoder()
        settings = _read_settings(sys.stdin.buffer, frames, inbox)
        _start_thread(lambda: _listen(sys.stdin.buffer, frames, inbox))
        agent = LeaseAgent(settings, _ports(settings, inbox, _start_answer_writer(answers, inbox)))
        _serve(agent, inbox, parent)
    except BaseException:  # noqa: BLE001  logged, and the process exits
        _log.exception("the lease agent failed")
        _exit(1)
    _exit(0)


def _read_settings(pipe: BinaryIO, frames: FrameDecoder, inbox: Inbox) -> AgentSettings:
    """Return the settings. Reports that arrived with them go to the inbox."""
    while True:
        data = pipe.read1(_CHUNK)  # type: ignore[attr-defined]
        if not data:
            _exit(0)
        match frames.feed(data):
            case [AgentSettings() as settings, *others]:
                for value in others:
                    inbox.put(_to_event(value))
                return settings
            case [value, *_]:
                name = type(value).__name__
                raise TypeError(f"a lease agent receives its settings first, not a {name}")


def _serve(agent: LeaseAgent, inbox: Inbox, parent: int) -> None:
    orphaned = False
    while (wake_at := agent.advance()) is not None:
        timeout_s = min(_PARENT_CHECK_S, max(0.0, (wake_at - monotonic_ms()) / 1000))
        _handle(agent, inbox, timeout_s)
        if os.getppid() != parent and not orphaned:
            orphaned = True
            _begin_shutdown(inbox, "the reader has exited")


def _handle(agent: LeaseAgent, inbox: Inbox, timeout_s: float) -> None:
    """Handle the next event that arrives within the timeout, and all events that are queued then.
    With many writes in flight, their results are gathered for a short time, because they are
    applied together, and writes that begin together form larger batches. No other event waits for
    that."""
    wait, until = timeout_s, time.monotonic() + timeout_s + GATHER_S
    while True:
        try:
            event = inbox.get(timeout=wait)
        except queue.Empty:
            return
        agent.handle(event)
        now = time.monotonic()
        until = min(until, now + GATHER_S)
        gather = isinstance(event, WritesCompleted) and agent.writes_in_flight > WRITERS
        wait = max(0.0, until - now) if gather else 0.0


def _begin_shutdown(inbox: Inbox, why: str) -> None:
    """Start shutdown. Idempotent, thread-safe and signal-safe."""
    watchdog = threading.Timer(WATCHDOG_S, lambda: os._exit(1))
    watchdog.daemon = True
    watchdog.start()
    inbox.put(ReaderExited(why=why))


def _exit(code: int) -> NoReturn:
    """Exit at once, without waiting for threads that wait for DynamoDB."""
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def monotonic_ms() -> int:
    """Return the milliseconds since the machine was started."""
    return time.clock_gettime_ns(CLOCK) // 1_000_000


# --- Threads -------------------------------------------------------------------------------------


def _start_thread(function: Callable[[], None]) -> None:
    threading.Thread(target=function, daemon=True).start()


def _listen(pipe: BinaryIO, frames: FrameDecoder, inbox: Inbox) -> None:
    """Put reports from the pipe into the inbox until it closes."""
    try:
        while data := pipe.read1(_CHUNK):  # type: ignore[attr-defined]
            for value in frames.feed(data):
                inbox.put(_to_event(value))
    except Exception as error:  # noqa: BLE001  raised again by the loop
        inbox.put(JobFailed(error=error))
    else:
        _begin_shutdown(inbox, "the query has ended")


def _to_event(value: object) -> ReportReceived:
    if not isinstance(value, Report):
        raise TypeError(f"a lease agent receives reports, not a {type(value).__name__}")
    return ReportReceived(report=value)


def _start_answer_writer(answers: int, inbox: Inbox) -> Callable[[Status | SspError], None]:
    """Return a function that queues answers for a writer thread, so that a stopped reader does not
    stop the renewals."""
    waiting: queue.SimpleQueue[Status | SspError] = queue.SimpleQueue()

    def speak() -> None:
        rows: Mapping[LeaseKey, Lease] | None = None
        try:
            while True:
                answer = waiting.get()
                sent: object = answer
                if isinstance(answer, Status):
                    sent = answer if rows is None else to_change(rows, answer)
                    rows = answer.rows
                data = memoryview(encode_frame(sent))
                while data:
                    data = data[os.write(answers, data) :]
        except OSError:
            _begin_shutdown(inbox, "the answers are no longer read")

    _start_thread(speak)
    return waiting.put


def _ports(
    settings: AgentSettings, inbox: Inbox, answer: Callable[[Status | SspError], None]
) -> Ports:
    writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="lease-writer")
    readers = ThreadPoolExecutor(READERS, thread_name_prefix="lease-reader")

    def on(pool: ThreadPoolExecutor) -> Callable[[Job], None]:
        return lambda job: _ignore_future(pool.submit(lambda: inbox.put(run_guarded(job))))

    return Ports(
        open=lambda: open_tables(settings),
        write=on(writers),
        read=on(readers),
        answer=answer,
        monotonic=monotonic_ms,
        wall=lambda: int(time.time()),
        random=random.random,
    )


def _ignore_future(_: object) -> None:
    """Ignore the future: the job's result arrives in the inbox."""


# --- The tables -----------------------------------------------------------------------------------


def open_tables(settings: AgentSettings) -> TableOpened:
    """Create the lease table if absent and scan it with the user's retry settings; return stores
    with short timeouts. Raises SspError."""
    connection = settings.connection
    application, table = settings.application, settings.table
    patient, patient_kcl = connect_tables(
        application, table, connection, retry_settings(connection)
    )
    patient.prepare()
    rows = patient.scan()
    kcl_rows = patient_kcl.read(rows)
    patient.close()
    hurried, retry = with_short_timeouts(connection, settings.coordination.failover_ms)
    store, kcl = connect_tables(application, table, hurried, retry)
    return TableOpened(store=store, kcl=kcl, rows=rows, kcl_rows=kcl_rows)


_ATTEMPTS: Final = 2
_CONNECT, _READ, _BACKOFF = 0.2, 0.25, 0.1
"""Shares of a call's time: 2 x (0.2 + 0.25) + 0.1 = 1."""
SHORTEST_MS: Final = 500
"""The minimum timeout: a healthy DynamoDB may need some hundred milliseconds, above all for a new
connection."""


def with_short_timeouts(
    connection: ConnectionOptions, failover_ms: int
) -> tuple[ConnectionOptions, RetrySettings]:
    """Return connection and retry settings under which a call takes at most a third of the failover
    time.

    Failover times below 7.5 s get the minimum timeouts instead. A renewal is due that often, and
    the coordinator repeats a failed one while the lease lasts: a longer call would only delay that.
    """
    budget = failover_ms / 3
    retry = RetrySettings(
        max_attempts=min(_ATTEMPTS, connection.retry_max_attempts),
        max_backoff=min(connection.retry_max_backoff_ms, budget * _BACKOFF) / 1000,
    )
    hurried = replace(
        connection,
        connect_timeout_ms=min(
            connection.connect_timeout_ms, max(SHORTEST_MS, int(budget * _CONNECT))
        ),
        read_timeout_ms=min(connection.read_timeout_ms, max(SHORTEST_MS, int(budget * _READ))),
    )
    return hurried, retry
