"""What holds for every test: how hard to try, and that nothing is left running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import effort, processes

effort.load_hypothesis_profile()
processes.mark_this_process()


def pytest_report_header() -> str:
    return f"effort: {effort.EFFORT} ({effort.AMOUNT})"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Set up before any other fixture, hence torn down after all of them."""
    yield
    left = processes.leftovers(patience_seconds=30)
    assert not left, "processes were still running at the end:\n" + "\n".join(left)
