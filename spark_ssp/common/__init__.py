"""Code shared by both sources: errors, logs, options, AWS access and stored documents."""

import time

__version__ = "0.2.0"
"""The version of this project, read by the build as well. Installed metadata have it too, but to
find them `importlib.metadata` lists the contents of each archive on the Python path, of Spark's jar
as well: 50 ms in a process that Spark has started."""


def now_ms() -> int:
    """Return the time in milliseconds since the epoch, by the clock of this machine, which
    everything else takes as an argument."""
    return time.time_ns() // 1_000_000
