"""The server of the page: who may see it, and how it is updated."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_ssp.common.errors import InvalidOptionsError, UnsupportedError
from spark_ssp.operations.live_page.server import PageServer, start_server
from spark_ssp.operations.live_page.timelines import Timelines


class Content(Timelines):
    """A page with a counter."""

    renders = 0

    def render(self) -> str:
        self.renders += 1
        return f"<p>version {self.version}</p>"


@contextmanager
def serving(content: Content, *, token: str | None = None) -> Iterator[PageServer]:
    server = PageServer(content, host="127.0.0.1", port=0, token=token)
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
    for name in ("serve", "server", "timelines"):
        monkeypatch.delitem(sys.modules, f"spark_ssp.operations.live_page.{name}", raising=False)
    for loaded in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, package, None)
    from spark_ssp import serve_live_page

    session: Any = None
    with pytest.raises(UnsupportedError, match=r"pip install 'spark-ssp\[live\]'"):
        serve_live_page(session)


@pytest.mark.parametrize("argument", ["host", "token"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_address_or_token_is_refused(argument: str, value: str) -> None:
    with pytest.raises(InvalidOptionsError, match=f"{argument}: found an empty value"):
        start_server(Timelines(), port=0, **{"host": "127.0.0.1", "token": "a", argument: value})


def test_the_page_is_served_and_rendered_once_for_each_version() -> None:
    content = Content()
    with serving(content) as server:
        for _ in range(3):
            text, policy = read(server)
            assert "version 0" in text
        assert content.renders == 1
        content.version = 1
        assert "version 1" in read(server)[0]
    assert policy.startswith("default-src 'none'")
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}">' in text


def test_an_open_page_gets_each_change_and_ends_with_the_server() -> None:
    content = Content()
    with serving(content) as server:
        with request(server, "/events") as stream:
            assert _event(stream) == "<p>version 0</p>"
            content.version = 7
            assert _event(stream) == "<p>version 7</p>"
        with request(server, "/events") as stream:
            _event(stream)
            server.stop()
            assert stream.read().strip() == b""


def _event(stream: HTTPResponse) -> str:
    for line in stream:
        if line.startswith(b"data: "):
            text: str = json.loads(line.removeprefix(b"data: "))
            return text
    raise AssertionError("the stream ended")


def test_a_token_is_needed_for_page_and_events() -> None:
    with serving(Content(), token="s3cret") as server:
        assert "version 0" in read(server)[0]
        for path in ("/", "/events", "/?token=", "/?token=S3cret", "/events?token=x"):
            with request(server, path) as response:
                assert response.status == 403
        with request(server, "/events?token=s3cret") as stream:
            assert _event(stream) == "<p>version 0</p>"


def test_a_token_of_any_characters_opens_the_page() -> None:
    token = "a&b+c d/ä"
    with serving(Content(), token=token) as server:
        path = server.url.partition("/?")[2]
        with request(server, f"/?{path}") as answer:
            assert answer.status == 200
        with request(server, "/?token=%C3%A4") as answer:
            assert answer.status == 403


def test_a_name_that_resolves_to_this_machine_is_refused() -> None:
    """A page of another site can resolve its own name to 127.0.0.1 (DNS rebinding)."""
    with serving(Content()) as server:
        for path in ("/", "/events"):
            with request(server, path, Host="evil.example") as response:
                assert response.status == 400
