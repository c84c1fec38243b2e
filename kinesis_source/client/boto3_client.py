"""Calls Kinesis by boto3: the only implementation of `KinesisService` that uses a network.
botocore's own retries are off: calls are retried by `common.aws.service_calls`, so that the retry
options apply exactly and each retry is logged."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar

import msgspec
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from spark_ssp.common.aws.botocore_bypass import CallsInFlight, DirectCalls
from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import (
    BODY_ERRORS,
    MalformedAnswerError,
    Severity,
    StaleCredentialsError,
    status_of,
    unreadable,
)
from spark_ssp.common.aws.provided_credentials import renew_refused
from spark_ssp.common.aws.service_calls import Retrier, RetryLog, RetrySettings, retry_settings
from spark_ssp.common.errors import AccessError, InvalidRequestError, StreamNotFoundError
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client import messages
from spark_ssp.kinesis_source.client.api import FailedCall, PendingCalls
from spark_ssp.kinesis_source.client.error_translation import (
    ApiCall,
    ExpiredTokenError,
    FutureTimeError,
    NotReadyError,
    severity_of,
    shard_not_found,
    single_try_error,
    stream_not_found,
    translate,
)
from spark_ssp.kinesis_source.client.messages import register_exact_times
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    PutEntries,
    PutOutcome,
    RecordPage,
    Shard,
    ShardEnd,
    ShardIterator,
    StreamDescription,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import ConnectionOptions

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

Request = dict[str, Any]
Answer = Mapping[str, Any]
Convert = Callable[[Answer, EpochMillis | None], T]
"""Converts an answer, with a time that the service had reached when it answered (None without a
`Date` so far). Raises built-in errors if the answer deviates from the API reference."""

_SDK_ERRORS: Final = (
    BotoCoreError,
    ClientError,
    MalformedAnswerError,
    NotReadyError,
    StaleCredentialsError,
)


class Boto3Kinesis:
    """`KinesisService` on a boto3 client for Kinesis. Thread-safe; not to be pickled or forked.
    `client` must have botocore's retries off. `monotonic` and `sleep` are in seconds, `random` is
    uniform in [0, 1)."""

    def __init__(
        self,
        client: BaseClient,
        *,
        retry: RetrySettings,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
        role_arn: str | None = None,
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._role_arn = role_arn
        self._clock = ServerClock()
        self._log = RetryLog(monotonic)
        self._retrier = Retrier(
            retry, log=self._log, sleep=sleep, random=random, severity_of=severity_of
        )
        messages.register_parser(client.meta.events)
        register_exact_times(client.meta.events)
        self._direct = DirectCalls(client, messages.DECODERS, encoders=messages.ENCODERS)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection stays in its process: call connect() where it is needed")

    @property
    def client(self) -> BaseClient:
        """The client, for calls that are not in this class."""
        return self._client

    @property
    def endpoint(self) -> str:
        """The URL of the service."""
        return self._client.meta.endpoint_url

    def retries(self) -> Mapping[tuple[str, str], int]:
        """Return the number of retries so far, by (operation, error code)."""
        return self._log.counts()

    def close(self) -> None:
        """Close the connections kept alive; the next call would open new ones."""
        self._client.close()
        self._direct.forget()

    # --- KinesisService --------------------------------------------------------------------------

    def describe(
        self, stream: StreamRef, *, retry: bool = True, within: float | None = None
    ) -> StreamDescription:
        """Call DescribeStreamSummary; wait for a stream that is being created, within the retry
        limits. `within`: the seconds for which throttling is waited out."""
        call = self._api_call("DescribeStreamSummary", stream)

        def convert(answer: Answer, _: EpochMillis | None) -> StreamDescription:
            status = messages.parse_status(answer)
            if status == "CREATING":
                raise NotReadyError(f"the stream is {status}")
            if status == "DELETING":
                raise stream_not_found(call, f"status {status}")
            return messages.parse_description(answer)

        return self._call(call, _stream_parameters(stream), convert, retry=retry, within=within)

    def list_shards(
        self, stream: StreamRef, *, retry: bool = True, within: float | None = None
    ) -> tuple[Shard, ...]:
        """Call ListShards; a token that expires between two pages restarts the listing. `within`:
        the seconds for which throttling of a page is waited out."""
        call = self._api_call("ListShards", stream)
        for _ in range(self._retrier.max_attempts - 1):
            try:
                return self._list(call, stream, retry=retry, within=within)
            except ExpiredTokenError as error:
                self._log.note(call.operation, call.subject, error, 0.0)
        return self._list(call, stream, retry=retry, within=within)

    def _list(
        self, call: ApiCall, stream: StreamRef, *, retry: bool, within: float | None
    ) -> tuple[Shard, ...]:
        shards: list[Shard] = []
        request = _stream_parameters(stream)
        while True:
            found, token = self._call(call, request, _shards_and_token, retry=retry, within=within)
            shards.extend(found)
            if not token:
                return tuple(sorted(shards, key=lambda shard: shard.shard_id))
            # A token excludes a stream's name: it contains it (API reference, ListShards).
            request = {"NextToken": token}

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
        failed: Exception | None = None,
    ) -> ShardIterator:
        """Call GetShardIterator. With a timestamp in the future, records that arrive before it are
        read too. `failed`: the error of a first attempt that was made before."""
        call = self._api_call("GetShardIterator", stream, shard, position)

        def open_at(place: Position, failed: Exception | None = None) -> ShardIterator:
            request = _iterator_parameters(stream, shard, place, inclusive=inclusive)
            with self._resolving_not_found(call, stream, retry=retry):
                return self._call(call, request, _iterator, retry=retry, failed=failed)

        try:
            return open_at(position, failed)
        except FutureTimeError:
            # Only the refusal proves that it is in the future, since the estimate of the service's
            # clock is a lower bound. The refusal has a `Date`, which the service had reached.
            date = self._clock.last_date()
            if date is None or not isinstance(position, AtTimestamp):
                raise
            return open_at(AtTimestamp(millis=min(position.millis, date)))

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
        failed: Exception | None = None,
    ) -> RecordPage:
        """Call GetRecords. `failed`: the error of a first attempt that was made before."""
        call = self._api_call("GetRecords", stream, shard)
        request = _records_parameters(stream, iterator, limit)
        with self._resolving_not_found(call, stream, retry=retry):
            return self._call(call, request, _page, retry=retry, failed=failed)

    def pending_calls(self, most: int) -> PendingCalls[Any]:
        """Return a way for one thread to have up to `most` calls under way. To be closed."""
        return _PendingCalls(self, most)

    def service_time(self) -> EpochMillis:
        """Return the service's estimated time. Before any other call, this calls DescribeLimits."""
        now = self._clock.now(self._monotonic())
        if now is not None:
            return now
        call = self._api_call("DescribeLimits", None)

        def convert(_: Answer, service_time: EpochMillis | None) -> None:
            if service_time is None:
                raise _without_date()

        try:
            self._call(call, {}, convert, retry=True)
        except (AccessError, InvalidRequestError):
            # A refusal has a `Date` as well, and only that is needed.
            if self._clock.last_date() is None:
                raise
        now = self._clock.now(self._monotonic())
        if now is None:
            raise translate(_without_date(), call, attempts=1)
        return now

    # --- Making streams --------------------------------------------------------------------------

    def create_stream(self, stream: StreamRef, shards: int) -> None:
        """Call CreateStream, with provisioned capacity; `describe` returns once it is usable.
        Raises StreamInUseError if a stream of that name exists, in any state; if an answer was
        lost, it may be the one that this call created."""
        request: Request = {"StreamName": stream.name, "ShardCount": shards}
        self.call("CreateStream", stream, request, lambda _, __: None)

    # --- Writing ---------------------------------------------------------------------------------

    def put_records(self, stream: StreamRef, entries: PutEntries) -> PutOutcome:
        """Call PutRecords once."""
        call = self._api_call("PutRecords", stream)
        request = _stream_parameters(stream) | {"Records": entries}
        return self._call(
            call,
            request,
            lambda answer, _: messages.parse_outcome(answer, entries.count),
            retry=False,
        )

    # --- Other operations ------------------------------------------------------------------------

    def call(
        self,
        operation: str,
        stream: StreamRef,
        request: Request,
        convert: Convert[T],
        *,
        retry: bool = True,
    ) -> T:
        """Call any operation about a stream; return its converted answer."""
        return self._call(self._api_call(operation, stream), request, convert, retry=retry)

    # --- One call --------------------------------------------------------------------------------

    def _api_call(
        self,
        operation: str,
        stream: StreamRef | None,
        shard: ShardId | None = None,
        position: Position | None = None,
    ) -> ApiCall:
        return ApiCall(
            operation=operation,
            stream=None if stream is None else stream.name,
            shard=shard,
            position=position,
            region=self._client.meta.region_name,
            endpoint=self.endpoint,
            role_arn=self._role_arn,
        )

    def _call(
        self,
        call: ApiCall,
        request: Request,
        convert: Convert[T],
        *,
        retry: bool,
        within: float | None = None,
        failed: Exception | None = None,
    ) -> T:
        """Return the converted answer; raise only errors of this project. `failed`: the error of a
        first attempt that was made before."""
        attempts = 0

        def attempt() -> T:
            nonlocal attempts
            attempts += 1
            if failed is not None and attempts == 1:
                raise failed
            return self._attempt(call.operation, request, convert)

        try:
            if not retry:
                return attempt()
            return self._retrier.run(
                attempt,
                operation=call.operation,
                subject=call.subject,
                # An exceeded limit of CreateStream is a quota, which retries do not help.
                outlast_throttling=call.operation != "CreateStream",
                within=within,
                client=self._client,
            )
        except _SDK_ERRORS as error:
            may_pass = severity_of(error) is not Severity.PERMANENT
            if not retry and (may_pass or renew_refused(self._client, error)):
                raise single_try_error(error, call) from None
            # Without the cause: the text of a signature error holds the session token.
            raise translate(error, call, attempts=attempts) from None

    def _attempt(self, operation: str, request: Request, convert: Convert[T]) -> T:
        requested_at = self._monotonic()
        return self._result(operation, lambda: self._ask(operation, request), convert, requested_at)

    def _ask(self, operation: str, request: Request) -> Answer:
        answer = self._direct.call(operation, request)
        if answer is None:
            entries = request.get("Records")
            if isinstance(entries, PutEntries):
                messages.allow_missing_keys(self._client.meta.service_model)
                request = request | {"Records": messages.to_parameters(entries)}
            answer = getattr(self._client, xform_name(operation))(**request)
        return answer

    def _result(
        self,
        operation: str,
        answered: Callable[[], Answer],
        convert: Convert[T],
        requested_at: float,
    ) -> T:
        """Return the converted answer; raises `_SDK_ERRORS`."""
        try:
            answer = answered()
        except ClientError as error:
            if error.operation_name == operation and status_of(error) < 500:
                self._record_date(error.response, requested_at)
            raise
        except BotoCoreError:
            raise
        except BODY_ERRORS as error:
            raise unreadable(error) from None
        service_time = self._record_date(answer, requested_at)
        try:
            return convert(answer, service_time)
        except BODY_ERRORS as error:
            raise unreadable(error) from None

    def _record_date(self, answer: Answer, requested_at: float) -> EpochMillis | None:
        date = messages.parse_date(answer)
        received = self._monotonic()
        if date is None:
            return self._clock.now(requested_at)
        return self._clock.record(date, requested_at=requested_at, received=received)

    @contextmanager
    def _resolving_not_found(
        self, call: ApiCall, stream: StreamRef, *, retry: bool
    ) -> Iterator[None]:
        """Resolve "not found", which the service returns for a missing shard or stream."""
        try:
            yield
        except StreamNotFoundError as error:
            self.describe(stream, retry=retry)
            raise shard_not_found(call, error.found) from None


