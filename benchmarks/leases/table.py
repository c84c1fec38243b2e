"""A DynamoDB table of leases that costs little, for benchmarks of the agent: it applies the updates
and statements that the product sends, by the same conditions, and counts the calls.

It runs in a separate process. It knows one table, checks no signature, and keeps rows in memory.
"""

from __future__ import annotations

import multiprocessing
import re
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, Final

import orjson

Row = dict[str, Any]
Change = Callable[[Row | None, Any], Row | None]
"""The new row, or None if the condition fails; from the old one and the values."""

LOOPBACK: Final = "127.0.0.1"
KEY: Final = "leaseKey"
PAGE_BYTES: Final = 1 << 20
_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A counting DynamoDB in a separate process."""

    endpoint_url: str
    counts: Callable[[], dict[str, int]]
    """The calls since it was asked last, by operation, and the statements of batches."""


@contextmanager
def counting_table(rows: Iterable[Row] = ()) -> Iterator[Server]:
    """One with these rows, within the block."""
    ours, theirs = _context.Pipe()
    process = _context.Process(
        target=_serve, args=(theirs, {row[KEY]["S"]: row for row in rows}), daemon=True
    )
    process.start()
    theirs.close()

    def counts() -> dict[str, int]:
        ours.send("counts")
        found: dict[str, int] = ours.recv()
        return found

    try:
        yield Server(endpoint_url=ours.recv(), counts=counts)
    finally:
        ours.close()
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(pipe: Connection, rows: dict[str, Row]) -> None:
    table = _Table(rows=rows)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            _answer_requests(self.rfile, self.wfile, table)

    class Listener(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True
        request_queue_size = 128

    with Listener((LOOPBACK, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pipe.send(f"http://{LOOPBACK}:{server.server_address[1]}")
        try:
            while True:
                pipe.recv()
                found, table.counts = table.counts, Counter()
                pipe.send(dict(found))
        except EOFError:
            server.shutdown()


def _answer_requests(incoming: Any, outgoing: Any, table: _Table) -> None:
    while _has_more(incoming):
        length, target = 0, ""
        while (line := incoming.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "content-length":
                length = int(value)
            elif name.lower() == "x-amz-target":
                target = value.strip().rpartition(".")[2]
        request = orjson.loads(incoming.read(length))
        status, answer = table.answer(target, request)
        body = orjson.dumps(answer)
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\n"
        with suppress(OSError):
            outgoing.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _has_more(incoming: Any) -> bool:
    try:
        return bool(incoming.readline())
    except OSError:  # the client has ended
        return False


@dataclass(slots=True)
class _Table:
    rows: dict[str, Row]
    counts: Counter[str] = field(default_factory=Counter)
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.counts[operation] += 1
        with self.lock:
            match operation:
                case "DescribeTable":
                    return 200, {"Table": _DESCRIPTION}
                case "Scan":
                    return 200, self._scan(request)
                case "PutItem":
                    self.rows.setdefault(request["Item"][KEY]["S"], request["Item"])
                    return 200, {}
                case "UpdateItem":
                    return self._update(request)
                case "BatchExecuteStatement":
                    self.counts["statement"] += len(request["Statements"])
                    return 200, {"Responses": [self._state(one) for one in request["Statements"]]}
        error = {"__type": "com.amazon.coral.service#UnknownOperationException"}
        return 400, error

    def _scan(self, request: dict[str, Any]) -> dict[str, Any]:
        if "IndexName" in request or not request["TableName"].startswith("bench-"):
            return {"Items": []}
        segment, segments = request.get("Segment", 0), request.get("TotalSegments", 1)
        keys = [key for key in self.rows if int(key[-6:]) % segments == segment]
        begin = request.get("ExclusiveStartKey", {}).get("position", {}).get("N", "0")
        items, size, at = [], 0, int(begin)
        while at < len(keys) and size < PAGE_BYTES:
            items.append(self.rows[keys[at]])
            size += 500
            at += 1
        last = {"LastEvaluatedKey": {"position": {"N": str(at)}}} if at < len(keys) else {}
        return {"Items": items, **last}

    def _update(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        key = request["Key"][KEY]["S"]
        change = _updating(
            request["UpdateExpression"],
            request["ConditionExpression"],
            tuple(request["ExpressionAttributeNames"].items()),
        )
        row = change(self.rows.get(key), request.get("ExpressionAttributeValues", {}))
        if row is None:
            error = {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"}
            return 400, error | ({"Item": self.rows[key]} if key in self.rows else {})
        self.rows[key] = row
        return 200, {"Attributes": row}

    def _state(self, statement: dict[str, Any]) -> dict[str, Any]:
        change, key_at = _stating(statement["Statement"])
        values = dict(enumerate(statement["Parameters"]))
        key = values[key_at]["S"]
        row = change(self.rows.get(key), values)
        if row is None:
            found = {"Item": self.rows[key]} if key in self.rows else {}
            return {"Error": {"Code": "ConditionalCheckFailed", **found}}
        self.rows[key] = row
        return {}


_DESCRIPTION: Final = {
    "TableStatus": "ACTIVE",
    "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
}


def _change(
    sets: list[tuple[str, Any]],
    adds: list[tuple[str, Any]],
    removes: list[str],
    expected: list[tuple[str, Any]],
) -> Change:
    """Values are named by their keys; None as an expected one means that there is none."""

    def change(old: Row | None, values: Any) -> Row | None:
        if old is None or any(
            old.get(name) != (None if value is None else values[value]) for name, value in expected
        ):
            return None
        new = {name: value for name, value in old.items() if name not in removes}
        new |= {name: values[value] for name, value in sets}
        for name, value in adds:
            new[name] = {"N": str(int(new.get(name, {"N": "0"})["N"]) + int(values[value]["N"]))}
        return new

    return change


@cache
def _updating(update: str, condition: str, names: tuple[tuple[str, str], ...]) -> Change:
    real = dict(names)
    found: dict[str, list[str]] = {}
    for word, terms in re.findall(r"(SET|ADD|REMOVE) (.*?)(?= (?:SET|ADD|REMOVE) |$)", update):
        found[word] = terms.split(", ")
    expected: list[tuple[str, Any]] = []
    for term in condition.split(" AND "):
        if match := re.fullmatch(r"attribute_not_exists\((#\w+)\)", term):
            expected.append((real[match[1]], None))
        elif match := re.fullmatch(r"(#\w+) = (:\w+)", term):
            expected.append((real[match[1]], match[2]))
    pairs = [term.split(" = ") for term in found.get("SET", [])]
    added = [term.split(" ") for term in found.get("ADD", [])]
    return _change(
        [(real[name], value) for name, value in pairs],
        [(real[name], value) for name, value in added],
        [real[name] for name in found.get("REMOVE", [])],
        expected,
    )


@cache
def _stating(statement: str) -> tuple[Change, int]:
    """Also return which parameter is the key."""
    sets: list[tuple[str, Any]] = []
    adds: list[tuple[str, Any]] = []
    removes: list[str] = []
    expected: list[tuple[str, Any]] = []
    key_at, at = 0, 0
    parts = r'(SET|WHERE|AND|REMOVE) "(\w+)"(="\w+"\+\?|=\?| IS MISSING)?'
    for word, name, rest in re.findall(parts, statement):
        if word == "REMOVE":
            removes.append(name)
            continue
        if rest == " IS MISSING":
            expected.append((name, None))
            continue
        if word == "WHERE":
            key_at = at
        elif word == "AND":
            expected.append((name, at))
        else:
            (sets if rest == "=?" else adds).append((name, at))
        at += 1
    return _change(sets, adds, removes, expected), key_at
