"""The reader's side of the lease agent: starts its process, exchanges messages, restarts and ends
it.

The process runs this Python with this `sys.path`, in its own session. The settings, which include
credentials, are passed only through its standard input. A thread waits for the process; if it dies
while the reader is busy, the thread starts another with the last report, and repeats that if it
fails, so that the leases are renewed before they expire.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import IO, Final, NoReturn

from spark_ssp.checkpoint.coordination.protocol import (
    AgentSettings,
    FrameDecoder,
    LeaseClient,
    Report,
    Status,
    StatusChange,
    apply_change,
    encode_frame,
)
from spark_ssp.checkpoint.leases.lease import Lease, LeaseKey
from spark_ssp.common.aws.service_calls import longest_call_s
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.local_processes import module_path, start_helper
from spark_ssp.common.times import seconds_text

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 60.0
"""Time for a live agent to answer, on top of the longer of the time to prepare the table and that
of the retries of a call that fails: its error says what is wrong."""
MAX_OPENING_S: Final = 3600.0
"""Maximum of that longer time."""
SHUTDOWN_TIMEOUT_S: Final = 10.0
"""Time for an agent to exit. Its own watchdog is faster."""
MAX_RESTARTS: Final = 3
RESTART_WINDOW_S: Final = 60.0
"""Window in which at most `MAX_RESTARTS` restarts are allowed."""
RETRY_PAUSE_S: Final = 2.0
"""Time after a restart that failed while the reader is busy. Each further one takes twice as long,
up to `MAX_RETRY_PAUSE_S`."""
MAX_RETRY_PAUSE_S: Final = 60.0
MAX_UNANSWERED: Final = 3
"""Maximum number of consecutive agents without any answer, however long they take."""

_CHUNK: Final = 1 << 16

Starter = Callable[[], "subprocess.Popen[bytes]"]


class _LostError(Exception):
    """The agent process ended, or did not answer in time."""


def start_agent(settings: AgentSettings) -> LeaseClient:
    """Return a client of a new lease agent. The first exchange starts the process."""
    return AgentClient(settings)


def start_process() -> subprocess.Popen[bytes]:
    """Start a Python process that waits for its `sys.path`, then for its settings."""
    return start_helper("spark_ssp.checkpoint.agent.process")


def opening_s(settings: AgentSettings) -> float:
    """Return the time in which a new agent opens its table, or has an error that says why not."""
    needed_s = max(settings.table.wait_s, longest_call_s(settings.connection))
    return min(needed_s, MAX_OPENING_S)


class _AgentProcess:
    """An agent process and its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], settings: AgentSettings) -> None:
        self.process = process
        self._frames = FrameDecoder()
        self._rows: Mapping[LeaseKey, Lease] | None = None
        """Those of the last answer, which the next one changes. The first answer is whole."""
        self._unsent = module_path() + encode_frame(settings)
        self._timeout_s = opening_s(settings) + ANSWER_TIMEOUT_S

    @property
    def has_answered(self) -> bool:
        """Return whether the process has answered a report."""
        return not self._unsent

    def exchange(self, report: Report) -> Status | SspError:
        """Send a report and return the answer. Raises `_LostError` if there is none in time."""
        deadline = time.monotonic() + self._timeout_s
        try:
            self._send(self._unsent + encode_frame(report), deadline)
            answer = self._receive(deadline)
            self._unsent, self._timeout_s = b"", ANSWER_TIMEOUT_S
            return answer
        except OSError as error:
            raise _LostError(type(error).__name__) from None

    def _send(self, data: bytes, deadline: float) -> None:
        pipe = _fileno(self.process.stdin)
        os.set_blocking(pipe, False)
        rest = memoryview(data)
        while rest:
            _wait(pipe, select.POLLOUT, deadline)
            rest = rest[os.write(pipe, rest[:_CHUNK]) :]

    def _receive(self, deadline: float) -> Status | SspError:
        pipe = _fileno(self.process.stdout)
        while True:
            _wait(pipe, select.POLLIN, deadline)
            data = os.read(pipe, _CHUNK)
            if not data:
                raise _LostError("it closed its pipe")
            for value in self._frames.feed(data):
                if isinstance(value, SspError):
                    return value
                if isinstance(value, StatusChange) and self._rows is not None:
                    value = apply_change(self._rows, value)
                if isinstance(value, Status):
                    self._rows = value.rows
                    return value
                raise TypeError(f"an agent answers with a status, not {type(value).__name__}")

    def close(self) -> None:
        """Close the pipes, at which the process exits."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _fileno(pipe: IO[bytes] | None) -> int:
    if pipe is None or pipe.closed:
        raise _LostError("its pipe is closed")
    return pipe.fileno()


def _wait(pipe: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _LostError("it did not answer in time")


class AgentClient:
    """`LeaseClient` with an agent process. Cannot be pickled or used in a fork."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        start: Starter = start_process,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._start = start
        self._monotonic = monotonic
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._running: _AgentProcess | None = None
        self._watchers: list[threading.Thread] = []
        self._last: Report | None = None
        self._lost_at: deque[float] = deque()
        self._listed: frozenset[LeaseKey] | None = None
        self._unanswered = 0
        self._restarts = 0
        self._closed = threading.Event()
        _clients.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lease agent belongs to the process that started it")

    @property
    def pid(self) -> int | None:
        """The agent's process id while it runs."""
        running = self._running
        return None if running is None else running.process.pid

    # --- LeaseClient -----------------------------------------------------------------------------

    @property
    def restarts(self) -> int:
        """The number of agent processes that were lost and replaced."""
        return self._restarts

    def exchange(self, report: Report) -> Status:
        """Exchange messages. ServiceUnavailableError if the agent dies repeatedly."""
        if os.getpid() != self._owner:
            raise RuntimeError("a lease agent answers only the process that started it, not a fork")
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the client of the lease agent is closed")
            answer = self._send_report(report)
        if isinstance(answer, SspError):
            raise answer
        return answer

    def close(self) -> None:
        """Close the pipes and wait, within limits, until the process has exited."""
        if os.getpid() != self._owner:
            return
        self._closed.set()
        while not self._lock.acquire(timeout=SHUTDOWN_TIMEOUT_S):
            # The watcher thread is waiting for an answer to the last report.
            if (waiting := self._running) is not None:
                waiting.process.kill()
        try:
            running = self._running
            self._close_pipes()
        finally:
            self._lock.release()
        for watcher in self._watchers:
            watcher.join(SHUTDOWN_TIMEOUT_S)
            if watcher.is_alive() and running is not None:
                running.process.kill()
                watcher.join(SHUTDOWN_TIMEOUT_S)
        _clients.discard(self)

    # --- Under the lock --------------------------------------------------------------------------

    def _send_report(self, report: Report) -> Status | SspError:
        self._last = report
        if report.listed is not None:
            self._listed = report.listed
        while True:
            running = self._running or self._start_process()
            try:
                answer = running.exchange(
                    report if running.has_answered else self._with_listed(report)
                )
            except _LostError as lost:
                self._unanswered += 1
                self._discard(running, str(lost))
                continue
            except BaseException:
                # Interrupted: the rest of this answer would be read as the next one.
                self._close_pipes()
                raise
            self._unanswered = 0
            if isinstance(answer, SspError):
                self._close_pipes()
            return answer

    def _with_listed(self, report: Report) -> Report:
        """Return the report with the last `listed`, which readers send only when it changes."""
        if report.listed is not None or self._listed is None:
            return report
        return replace(report, listed=self._listed, listed_before=True)

    def _start_process(self) -> _AgentProcess:
        try:
            process = self._start()
        except OSError as error:
            raise ServiceUnavailableError(
                "the lease agent",
                found=f"a process that cannot start ({type(error).__name__}: {error.strerror})",
                expected=f"a process of {sys.executable}",
                next_step="check whether the driver's machine is short of memory or processes",
            ) from error
        running = _AgentProcess(process, self._settings)
        self._running = running
        watcher = threading.Thread(target=self._watch, args=(running,), daemon=True)
        self._watchers = [thread for thread in self._watchers if thread.is_alive()] + [watcher]
        watcher.start()
        return running

    def _close_pipes(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _discard(self, running: _AgentProcess, why: str) -> None:
        """Kill a lost agent. Raises ServiceUnavailableError if too many were lost."""
        running.process.kill()
        self._close_pipes()
        now = self._monotonic()
        self._lost_at.append(now)
        while now - self._lost_at[0] > RESTART_WINDOW_S:
            self._lost_at.popleft()
        unanswered = self._unanswered
        if len(self._lost_at) > MAX_RESTARTS:
            self._unanswered = 0
            raise _gave_up(
                f"a process that ended {len(self._lost_at)} times in "
                f"{seconds_text(RESTART_WINDOW_S)}",
                why,
            )
        if unanswered >= MAX_UNANSWERED:
            self._unanswered = 0
            raise _gave_up(f"no answer from {unanswered} processes in a row", why)
        if self._closed.is_set():
            raise _gave_up("a process that ended while its client was closed", why)
        self._restarts += 1
        _log.warning("lost the lease agent (%s); starting another", why)

    # --- The watcher thread ----------------------------------------------------------------------

    def _watch(self, running: _AgentProcess) -> None:
        """Replace the process if it is lost, and repeat that if it fails, until the reader's next
        exchange, which meets the same error and raises it."""
        status = running.process.wait()
        with self._lock:
            if self._running is not running or self._closed.is_set():
                return
            last = self._restart(running, f"it ended with status {status}")
        if last is not None:
            self._repeat_restart(last)

    def _repeat_restart(self, last: Report) -> None:
        pause_s = RETRY_PAUSE_S
        while not self._closed.wait(pause_s):
            pause_s = min(2 * pause_s, MAX_RETRY_PAUSE_S)
            with self._lock:
                if self._last is not last or self._running is not None or self._closed.is_set():
                    return
                failed = self._restart()
            if failed is None:
                return
            last = failed

    def _restart(self, lost: _AgentProcess | None = None, why: str = "") -> Report | None:
        """Start another process with the last report. Return the report if that fails."""
        try:
            if lost is not None:
                self._discard(lost, why)
            if self._last is None:
                return None
            # Another worker may have ended and deleted the shards of rows that were to be created
            # then. The reader's next report repeats those that are still missing.
            answer = self._send_report(replace(self._last, create=(), listed_before=True))
        except SspError as error:
            answer = error
        if not isinstance(answer, SspError):
            return None
        _log.warning("could not restart the lease agent: %s", answer)
        return self._last


def _gave_up(found: str, why: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "the lease agent",
        found=f"{found} (last: {why})",
        expected="a process that renews the leases while the query runs",
        next_step="check its lines in the driver's log, and whether the machine is short of memory",
    )


_clients: weakref.WeakSet[AgentClient] = weakref.WeakSet()


def _close_pipes_in_fork() -> None:
    """Close the pipes in a fork: while they are open there, an agent does not detect its reader's
    exit."""
    for client in list(_clients):
        if client._running is not None:
            client._running.close()


os.register_at_fork(after_in_child=_close_pipes_in_fork)
