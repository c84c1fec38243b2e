"""A headless Chromium, controlled by its DevTools protocol."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

_DEADLINE_S: Final = 60
_POLL_S: Final = 0.05
_MAX_MESSAGE: Final = 64 << 20
_EVENTS: Final = ("Log", "Network", "Page", "Runtime")


class Page:
    """A tab. `errors` has a line for each error that the console would show, and for each request
    that failed; `requested` the addresses of all requests."""

    def __init__(self, connection: ClientConnection) -> None:
        self.errors: list[str] = []
        self.requested: list[str] = []
        self._connection = connection
        self._numbers = itertools.count()
        self._idle = ""
        for domain in _EVENTS:
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters: object) -> Mapping[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := self._receive()).get("id") != number:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        result: Mapping[str, Any] = message["result"]
        return result

    def open(self, url: str) -> None:
        """Open an address, and wait until its requests have ended."""
        loader = self.navigate(url)
        while self._idle != loader:
            self._receive()

    def navigate(self, url: str) -> str:
        """Open an address without waiting for the page; return the id of its loading."""
        result = self.call("Page.navigate", url=url)
        assert "errorText" not in result, f"{url}: {result['errorText']}"
        return str(result["loaderId"])

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, as JSON carries it."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str, what: str) -> None:
        """Wait until an expression in JavaScript is true, also across a change of the page."""
        deadline = time.monotonic() + _DEADLINE_S
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"not within {_DEADLINE_S} s: {what}"
            time.sleep(_POLL_S)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size in pixels, and the colour scheme that the system prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=_DEADLINE_S))
        event = message.get("params", {})
        match message.get("method"):
            case "Page.lifecycleEvent" if event["name"] == "networkIdle":
                self._idle = event["loaderId"]
            case "Network.requestWillBeSent":
                self.requested.append(event["request"]["url"])
            case "Network.responseReceived" if event["response"]["status"] >= 400:
                self.errors.append(f"{event['response']['url']}: {event['response']['status']}")
            case "Network.loadingFailed" if not event["canceled"]:
                self.errors.append(f"a request failed: {event['errorText']}")
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(event["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if event["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(event["args"]))
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                self.errors.append(event["entry"]["text"])
        return message


@contextmanager
def open_browser() -> Iterator[Page]:
    """Start Chromium; yield an empty tab."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "this test needs Chromium: the package chromium of Debian or Ubuntu"
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = (
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"),
        )
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = _tab(Path(profile, "DevToolsActivePort"), process)
            with connect(address, max_size=_MAX_MESSAGE, proxy=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()
            process.wait(_DEADLINE_S)


def _tab(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address of the tab's connection, once Chromium has written its port."""
    deadline = time.monotonic() + _DEADLINE_S
    while not (port_file.exists() and port_file.read_text().count("\n")):
        assert process.poll() is None, f"Chromium ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"Chromium wrote no port in {_DEADLINE_S} s"
        time.sleep(_POLL_S)
    connection = HTTPConnection("127.0.0.1", int(port_file.read_text().split()[0]), timeout=20)
    try:
        connection.request("GET", "/json/list")
        targets = json.load(connection.getresponse())
    finally:
        connection.close()
    return next(str(one["webSocketDebuggerUrl"]) for one in targets if one["type"] == "page")
