"""The stream of the acceptance: its records, its shards and its changes.

Reshards, registrations and changes are recognised by their effect and not by the answer to the
call, which may be lost. A record whose put had no answer may be there or not, so it is left out of
all comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.common.times import seconds_text
from spark_ssp.kinesis_source.model.shard import ConsumerArn
from spark_ssp.operations.acceptance import rules
from spark_ssp.operations.acceptance.account import Account, Refusal, refused
from spark_ssp.operations.acceptance.rules import Answer, Put

Answers = list[Answer]

CHANGE_WITHIN_S: Final = 300.0
READ_WITHIN_S: Final = 20.0
POLL_S: Final = 2.0
_PAUSE_S: Final = 0.25
"""Between two reads of a shard, which allows five a second."""
TRIES: Final = 5
"""The attempts of a call that must not be repeated unchanged."""
_CONSUMER: Final = "acceptance"


class TrialStream:
    """A stream by its name, with everything that was put into it. Used by one thread."""

    def __init__(self, name: str, account: Account) -> None:
        self.name = name
        self.named = {"StreamName": name}
        self.arn = ""
        self.shards: Answers = []
        """Those of the last listing."""
        self.puts: list[Put] = []
        self.uncertain: set[bytes] = set()
        """The data of records whose put had no answer."""
        self._account = account
        self._number = 0

    # --- Writing ---------------------------------------------------------------------------------

    def put(self, hash_key: int | None) -> Put:
        """Put a record until an answer confirms it. None: without explicit hash key."""
        code = ""
        for _ in range(TRIES):
            key, data = "key", self.new_data()
            placing = {} if hash_key is None else {"ExplicitHashKey": str(hash_key)}
            request = self.named | {"PartitionKey": key, "Data": data} | placing
            answer = self.call("PutRecord", request, retry=False)
            if not isinstance(answer, Refusal):
                number = answer["SequenceNumber"]
                put = Put(
                    shard=answer["ShardId"], number=number, key=key, data=data, hash_key=hash_key
                )
                self.puts.append(put)
                return put
            code = answer.code
            self.uncertain.add(data)
            self._account.sleep(POLL_S)
        raise refused("PutRecord", code)

    def put_batch(self, size: int) -> list[Put]:
        """Put records of several keys by PutRecords, until all of a request are stored."""
        code = ""
        for _ in range(TRIES):
            entries = [(f"key-{n}", self.new_data()) for n in range(size)]
            records = [{"PartitionKey": key, "Data": data} for key, data in entries]
            request: dict[str, Any] = {**self.named, "Records": records}
            answer = self.call("PutRecords", request, retry=False)
            if isinstance(answer, Refusal):
                code = answer.code
                self.uncertain.update(data for _, data in entries)
            else:
                stored: list[Put] = []
                for (key, data), result in zip(entries, answer["Records"], strict=True):
                    if result.get("SequenceNumber"):
                        shard, number = result["ShardId"], result["SequenceNumber"]
                        stored.append(Put(shard=shard, number=number, key=key, data=data))
                    else:
                        code = result.get("ErrorCode", "no answer")
                        self.uncertain.add(data)
                self.puts += stored
                if len(stored) == size:
                    return stored
            self._account.sleep(POLL_S)
        raise refused("PutRecords", code)

    def new_data(self) -> bytes:
        """Return data that no record has yet."""
        self._number += 1
        return f"spark-ssp acceptance {self._number}".encode()

    # --- Reading ---------------------------------------------------------------------------------

    def records(self, shard: str) -> Answers:
        """Return all records of a shard."""
        found = self.read(shard, "TRIM_HORIZON", until=self.numbers(shard))
        return [record for page in found for record in page["Records"]]

    def read(self, shard: str, kind: str, *, until: Sequence[str], **more: Any) -> Answers:
        """Return the pages from a new iterator on, as `pages`."""
        return self.pages(self.iterator(shard, kind, **more), until=until)

    def iterator(self, shard: str, kind: str, **more: Any) -> str:
        """Open an iterator of this type."""
        self._account.sleep(_PAUSE_S)
        request = self.named | {"ShardId": shard, "ShardIteratorType": kind} | more
        return str(self.ask("GetShardIterator", request)["ShardIterator"])

    def pages(
        self, iterator: str, *, until: Sequence[str], limit: int = 10_000, to_end: bool = False
    ) -> Answers:
        """Return the pages from there until the last of these numbers has come; without numbers,
        until a page without lag; `to_end`, to the end of the shard. Gives up after a time."""
        deadline = self._account.monotonic() + READ_WITHIN_S
        pages: Answers = []
        while True:
            self._account.sleep(_PAUSE_S)
            page = self.ask("GetRecords", {"ShardIterator": iterator, "Limit": limit})
            records = [r for r in page["Records"] if r["Data"] not in self.uncertain]
            pages.append({**page, "Records": records})
            following = page.get("NextShardIterator")
            if not following or self._account.monotonic() > deadline:
                return pages
            has_all = (
                any(record["SequenceNumber"] == until[-1] for record in records)
                if until
                else (not page.get("MillisBehindLatest"))
            )
            if has_all and not to_end:
                return pages
            iterator = str(following)

    # --- The stream ------------------------------------------------------------------------------

    def list_shards(self) -> Answers:
        """List the shards, and keep the listing."""
        found: Answers = []
        request: dict[str, Any] = {**self.named}
        while request:
            answer = self.ask("ListShards", request)
            found += answer["Shards"]
            token = answer.get("NextToken")
            request = {"NextToken": token} if token else {}
        self.shards = found
        return found

    def settled(self, reached: Callable[[Answer], bool] = lambda _: True) -> Answer:
        """Wait until the stream is active and its summary is as wanted; return the summary, also
        after the longest time."""
        deadline = self._account.monotonic() + CHANGE_WITHIN_S
        while True:
            answer = self.call("DescribeStreamSummary", self.named)
            if not isinstance(answer, Refusal):
                summary: Answer = answer["StreamDescriptionSummary"]
                if summary["StreamStatus"] == "ACTIVE" and reached(summary):
                    return summary
            elif answer.code not in rules.NOT_FOUND:
                raise refused("DescribeStreamSummary", answer.code)
            if self._account.monotonic() > deadline:
                if isinstance(answer, Refusal):
                    raise refused("DescribeStreamSummary", answer.code)
                if summary["StreamStatus"] == "ACTIVE":
                    return summary
                raise late(f"stream {summary['StreamStatus']}", "an active stream")
            self._account.sleep(POLL_S)

    def reshard(self, operation: str, request: Mapping[str, Any]) -> None:
        """Split or merge, and wait for the new shards."""
        before = len(self.shards)
        answer = self.call(operation, {**self.named, **request})
        deadline = self._account.monotonic() + CHANGE_WITHIN_S
        while True:
            self.settled()
            if len(self.list_shards()) > before:
                return
            if isinstance(answer, Refusal):
                raise refused(operation, answer.code)
            if self._account.monotonic() > deadline:
                raise late("no new shard", f"the effect of {operation}")
            self._account.sleep(POLL_S)

    def register(self) -> ConsumerArn:
        """Register a consumer and wait until it is active."""
        request = {"StreamARN": self.arn, "ConsumerName": _CONSUMER}
        answer = self.call("RegisterStreamConsumer", request)
        if isinstance(answer, Refusal) and answer.code not in rules.IN_USE:
            raise refused("RegisterStreamConsumer", answer.code)
        deadline = self._account.monotonic() + CHANGE_WITHIN_S
        while True:
            found = self.ask("DescribeStreamConsumer", request)["ConsumerDescription"]
            if found["ConsumerStatus"] == "ACTIVE":
                return ConsumerArn(found["ConsumerARN"])
            if self._account.monotonic() > deadline:
                raise late(f"consumer {found['ConsumerStatus']}", "an active consumer")
            self._account.sleep(POLL_S)

    # --- Numbers and calls -----------------------------------------------------------------------

    def numbers(self, shard: str) -> list[str]:
        """Return the numbers of the records put into a shard, in their order."""
        return sorted((put.number for put in self.puts if put.shard == shard), key=int)

    def numbers_by_shard(self) -> dict[str, list[str]]:
        """Return the numbers of each shard into which something was put."""
        shards = sorted({put.shard for put in self.puts})
        return {shard: self.numbers(shard) for shard in shards}

    def call(
        self, operation: str, request: Mapping[str, Any], *, retry: bool = True
    ) -> Answer | Refusal:
        """As `Calls.call`."""
        return self._account.kinesis.call(operation, request, retry=retry)

    def ask(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """Return the answer. Raises RefusedError."""
        answer = self.call(operation, request)
        if isinstance(answer, Refusal):
            raise refused(operation, answer.code)
        return answer

    def code_of(
        self, operation: str, request: Mapping[str, Any], expected: Collection[str]
    ) -> str | None:
        """Return the code of the refusal, None for an answer. Another code than expected may be
        that of a fault which passes, so the call is repeated."""
        code: str | None = None
        for _ in range(TRIES):
            self._account.sleep(_PAUSE_S)
            answer = self.call(operation, request, retry=False)
            code = answer.code if isinstance(answer, Refusal) else None
            if code is None or code in expected:
                break
        return code


def late(found: str, expected: str) -> ServiceUnavailableError:
    """Return the error of a change that has not taken place."""
    return ServiceUnavailableError(
        "the acceptance",
        found=f"{found} after {seconds_text(CHANGE_WITHIN_S)}",
        expected=expected,
        next_step="run it again later",
    )
