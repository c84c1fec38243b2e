"""A reader process with leases, controlled through its pipes, which may be killed.

It reads its settings (a pickle, base64) from the first line of its standard input, then a word per
line, and answers each with a line of JSON. `exchange` returns the held leases, all of which it
continues to read. `spill` starts a process that keeps the agent's pipes open.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from typing import Any, Self

from spark_ssp.checkpoint.agent.client import AgentClient
from spark_ssp.checkpoint.coordination.protocol import AgentSettings, Report
from spark_ssp.checkpoint.leases.lease import Lease

MODULE = "tests.support.leases.agent_reader"


def main() -> None:
    settings, create = pickle.loads(base64.b64decode(sys.stdin.readline()))
    client = AgentClient(settings)
    report = Report(create=create)
    for line in sys.stdin:
        if line.strip() == "spill":
            print(json.dumps({"pid": _spill(client)}), flush=True)
            continue
        status = client.exchange(report)
        report = Report(create=create, reading=frozenset(status.held))
        print(json.dumps({"held": sorted(status.held), "agent": client.pid}), flush=True)


def _spill(client: AgentClient) -> int:
    running = client._running
    assert running is not None
    pipes = [pipe.fileno() for pipe in (running.process.stdin, running.process.stdout) if pipe]
    for pipe in pipes:
        os.set_inheritable(pipe, True)
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=pipes, stdin=0, stdout=2
    )
    return sleeper.pid


class ReaderProcess:
    """The process from outside."""

    def __init__(self, settings: AgentSettings, create: tuple[Lease, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._send(base64.b64encode(pickle.dumps((settings, create))).decode())

    def ask(self, word: str = "exchange") -> dict[str, Any]:
        """Send a word and return the answer."""
        self._send(word)
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hang_up(self) -> None:
        """Let the process exit by itself, without closing its client."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


if __name__ == "__main__":
    main()
