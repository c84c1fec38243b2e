"""Deregisters the consumers of a query at its end, from a process beside the driver.

Spark never stops a reader: it ends its process. So the reader starts this process, which waits for
that end. While it runs it holds a shared lock on each consumer; afterwards it deregisters those on
which no other query of this machine has a lock. A consumer that another query needs after all is
registered again by that query within a minute; until then the query polls, and no record is lost.

Queries with leases do not start it: their consumer is that of an application, and a worker of the
KCL whose consumer is deregistered treats its shards as ended.

A driver that is killed together with this process leaves its consumers behind: the next run of the
query uses them and deregisters them. `spark-ssp doctor` lists the consumers of a stream.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from spark_ssp.common.errors import SspError
from spark_ssp.common.file_lock import FileLock
from spark_ssp.common.helper_process import module_path, start_helper
from spark_ssp.common.logs import show_logs
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.values import ConnectionOptions

_log = logging.getLogger(__name__)

_READY: Final = b"ready\n"
_LOCK_TIMEOUT_S: Final = 30.0
"""The longest wait for a process that is deregistering the consumer."""
_READY_TIMEOUT_S: Final = 2 * _LOCK_TIMEOUT_S
_LOCK_POLL_S: Final = 0.1
_CHECK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """The consumer of a name in some streams. `endpoint` is the URL of their service. `watched` is
    the process whose end is the end of the query; None: the process that started the guard."""

    streams: tuple[StreamRef, ...]
    consumer_name: str
    connection: ConnectionOptions
    endpoint: str
    watched: int | None = None


class ConsumerGuard:
    """The process, which this one has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def close(self) -> None:
        """End the query. So does the end of this process, or that this object is dropped."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process. Raises subprocess.TimeoutExpired."""
        self._process.wait(seconds)


def start_guard(settings: GuardSettings) -> ConsumerGuard:
    """Start the process, and return once it holds its locks: before consumers are looked up."""
    process = start_helper(__name__)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(module_path() + pickle.dumps(settings))
    if not _is_ready(process):
        _log.warning(
            "the consumers %s of this query may not be deregistered at its end: the process for "
            "that has failed, see above",
            settings.consumer_name,
        )
    guard = ConsumerGuard(process)
    if settings.watched is not None:
        guard.close()  # its end would mean nothing
    return guard


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    with process.stdout as answers:
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        return bool(poll.poll(_READY_TIMEOUT_S * 1000)) and answers.readline() == _READY


def main() -> None:
    """Run the process: lock, wait for the end of the query, deregister."""
    show_logs()
    settings: GuardSettings = pickle.load(sys.stdin.buffer)  # noqa: S301 - from its parent
    only = _application_lock(settings)
    if only is not None and not only.acquire():
        _report_ready()  # an earlier read of this application has such a process
        return
    locks = {stream: _consumer_lock(settings, stream) for stream in settings.streams}
    if not all(_share(lock) for lock in locks.values()):
        _log.warning("consumer %s is being deregistered for too long", settings.consumer_name)
        return
    _report_ready()
    _wait_for_end(settings.watched, sys.stdin.buffer)
    try:
        _deregister([stream for stream, lock in locks.items() if lock.make_exclusive()], settings)
    except SspError as error:
        _log.warning("consumer %s could not be deregistered: %s", settings.consumer_name, error)
    for each in (*locks.values(), *([] if only is None else [only])):
        each.release()


def _report_ready() -> None:
    """Answer to the starting process, and let it close the pipe."""
    answers = os.dup(1)
    os.dup2(2, 1)
    # It may have ended already.
    with suppress(BrokenPipeError):
        os.write(answers, _READY)
    os.close(answers)


def _consumer_lock(settings: GuardSettings, stream: StreamRef) -> FileLock:
    key = (settings.endpoint, stream.name, settings.consumer_name)
    return FileLock(*key, suffix="consumer")


def _application_lock(settings: GuardSettings) -> FileLock | None:
    """Return the lock of the only process for a consumer of an application with batch reads; None
    for a streaming query."""
    if settings.watched is None:
        return None
    streams = (stream.name for stream in settings.streams)
    key = (str(settings.watched), settings.endpoint, settings.consumer_name, *streams)
    return FileLock(*key, suffix="application")


def _share(lock: FileLock) -> bool:
    """Wait while the consumer is being deregistered; return whether the lock is shared then."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while not lock.acquire(shared=True):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOCK_POLL_S)
    return True


def _wait_for_end(watched: int | None, pipe: IO[bytes]) -> None:
    if watched is None:
        while pipe.read(1):
            pass
        return
    while _is_alive(watched):
        time.sleep(_CHECK_S)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _deregister(streams: Sequence[StreamRef], settings: GuardSettings) -> None:
    from spark_ssp.kinesis_source.client.boto3_client import connect
    from spark_ssp.kinesis_source.fan_out.consumers import Boto3Consumers

    kinesis = connect(settings.connection)
    service = Boto3Consumers(kinesis)
    for stream in streams:
        arn = stream.arn or kinesis.describe(stream).arn
        known = StreamRef(name=stream.name, arn=arn)
        found = service.find(known, settings.consumer_name)
        if found is not None:
            service.deregister(known, found.arn)
            _log.info("deregistered consumer %s", found.arn)
