"""Rules for every file of the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator

from tests.architecture.layers import LAYERS, ROOT


def _tracked() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return sorted(
        name
        for name in listing.stdout.split("\0")
        if name and name != "LICENSE" and not name.endswith(".png") and (ROOT / name).is_file()
    )


TRACKED = _tracked()

# A character class in each word keeps this file from matching.
_UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E])\b")
_MACHINE = re.compile(r"(?<![\w.}\])-])/(wor[k]|roo[t]|hom[e]|User[s]|op[t])/")
_REGISTRY = re.compile(
    r"pypi\.or[g]|pythonhoste[d]|npmj[s]|crates\.i[o]|maven\.or[g]|maven\.apach[e]", re.IGNORECASE
)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name in TRACKED
        for number, line in enumerate(_text(name).splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_words_looked_for_would_be_found() -> None:
    assert _UNFINISHED.search("# " + "TO" + "DO: later")
    assert _MACHINE.search("cd /" + "home/someone")
    assert _REGISTRY.search("https://" + "pypi" + ".org/simple")


def test_documents_name_only_files_that_exist() -> None:
    """By the end of the path. The files of a user's job are not ours."""
    ends = {name[start:] for name in TRACKED for start in _starts(name)}
    named = {
        f"{document}: {name}"
        for document in TRACKED
        if document.endswith(".md") and document != "CHANGELOG.md"
        for name in re.findall(r"`([\w/]+\.py)`", _text(document))
        if name not in ends
    }
    assert {name for name in named if not name.endswith((" utils.py", " shop.py"))} == set()


def _starts(name: str) -> list[int]:
    return [0, *(found.end() for found in re.finditer("/", name))]


def test_nothing_is_left_unfinished() -> None:
    assert not _lines_with(_UNFINISHED)


def test_no_path_of_one_machine() -> None:
    assert not _lines_with(_MACHINE)


def test_no_registry_by_its_host() -> None:
    assert not _lines_with(_REGISTRY)


_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_links_between_documents_lead_somewhere() -> None:
    missing = [
        f"{name}: {target}"
        for name in TRACKED
        if name.endswith(".md")
        for target in _targets(_text(name))
        if not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert not missing


def _targets(text: str) -> list[str]:
    links = [link.partition("#")[0] for link in _LINK.findall(text) if "://" not in link]
    return [link for link in links if link]


def _pages(nav: object) -> Iterator[str]:
    """Yield the documents in the navigation of the site, of which each entry has a title or not."""
    match nav:
        case str():
            yield nav
        case dict() | list():
            for entry in nav.values() if isinstance(nav, dict) else nav:
                yield from _pages(entry)


def test_the_navigation_of_the_site_has_every_document_once() -> None:
    project = tomllib.loads(_text("website/zensical.toml"))["project"]
    documents = [name for name in TRACKED if re.fullmatch(r"docs/.*\.md", name)]
    assert sorted(f"docs/{page}" for page in _pages(project["nav"])) == documents


def test_design_records_have_a_status_and_its_date() -> None:
    wrong = [
        name
        for name in TRACKED
        if re.fullmatch(r"docs/design/(?!README)[^/]*\.md", name)
        and not re.match(r"# .+\n\nStatus: \w[\w ]*, \d{4}-\d\d-\d\d[.,] ?", _text(name))
    ]
    assert not wrong


_UNIX_SOCKETS = "spark.python.unix.domain.socket"


def _sessions(tree: ast.AST) -> Iterator[str]:
    """Yield each whole chain of calls that begins with `SparkSession.builder`."""
    for node in ast.iter_child_nodes(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Attribute) else ""
        if text.startswith("SparkSession.builder"):
            yield text
        else:
            yield from _sessions(node)


def test_sessions_are_shown_with_the_settings_that_the_guide_recommends() -> None:
    """Settings of Spark's Python workers, from docs/guide/performance.md. Access to the sockets is
    access to the workers, so they are only enabled with a private folder; the first query of the
    README has neither setting, and a job on a platform takes its settings from there."""
    shown = {name: _text(name) for name in TRACKED if re.match(r"examples/.*\.py$", name)}
    for name in ("README.md", "docs/guide/performance.md"):
        blocks = re.findall(r"```python\n(.*?)```", _text(name), re.DOTALL)
        shown[name] = next(block for block in blocks if "SparkSession.builder" in block)
    sessions = {name: list(_sessions(ast.parse(text))) for name, text in shown.items()}
    assert all("SparkSession.builder" not in text or sessions[name] for name, text in shown.items())
    enabled = f".config('{_UNIX_SOCKETS}.enabled', 'true')"
    folder = f".config('{_UNIX_SOCKETS}.dir', "
    without = ("README.md", "examples/platforms/orders_job.py")
    expected = {name: name not in without for name in shown}
    for setting in (enabled, folder):
        found = [(name, setting in one) for name in shown for one in sessions[name]]
        assert found == [(name, expected[name]) for name, _ in found]


def test_no_code_that_is_distributed_makes_that_setting() -> None:
    """Only users can make it: a session has it from its start or not at all. `spark-ssp doctor`
    looks for it in Spark's settings."""
    looking = "spark_ssp/operations/commands/doctor.py"
    distributed = [
        name
        for name in TRACKED
        if name.split("/")[0].removesuffix(".py") in LAYERS and name != looking
    ]
    assert distributed
    assert [name for name in distributed if _UNIX_SOCKETS in _text(name)] == []


def test_no_admin_client_asks_a_coordinator_of_a_group() -> None:
    """Such a request may end the process while its connection fails: see
    docs/design/kafka-client.md. A consumer commits and reads offsets."""
    asking = re.compile(
        r"\.(alter_consumer_group_offsets|list_consumer_group_offsets|describe_consumer_groups"
        r"|delete_consumer_groups)\("
    )
    found = [line for line in _lines_with(asking) if line.startswith(tuple(LAYERS))]
    assert not found
    assert asking.search("admin.list_consumer_group_" + "offsets(")
