"""The live page of a running query, in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp import LivePage, serve_live_page
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import Sink, load, start, wait_for_rows, wait_until

pytestmark = pytest.mark.long


def _browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "this test needs Chromium: the package chromium of Debian or Ubuntu"
    return found


@contextmanager
def _browser_at(url: str, folder: Path) -> Iterator[tuple[Callable[[], str], Path]]:
    """Open a page; yield a function that returns its title, and the file of the browser's log."""
    profile = Path(tempfile.mkdtemp(prefix="browser-", dir=folder))
    log = profile / "log"
    command = [
        *(_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
        *(f"--user-data-dir={profile}", "--remote-debugging-port=0", url),
    ]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors)
    port_file = profile / "DevToolsActivePort"

    def title() -> str:
        if not port_file.exists():
            return ""
        connection = HTTPConnection("127.0.0.1", int(port_file.read_text().split()[0]), timeout=20)
        try:
            connection.request("GET", "/json/list")
            targets = json.load(connection.getresponse())
        finally:
            connection.close()
        return next((str(each["title"]) for each in targets if each["url"] == url), "")

    try:
        yield title, log
    finally:
        process.terminate()
        process.wait(60)


def _console(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if "CONSOLE" in line]


def _saved(page: LivePage, path: Path) -> str:
    page.save(path)
    return path.read_text(encoding="utf-8")


def test_the_page_follows_a_reshard_and_stays_after_the_query(
    spark: SparkSession, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders", shards=2)
    sink = Sink()
    frame = load(spark, options | {"slots": "4", "shardDiscoveryInterval": "1s"})
    page = serve_live_page(spark)
    query = start(frame, sink, tmp_path / "checkpoint")
    try:
        feed.put("orders", 40)
        wait_for_rows(query, sink, 40)
        feed.split_first("orders")
        feed.put("orders", 40)
        wait_for_rows(query, sink, 80)
        path = tmp_path / "page.html"
        wait_until(lambda: _saved(page, path).count('class="fork"') == 2, "two children", query)
        with _browser_at(page.url, tmp_path) as (title, log):
            wait_until(lambda: title() == "spark-ssp: live", "an update in the browser", query)
            assert _saved(page, path).count('class="lane"') == 4
            query.stop()
            wait_until(lambda: "(ended)" in _saved(page, path), "the end of the query on the page")
            page.stop()
            wait_until(lambda: title() == "spark-ssp: disconnected", "the lost connection")
        assert [line for line in _console(log) if "ERR_" not in line] == []
        with _browser_at(path.as_uri(), tmp_path) as (title, log):
            wait_until(lambda: title() == "spark-ssp", "the saved page in the browser")
        assert _console(log) == []
    finally:
        query.stop()
        page.stop()
    assert "orders" in _saved(page, tmp_path / "after.html")
