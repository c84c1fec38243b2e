"""Registered consumers of streams: the calls, the consumers of one query, and their end.

The driver finds or registers a consumer in each stream and waits until it is active. Later it looks
each of them up every minute: a consumer may be deregistered by hand, and disappears with its
stream. Until it is active again, the stream is polled.

At the end of the query they are deregistered. Spark never stops a reader: it ends its process. So
the reader starts another process, the guard, which waits for that end. While it runs it holds a
shared lock on each consumer; afterwards it deregisters those on which no other query of this
machine has a lock. A consumer that another query needs after all is registered again by that query
within a minute; until then the query polls, and no record is lost.

Queries with leases do not start a guard: their consumer is that of an application, and a worker of
the KCL whose consumer is deregistered treats its shards as ended.

A driver that is killed together with its guard leaves its consumers behind: the next run of the
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from spark_ssp.common.errors import SspError, StreamNotFoundError
from spark_ssp.common.local_processes import FileLock, module_path, start_helper
from spark_ssp.common.logs import show_logs
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.model.shard import ConsumerArn, StreamRef
from spark_ssp.kinesis_source.options.values import (
    ConnectionOptions,
    ConsumerLifecycle,
    FanOutOptions,
)

if TYPE_CHECKING:
    from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis

_log = logging.getLogger(__name__)

ACTIVE: Final = "ACTIVE"
WAIT_S: Final = 60.0
"""The longest time that a batch waits for a consumer to become active."""
LOOKUP_PERIOD_S: Final = 60.0
MISSING_LOOKUP_PERIOD_S: Final = 5.0
"""The period of looking up all consumers while one of them is not active."""
_POLL_S: Final = 1.0
_LIMIT: Final = "LimitExceededException"


class ConsumerError(SspError):
    """A stream has no consumer that the query can use: register one, or change the options."""

    kind = "consumer"


class TooManyConsumersError(ConsumerError):
    """A stream has its limit of consumers, or of registrations at a time, which may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A registered consumer. `status` is CREATING, DELETING or ACTIVE."""

    name: str
    arn: ConsumerArn
    status: str


class ConsumerService:
    """The calls for consumers on a connection. Their errors are those of `KinesisService`."""

    def __init__(self, kinesis: Boto3Kinesis) -> None:
        self._kinesis = kinesis

    def find(self, stream: StreamRef, name: str) -> Consumer | None:
        """Call DescribeStreamConsumer by name. The stream must have an ARN."""
        return self._describe(stream, {"StreamARN": stream.arn, "ConsumerName": name})

    def find_by_arn(self, stream: StreamRef, arn: ConsumerArn) -> Consumer | None:
        """Call DescribeStreamConsumer by the consumer's ARN."""
        return self._describe(stream, {"ConsumerARN": arn})

    def register(self, stream: StreamRef, name: str) -> None:
        """Call RegisterStreamConsumer once, as a call without retries. An existing consumer of that
        name and a stream that is not active, as during a reshard, are refused by the same code,
        ResourceInUseException (API reference), so only `find` distinguishes them."""
        request = {"StreamARN": stream.arn, "ConsumerName": name}
        self._kinesis.call("RegisterStreamConsumer", stream, request, _nothing, retry=False)

    def deregister(self, stream: StreamRef, arn: ConsumerArn) -> None:
        """Call DeregisterStreamConsumer. A consumer that is gone is no error."""
        request = {"ConsumerARN": arn}
        try:
            self._kinesis.call("DeregisterStreamConsumer", stream, request, _nothing)
        except StreamNotFoundError:
            return

    def _describe(self, stream: StreamRef, request: dict[str, Any]) -> Consumer | None:
        try:
            return self._kinesis.call("DescribeStreamConsumer", stream, request, _consumer)
        except StreamNotFoundError:  # of the consumer: the stream has been described before
            return None


def _nothing(_: Mapping[str, Any], __: object) -> None:
    return None


def _consumer(answer: Mapping[str, Any], _: object) -> Consumer:
    found = answer["ConsumerDescription"]
    return Consumer(
        name=found["ConsumerName"],
        arn=ConsumerArn(found["ConsumerARN"]),
        status=found["ConsumerStatus"],
    )


