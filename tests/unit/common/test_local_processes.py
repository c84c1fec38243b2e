"""Locks between processes, here between handles of one process, which the system treats alike."""

from __future__ import annotations

from pathlib import Path

from spark_ssp.common.local_processes import FileLock


def lock(folder: Path, *key: str) -> FileLock:
    return FileLock(*(key or ("orders",)), suffix="lock", folder=folder)


def test_one_holds_a_lock_alone_or_several_share_it(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    first, second, third = (lock(folder) for _ in range(3))
    assert first.acquire()
    assert not second.acquire(shared=True)
    assert lock(folder, "clicks").acquire()
    first.release()
    assert second.acquire(shared=True)
    assert third.acquire(shared=True)
    assert not first.acquire()


def test_the_last_of_those_that_share_a_lock_has_it_exclusively(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    first, second, later = (lock(folder) for _ in range(3))
    assert first.acquire(shared=True)
    assert second.acquire(shared=True)
    assert not first.make_exclusive()
    assert second.make_exclusive()
    assert not later.acquire(shared=True)
    first.release()
    assert folder.exists()
    second.release()
    assert not folder.exists()
    assert later.acquire(shared=True)
    assert not second.make_exclusive()
