"""`KinesisService` directly on the embedded service's state: no HTTP, no boto3, no sleep.

For unit tests and simulations. Faults injected into the state take effect, and are answered by the
contract of `kinesis_source/client/api.py`; a retrying call tries `attempts` times at once, and
throttling does not count.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_ssp.common.errors import (
    AccessError,
    InvalidRequestError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    ShardNotFoundError,
    ThrottledError,
    UnreachableError,
)
from spark_ssp.kinesis_source.client.messages import parse_shards
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    RecordPage,
    Shard,
    ShardEnd,
    ShardIterator,
    StreamDescription,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.testing.kinesis.dispatch import Answer, KinesisState
from spark_ssp.testing.kinesis.state.errors import KinesisError, NoAnswer
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from spark_ssp.testing.kinesis.state.request import Json
from tests.support.kinesis.pages import page

_THROTTLES = frozenset({"ProvisionedThroughputExceededException", "LimitExceededException"})
_TRANSIENT = _THROTTLES | frozenset(
    {
        "ResourceInUseException",
        "InternalFailure",
        "ServiceUnavailable",
    }
)


MOST_TRIES = 100_000


class InProcessKinesis:
    """A `KinesisService` on `state`. Thread-safe. `between_tries` is called after each failed try
    of a patient call, for example to advance a manual clock."""

    def __init__(
        self,
        state: KinesisState,
        *,
        attempts: int = 8,
        between_tries: Callable[[], object] = lambda: None,
    ) -> None:
        self._state = state
        self._attempts = attempts
        self._between_tries = between_tries

    def retries(self) -> dict[tuple[str, str], int]:
        return {}

    def describe(self, stream: StreamRef, *, retry: bool = True) -> StreamDescription:
        body = _address(stream)
        answer = self._json("DescribeStreamSummary", stream, body, retry=retry)
        summary = answer["StreamDescriptionSummary"]
        return StreamDescription(
            name=stream.name,
            arn=summary["StreamARN"],
            created=EpochMillis(round(summary["StreamCreationTimestamp"] * 1000)),
            retention_ms=summary["RetentionPeriodHours"] * 3_600_000,
            placed_by_key=summary.get("RecordDistributionStrategy") != "AUTO",
        )

    def list_shards(self, stream: StreamRef) -> tuple[Shard, ...]:
        shards: list[Shard] = []
        body = first = _address(stream)
        while True:
            try:
                answer = self._json("ListShards", stream, body)
            except InvalidRequestError as error:
                if body is first or "ExpiredNextTokenException" not in error.found:
                    raise
                shards, body = [], first
                continue
            shards.extend(parse_shards(answer))
            if "NextToken" not in answer:
                return tuple(sorted(shards, key=lambda shard: shard.shard_id))
            body = {"NextToken": answer["NextToken"]}

    def open_iterator(
        self,
        stream: StreamRef,
        shard: ShardId,
        position: Position,
        *,
        inclusive: bool = False,
        retry: bool = True,
    ) -> ShardIterator:
        if isinstance(position, AtTimestamp):
            position = AtTimestamp(millis=min(position.millis, self.service_time()))
        body = _address(stream) | {"ShardId": shard} | _placing(position, inclusive)
        answer = self._json("GetShardIterator", stream, body, shard=shard, retry=retry)
        return ShardIterator(answer["ShardIterator"])

    def get_records(
        self,
        stream: StreamRef,
        shard: ShardId,
        iterator: ShardIterator,
        *,
        limit: int,
        retry: bool = True,
    ) -> RecordPage:
        body = {"ShardIterator": iterator, "Limit": limit}
        answer = self._call("GetRecords", stream, body, shard=shard, retry=retry)
        assert isinstance(answer, RecordsPage)
        return page(
            [record.data for record in answer.records],
            keys=[record.partition_key for record in answer.records],
            numbers=[record.sequence_number for record in answer.records],
            arrivals=[record.arrival_ms for record in answer.records],
            following=answer.next_iterator,
            behind=answer.millis_behind_latest,
            now=self.service_time(),
        )

    def service_time(self) -> EpochMillis:
        return EpochMillis(self._state.clock.now_ms())

    # --- Helpers ------------------------------------------------------------------------------

    def _json(
        self,
        operation: str,
        stream: StreamRef,
        body: Json,
        *,
        shard: ShardId | None = None,
        retry: bool = True,
    ) -> Json:
        answer = self._call(operation, stream, body, shard=shard, retry=retry)
        assert isinstance(answer, dict)
        return answer

    def _call(
        self,
        operation: str,
        stream: StreamRef,
        body: Json,
        *,
        shard: ShardId | None,
        retry: bool,
    ) -> Answer:
        subject = stream.name if shard is None else f"{stream.name}/{shard}"
        found = ""
        failed = tries = 0
        while failed < (self._attempts if retry else 1):
            tries += 1
            assert tries < MOST_TRIES, "throttled for ever: the clock stands still"
            try:
                return self._state.call(operation, body)
            except NoAnswer as lost:
                failed += 1
                found = str(lost)
            except KinesisError as error:
                if error.code not in _TRANSIENT:
                    raise _translated(error, operation, subject, shard) from error
                found = error.code
                outlasted = retry and found in _THROTTLES
                failed = 0 if outlasted else failed + 1
            if retry:
                self._between_tries()
        transient: type[SspError] = ServiceUnavailableError
        if not retry:
            transient = ThrottledError if found in _THROTTLES else UnreachableError
        raise transient(
            f"{operation} on {subject}",
            found=found,
            expected="an answer",
            next_step="try again later",
        )


def _translated(
    error: KinesisError, operation: str, subject: str, shard: ShardId | None
) -> SspError:
    kind: type[SspError]
    match error.code:
        case "ExpiredIteratorException":
            kind = ExpiredIteratorError
        case "AccessDeniedException":
            kind = AccessError
        case "ResourceNotFoundException":
            about_shard = shard is not None and error.message.startswith("Shard ")
            kind = ShardNotFoundError if about_shard else StreamNotFoundError
        case "InvalidArgumentException" if operation == "GetShardIterator":
            kind = InvalidPositionError
        case "InvalidArgumentException" if "iterator" in error.message.lower():
            kind = ExpiredIteratorError
        case _:
            kind = InvalidRequestError
    return kind(
        f"{operation} on {subject}",
        found=error.code,
        expected="an answer",
        next_step="see the service's message: " + error.message,
    )


def _address(stream: StreamRef) -> Json:
    return {"StreamName": stream.name} if stream.arn is None else {"StreamARN": stream.arn}


def _placing(position: Position, inclusive: bool) -> Json:
    match position:
        case TrimHorizon():
            return {"ShardIteratorType": "TRIM_HORIZON"}
        case AtTimestamp(millis=millis):
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": millis / 1000}
        case AfterRecord(sequence_number=number):
            kind = "AT_SEQUENCE_NUMBER" if inclusive else "AFTER_SEQUENCE_NUMBER"
            return {"ShardIteratorType": kind, "StartingSequenceNumber": number}
        case ShardEnd():
            raise ValueError("there is no iterator at the end of a shard")
