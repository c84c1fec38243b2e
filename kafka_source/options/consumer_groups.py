"""The options of the Kafka source about consumer groups. A group neither assigns partitions to a
query nor stores the positions from which it continues."""

from __future__ import annotations

from typing import Final

from spark_ssp.common.options.spec import OptionSpec
from spark_ssp.common.options.values import matching

GROUP_ID_PREFIX: Final[OptionSpec[str | None]] = OptionSpec(
    name="groupIdPrefix",
    convert=matching(r"[\x21-\x7e]{1,200}", "text without white space", "use - or _ instead"),
    default=None,
    default_text="`spark-kafka-source`; in a batch query `spark-kafka-relation`",
    doc="Prefix of the name of the query's consumer group.",
)

COMMIT_OFFSETS_TO_GROUP: Final[OptionSpec[str | None]] = OptionSpec(
    name="commitOffsetsToGroup",
    convert=matching(
        r"[\x21-\x7e]{1,249}",
        "the name of a consumer group: 1 to 249 characters without white space",
        "use - or _ instead",
    ),
    default=None,
    default_text="none: no offsets are committed",
    doc="Consumer group to which the offsets of completed batches are committed, for tools that "
    "show lag. See [Lag for Kafka's tools](kafka-lag.md).",
)
