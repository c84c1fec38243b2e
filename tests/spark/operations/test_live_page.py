"""The live page of a running query, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ssp import LivePage, serve_live_page
from spark_ssp.testing.kinesis.state.stream import shard_id
from tests.support.browser import Page, open_browser
from tests.support.kinesis.feeds import Feed
from tests.support.spark.queries import Sink, load, start, wait_for_rows, wait_until

pytestmark = pytest.mark.long


_STATE = "document.getElementById('state')?.textContent"
_ENDED = 'class="verdict ended"'


def _check_verdict_and_clock(browser: Page) -> None:
    verdict = "document.querySelector('.banner.ok .verdict')?.textContent"
    browser.wait_for(f"{verdict} === 'OK'", "the verdict")
    now = "document.getElementById('top').textContent"
    before = browser.evaluate(now)
    browser.wait_for(f"{now} !== {before!r}", "the time without a report")


def _check_figure_and_table(browser: Page) -> None:
    frame = "document.querySelector('.frame')"
    edges = f"[{frame}, {frame}.querySelector('svg')].map(each => each.getBoundingClientRect())"
    right = browser.evaluate(f"{edges}.map(each => Math.round(each.right))")
    assert right[0] == right[1], "the newest is in sight"
    assert browser.evaluate(f"{frame}.scrollWidth > {frame}.clientWidth")
    browser.evaluate("document.querySelector('main > div > details').open = true")
    browser.wait_for("document.querySelector('output').textContent", "the table")
    browser.evaluate(
        "const box = document.querySelector('input');"
        f"box.value = '{shard_id(2)}';"
        "box.dispatchEvent(new Event('input'))"
    )
    assert browser.evaluate("document.querySelector('output').textContent") == "1 shown"


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
            browser.resize(390, 800)
            browser.navigate(page.url)
            browser.wait_for(f"{_STATE} === 'live'", "an update in the browser")
            assert _saved(page, path).count('class="lane"') == 4
            _check_verdict_and_clock(browser)
            _check_figure_and_table(browser)
            query.stop()
            wait_until(lambda: _ENDED in _saved(page, path), "the end of the query on the page")
            browser.wait_for("document.querySelector('details.ended')", "the end in the browser")
            page.stop()
            browser.wait_for("document.body.classList.contains('stale')", "the lost connection")
            assert [error for error in browser.errors if "ERR_" not in error] == []
            browser.errors.clear()
            browser.open(path.as_uri())
            browser.wait_for("document.title === 'spark-ssp'", "the saved page in the browser")
            assert browser.errors == []
    finally:
        query.stop()
        page.stop()
    assert "orders" in _saved(page, tmp_path / "after.html")
