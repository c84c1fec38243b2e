"""Names of the parts of a pipeline (systems, streams, operators) and their valid forms.

Names of operators and tables become part of checkpoint paths, those of intermediate streams become
names at the service. So they consist of letters, digits, ``.``, ``_`` and ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

OperatorName = NewType("OperatorName", str)
"""An operator's name, unique within its pipeline."""

TableName = NewType("TableName", str)
"""A table's name, unique within its pipeline."""

SystemName = NewType("SystemName", str)
"""The user's name for one service: a Kafka cluster, or Kinesis in a region."""


class SystemKind(StrEnum):
    """The service of a system."""

    KAFKA = "kafka"
    KINESIS = "kinesis"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StreamId:
    """A stream of a system: a topic of Kafka, a stream of Kinesis. Orders by system, then stream.

    Counts are per (system, stream): two systems may have streams of one name.
    """

    system: SystemName
    stream: str

    def __str__(self) -> str:
        return f"{self.system}/{self.stream}"


DEFAULT_SYSTEMS: Final[Mapping[str, str]] = {"kafka": "kafka", "kinesis": "kinesis"}
"""Default systems of a pipeline: one of each kind, named after it."""

LONGEST_STREAM: Final[Mapping[SystemKind, int]] = {SystemKind.KAFKA: 249, SystemKind.KINESIS: 128}
"""Maximum length of a stream's name: Kafka's limit of topics, StreamName in Kinesis's API
reference."""

LONGEST_NAME: Final = 100
"""Maximum length of the name of a pipeline, operator or table, which may become a folder's name."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STREAM: Final = re.compile(r"[A-Za-z0-9._-]+")


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of a pipeline, system, operator or table."""
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def is_stream_name(text: str, kind: SystemKind) -> bool:
    """Return whether a service of this kind accepts the name; Kafka rejects ``.`` and ``..``."""
    reserved = kind is SystemKind.KAFKA and text in {".", ".."}
    return len(text) <= LONGEST_STREAM[kind] and bool(_STREAM.fullmatch(text)) and not reserved


def slug(*parts: str) -> str:
    """Return a name made of arbitrary strings: runs of other characters become ``-``."""
    cleaned = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-._") for part in parts)
    return "-".join(part for part in cleaned if part)
