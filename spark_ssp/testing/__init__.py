"""Kinesis and Kafka on this machine, for tests and first steps; `spark_ssp` exports their API."""

from __future__ import annotations

import argparse
from typing import Any


class AppendNamed(argparse.Action):
    """Appends a name and its number to a list, for an option that may be given several times; each
    name only once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name, _ = values
        found = getattr(namespace, self.dest)
        if name in dict(found):
            raise argparse.ArgumentError(
                self, f"found {name} twice, expected each {self.dest} once"
            )
        setattr(namespace, self.dest, [*found, values])
