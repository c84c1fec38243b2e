"""Starts Python processes beside a reader, which may outlive it. Such a process runs this Python
with this `sys.path`, in its own session: it receives no signals of the driver's terminal. Its
input, which may contain credentials, is passed only through its standard input."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys


def start_helper(module: str) -> subprocess.Popen[bytes]:
    """Start a process that waits for `module_path()`, then calls `main` of the module, which reads
    the rest of its standard input."""
    program = (
        "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
        f"from {module} import main; main()"
    )
    # -P: nothing is imported from the working directory before `sys.path` is received.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def module_path() -> bytes:
    """Return the first input of a process: this process's `sys.path`."""
    return pickle.dumps([os.path.abspath(entry or os.curdir) for entry in sys.path])