class QueryConsumers:
    """The consumers of one query. Used by one thread. `monotonic` is in seconds, and `sleep` waits
    that many."""

    def __init__(
        self,
        options: FanOutOptions,
        service: ConsumerService,
        *,
        describe_arn: Callable[[StreamRef], str],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`describe_arn` returns the ARN of a stream."""
        self._options = options
        self._service = service
        self._describe_arn = describe_arn
        self._monotonic = monotonic
        self._sleep = sleep
        self._known: dict[StreamName, ConsumerArn | None] = {}
        self._next_lookup = 0.0

    def active(self, streams: tuple[StreamRef, ...]) -> dict[StreamName, ConsumerArn]:
        """Return the active consumer of each stream that has one. The first call finds or registers
        all of them, and waits for them; it raises ConsumerError if that is impossible, and the
        errors of the service. Later calls log them."""
        now = self._monotonic()
        if now >= self._next_lookup:
            for stream in streams:
                self._known[stream.name] = self._look_up(stream)
            is_complete = None not in self._known.values()
            period = LOOKUP_PERIOD_S if is_complete else MISSING_LOOKUP_PERIOD_S
            self._next_lookup = self._monotonic() + period
        return {name: arn for name, arn in self._known.items() if arn is not None}

    def _look_up(self, stream: StreamRef) -> ConsumerArn | None:
        if stream.name not in self._known:
            return self._wait_for(stream)
        try:
            found = self._find_or_register(stream)
        except ConsumerError as error:
            _log.warning("stream %s is polled: its consumer cannot be used: %s", stream.name, error)
            return None
        except SspError as error:
            _log.warning("the consumer of stream %s could not be looked up: %s", stream.name, error)
            return self._known[stream.name]
        if found is None or found.status != ACTIVE:
            _log.warning("stream %s is polled until its consumer is active", stream.name)
            return None
        return found.arn

    def _wait_for(self, stream: StreamRef) -> ConsumerArn | None:
        deadline = self._monotonic() + WAIT_S
        is_logged = False
        while True:
            try:
                found = self._find_or_register(stream)
            except TooManyConsumersError:
                # Registrations and consumers of queries that end meanwhile make room.
                if self._monotonic() >= deadline:
                    raise
                self._sleep(_POLL_S)
                continue
            if found is not None and found.status == ACTIVE:
                _log.info("stream %s is read by consumer %s", stream.name, found.arn)
                return found.arn
            status = "not listed yet" if found is None else found.status
            if self._monotonic() >= deadline:
                _log.warning(
                    "the consumer of stream %s was still %s after %s: the stream is polled "
                    "until it is active",
                    *(stream.name, status, seconds_text(WAIT_S)),
                )
                return None
            if not is_logged:
                is_logged = True
                _log.info(
                    "the consumer of stream %s is %s: waiting until it is active, at most %s",
                    *(stream.name, status, seconds_text(WAIT_S)),
                )
            self._sleep(_POLL_S)

    def _find_or_register(self, stream: StreamRef) -> Consumer | None:
        """Return the consumer; None if it has just been registered, or is to be later."""
        arns = dict(self._options.consumer_arns)
        if stream.arn is None and not arns:
            # By its ARN, for which the calls for consumers have no other form.
            stream = StreamRef(name=stream.name, arn=self._describe_arn(stream))
        found = find_consumer(self._options, self._service, stream)
        if found is not None:
            return found
        if not arns and self._options.lifecycle is ConsumerLifecycle.JOB:
            self._register(stream, self._options.consumer_name or "")
            return None
        raise _absent(stream, arns.get(stream.name) or self._options.consumer_name)

    def _register(self, stream: StreamRef, name: str) -> None:
        try:
            self._service.register(stream, name)
        except ThrottledError as error:
            if error.code != _LIMIT:
                _log.info("stream %s: %s; trying again", stream.name, error.found)
                return
            raise TooManyConsumersError(
                f"consumer {name} of stream {stream.name}",
                found=error.found,
                expected="a stream with fewer consumers than its limit, and at most 5 "
                "registrations at a time",
                next_step="deregister consumers that nobody uses (`spark-ssp shards` lists them), "
                "or read by consumerMode=polling",
            ) from None
        _log.info("registered consumer %s of stream %s", name, stream.name)


def find_consumer(
    options: FanOutOptions, service: ConsumerService, stream: StreamRef
) -> Consumer | None:
    """Return the consumer of a stream that the options name. The stream must have an ARN, unless
    they contain that of the consumer."""
    arn = dict(options.consumer_arns).get(stream.name)
    if arn is not None:
        return service.find_by_arn(stream, arn)
    return service.find(stream, options.consumer_name or "")


def _absent(stream: StreamRef, name: str | None) -> ConsumerError:
    return ConsumerError(
        f"consumer {name} of stream {stream.name}",
        found="no consumer of that name",
        expected="a registered consumer, as consumerLifecycle=self demands",
        next_step="register it (aws kinesis register-stream-consumer), or set consumerName "
        "with consumerLifecycle=job",
    )


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
    for stream in [stream for stream, lock in locks.items() if lock.make_exclusive()]:
        try:
            _deregister(stream, settings)
        except SspError as error:
            _log.warning(
                "consumer %s of stream %s could not be deregistered: %s",
                *(settings.consumer_name, stream.name, error),
            )
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


def _deregister(stream: StreamRef, settings: GuardSettings) -> None:
    from spark_ssp.kinesis_source.client.boto3_client import connect

    kinesis = connect(settings.connection)
    service = ConsumerService(kinesis)
    known = StreamRef(name=stream.name, arn=stream.arn or kinesis.describe(stream).arn)
    found = service.find(known, settings.consumer_name)
    if found is not None:
        service.deregister(known, found.arn)
        _log.info("deregistered consumer %s", found.arn)
