"""A stream whose records follow from the time: the service of benchmarks in which the embedded
Kinesis would take more processor time than what is measured.

Each shard of the beginning has a line of records, `rate` a second, in turn with the others, from
the start of the process on. Record `place` of line `line` has the number `place * lines + line`, so
the numbers are in the order of arrival; its sequence number is `FIRST_NUMBER + place`, and of the
`2 * lines` keys it has the one that its number leaves as the remainder. After `split` each line
continues in two shards, which receive its records in turn, so that each of them has one key.
Nothing is refused. An answer takes about 0.07 ms of processor time: asyncio's protocol without a
framework, and JSON by templates.
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
from typing import Any, Final, NamedTuple

from benchmarks.kinesis.service import NUMBER_BYTES, STREAM, AnyService, service_process
from spark_ssp.testing.kinesis.state.stream import shard_id

FIRST_NUMBER: Final = 49_600_000_000 * 10**45
_ARN: Final = f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}"
_HASH_KEYS: Final = 1 << 128
_PAGE_OF_SHARDS: Final = 1_000
_MOST_RECORDS: Final = 10_000
_CONTENT_LENGTH: Final = b"content-length: "
_HEAD_END: Final = b"\r\n\r\n"


class Part(NamedTuple):
    """The places of a line's records in one shard: from `first` on, before `stop`."""

    line: int
    first: int
    stop: float
    step: int

    def at(self, place: int) -> int:
        """Return the shard's first place from `place` on."""
        return self.first + max(0, -(-(place - self.first) // self.step)) * self.step


@dataclass(slots=True, kw_only=True)
class Formula:
    """The records of a stream. Times are in seconds since the epoch."""

    lines: int
    rate: float
    """Records a second of each line."""
    began: float
    size: int = NUMBER_BYTES
    """The bytes of every record; its number comes first."""
    split: float = math.inf
    ended: float = math.inf

    def arrival(self, line: int, place: int) -> float:
        """Return the time at which a record arrives."""
        return self.began + (place + line / self.lines) / self.rate

    def count(self, line: int, before: float) -> int:
        """Return the number of records of a line that arrive before a time."""
        elapsed = min(before, self.ended) - self.began
        return max(0, math.ceil(elapsed * self.rate - line / self.lines))

    def total(self, before: float) -> int:
        """Return the number of records that arrive before a time."""
        return sum(self.count(line, before) for line in range(self.lines))

    def shards(self) -> int:
        """Return the number of shards, with those that are closed."""
        return self.lines if math.isinf(self.split) else 3 * self.lines

    def part(self, shard: int) -> Part:
        """Return the records of a shard."""
        if shard < self.lines:
            closed = math.inf if math.isinf(self.split) else self.count(shard, self.split)
            return Part(shard, 0, closed, 1)
        line, half = divmod(shard - self.lines, 2)
        first = self.count(line, self.split)
        return Part(line, first + (first + half) % 2, math.inf, 2)


class Answers:
    """The answers of the service, by operation. `calls` counts them; `first` has the time of
    the first call of each."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.calls: Counter[str] = Counter()
        self.first: dict[str, float] = {}
        self._padding = base64.b64encode(b"x" * (formula.size - NUMBER_BYTES)).decode()
        self._operations: dict[str, Callable[[dict[str, Any], float], str]] = {
            "DescribeStreamSummary": self._describe,
            "ListShards": self._list_shards,
            "GetShardIterator": self._iterator,
            "GetRecords": self._records,
        }

    def answer(self, operation: str, request: dict[str, Any], now: float) -> str:
        """Return the body of an answer. Raises KeyError for another operation."""
        self.calls[operation] += 1
        self.first.setdefault(operation, now)
        return self._operations[operation](request, now)

    def _describe(self, _: dict[str, Any], now: float) -> str:
        summary = {
            "StreamName": STREAM,
            "StreamARN": _ARN,
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": self.formula.began - 3_600,
            "OpenShardCount": self.formula.lines,
            "EnhancedMonitoring": [],
        }
        return json.dumps({"StreamDescriptionSummary": summary})

    def _list_shards(self, request: dict[str, Any], _: float) -> str:
        first = int(request.get("NextToken", 0))
        shards, following = self.formula.shards(), first + _PAGE_OF_SHARDS
        page: dict[str, Any] = {
            "Shards": [self._shard(number) for number in range(first, min(following, shards))]
        }
        if following < shards:
            page["NextToken"] = str(following)
        return json.dumps(page)

    def _shard(self, number: int) -> dict[str, Any]:
        lines, (line, first, stop, _) = self.formula.lines, self.formula.part(number)
        step = _HASH_KEYS // (2 * lines)
        half = number - lines - 2 * line  # 0 or 1 of a child
        begin = (number - lines if half >= 0 else 2 * line) * step
        end = begin + (step if half >= 0 else 2 * step)
        end = _HASH_KEYS if line == lines - 1 and half != 0 else end
        sequence = {"StartingSequenceNumber": str(FIRST_NUMBER + first)}
        if not math.isinf(stop):
            sequence["EndingSequenceNumber"] = str(FIRST_NUMBER + int(stop))
        return {
            "ShardId": shard_id(number),
            "HashKeyRange": {"StartingHashKey": str(begin), "EndingHashKey": str(end - 1)},
            "SequenceNumberRange": sequence,
            **({"ParentShardId": shard_id(line)} if half >= 0 else {}),
        }

    def _iterator(self, request: dict[str, Any], now: float) -> str:
        shard = int(request["ShardId"].rpartition("-")[2])
        part = self.formula.part(shard)
        match request["ShardIteratorType"]:
            case "TRIM_HORIZON":
                place = part.first
            case "LATEST":
                place = self.formula.count(part.line, now)
            case "AT_TIMESTAMP":
                place = self.formula.count(part.line, float(request["Timestamp"]) - 1e-6)
            case kind:
                place = int(request["StartingSequenceNumber"]) - FIRST_NUMBER
                place += kind == "AFTER_SEQUENCE_NUMBER"
        return f'{{"ShardIterator":"{shard}:{part.at(place)}"}}'

    def _records(self, request: dict[str, Any], now: float) -> str:
        formula = self.formula
        shard, first = map(int, request["ShardIterator"].split(":"))
        part = formula.part(shard)
        line, lines, step = part.line, formula.lines, part.step
        there = formula.count(line, now)
        stop = min(there, first + request.get("Limit", _MOST_RECORDS) * step, part.stop)
        places = range(first, int(stop), step)
        records = ",".join(
            f'{{"ApproximateArrivalTimestamp":{formula.arrival(line, place):.3f},"Data":"'
            f'{self._data(number := place * lines + line)}",'
            f'"PartitionKey":"key-{number % (2 * lines)}",'
            f'"SequenceNumber":"{FIRST_NUMBER + place}"}}'
            for place in places
        )
        following = places[-1] + step if places else first
        behind = 0
        if following < min(there, part.stop):
            behind = max(1, round(1000 * (now - formula.arrival(line, following))))
        iterator = "null" if following >= part.stop else f'"{shard}:{following}"'
        page = f'"NextShardIterator":{iterator},"Records":[{records}]'
        return f'{{"MillisBehindLatest":{behind},{page}}}'

    def _data(self, number: int) -> str:
        return base64.b64encode(b"%0*d" % (NUMBER_BYTES, number)).decode() + self._padding


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
                word, _ = pipe.recv()
            except EOFError:
                loop.remove_reader(pipe.fileno())
                ended.set()
                return
            answer: object = None
            match word:
                case "split":
                    formula.split = time.time()
                case "end":
                    formula.ended = time.time()
                    answer = formula.total(formula.ended)
                case "forget first calls":
                    answers.first.clear()
                case "first calls":
                    answer = answers.first
                case _:
                    answer = dict(answers.calls)
            pipe.send(answer)

        loop.add_reader(pipe.fileno(), asked)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await ended.wait()
        server.close()

    asyncio.run(serve())


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaService(AnyService):
    """The process of the service."""

    def split(self) -> None:
        """Split each shard into two."""
        self._ask("split", None)

    def end(self) -> int:
        """Return the number of records; no more arrive."""
        count: int = self._ask("end", None)
        return count

    def forget_first_calls(self) -> None:
        """Let `first_calls` begin now."""
        self._ask("forget first calls", None)

    def first_calls(self) -> dict[str, float]:
        """Return the time of the first call of each operation, in seconds since the epoch."""
        times: dict[str, float] = self._ask("first calls", None)
        return times


@contextmanager
def formula_service(shards: int, *, rate: float, size: int) -> Iterator[FormulaService]:
    """A service with one stream of `shards` shards within the block, each with `rate` records of
    `size` bytes a second."""
    formula = Formula(lines=shards, rate=rate, began=time.time(), size=size)
    with service_process(_serve, formula) as (url, pipe, process):
        yield FormulaService(url=url, _pipe=pipe, _process=process)
