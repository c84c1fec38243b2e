"""Deregisters the consumers of a query at its end, from a process beside the driver.

Spark never stops a reader: it ends its process. So the reader starts this process, which waits for
that end. While it runs it holds a shared lock on each consumer; afterwards it deregisters those on
which no other query of this machine has a lock, unless another worker of the application owns a
lease. A consumer that another query needs after all is registered again by that query within a
minute; until then the query polls, and no record is lost.

A driver that is killed together with this process leaves its consumers behind: the next run of the
query uses them and deregisters them. `spark-ssp doctor` lists the consumers of a stream.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Final

from kinesis_source.model.shard import StreamRef
from kinesis_source.options.values import ConnectionOptions, LeaseOptions
from ssp_common.errors import SspError
from ssp_common.logs import show_logs
from ssp_common.private_folder import make_private, private_folder

_log = logging.getLogger(f"spark_ssp.{__name__}")

_PROGRAM: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from kinesis_source.fan_out.consumer_guard import main; main()"
)
_READY: Final = b"ready\n"
_CHECK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """The consumer of a name in some streams. `watched` is the process whose end is the end of the
    query; None: the process that started the guard. `leases` with the id of the query's worker,
    if the query shares its shards."""

    streams: tuple[StreamRef, ...]
    consumer_name: str
    connection: ConnectionOptions
    leases: LeaseOptions | None = None
    worker: str | None = None
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
    # -P: nothing is imported from the working directory before `sys.path` is received.
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    path = [os.path.abspath(entry or os.curdir) for entry in sys.path]
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(pickle.dumps(path) + pickle.dumps(settings))
        process.stdin.flush()
    if process.stdout.readline() != _READY:
        _log.warning(
            "the consumers %s of this query will not be deregistered at its end: the process for "
            "that has failed, see above",
            settings.consumer_name,
        )
    process.stdout.close()
    return ConsumerGuard(process)


def main() -> None:
    """Run the process: lock, wait for the end of the query, deregister."""
    show_logs()
    settings: GuardSettings = pickle.load(sys.stdin.buffer)  # noqa: S301 - from its parent
    locks = {stream: ConsumerLock(settings, stream) for stream in settings.streams}
    for lock in locks.values():
        lock.share()
    answers = os.dup(1)
    os.dup2(2, 1)
    os.write(answers, _READY)
    os.close(answers)
    _wait_for_end(settings.watched, sys.stdin.buffer)
    try:
        if not _has_other_workers(settings):
            _deregister([stream for stream, lock in locks.items() if lock.claim()], settings)
    except SspError as error:
        _log.warning("consumer %s could not be deregistered: %s", settings.consumer_name, error)
    for lock in locks.values():
        lock.release()


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


def _has_other_workers(settings: GuardSettings) -> bool:
    """Return whether another worker owns a lease of the application, also one that has expired."""
    if settings.leases is None:
        return False
    from checkpoint.agent.tables import open_lease_table

    connection = replace(settings.connection, endpoint_url=settings.leases.dynamodb_endpoint_url)
    rows = open_lease_table(settings.leases.table, connection).scan()
    return any(lease.holder not in (None, settings.worker) for lease in rows.leases)


def _deregister(streams: Sequence[StreamRef], settings: GuardSettings) -> None:
    from kinesis_source.client.boto3_client import connect
    from kinesis_source.fan_out.consumers import Boto3Consumers

    kinesis = connect(settings.connection)
    service = Boto3Consumers(kinesis)
    for stream in streams:
        arn = stream.arn or kinesis.describe(stream).arn
        known = StreamRef(name=stream.name, arn=arn)
        found = service.find(known, settings.consumer_name)
        if found is not None:
            service.deregister(known, found.arn)
            _log.info("deregistered consumer %s", found.arn)


class ConsumerLock:
    """A lock on a consumer, shared by the queries of this machine that use it."""

    def __init__(self, settings: GuardSettings, stream: StreamRef) -> None:
        connection = settings.connection
        key = (
            *(connection.region, connection.endpoint_url),
            *(stream.name, settings.consumer_name),
        )
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        self._folder = private_folder()
        self._path = self._folder / f"{digest}.consumer"
        self._handle: int | None = None

    def share(self) -> None:
        """Wait while the consumer is being deregistered, and take the shared lock. Raises
        OSError."""
        while self._handle is None:
            make_private(self._folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self._path, flags, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), self._path.lstat()):
                    self._handle = handle
                    return
            os.close(handle)  # removed by its last holder

    def claim(self) -> bool:
        """Make the lock exclusive; return False if another query has it."""
        if self._handle is None:
            return False
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            self._handle = None
            return False
        return True

    def release(self) -> None:
        """Free the lock. Its file is removed if no other query has it."""
        if self._handle is None:
            return
        if self.claim():
            with suppress(OSError):
                self._path.unlink()
            os.close(self._handle)
            self._handle = None
