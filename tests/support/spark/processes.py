"""Finding the processes that a test run has started, orphans included."""

from __future__ import annotations

import os
import uuid

import psutil

_MARK = "SSP_TEST_RUN"


def mark_this_process() -> None:
    """Every process started from here on inherits a mark by which it is found again."""
    os.environ[_MARK] = f"{os.getpid()}-{uuid.uuid4().hex}"


def marked_processes() -> list[psutil.Process]:
    """The living processes, except this one, that carry this process's mark."""
    mark = os.environ[_MARK]
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _has(process, mark)
    ]


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Python's own helpers, for shared memory and to fork from, live as long as their parent.
        command = " ".join(process.cmdline())
        if any(f"multiprocessing.{name}" in command for name in ("resource_tracker", "forkserver")):
            return False
        return process.environ().get(_MARK) == mark
    except psutil.Error:
        return False  # gone, or another user's


def leftovers(*, patience_seconds: float) -> list[str]:
    """Return the processes still running after a time to finish, each as text, and end them."""
    _, alive = psutil.wait_procs(marked_processes(), timeout=patience_seconds)
    found = []
    for process in alive:
        try:
            found.append(f"{process.pid}: {' '.join(process.cmdline())[:300]}")
            process.kill()
        except psutil.Error:
            continue  # it has ended after all
    return found