Tag = TypeVar("Tag")
Pended = ShardIterator | RecordPage


class _Begun(NamedTuple, Generic[Tag]):
    """A call under way, with the way in which the service's method makes it after a failure."""

    tag: Tag
    operation: str
    convert: Convert[Any]
    repeat: Callable[[bool, Exception], Pended]
    requested_at: float


class _PendingCalls(Generic[Tag]):
    """`PendingCalls` on direct calls."""

    def __init__(self, kinesis: Boto3Kinesis, most: int) -> None:
        self._kinesis = kinesis
        self._calls = CallsInFlight[_Begun[Tag]](kinesis._direct, most)

    def __len__(self) -> int:
        return len(self._calls)

    def begin_iterator(
        self, stream: StreamRef, shard: ShardId, position: Position, *, inclusive: bool, tag: Tag
    ) -> bool:
        """Begin GetShardIterator."""

        def repeat(retry: bool, failed: Exception) -> ShardIterator:
            return self._kinesis.open_iterator(
                stream, shard, position, inclusive=inclusive, retry=retry, failed=failed
            )

        request = _iterator_parameters(stream, shard, position, inclusive=inclusive)
        return self._begin("GetShardIterator", request, _iterator, repeat, tag)

    def begin_records(
        self, stream: StreamRef, shard: ShardId, iterator: ShardIterator, *, limit: int, tag: Tag
    ) -> bool:
        """Begin GetRecords."""

        def repeat(retry: bool, failed: Exception) -> RecordPage:
            return self._kinesis.get_records(
                stream, shard, iterator, limit=limit, retry=retry, failed=failed
            )

        request = _records_parameters(stream, iterator, limit)
        return self._begin("GetRecords", request, _page, repeat, tag)

    def _begin(
        self,
        operation: str,
        request: Request,
        convert: Convert[Any],
        repeat: Callable[[bool, Exception], Pended],
        tag: Tag,
    ) -> bool:
        begun = _Begun(tag, operation, convert, repeat, self._kinesis._monotonic())
        try:
            return self._calls.begin(operation, request, begun)
        except Exception:  # noqa: BLE001 - such as credentials that cannot be refreshed
            return False  # the method of the service meets it again: it retries or translates it

    def answers(self) -> Iterator[tuple[Tag, Pended | FailedCall]]:
        """Wait for at least one call; return those that were answered."""
        for begun, outcome in self._calls.answers():
            yield begun.tag, self._result(begun, outcome)

    def _result(self, begun: _Begun[Tag], outcome: Answer | Exception) -> Pended | FailedCall:
        def answered() -> Answer:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        try:
            result: Pended = self._kinesis._result(
                begun.operation, answered, begun.convert, begun.requested_at
            )
        except Exception as error:  # noqa: BLE001 - raised again by `finish`
            failed = error
            return FailedCall(finish=lambda retry: begun.repeat(retry, failed))
        return result

    def close(self) -> None:
        """Give the connections back."""
        self._calls.close()


