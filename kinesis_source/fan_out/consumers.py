"""Registered consumers of streams: the calls, and the consumers of one query.

The driver finds or registers a consumer in each stream and waits until it is active. Later it looks
each of them up every minute: a consumer may be deregistered by hand, and disappears with its
stream. Until it is active again, the stream is polled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from spark_ssp.common.errors import SspError, StreamNotFoundError
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.api import ThrottledError
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis
from spark_ssp.kinesis_source.model.shard import ConsumerArn, StreamRef
from spark_ssp.kinesis_source.options.values import ConsumerLifecycle, FanOutOptions

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


class ConsumerService(Protocol):
    """The calls for consumers. Their errors are those of `KinesisService`."""

    def find(self, stream: StreamRef, name: str) -> Consumer | None:
        """Call DescribeStreamConsumer by name. The stream must have an ARN."""
        ...

    def find_by_arn(self, stream: StreamRef, arn: ConsumerArn) -> Consumer | None:
        """Call DescribeStreamConsumer by the consumer's ARN."""
        ...

    def register(self, stream: StreamRef, name: str) -> None:
        """Call RegisterStreamConsumer once, as a call without retries. An existing consumer of that
        name and a stream that is not active, as during a reshard, are refused by the same code,
        ResourceInUseException (API reference), so only `find` distinguishes them."""
        ...

    def deregister(self, stream: StreamRef, arn: ConsumerArn) -> None:
        """Call DeregisterStreamConsumer. A consumer that is gone is no error."""
        ...


class Boto3Consumers:
    """`ConsumerService` on a connection."""

    def __init__(self, kinesis: Boto3Kinesis) -> None:
        self._kinesis = kinesis

    def find(self, stream: StreamRef, name: str) -> Consumer | None:
        """Call DescribeStreamConsumer by name."""
        return self._describe(stream, {"StreamARN": stream.arn, "ConsumerName": name})

    def find_by_arn(self, stream: StreamRef, arn: ConsumerArn) -> Consumer | None:
        """Call DescribeStreamConsumer by ARN."""
        return self._describe(stream, {"ConsumerARN": arn})

    def register(self, stream: StreamRef, name: str) -> None:
        """Call RegisterStreamConsumer once."""
        request = {"StreamARN": stream.arn, "ConsumerName": name}
        self._kinesis.call("RegisterStreamConsumer", stream, request, _nothing, retry=False)

    def deregister(self, stream: StreamRef, arn: ConsumerArn) -> None:
        """Call DeregisterStreamConsumer."""
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
        """Return the active consumer of each stream that has one.

        The first call finds or registers all of them, and waits for them; it raises ConsumerError
        if that is impossible, and the errors of the service. Later calls log them.
        """
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
