"""Serves the timelines of several queries as a page: Starlette on uvicorn, whose event loop runs in
a thread."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from spark_ssp.common import now_ms
from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.options.values import HOST_REFUSAL, base_url, is_local, names_this_machine
from spark_ssp.operations.health import Limits
from spark_ssp.operations.live_page.page import (
    Assessed,
    Content,
    Parts,
    changes,
    content,
    page,
    query_parts,
)
from spark_ssp.operations.live_page.svg import axis_of
from spark_ssp.operations.live_page.timeline import QueryTimeline
from spark_ssp.operations.observed_queries import MAX_ENDED, ObservedQueries, ObservedQuery
from spark_ssp.operations.snapshot import QuerySnapshot

# --- The timelines --------------------------------------------------------------------------------


class Observed(Protocol):
    """The observed queries, with their health."""

    version: int
    """Increases with each change."""

    def get(self, run_id: str) -> ObservedQuery | None:
        """Return a run; None if it is not known."""

    def assessed(self, limits: Limits, now_ms: int) -> list[Assessed]:
        """Return the queries with their health, the newest run of each."""


class Timelines:
    """The timelines of a session's queries, a consumer of snapshots. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._observed: Observed = ObservedQueries()
        self._version = 0
        self._queries: dict[str, QueryTimeline] = {}
        """By query id, in the order of their first reports."""
        self._numbered = 0
        self._drawn: dict[int, tuple[tuple[object, ...], Parts]] = {}
        """The parts by the number of their timeline, after the version and times of that."""

    @property
    def version(self) -> int:
        """Increases with each change, except for that of the time."""
        return self._version + self._observed.version

    def attach(self, queries: Observed) -> None:
        """Take the queries of the session, for their health."""
        self._observed = queries

    def publish(self, snapshot: QuerySnapshot) -> None:
        """Add the snapshot of a trigger."""
        query = self._observed.get(snapshot.run_id)
        delays = () if query is None else query.delays
        with self._lock:
            timeline = self._timeline(snapshot.query_id, snapshot.run_id)
            timeline.add(snapshot, delays, self._limits.max_delay_ms)
            self._version += 1

    def tick(self) -> None:
        """Do nothing: the page is rendered when it is asked for."""

    def end(self, run_id: str) -> None:
        """Note the end of a run, and forget the queries that ended first."""
        query = self._observed.get(run_id)
        with self._lock:
            for timeline in self._queries.values():
                if timeline.run_id == run_id and query is not None and query.ended_ms is not None:
                    failed = query.failure is not None
                    timeline.note(query.ended_ms, f"failed: {query.failure}" if failed else "ended")
            self._forget()
            self._version += 1

    def _timeline(self, query_id: str, run_id: str) -> QueryTimeline:
        found = self._queries.get(query_id)
        if found is None:
            self._numbered += 1
            found = self._queries[query_id] = QueryTimeline(self._numbered, run_id)
        return found

    def _forget(self) -> None:
        if len(self._queries) > MAX_ENDED:
            self._queries = {
                query_id: timeline
                for query_id, timeline in self._queries.items()
                if self._observed.get(timeline.run_id) is not None
            }
            numbers = {each.number for each in self._queries.values()}
            self._drawn = {n: drawn for n, drawn in self._drawn.items() if n in numbers}

    def render(self, now_ms: int) -> Content:
        """Return the content of the page."""
        queries = self._observed.assessed(self._limits, now_ms)
        with self._lock:
            found = [
                (query, health, self._timeline(query.query_id, query.run_id))
                for query, health in queries
            ]
            return content(found, self._limits, now_ms, draw_parts=self._query_parts)

    def _query_parts(self, query: QueryTimeline, limits: Limits, now_ms: int | None) -> Parts:
        """Draw a query, unless neither it nor the time that is shown has changed."""
        ends = [axis_of(source, now_ms).end_ms for source in query.sources if source.batches]
        drawn_for = query.version, now_ms is None, *ends
        known = self._drawn.get(query.number)
        if known is None or known[0] != drawn_for:
            known = self._drawn[query.number] = drawn_for, query_parts(query, limits, now_ms)
        return known[1]


# --- The server -----------------------------------------------------------------------------------