def _records_parameters(stream: StreamRef, iterator: ShardIterator, limit: int) -> Request:
    request: Request = {"ShardIterator": iterator, "Limit": limit}
    if stream.arn is not None:
        request["StreamARN"] = stream.arn
    return request


def _iterator_parameters(
    stream: StreamRef, shard: ShardId, position: Position, *, inclusive: bool
) -> Request:
    return (
        _stream_parameters(stream)
        | {"ShardId": shard}
        | position_parameters(position, inclusive=inclusive)
    )


def _stream_parameters(stream: StreamRef) -> Request:
    return {"StreamName": stream.name} if stream.arn is None else {"StreamARN": stream.arn}


def position_parameters(position: Position, *, inclusive: bool) -> Request:
    """Return the parameters of GetShardIterator for a position."""
    match position:
        case TrimHorizon():
            return {"ShardIteratorType": "TRIM_HORIZON"}
        case AtTimestamp(millis=millis):
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": messages.to_datetime(millis)}
        case AfterRecord(sequence_number=sequence_number):
            kind = "AT_SEQUENCE_NUMBER" if inclusive else "AFTER_SEQUENCE_NUMBER"
            return {"ShardIteratorType": kind, "StartingSequenceNumber": sequence_number}
        case ShardEnd():
            raise ValueError("nothing follows the end of a shard")


