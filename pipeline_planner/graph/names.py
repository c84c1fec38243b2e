"""What the parts of a pipeline are called: systems, streams, operators; and which names will do.

Names of operators and tables go into paths of checkpoints, those of intermediate streams become
names at the service. So they are made of letters, digits, ``.``, ``_`` and ``-`` alone.
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
"""A name of the user's for one service: one Kafka cluster, Kinesis in one region."""


class SystemKind(StrEnum):
    """What service a system is."""

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
"""The systems of a pipeline that names none: one of each kind, called by its kind."""

LONGEST_STREAM: Final[Mapping[SystemKind, int]] = {SystemKind.KAFKA: 249, SystemKind.KINESIS: 128}
"""How long a stream's name may be: Kafka's limit on topics, Kinesis' API reference (StreamName)."""

LONGEST_NAME: Final = 100
"""How long a pipeline's, an operator's or a table's name may be: it becomes a folder's name."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STREAM: Final = re.compile(r"[A-Za-z0-9._-]+")


def is_name(text: str) -> bool:
    """Whether a pipeline, a system, an operator or a table may be called so."""
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def is_stream_name(text: str, kind: SystemKind) -> bool:
    """Whether a service of this kind takes the name; Kafka refuses ``.`` and ``..``."""
    reserved = kind is SystemKind.KAFKA and text in {".", ".."}
    return len(text) <= LONGEST_STREAM[kind] and bool(_STREAM.fullmatch(text)) and not reserved


def slug(*parts: str) -> str:
    """A name made of texts that need not be names: what is not a letter or digit becomes ``-``."""
    cleaned = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-._") for part in parts)
    return "-".join(part for part in cleaned if part)
