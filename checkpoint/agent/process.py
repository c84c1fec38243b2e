"""The keeper as a process: threads around the loop of `event_loop.py`, and its end.

Started by `client.py`. It ends by itself, always: when its pipe closes, when its parent is
gone (another process may have inherited the pipe), when it is told to (SIGTERM); and if giving back
the leases hangs, a watchdog ends it. SIGINT and SIGHUP, which a terminal sends to whole groups, are
ignored: the reader decides.

It has no port. Its standard output is the pipe to the reader; whatever else prints goes to standard
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final, NoReturn

from checkpoint.agent.event_loop import (
    SHUTDOWN_MS,
    Event,
    Job,
    JobFailed,
    LeaseAgent,
    Ports,
    ReaderExited,
    ReportReceived,
    WriteCompleted,
    run_guarded,
)
from checkpoint.agent.framing import FrameDecoder, encode_frame
from checkpoint.agent.settings import AgentSettings
from checkpoint.agent.tables import open_tables
from checkpoint.coordination.protocol import Report, Status
from ssp_common.errors import SspError
from ssp_common.logs import show_logs

_log = logging.getLogger(f"spark_ssp.{__name__}")

WATCHDOG_S: Final = SHUTDOWN_MS / 1000 + 2
"""After the reader has gone the process lives no longer than this, whatever happens."""
CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where there is one, a clock that goes on while the machine is suspended: others take the leases
meanwhile."""
_PARENT_CHECK_S: Final = 1.0
_WRITERS: Final = 16
_READERS: Final = 2
_GATHER_S: Final = 0.05
_CHUNK: Final = 1 << 16

Inbox = queue.SimpleQueue[Event]


def main() -> NoReturn:
    """The process, from the settings on its pipe to its end."""
    parent = os.getppid()
    answers = os.dup(1)
    os.dup2(2, 1)
    inbox: Inbox = queue.SimpleQueue()
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _begin_shutdown(inbox, "it was told to end"))
    show_logs()
    try:
        frames = FrameDecoder()
        settings = _read_settings(sys.stdin.buffer, frames, inbox)
        _start_thread(lambda: _listen(sys.stdin.buffer, frames, inbox))
        agent = LeaseAgent(settings, _ports(settings, inbox, _start_answer_writer(answers, inbox)))
        _serve(agent, inbox, parent)
    except BaseException:  # noqa: BLE001  told, and the process ends
        _log.exception("the keeper of leases has failed")
        _exit(1)
    _exit(0)


def _read_settings(pipe: BinaryIO, frames: FrameDecoder, inbox: Inbox) -> AgentSettings:
    """The settings. What came with them goes into the inbox."""
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
                raise TypeError(f"a keeper is told its settings first, not a {name}")


def _serve(agent: LeaseAgent, inbox: Inbox, parent: int) -> None:
    orphaned = False
    while (wake_at := agent.advance()) is not None:
        timeout_s = min(_PARENT_CHECK_S, max(0.0, (wake_at - monotonic_ms()) / 1000))
        _handle(agent, inbox, timeout_s)
        if os.getppid() != parent and not orphaned:
            orphaned = True
            _begin_shutdown(inbox, "the reader has gone")


def _handle(agent: LeaseAgent, inbox: Inbox, timeout_s: float) -> None:
    """What comes within so many seconds, and all that is there with it.

    With many writes under way, their outcomes are gathered for a while: the step that follows
    looks at every lease. Nothing else that happens waits for that.
    """
    wait, until = timeout_s, time.monotonic() + timeout_s + _GATHER_S
    while True:
        try:
            event = inbox.get(timeout=wait)
        except queue.Empty:
            return
        agent.handle(event)
        now = time.monotonic()
        until = min(until, now + _GATHER_S)
        gather = isinstance(event, WriteCompleted) and agent.writes_in_flight > _WRITERS
        wait = max(0.0, until - now) if gather else 0.0


def _begin_shutdown(inbox: Inbox, why: str) -> None:
    """Begin the end. Called by any thread, as often as it likes, and by signal handlers."""
    watchdog = threading.Timer(WATCHDOG_S, lambda: os._exit(1))
    watchdog.daemon = True
    watchdog.start()
    inbox.put(ReaderExited(why=why))


def _exit(code: int) -> NoReturn:
    """At once: threads that still wait for DynamoDB are not waited for."""
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def monotonic_ms() -> int:
    """Milliseconds that have passed since the machine was started."""
    return time.clock_gettime_ns(CLOCK) // 1_000_000


# --- Threads -------------------------------------------------------------------------------------


def _start_thread(function: Callable[[], None]) -> None:
    threading.Thread(target=function, daemon=True).start()


def _listen(pipe: BinaryIO, frames: FrameDecoder, inbox: Inbox) -> None:
    """Reports from the pipe into the inbox, until it closes."""
    try:
        while data := pipe.read1(_CHUNK):  # type: ignore[attr-defined]
            for value in frames.feed(data):
                inbox.put(_to_event(value))
    except Exception as error:  # noqa: BLE001  raised again by the loop
        inbox.put(JobFailed(error=error))
    else:
        _begin_shutdown(inbox, "its pipe was closed")


def _to_event(value: object) -> ReportReceived:
    if not isinstance(value, Report):
        raise TypeError(f"a keeper is told reports, not a {type(value).__name__}")
    return ReportReceived(report=value)


def _start_answer_writer(answers: int, inbox: Inbox) -> Callable[[Status | SspError], None]:
    """Answers are written by a thread: a reader that is stopped must not stop the renewals."""
    waiting: queue.SimpleQueue[Status | SspError] = queue.SimpleQueue()

    def speak() -> None:
        try:
            while True:
                data = memoryview(encode_frame(waiting.get()))
                while data:
                    data = data[os.write(answers, data) :]
        except OSError:
            _begin_shutdown(inbox, "nobody reads its answers")

    _start_thread(speak)
    return waiting.put


def _ports(
    settings: AgentSettings, inbox: Inbox, answer: Callable[[Status | SspError], None]
) -> Ports:
    writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="lease-writer")
    readers = ThreadPoolExecutor(_READERS, thread_name_prefix="lease-reader")

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
    """What comes of a job arrives in the inbox."""