def _shards_and_token(answer: Answer, _: EpochMillis | None) -> tuple[tuple[Shard, ...], str]:
    return messages.parse_shards(answer), str(answer.get("NextToken") or "")


def _iterator(answer: Answer, _: EpochMillis | None) -> ShardIterator:
    return messages.parse_iterator(answer)


def _page(answer: Answer, service_time: EpochMillis | None) -> RecordPage:
    if service_time is None:
        raise _without_date()
    return messages.parse_page(answer, service_time)


def _without_date() -> MalformedAnswerError:
    return MalformedAnswerError("an answer without the header Date")


# --- One connection for each process -------------------------------------------------------------

MAX_CONNECTIONS: Final = 16
"""Connections kept by a process. A worker may live for months and see credentials of many sessions,
each of which creates a connection with sockets and an API model in memory."""

_connections: OrderedDict[tuple[int, ConnectionOptions], Boto3Kinesis] = OrderedDict()
_connecting = threading.Lock()


def connect(options: ConnectionOptions) -> Boto3Kinesis:
    """Return the connection of this process for these options, made on first use. Thread-safe.

    A connection made before a fork is not used after it: two processes on one socket would read
    each other's answers, and PySpark forks its workers. Beyond `MAX_CONNECTIONS` the least recently
    requested one is closed; its holders can still use it. Raises AccessError when there are no
    credentials, InvalidOptionsError without a region; the service itself is not asked.
    """
    key = (os.getpid(), options)
    with _connecting:
        connection = _connections.get(key)
        if connection is None:
            connection = Boto3Kinesis(
                create_client("kinesis", options),
                retry=retry_settings(options),
                role_arn=options.role_arn,
            )
            _connections[key] = connection
        _connections.move_to_end(key)
        if len(_connections) > MAX_CONNECTIONS:
            (process, _), oldest = _connections.popitem(last=False)
            if process == os.getpid():
                oldest.close()
    return connection


