"""The cache of Java programs: only listed files are run, and only this user can change them."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from spark_ssp.testing.kafka import jars
from spark_ssp.testing.kafka.jars import Artifact, fetch, installing_into, make_private

JARS = {"one.jar": b"1", "two.jar": b"2"}


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    lines = [f"{hashlib.sha256(JARS[name]).hexdigest()}  {name}\n" for name in sorted(JARS)]
    checksums = tmp_path / "program.sha256"
    checksums.write_text("".join(lines))
    return Artifact(organisation="org", name="program", version="1", checksums=checksums)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that holds the program already."""
    folder = tmp_path / "cache" / "maven" / "program-1"
    folder.mkdir(parents=True)
    for name, content in JARS.items():
        (folder / name).write_bytes(content)
    return tmp_path / "cache"


def test_what_was_fetched_before_is_used_again(artifact: Artifact, cache: Path) -> None:
    assert fetch(artifact, cache) == cache / "maven" / "program-1"


def exchanged(folder: Path) -> None:
    (folder / "one.jar").write_bytes(b"evil")


def added(folder: Path) -> None:
    (folder / "three.jar").write_bytes(b"3")


def removed(folder: Path) -> None:
    (folder / "one.jar").unlink()


def linked(folder: Path) -> None:
    """The right content, of a file that another user may own."""
    other = folder.parents[2] / "one.jar"
    (folder / "one.jar").rename(other)
    (folder / "one.jar").symlink_to(other)


@pytest.mark.parametrize("change", [exchanged, added, removed, linked])
def test_what_was_changed_since_is_not_run_until_it_is_fetched_again(
    change: object, artifact: Artifact, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache / "maven" / "program-1"
    assert callable(change)
    change(folder)
    with pytest.raises(RuntimeError, match="remove the folder, and it is fetched again") as caught:
        fetch(artifact, cache)
    assert str(folder) in str(caught.value)
    assert ".jar" in str(caught.value)

    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

    def retrieve(_artifact: object, _cache: Path, folder: Path) -> None:
        folder.mkdir()
        for name, content in JARS.items():
            (folder / name).write_bytes(content)

    monkeypatch.setattr(jars, "_retrieve", retrieve)
    assert fetch(artifact, cache) == folder


def test_the_cache_is_the_users_alone(artifact: Artifact, cache: Path) -> None:
    (cache / "maven").chmod(0o777)
    fetch(artifact, cache)
    assert stat.S_IMODE((cache / "maven").stat().st_mode) == 0o700


def test_a_cache_of_another_user_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(cache)
    with pytest.raises(RuntimeError, match="set SPARK_SSP_CACHE"):
        make_private(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(RuntimeError, match="a folder of another user"):
        make_private(cache)


def test_a_lock_that_is_a_link_is_not_followed(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (cache / "maven" / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"), installing_into(cache / "maven"):
        pytest.fail("the lock was opened")
    assert precious.read_text() == "kept"


def test_without_java_the_advice_is_to_name_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="set JAVA_HOME to its folder"):
        jars.java()
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert jars.java() == str(program)