_STOP_TIMEOUT_S: Final = 10
_PERIOD_S: Final = 0.5
"""The shortest time between two updates of an open page."""
CLOCK_MS: Final = 5_000
"""The longest: ages and delays grow without a report."""
MAX_READERS: Final = 50
"""The pages that are updated at a time."""
_KEPT: Final = 8
"""The contents that are kept, to send the changes since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    revision: str
    """Of the content, unique among all servers."""
    version: int
    """Of the timelines."""
    time_ms: int
    content: Content


def start_server(
    timelines: Timelines,
    *,
    host: str,
    port: int,
    token: str | None,
    now_ms: Callable[[], int] = now_ms,
) -> PageServer:
    """Serve the page of timelines. An address that other machines can reach needs a token, which is
    random unless it is given. Raises InvalidOptionsError for an address that cannot be used, and
    for a blank address or token, such as those of variables that are not set."""
    problems = [*_blank("host", host, "127.0.0.1"), *_blank("token", token, "a secret text")]
    if problems:
        raise InvalidOptionsError("the live page", problems)
    if token is None and not is_local(host):
        token = secrets.token_urlsafe(24)
    try:
        server = PageServer(timelines, host=host, port=port, token=token, now_ms=now_ms)
    except (OSError, OverflowError) as error:
        raise _unusable_address(host, port, error) from error
    server.start()
    return server


def _blank(option: str, value: str | None, expected: str) -> Iterator[OptionProblem]:
    """Yield the problem of an empty value: as an address it is every one of this machine, and as a
    token anyone has it."""
    if value is not None and not value.strip():
        yield OptionProblem(
            option=option,
            found="an empty value",
            expected=expected,
            next_step="set the variable that it comes from, or leave it out for the default",
        )


def _unusable_address(host: str, port: int, error: Exception) -> InvalidOptionsError:
    problem = OptionProblem(
        option="host, port",
        found=f"{host}:{port}, which cannot be bound: {error}",
        expected="an address of this machine with a free port, such as port=0",
        next_step="correct the address",
    )
    return InvalidOptionsError("the live page", [problem])


class PageServer:
    """Serves the page of timelines from `start` to `stop`. The page is rendered once for each
    version of them and each `CLOCK_MS`, while somebody looks. Without a `token`, only requests to
    a loopback address are answered, whatever name they use."""

    def __init__(
        self,
        timelines: Timelines,
        *,
        host: str,
        port: int,
        token: str | None,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._timelines = timelines
        self._now_ms = now_ms
        self._token = token
        self._host = host
        self._lock = threading.Lock()
        self._instance = secrets.token_hex(8)
        self._renders = 0
        self._rendered: deque[_Rendered] = deque(maxlen=_KEPT)
        """The newest last."""
        self._readers = 0
        self._stopping = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._application(),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._run, name="spark-ssp-page", daemon=True)

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        query = "" if self._token is None else f"?{urlencode({'token': self._token})}"
        return f"{base_url(self._host)}:{self._socket.getsockname()[1]}/{query}"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread to end."""
        self._stopping = True
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        self._socket.close()

    def rendered(self) -> _Rendered:
        """Return the content of the page, rendered if it or the time has changed."""
        with self._lock:
            version, now = self._timelines.version, self._now_ms()
            newest = self._rendered[-1] if self._rendered else None
            if newest is None or self._is_old(newest):
                self._renders += 1
                newest = _Rendered(
                    revision=f"{self._instance}-{self._renders}",
                    version=version,
                    time_ms=now,
                    content=self._timelines.render(now),
                )
                self._rendered.append(newest)
            return newest

    def _is_old(self, rendered: _Rendered) -> bool:
        age = self._now_ms() - rendered.time_ms
        return rendered.version != self._timelines.version or not 0 <= age < CLOCK_MS

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _application(self) -> Starlette:
        return Starlette(routes=[Route("/", self._page), Route("/events", self._events)])

    async def _page(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        nonce = secrets.token_urlsafe(16)
        shown = await run_in_threadpool(self.rendered)
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
            "connect-src 'self'; img-src data:; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
        }
        text = page(shown.content, nonce=nonce, revision=shown.revision)
        return HTMLResponse(text, headers=headers)

    async def _events(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if self._readers >= MAX_READERS:
            return PlainTextResponse(
                f"{MAX_READERS} pages are open already: close one of them", status_code=503
            )
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(
            self._updates(request), media_type="text/event-stream", headers=headers
        )

    async def _updates(self, request: Request) -> AsyncIterator[str]:
        """Yield the changes since the content that the page has, as server-sent events."""
        self._readers += 1
        try:
            shown = self._known(request)
            is_first = True
            while not self._stopping and not await request.is_disconnected():
                if is_first or shown is None or self._is_old(shown):
                    newest = await run_in_threadpool(self.rendered)
                    before = None if shown is None else shown.content.parts
                    document = json.dumps(
                        changes(before, newest.content), ensure_ascii=False, separators=(",", ":")
                    )
                    yield f"id: {newest.revision}\ndata: {document}\n\n"
                    shown, is_first = newest, False
                await asyncio.sleep(_PERIOD_S)
        finally:
            self._readers -= 1

    def _known(self, request: Request) -> _Rendered | None:
        """Return the content that a page has, if it is kept."""
        revision = request.headers.get("last-event-id") or request.query_params.get("revision")
        with self._lock:
            return next((one for one in self._rendered if one.revision == revision), None)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that may not see the page."""
        if is_local(self._host) and not names_this_machine(request.headers.get("host")):
            return PlainTextResponse(HOST_REFUSAL, status_code=400)
        given = request.query_params.get("token", "")
        if self._token is None or secrets.compare_digest(given.encode(), self._token.encode()):
            return None
        return PlainTextResponse("the page needs the token of its address", status_code=403)
