"""What `make quick` selects."""

from __future__ import annotations

from typing import Final

import pytest

from tests.architecture.affected import affected, used_files

SOURCES: Final = {
    "spark_ssp/common/times.py": "",
    "kafka_source/offset.py": "from spark_ssp.common import times",
    "spark_ssp/operations/commands/watch.py": "from spark_ssp.kafka_source.offset import Offset",
    "spark_ssp/page.css": "",
    "docs/page.css": "",
    "tests/unit/common/test_a.py": "import spark_ssp.common.times",
    "tests/unit/common/test_times.py": "import spark_ssp.common.times",
    "tests/unit/kafka_source/test_offset.py": "monkeypatch('spark_ssp.kafka_source.offset.now')",
    "tests/unit/operations/commands/test_watch.py": "run('watch')",
    "tests/unit/operations/conftest.py": "",
    "tests/unit/operations/test_page.py": "PAGE = 'page.css'",
}
"""Files with their text."""


@pytest.mark.parametrize(
    ("changed", "selected"),
    [
        ("spark_ssp/common/times.py", ["times", "a", "offset", "watch"]),
        ("kafka_source/offset.py", ["offset", "watch"]),
        ("spark_ssp/operations/commands/watch.py", ["watch"]),
        ("spark_ssp/page.css", ["page"]),
        ("docs/page.css", ["page"]),
        ("tests/unit/operations/conftest.py", ["watch", "page"]),
        ("tests/unit/common/test_a.py", ["a"]),
    ],
)
def test_tests_of_a_change_are_selected_nearest_first(changed: str, selected: list[str]) -> None:
    """Also those of a command, which is found by its name, and those of a file of fixtures."""
    found = affected(used_files(SOURCES), {changed})
    names = [file.rpartition("/test_")[2].removesuffix(".py") for file in found if "/test_" in file]
    assert names == selected
