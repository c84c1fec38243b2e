"""Serves the page of timelines: Starlette on uvicorn, whose event loop runs in a thread."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Final
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.options.values import is_loopback
from spark_ssp.operations.live_page.page import page
from spark_ssp.operations.live_page.timelines import Timelines

_STOP_TIMEOUT_S: Final = 10
_PERIOD_S: Final = 0.5
"""The shortest time between two updates of an open page."""
_KEEP_ALIVE: Final = 30
"""An open page gets a comment after this number of periods without an update, which shows the
server that it is still there."""


def start_server(timelines: Timelines, *, host: str, port: int, token: str | None) -> PageServer:
    """Serve the page of timelines. An address that other machines can reach needs a token, which is
    random unless it is given. Raises InvalidOptionsError for an address that cannot be used, and
    for a blank address or token, such as those of variables that are not set."""
    problems = [*_blank("host", host, "127.0.0.1"), *_blank("token", token, "a secret text")]
    if problems:
        raise InvalidOptionsError("the live page", problems)
    if token is None and not is_loopback(f"http://{f'[{host}]' if ':' in host else host}"):
        token = secrets.token_urlsafe(24)
    try:
        server = PageServer(timelines, host=host, port=port, token=token)
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
    version of them. Without a `token`, only requests to a loopback address are answered, whatever
    name they use."""

    def __init__(self, timelines: Timelines, *, host: str, port: int, token: str | None) -> None:
        self._timelines = timelines
        self._token = token
        self._host = host
        self._lock = threading.Lock()
        self._rendered: tuple[int, str] | None = None
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
        return f"http://{self._bracketed}:{self._socket.getsockname()[1]}/{query}"

    @property
    def _bracketed(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

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

    def content(self) -> str:
        """Return the body of the page, rendered if it has changed."""
        with self._lock:
            version = self._timelines.version
            if self._rendered is None or self._rendered[0] != version:
                self._rendered = version, self._timelines.render()
            return self._rendered[1]

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _application(self) -> Starlette:
        middleware = []
        if is_loopback(f"http://{self._bracketed}"):
            # Against a page of another site whose name resolves to this machine.
            names = ["127.0.0.1", "localhost", "[::1]"]
            middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=names)]
        routes = [Route("/", self._page), Route("/events", self._events)]
        return Starlette(routes=routes, middleware=middleware)

    async def _page(self, request: Request) -> Response:
        if not self._is_allowed(request):
            return _refusal()
        nonce = secrets.token_urlsafe(16)
        content = await run_in_threadpool(self.content)
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
            "connect-src 'self'; img-src data:; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
        }
        return HTMLResponse(page(content, nonce=nonce), headers=headers)

    async def _events(self, request: Request) -> Response:
        if not self._is_allowed(request):
            return _refusal()
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(
            self._updates(request), media_type="text/event-stream", headers=headers
        )

    async def _updates(self, request: Request) -> AsyncIterator[str]:
        """Yield the body at once and after each change, as server-sent events."""
        shown: int | None = None
        quiet = 0
        while not self._stopping and not await request.is_disconnected():
            version = self._timelines.version
            quiet += 1
            if version != shown:
                shown, quiet = version, 0
                content = await run_in_threadpool(self.content)
                yield f"data: {json.dumps(content)}\n\n"
            elif quiet >= _KEEP_ALIVE:
                quiet = 0
                yield ": no update\n\n"
            await asyncio.sleep(_PERIOD_S)

    def _is_allowed(self, request: Request) -> bool:
        if self._token is None:
            return True
        given = request.query_params.get("token", "")
        return secrets.compare_digest(given.encode(), self._token.encode())


def _refusal() -> Response:
    return PlainTextResponse("the page needs the token of its address", status_code=403)
