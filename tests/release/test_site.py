"""The documentation site in a browser, published as three versions: every page, the version switch,
search, the dark mode and the diagrams."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final
from urllib.parse import urldefrag
from urllib.request import urlopen

import pytest

from tests.support.browser import Page, open_browser
from website.build import BRANCH, ROOT, SITE, add_mermaid, build, is_newest_release, publish

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

OLD: Final = "0.1"
NEW: Final = "0.2"
DOCS: Final = ROOT / "docs"


class _Quiet(SimpleHTTPRequestHandler):
    def log_request(self, *_: object) -> None:
        """Log no request, only errors."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Publish the site as two versions into a repository, and serve its branch."""
    repository = tmp_path_factory.mktemp("repository")
    branch = tmp_path_factory.mktemp("branch")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(branch)))
    url = f"http://127.0.0.1:{server.server_port}/"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        for name in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{name}_NAME", "test")
            patch.setenv(f"GIT_{name}_EMAIL", "test@localhost")
        subprocess.run(["git", "init", "--quiet"], check=True)
        subprocess.run(["git", "commit", "--quiet", "--allow-empty", "-m", "start"], check=True)
        build(url)
        add_mermaid(SITE)
        for version in ("dev", OLD, NEW):
            publish(SITE, version)
        command = ["git", f"--work-tree={branch}", "checkout", "--quiet", BRANCH, "."]
        subprocess.run(command, check=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with open_browser() as page:
        yield page


@pytest.mark.parametrize(
    ("version", "published", "expected"),
    [
        ("0.1.0", [], True),
        ("0.2.0", ["dev", "0.1.0", "1.0.0rc1"], True),
        ("0.2.0", ["0.2.0"], True),
        ("0.1.1", ["0.2.0"], False),
        ("1.0.0rc1", ["0.2.0"], False),
        ("dev", [], False),
    ],
)
def test_only_the_newest_release_is_the_latest(
    version: str, published: list[str], expected: bool
) -> None:
    assert is_newest_release(version, published) is expected


_LINKS: Final = "[...document.querySelectorAll('a[href]')].map(link => link.href)"
_IDS: Final = "[...document.querySelectorAll('[id]')].map(element => element.id)"
_PHONE: Final = (390, 844)
_WIDTH: Final = "document.documentElement.scrollWidth"


def test_every_page_opens_without_errors_and_its_links_lead_somewhere(
    address: str, browser: Page
) -> None:
    """On the screen of a phone, which no page exceeds; nothing is fetched from elsewhere."""
    browser.resize(*_PHONE)
    start = f"{address}{NEW}/"
    links: dict[str, set[str]] = {}
    ids: dict[str, set[str]] = {}
    wide = []
    waiting = [start]
    while waiting:
        page = waiting.pop()
        browser.open(page)
        links[page] = {link for link in browser.evaluate(_LINKS) if link.startswith(start)}
        ids[page] = {"", *browser.evaluate(_IDS)}
        if browser.evaluate(_WIDTH) > _PHONE[0]:
            wide.append(page)
        pages = {urldefrag(link).url for link in links[page]} - links.keys() - set(waiting)
        waiting += sorted(page for page in pages if page.endswith("/"))
    assert browser.errors == []
    assert wide == []
    assert [url for url in browser.requested if not url.startswith((address, "data:"))] == []
    assert [
        f"{page}: {link}"
        for page, targets in links.items()
        for link in targets
        if not _exists(*urldefrag(link), ids)
    ] == []
    documents = [file.relative_to(DOCS).with_suffix("") for file in DOCS.rglob("*.md")]
    folders = [file.parent if file.name in ("index", "README") else file for file in documents]
    assert {f"{start}{folder}/".replace("/./", "/") for folder in folders} <= links.keys()


def _exists(url: str, fragment: str, ids: Mapping[str, set[str]]) -> bool:
    """Return whether a link leads to an element of a page, or to another file."""
    if url in ids:
        return fragment in ids[url]
    with urlopen(url, timeout=20) as response:  # noqa: S310
        return int(response.status) == 200


def test_the_version_switch_leads_to_the_same_page(address: str, browser: Page) -> None:
    browser.resize(1280, 900)
    browser.open(f"{address}{OLD}/guide/kinesis/")
    banner = "document.querySelector('[data-md-component=outdated]')"
    browser.wait_for(f"!{banner}.hidden", "the banner of an old version")
    versions = "[...document.querySelectorAll('.md-version__link')]"
    titles = browser.evaluate(f"{versions}.map(link => link.textContent.trim())")
    assert titles == ["dev", NEW, OLD]
    browser.evaluate(f"{versions}[1].click()")
    browser.wait_for(f"location.href === '{address}{NEW}/guide/kinesis/'", "the other version")
    browser.wait_for("document.querySelector('.md-version')", "its version switch")
    assert browser.evaluate(f"{banner}.hidden")
    assert browser.errors == []


def test_the_address_without_a_version_leads_to_the_newest_release(
    address: str, browser: Page
) -> None:
    browser.navigate(address)
    browser.wait_for(f"location.href === '{address}latest/'", "the newest release")
    current = "document.querySelector('.md-version__current')"
    browser.wait_for(current, "its version switch")
    assert browser.evaluate(f"{current}.textContent.trim()") == NEW


def test_a_page_has_search_copy_buttons_and_a_dark_mode(address: str, browser: Page) -> None:
    browser.resize(1280, 900, dark=True)
    browser.open(f"{address}{NEW}/guide/kinesis/")
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert browser.evaluate(scheme) == "slate"
    browser.evaluate(
        "document.querySelector('[data-md-component=palette] label:not([hidden])').click()"
    )
    browser.wait_for(f"{scheme} === 'default'", "the light mode")
    browser.wait_for(
        "document.querySelector('.md-typeset pre button, .md-code__button')", "a copy button"
    )
    browser.evaluate("document.querySelector('.md-search__button').click()")
    search = "document.activeElement.shadowRoot"
    browser.wait_for(search, "the field of the search")
    browser.call("Input.insertText", text="maxBytesPerShard")
    result = f"{search}.querySelector('a[href*=\"/{NEW}/guide/kinesis-options/\"]')"
    browser.wait_for(result, "a result of the search")
    assert browser.errors == []


def test_diagrams_are_drawn(address: str, browser: Page) -> None:
    browser.resize(1280, 900)
    browser.open(f"{address}{NEW}/guide/architecture/")
    drawn = "[...document.querySelectorAll('div.mermaid')].map(one => one.clientHeight)"
    browser.wait_for(f"{drawn}.length === 2", "two diagrams")
    heights = browser.evaluate(drawn)
    assert min(heights) > 200
    assert browser.errors == []