def disconnect() -> None:
    """Close and forget the connections of this process. For tests, and for an orderly end."""
    with _connecting:
        for key in [key for key in _connections if key[0] == os.getpid()]:
            _connections.pop(key).close()


def _after_fork() -> None:
    # Another thread may have held the lock during the fork; the child would never release it.
    global _connecting
    _connecting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


# --- The service's clock -------------------------------------------------------------------------

_DRIFT: Final = 0.0005
"""500 parts per million: the most that NTP slews a clock by; quartz drifts by a tenth of that."""

_SECOND_MS: Final = 1000


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """A lower bound `epoch_ms` of the service's clock at the local monotonic time `local_s`."""

    epoch_ms: float
    local_s: float

    def at(self, local_s: float) -> float:
        """Return a lower bound of the service's clock at `local_s`, before or after the reading."""
        elapsed = (local_s - self.local_s) * _SECOND_MS
        return self.epoch_ms + elapsed * (1 - _DRIFT if elapsed > 0 else 1 + _DRIFT)


def update_estimate(
    known: ClockReading | None, *, date: EpochMillis, requested_at: float, received: float
) -> ClockReading:
    """Return the estimate after a response with that `Date`. Responses may come in any order."""
    if known is None:
        return ClockReading(epoch_ms=date, local_s=received)
    local_s = max(received, known.local_s)
    lowest = ClockReading(epoch_ms=date, local_s=received).at(local_s)
    highest = date + _SECOND_MS + (local_s - requested_at) * _SECOND_MS * (1 + _DRIFT)
    return ClockReading(epoch_ms=min(max(known.at(local_s), lowest), highest), local_s=local_s)


class ServerClock:
    """An estimate of the service's clock, never ahead of it. Thread-safe.

    Each HTTP response has a `Date` header, the service's clock in whole seconds, rounded down. At
    the time `received` of a response that was requested at local time `requested_at`, the service's
    clock was at least `Date`, and less than `Date` + 1 s + (`received` - `requested_at`). The
    estimate advances with the local monotonic clock, slowed by more than clocks drift, and each
    response moves it into those bounds. It approaches the true time from below, since responses are
    sent at different fractions of a second, and follows a service clock that is set back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: ClockReading | None = None
        self._date: EpochMillis | None = None

    def record(self, date: EpochMillis, *, requested_at: float, received: float) -> EpochMillis:
        """Record a response; return a time that the service had reached when it responded. That is
        earlier than its time when the response was received: records that arrive at the service
        while the response is transferred must not look older than the response."""
        with self._lock:
            self._reading = update_estimate(
                self._reading, date=date, requested_at=requested_at, received=received
            )
            self._date = date
            return EpochMillis(max(date, int(self._reading.at(requested_at))))

    def now(self, local_s: float) -> EpochMillis | None:
        """Return the estimate at local time `local_s`; None before any response."""
        with self._lock:
            return None if self._reading is None else EpochMillis(int(self._reading.at(local_s)))

    def last_date(self) -> EpochMillis | None:
        """Return the last `Date`: behind the estimate, but certainly reached by the service."""
        with self._lock:
            return self._date
