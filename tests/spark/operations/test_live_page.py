"""The live page of a running query, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp import LivePage, serve_live_page
from tests.support.browser import open_browser
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import Sink, load, start, wait_for_rows, wait_until

pytestmark = pytest.mark.long


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
        with open_browser() as browser:
            browser.navigate(page.url)
            browser.wait_for("document.title === 'spark-ssp: live'", "an update in the browser")
            assert _saved(page, path).count('class="lane"') == 4
            query.stop()
            wait_until(lambda: "(ended)" in _saved(page, path), "the end of the query on the page")
            page.stop()
            browser.wait_for("document.title === 'spark-ssp: disconnected'", "the lost connection")
            assert [error for error in browser.errors if "ERR_" not in error] == []
            browser.errors.clear()
            browser.open(path.as_uri())
            browser.wait_for("document.title === 'spark-ssp'", "the saved page in the browser")
            assert browser.errors == []
    finally:
        query.stop()
        page.stop()
    assert "orders" in _saved(page, tmp_path / "after.html")
