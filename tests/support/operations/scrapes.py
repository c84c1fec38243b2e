"""Scrapes of the metrics of a running query."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPConnection
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

_DEADLINE_S = 240
_POLL_S = 0.05

Labels = frozenset[tuple[str, str]]


class Scrape:
    """The values of one scrape."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            connection.request("GET", address.path)
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        self._values: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                self._values.setdefault(one.name, {})[frozenset(one.labels.items())] = one.value

    def values(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the series of a metric that have these labels."""
        wanted = labels.items()
        return {key: n for key, n in self._values.get(name, {}).items() if key >= wanted}

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of these series; None if there are none."""
        found = self.values(name, **labels)
        return sum(found.values()) if found else None


class Scrapes:
    """All scrapes of an endpoint."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.all: list[Scrape] = []

    def wait_until(self, reached: Callable[[Scrape], bool], what: str) -> Scrape:
        """Scrape until a condition is true."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            self.all.append(Scrape(self._url))
            if reached(self.all[-1]):
                return self.all[-1]
            assert time.monotonic() < deadline, f"not within {_DEADLINE_S} s: {what}"
            time.sleep(_POLL_S)
