"""A Kinesis without work: it answers GetRecords with pages prepared before, so that only the
reading side is measured. One stream, whose shards are closed and hold the same records: pages as
large as the service's, of 10,000 records or 10 MB. Runs in a separate process. A page is made when
it is first asked for and kept, up to a gigabyte of pages. SubscribeToShard sends the same pages, in
events of about a megabyte, by HTTP/1.1 or HTTP/2."""

from __future__ import annotations

import base64
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import orjson
import uvicorn

from spark_ssp.grouping.identifiers import hash_of
from spark_ssp.testing.kinesis.server import (
    CONTENT_TYPE,
    encode_message,
    initial_response,
)
from tests.support.kinesis.http2 import either_protocol, server_tls

STREAM: Final = "bench"
PAGE_RECORDS: Final = 10_000
PAGE_BYTES: Final = 10_000_000
CREATED: Final = 1_700_000_000.0
KEPT_BYTES: Final = 1_000_000_000
CONSUMER: Final = "bench"
EVENT_BYTES: Final = 1 << 20
_ARN: Final = f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}"
_EVENT: Final = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
_FIRST: Final = "496" + 37 * "0"
_PLACE: Final = "########"
_RECORD_DIGITS: Final = 8
"""Sequence numbers: these 40 digits, 8 for the page and 8 for the record; 56 as in the service."""
_LAST_HASH: Final = (1 << 128) - 1
_ANSWER_S: Final = 60

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Content of each shard: `pages` of records of `size` bytes."""

    shards: int
    pages: int
    size: int
    is_open: bool = False
    """The shards are open: PutRecords is answered, and stores nothing."""

    @property
    def page_records(self) -> int:
        return min(PAGE_RECORDS, PAGE_BYTES // self.size)

    @property
    def records(self) -> int:
        """In all shards together."""
        return self.shards * self.pages * self.page_records

    @property
    def bytes(self) -> int:
        """Of data, in all shards together."""
        return self.records * self.size


class Pages:
    """An ASGI application. `served` counts the pages that were given, `polled` those of them by
    GetRecords."""

    def __init__(self, load: Load, served: Synchronized[int], polled: Synchronized[int]) -> None:
        self._load = load
        self._served = served
        self._polled = polled
        self._records = self._make_records()
        self._template = b",".join(self._records)
        kept = max(1, KEPT_BYTES // len(self._template))
        self._page = lru_cache(maxsize=kept)(self._make_page)
        self._place = lru_cache(maxsize=100_000)(self._shard_of)

    def _make_records(self) -> list[bytes]:
        """The records of any page, as JSON, with `_PLACE` in place of the page's number."""
        data = base64.b64encode(b"x" * self._load.size).decode()
        return [
            orjson.dumps(
                {
                    "ApproximateArrivalTimestamp": CREATED + record / 1000,
                    "Data": data,
                    "PartitionKey": f"key-{record % 5000}",
                    "SequenceNumber": f"{_FIRST}{_PLACE}{record:0{_RECORD_DIGITS}}",
                }
            )
            for record in range(self._load.page_records)
        ]

    def _make_page(self, number: int) -> bytes:
        """A page's answer without its end, which depends on the shard."""
        return self._part(number, self._template, left=0)

    def _part(self, number: int, records: bytes, *, left: int) -> bytes:
        """Return the part of a page that has `left` records left."""
        behind = (self._load.pages - 1 - number) * 60_000 + left
        placed = records.replace(_PLACE.encode(), b"%08d" % number)
        return b'{"MillisBehindLatest":%d,"Records":[%s]' % (behind, placed)

    def _read(self, shard: str, number: int, start: int, limit: int) -> bytes:
        """Records of a page, from one on: whole pages are kept, since most are asked for so."""
        end = start + limit
        if start == 0 and end >= self._load.page_records:
            body = self._page(number)
        else:
            left = max(0, self._load.page_records - end)
            body = self._part(number, b",".join(self._records[start:end]), left=left)
        if end < self._load.page_records:
            return body + b',"NextShardIterator":"%s:%d:%d"}' % (shard.encode(), number, end)
        if number + 1 < self._load.pages:
            return body + b',"NextShardIterator":"%s:%d:0"}' % (shard.encode(), number + 1)
        return body + b',"ChildShards":[]}'

    async def __call__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        target = dict(scope["headers"])[b"x-amz-target"].decode().partition(".")[2]
        if target == "SubscribeToShard":
            await self._push(orjson.loads(body)["StartingPosition"], send)
            return
        answer = self._answer(target, orjson.loads(body or b"{}"))
        headers = [(b"content-type", b"application/x-amz-json-1.1")]
        headers.append((b"content-length", str(len(answer)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer, "more_body": False})

    async def _push(
        self, position: dict[str, str], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Send all events from a sequence number on, or from the beginning."""
        page, record = _place_of(position["Type"], position.get("SequenceNumber"))
        headers = [(b"content-type", CONTENT_TYPE)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": initial_response(), "more_body": True})
        for number in range(page, self._load.pages):
            for event in self._events(number, record if number == page else 0):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            with self._served.get_lock():
                self._served.value += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, number: int, first: int) -> Iterator[bytes]:
        """Yield the events of a page, from one of its records on."""
        step = max(1, EVENT_BYTES // self._load.size)
        for start in range(first, self._load.page_records, step):
            last = min(start + step, self._load.page_records) - 1
            body = self._part(number, b",".join(self._records[start : last + 1]), left=1)
            if number + 1 == self._load.pages and last + 1 == self._load.page_records:
                body += b',"ChildShards":%s}' % orjson.dumps([self._child()])
            else:
                following = f"{_FIRST}{number:0{_RECORD_DIGITS}}{last:0{_RECORD_DIGITS}}"
                body += b',"ContinuationSequenceNumber":"%s"}' % following.encode()
            yield encode_message(_EVENT, body)

    def _child(self) -> dict[str, Any]:
        """The last event of a closed shard has its children, which nobody reads here."""
        hashes = {"StartingHashKey": "0", "EndingHashKey": str(_LAST_HASH)}
        return {"ShardId": "child", "ParentShards": ["parent"], "HashKeyRange": hashes}

    def _answer(self, target: str, request: dict[str, Any]) -> bytes:
        match target:
            case "GetRecords":
                shard, number, start = request["ShardIterator"].split(":")
                for counter in (self._served, self._polled):
                    with counter.get_lock():
                        counter.value += 1
                limit = request.get("Limit", PAGE_RECORDS)
                return self._read(shard, int(number), int(start), limit)
            case "PutRecords":
                return self._put(request["Records"])
            case "GetShardIterator":
                page, record = _place_of(
                    request["ShardIteratorType"], request.get("StartingSequenceNumber")
                )
                return orjson.dumps({"ShardIterator": f"{request['ShardId']}:{page}:{record}"})
            case "ListShards":
                return orjson.dumps({"Shards": [self._shard(n) for n in range(self._load.shards)]})
            case "DescribeStreamConsumer":
                return orjson.dumps({"ConsumerDescription": self._consumer()})
            case "DescribeStreamSummary":
                return orjson.dumps({"StreamDescriptionSummary": self._summary()})
        raise NotImplementedError(target)

    def _put(self, entries: list[dict[str, str]]) -> bytes:
        number = f"{_FIRST}{0:08}{0:0{_RECORD_DIGITS}}"
        places = [self._place(e["PartitionKey"], e.get("ExplicitHashKey")) for e in entries]
        results = [{"SequenceNumber": number, "ShardId": place} for place in places]
        return orjson.dumps({"FailedRecordCount": 0, "Records": results})

    def _shard_of(self, key: str, hash_key: str | None) -> str:
        step = (1 << 128) // self._load.shards
        number = min(hash_of(key, hash_key) // step, self._load.shards - 1)
        return f"shardId-{number:012d}"

    def _shard(self, number: int) -> dict[str, Any]:
        step = (1 << 128) // self._load.shards
        last = _LAST_HASH if number == self._load.shards - 1 else (number + 1) * step - 1
        numbers = {"StartingSequenceNumber": f"{_FIRST}{0:08}{0:0{_RECORD_DIGITS}}"}
        if not self._load.is_open:
            end = f"{_FIRST}{self._load.pages:08}{0:0{_RECORD_DIGITS}}"
            numbers["EndingSequenceNumber"] = end
        return {
            "ShardId": f"shardId-{number:012d}",
            "HashKeyRange": {"StartingHashKey": str(number * step), "EndingHashKey": str(last)},
            "SequenceNumberRange": numbers,
        }

    def _consumer(self) -> dict[str, Any]:
        return {
            "ConsumerName": CONSUMER,
            "ConsumerARN": f"{_ARN}/consumer/{CONSUMER}:1",
            "ConsumerStatus": "ACTIVE",
            "ConsumerCreationTimestamp": CREATED,
            "StreamARN": _ARN,
        }

    def _summary(self) -> dict[str, Any]:
        return {
            "StreamName": STREAM,
            "StreamARN": _ARN,
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": CREATED,
            "EnhancedMonitoring": [],
            "OpenShardCount": self._load.shards,
        }


def _place_of(kind: str, sequence_number: str | None) -> tuple[int, int]:
    """Return the page of a position, and the number of its first record there."""
    if sequence_number is None:
        return 0, 0
    digits = sequence_number[-2 * _RECORD_DIGITS :]
    record = int(digits[_RECORD_DIGITS:]) + (kind == "AFTER_SEQUENCE_NUMBER")
    return int(digits[:_RECORD_DIGITS]), record


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServer:
    """Address of the server, and the number of pages it has served."""

    url: str
    _served: Synchronized[int]
    _polled: Synchronized[int]

    def served(self) -> int:
        """Return the number of pages served so far."""
        return self._served.value

    def polled(self) -> int:
        """Return the number of pages that GetRecords has returned so far."""
        return self._polled.value


def _serve(
    load: Load,
    port: int,
    served: Synchronized[int],
    polled: Synchronized[int],
    certificates: Path | None,
) -> None:
    app = Pages(load, served, polled)
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", http="httptools")
    if certificates is not None:
        config.http = either_protocol()
        config.load()
        config.ssl = server_tls(certificates)
    uvicorn.Server(config).run()


@contextmanager
def page_server(load: Load, *, certificates: Path | None = None) -> Iterator[PageServer]:
    """The server, within the block. With TLS and HTTP/2 if there is a folder of
    `tests.support.kinesis.certificates`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    served: Synchronized[int] = context.Value("q", 0)
    polled: Synchronized[int] = context.Value("q", 0)
    arguments = (load, port, served, polled, certificates)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    try:
        deadline = time.monotonic() + _ANSWER_S
        while True:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if not process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the page server did not start")
            time.sleep(0.05)
        scheme = "http" if certificates is None else "https"
        yield PageServer(url=f"{scheme}://127.0.0.1:{port}", _served=served, _polled=polled)
    finally:
        process.terminate()
        process.join()
