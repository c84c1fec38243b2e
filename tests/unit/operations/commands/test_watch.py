"""`spark-ssp watch`: the health that a checkpoint shows by itself, and the token of the page."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from spark_ssp.operations.commands import watch
from spark_ssp.operations.live_page.page import page
from spark_ssp.operations.live_page.server import Timelines
from tests.support.operations.checkpoints import WrittenCheckpoint
from tests.support.operations.command import run
from tests.support.operations.reports import end_offset

NOW = 1_795_464_000_000
MINUTE = 60_000


@pytest.fixture
def checkpoint(tmp_path: Path) -> WrittenCheckpoint:
    """A query that committed a batch an hour ago, and planned one 20 minutes ago."""
    found = WrittenCheckpoint(path=tmp_path / "orders")
    found.plan(0, end_offset(2), NOW - 60 * MINUTE)
    found.commit(0, NOW - 60 * MINUTE)
    found.plan(1, end_offset(2), NOW - 20 * MINUTE)
    return found


def banners(html: str) -> list[str]:
    return re.findall('class="banner (.*?)"', html)


@pytest.mark.parametrize(
    ("limit", "is_committed", "verdict"),
    [("15m", False, "stalled"), ("30m", False, "unknown"), ("15m", True, "unknown")],
)
def test_a_batch_that_hangs_is_stalled_and_nothing_is_ok(
    checkpoint: WrittenCheckpoint, tmp_path: Path, limit: str, is_committed: bool, verdict: str
) -> None:
    if is_committed:
        checkpoint.commit(1, NOW - MINUTE)
    file = tmp_path / "page.html"
    arguments = ("--once", str(file), "--stuck-after", limit)
    assert run("watch", str(checkpoint.path), *arguments, now_ms=NOW).code == 0
    assert banners(file.read_text(encoding="utf-8")) == [verdict]


def test_a_damaged_checkpoint_is_failed_as_in_status(
    checkpoint: WrittenCheckpoint, tmp_path: Path
) -> None:
    checkpoint.commit(2, NOW)  # which was not planned
    file = tmp_path / "page.html"
    assert run("watch", str(checkpoint.path), "--once", str(file), now_ms=NOW).code == 0
    assert banners(file.read_text(encoding="utf-8")) == ["failed"]


def test_a_file_that_is_damaged_later_is_a_verdict_until_it_is_repaired(
    checkpoint: WrittenCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Timelines] = []
    verdicts: list[str] = []

    def serve(timelines: Timelines, **_: object) -> Mock:
        served.append(timelines)
        return Mock(url="")

    monkeypatch.setattr(watch, "start_server", serve)

    def look(_: float) -> None:
        verdicts.extend(banners(page(served[0].render(NOW))))
        match len(verdicts):
            case 1:
                (checkpoint.path / "offsets" / "2").write_text("v1\n", encoding="utf-8")
            case 2:
                (checkpoint.path / "offsets" / "2").unlink()
            case 3:
                raise KeyboardInterrupt

    run("watch", str(checkpoint.path), "--stuck-after", "30m", now_ms=NOW, sleep=look)
    assert verdicts == ["unknown", "failed", "unknown"]


def test_a_file_that_cannot_be_used_is_named_with_its_option(
    checkpoint: WrittenCheckpoint, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"\xff\xfe")
    for option, file in (("--once", tmp_path / "none" / "page.html"), ("--token-file", token)):
        found = run("watch", str(checkpoint.path), option, str(file), now_ms=NOW)
        assert (found.code, found.out) == (2, "")
        assert option in found.err
        assert str(file) in found.err
        assert "[defect]" not in found.err


def test_the_token_comes_from_the_environment_or_a_file(
    checkpoint: WrittenCheckpoint, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")

    def end(_: float) -> None:
        raise KeyboardInterrupt

    variable = {"SPARK_SSP_PAGE_TOKEN": "from-a-variable"}
    for arguments, environment, token in (
        ((), variable, "from-a-variable"),
        (("--token", "given"), variable, "given"),
        (("--token-file", str(file)), {}, "from-a-file"),
    ):
        found = run(
            *("watch", str(checkpoint.path), *arguments),
            now_ms=NOW,
            sleep=end,
            environment=environment,
        )
        assert f"/?token={token} " in found.err
