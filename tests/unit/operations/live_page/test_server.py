"""The server of the page: who may see it, and how it is updated."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_ssp.common.errors import InvalidOptionsError, UnsupportedError
from spark_ssp.operations.health import Limits
from spark_ssp.operations.live_page.page import Content
from spark_ssp.operations.live_page.serve import serve_live_page
from spark_ssp.operations.live_page.server import (
    CLOCK_MS,
    MAX_READERS,
    PageServer,
    Timelines,
    start_server,
)

LIMITS = Limits(max_delay_ms=600_000, stuck_after_ms=900_000)


class Counted(Timelines):
    """A page with a counter, of a part that changes with it and one that does not."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.count = 0
        self.renders = 0
        self.now = 0

    @property
    def version(self) -> int:
        return self.count

    def render(self, now_ms: int) -> Content:
        self.renders += 1
        self.now = now_ms
        return Content(
            title="OK", parts={"top": f"version {self.count}", "time": f"{now_ms}", "q1": "still"}
        )


class Clock:
    """A clock that stands still until it is set."""

    ms = 7

    def __call__(self) -> int:
        return self.ms


@contextmanager
def serving(
    content: Counted,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    clock: Clock | None = None,
) -> Iterator[PageServer]:
    server = PageServer(content, host=host, port=0, token=token, now_ms=clock or Clock())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def request(server: PageServer, path: str = "", **headers: str) -> Iterator[HTTPResponse]:
    address = urlsplit(server.url)
    connection = HTTPConnection(address.netloc, timeout=20)
    try:
        connection.request("GET", path or f"/?{address.query}", headers=headers)
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def read(server: PageServer) -> tuple[str, str]:
    """Return the page and its content security policy."""
    with request(server) as response:
        assert response.status == 200
        policy = response.headers["content-security-policy"]
        return response.read().decode(), policy


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_a_missing_extra_is_one_clear_error(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the page is imported, its packages are not needed."""
    for name in ("serve", "server"):
        monkeypatch.delitem(sys.modules, f"spark_ssp.operations.live_page.{name}", raising=False)
    for loaded in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, package, None)
    from spark_ssp import serve_live_page

    session: Any = None
    with pytest.raises(UnsupportedError, match=rf"pip install .*{package}"):
        serve_live_page(session)


@pytest.mark.parametrize("argument", ["host", "token"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_address_or_token_is_refused(argument: str, value: str) -> None:
    given: dict[str, Any] = {"host": "127.0.0.1", "token": "a", argument: value}
    with pytest.raises(InvalidOptionsError, match=f"{argument}: found an empty value"):
        start_server(Timelines(LIMITS), port=0, **given)


def test_limits_that_are_no_durations_are_refused_at_once() -> None:
    session: Any = None
    with pytest.raises(InvalidOptionsError) as raised:
        serve_live_page(session, max_delay="soon", stuck_after="0s")
    assert [problem.option for problem in raised.value.problems] == ["max_delay", "stuck_after"]


def test_the_page_is_served_and_rendered_once_for_each_version() -> None:
    content = Counted()
    with serving(content) as server:
        for _ in range(3):
            text, policy = read(server)
            assert "version 0" in text
        assert content.renders == 1
        content.count = 1
        assert "version 1" in read(server)[0]
    assert policy.startswith("default-src 'none'")
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}">' in text


def test_an_open_page_gets_what_changes_and_ends_with_the_server() -> None:
    content = Counted()
    with serving(content) as server:
        with request(server, "/events") as stream:
            first = _event(stream)
            assert (first["all"], set(first["parts"])) == (True, {"top", "time", "q1"})
            content.count = 7
            assert _event(stream)["parts"] == {"top": "version 7"}
        with request(server, "/events") as stream:
            _event(stream)
            server.stop()
            assert not any(line.startswith(b"data") for line in stream)


def test_the_time_renews_a_page_without_a_report() -> None:
    content, clock = Counted(), Clock()
    with serving(content, clock=clock) as server, request(server, "/events") as stream:
        _event(stream)
        clock.ms += CLOCK_MS
        assert _event(stream)["parts"] == {"time": str(clock.ms)}


def test_a_page_asks_for_the_changes_since_its_own_content() -> None:
    content = Counted()
    with serving(content) as server:
        text, _ = read(server)
        revision = text.partition('data-revision="')[2].partition('"')[0]
        content.count = 1
        with request(server, f"/events?revision={revision}") as stream:
            assert _event(stream)["parts"] == {"top": "version 1"}
        last = {"Last-Event-ID": revision}
        with request(server, "/events?revision=another", **last) as stream:
            assert "all" not in _event(stream)
        with request(server, "/events?revision=another") as stream:
            assert "all" in _event(stream)


def test_pages_beyond_the_most_are_refused_until_one_is_closed() -> None:
    with serving(Counted()) as server, ExitStack() as stack:
        for _ in range(MAX_READERS):
            assert stack.enter_context(request(server, "/events")).status == 200
        with request(server, "/events") as response:
            assert response.status == 503
            assert str(MAX_READERS) in response.read().decode()
        assert read(server)[0]
        stack.close()
        deadline = time.monotonic() + 20
        status = 503
        while status == 503 and time.monotonic() < deadline:
            with request(server, "/events") as response:
                status = response.status
        assert status == 200


def _event(stream: HTTPResponse) -> dict[str, Any]:
    for line in stream:
        if line.startswith(b"data: "):
            found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return found
    raise AssertionError("the stream ended")


def test_a_token_is_needed_for_page_and_events() -> None:
    with serving(Counted(), token="s3cret") as server:
        assert "version 0" in read(server)[0]
        for path in ("/", "/events", "/?token=", "/?token=S3cret", "/events?token=x"):
            with request(server, path) as response:
                assert response.status == 403
        with request(server, "/events?token=s3cret") as stream:
            assert _event(stream)["title"] == "OK"


def test_a_token_of_any_characters_opens_the_page() -> None:
    token = "a&b+c d/ä"
    with serving(Counted(), token=token) as server:
        path = server.url.partition("/?")[2]
        with request(server, f"/?{path}") as answer:
            assert answer.status == 200
        with request(server, "/?token=%C3%A4") as answer:
            assert answer.status == 403


def test_a_name_that_resolves_to_this_machine_is_refused() -> None:
    """A page of another site can resolve its own name to 127.0.0.1 (DNS rebinding)."""
    with serving(Counted()) as server:
        for path in ("/", "/events"):
            for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""):
                with request(server, path, Host=host) as response:
                    assert response.status == 400
            with request(server, path, Host="spark.localhost") as response:
                assert response.status == 200


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_a_page_on_any_loopback_address_is_opened_by_its_url(host: str) -> None:
    with serving(Counted(), host=host) as server:
        assert host in server.url
        assert "version 0" in read(server)[0]
