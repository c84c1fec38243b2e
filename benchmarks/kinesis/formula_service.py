"""A stream whose records follow from the time: the service of benchmarks in which the embedded
Kinesis would take more processor time than what is measured.

Every shard receives `rate` records a second, in turn with the others, from the start of the process
on, or from `began` seconds before it. Record number k of a shard has the sequence number
`FIRST_NUMBER` + k. Shards never change, and nothing is refused. An answer takes about 0.07 ms of
processor time: asyncio's protocol without a framework, and JSON by templates.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.kinesis.service import STREAM, AnyService, service_process

FIRST_NUMBER: Final = 49_600_000_000 * 10**45
_ARN: Final = f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}"
_HASH_KEYS: Final = 1 << 128
_PAGE_OF_SHARDS: Final = 1_000
_MOST_RECORDS: Final = 10_000
_CONTENT_LENGTH: Final = b"content-length: "
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The records of a stream. Times are in seconds since the epoch."""

    shards: int
    rate: float
    """Records a second of each shard."""
    began: float
    data: str
    """The data of every record, in base64."""

    def arrival(self, shard: int, number: int) -> float:
        """Return the time at which a record arrives."""
        return self.began + (number + shard / self.shards) / self.rate

    def count(self, shard: int, now: float) -> int:
        """Return the number of records that have arrived in a shard."""
        return max(0, math.floor((now - self.began) * self.rate - shard / self.shards) + 1)


class Answers:
    """The answers of the service, by operation. `calls` counts them."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self.calls: Counter[str] = Counter()
        self._operations: dict[str, Callable[[dict[str, Any], float], str]] = {
            "DescribeStreamSummary": self._describe,
            "ListShards": self._list_shards,
            "GetShardIterator": self._iterator,
            "GetRecords": self._records,
        }

    def answer(self, operation: str, request: dict[str, Any], now: float) -> str:
        """Return the body of an answer. Raises KeyError for another operation."""
        self.calls[operation] += 1
        return self._operations[operation](request, now)

    def _describe(self, _: dict[str, Any], now: float) -> str:
        summary = {
            "StreamName": STREAM,
            "StreamARN": _ARN,
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": self._formula.began - 3_600,
            "OpenShardCount": self._formula.shards,
            "EnhancedMonitoring": [],
        }
        return json.dumps({"StreamDescriptionSummary": summary})

    def _list_shards(self, request: dict[str, Any], _: float) -> str:
        first = int(request.get("NextToken", 0))
        shards, following = self._formula.shards, first + _PAGE_OF_SHARDS
        page: dict[str, Any] = {
            "Shards": [_shard(number, shards) for number in range(first, min(following, shards))]
        }
        if following < shards:
            page["NextToken"] = str(following)
        return json.dumps(page)

    def _iterator(self, request: dict[str, Any], now: float) -> str:
        formula, shard = self._formula, int(request["ShardId"].rpartition("-")[2])
        match request["ShardIteratorType"]:
            case "TRIM_HORIZON":
                number = 0
            case "LATEST":
                number = formula.count(shard, now)
            case "AT_TIMESTAMP":
                number = formula.count(shard, float(request["Timestamp"]) - 1e-6)
            case kind:
                number = int(request["StartingSequenceNumber"]) - FIRST_NUMBER
                number += kind == "AFTER_SEQUENCE_NUMBER"
        return f'{{"ShardIterator":"{shard}:{number}"}}'

    def _records(self, request: dict[str, Any], now: float) -> str:
        formula = self._formula
        shard, first = map(int, request["ShardIterator"].split(":"))
        there = formula.count(shard, now)
        following = max(first, min(first + request.get("Limit", _MOST_RECORDS), there))
        records = ",".join(
            f'{{"ApproximateArrivalTimestamp":{formula.arrival(shard, number):.3f},"Data":'
            f'"{formula.data}","PartitionKey":"key-{shard}","SequenceNumber":'
            f'"{FIRST_NUMBER + number}"}}'
            for number in range(first, following)
        )
        behind = 0
        if following < there:
            behind = max(1, round(1000 * (now - formula.arrival(shard, following))))
        return (
            f'{{"MillisBehindLatest":{behind},"NextShardIterator":"{shard}:{following}",'
            f'"Records":[{records}]}}'
        )


def _shard(number: int, shards: int) -> dict[str, Any]:
    step = _HASH_KEYS // shards
    last = _HASH_KEYS - 1 if number == shards - 1 else (number + 1) * step - 1
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": str(number * step), "EndingHashKey": str(last)},
        "SequenceNumberRange": {"StartingSequenceNumber": str(FIRST_NUMBER)},
    }


class _Connection(asyncio.Protocol):
    """One connection: requests of HTTP/1.1 with a `Content-Length`, one after the other."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_HEAD_END)) >= 0:
            head = self._received[:end].lower()
            _, _, rest = head.partition(_CONTENT_LENGTH)
            stop = end + len(_HEAD_END) + int(rest.partition(b"\r")[0])
            if len(self._received) < stop:
                return
            body = self._received[end + len(_HEAD_END) : stop]
            target = self._received[: end + 2].partition(b"Kinesis_20131202.")[2]
            self._received = self._received[stop:]
            self._answer(target.partition(b"\r")[0].decode(), json.loads(body))

    def _answer(self, operation: str, request: dict[str, Any]) -> None:
        body = self._answers.answer(operation, request, time.time()).encode()
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nx-amzn-RequestId: 1\r\n"
            b"Content-Type: application/x-amz-json-1.1\r\nDate: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (formatdate(usegmt=True).encode(), len(body), body)
        )


def _serve(formula: Formula, pipe: Connection) -> None:
    answers = Answers(formula)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(answers), "127.0.0.1", backlog=1024)
        ended = asyncio.Event()

        def asked() -> None:
            try:
                pipe.recv()
            except EOFError:
                loop.remove_reader(pipe.fileno())
                ended.set()
            else:
                pipe.send(dict(answers.calls))

        loop.add_reader(pipe.fileno(), asked)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await ended.wait()
        server.close()

    asyncio.run(serve())


@contextmanager
def formula_service(shards: int, *, rate: float, size: int) -> Iterator[AnyService]:
    """A service with one stream of `shards` shards within the block, each with `rate` records of
    `size` bytes a second."""
    data = base64.b64encode(b"x" * size).decode()
    formula = Formula(shards=shards, rate=rate, began=time.time(), data=data)
    with service_process(_serve, formula) as (url, pipe, process):
        yield AnyService(url=url, _pipe=pipe, _process=process)
