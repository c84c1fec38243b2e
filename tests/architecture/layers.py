"""Which part of the code may know which. The tests beside this file hold the code to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

LAYERS: Final[dict[str, frozenset[str]]] = {
    "ssp_common": frozenset(),
    "task_grouping": frozenset({"ssp_common"}),
    "checkpoint": frozenset({"ssp_common", "task_grouping"}),
    "pipeline_planner": frozenset({"ssp_common", "task_grouping"}),
    "kafka_source": frozenset({"checkpoint", "pipeline_planner", "ssp_common", "task_grouping"}),
    "kinesis_source": frozenset({"checkpoint", "pipeline_planner", "ssp_common", "task_grouping"}),
    "embedded_kinesis": frozenset({"task_grouping"}),
    "local_kafka": frozenset(),
    "pyspark_kafka_ssp": frozenset({"kafka_source", "ssp_common"}),
    "pyspark_kinesis_ssp": frozenset({"kinesis_source", "ssp_common"}),
}
"""Every top-level package and module that is distributed, and which of the others it may import."""

EDGE: Final[dict[str, str]] = {
    "checkpoint.assignment_file_systems": "reads and writes files",
    "checkpoint.dynamodb_store": "talks to DynamoDB",
    "checkpoint.kcl_tables": "talks to DynamoDB",
    "checkpoint.keeper": "logs who holds what",
    "checkpoint.keeper_client": "starts a process and talks to it",
    "checkpoint.keeper_process": "is a process: threads, pipes, signals and the clock",
    "checkpoint.keeper_tables": "talks to DynamoDB",
    "checkpoint.memory_store": "is used from several threads",
    "checkpoint.worker_identity": "asks chance and the machine for a name",
    "kafka_source.consumer": "keeps consumers for the life of a process",
    "kafka_source.admin_connection": "listens to a client in a thread",
    "kafka_source.asking": "logs what is asked again",
    "kafka_source.client": "talks to Kafka",
    "kafka_source.iam_token": "signs with AWS credentials, logs where there are none",
    "kafka_source.client_log": "logs what librdkafka says, called from its threads",
    "kafka_source.data_loss": "logs what was lost",
    "kafka_source.finding": "asks the brokers, waits and asks again",
    "kafka_source.offset_order": "writes rows that are over a limit into a temporary file",
    "kafka_source.parse_options": "logs a warning",
    "kafka_source.parse_sink_options": "logs a warning",
    "kafka_source.planner": "logs which partitions are read",
    "kafka_source.reader": "reads from Kafka until time is over",
    "kafka_source.repeats": "logs headers that are ahead of the clock",
    "kafka_source.topic_ids": "asks the brokers, keeps what they said",
    "kafka_source.wave": "asks the brokers from a thread",
    "kafka_source.producer": "talks to Kafka, keeps producers",
    "kafka_source.sink": "takes the time, and an id for a batch query",
    "kafka_source.stream_admin": "waits for topics that are created",
    "kinesis_source.client": "talks to Kinesis",
    "kinesis_source.data_loss": "logs what was lost",
    "kinesis_source.discovery": "asks the service for shards",
    "kinesis_source.frontier": "asks the service from several threads, logs what it has no news of",
    "kinesis_source.handoff": "hands records from thread to thread",
    "kinesis_source.hash_ranges": "asks the service, from several threads",
    "kinesis_source.drain_marks": "looks at marks in a folder, logs whose it is not",
    "kinesis_source.lease_session": "logs who holds what",
    "kinesis_source.lease_worker": "asks which process is the driver",
    "kinesis_source.private_folder": "makes and checks a folder",
    "kinesis_source.reader_lock": "locks files, waits for another process to end",
    "kinesis_source.missing_records": "logs what was lost",
    "kinesis_source.parse_options": "logs a warning",
    "kinesis_source.placement": "asks the service where records are placed, logs a change",
    "kinesis_source.planner": "asks the service what to plan from",
    "kinesis_source.probing": "asks the service, from several threads",
    "kinesis_source.reader": "reads shards in threads",
    "kinesis_source.read_rates": "is shared by threads, for the life of a process",
    "kinesis_source.shard_patience": "waits, logs what is tried again",
    "kinesis_source.sights": "logs which shards it has no news of",
    "kinesis_source.service_clock": "is read from several threads",
    "kinesis_source.stream_admin": "waits for streams that are created",
    "kinesis_source.timing": "is the clock, sleep and chance that others are given",
    "kinesis_source.user_records": "logs what was dropped",
    "pipeline_planner.applying": "logs what was created",
    "pipeline_planner.planned": "logs which tables begin in part",
    "pipeline_planner.places": "asks for the working directory",
    "pipeline_planner.plan_folders": "reads and writes files",
    "pipeline_planner.running.session": "logs a warning",
    "pipeline_planner.running.supervision": "watches queries in a thread",
    "ssp_common.allowlists": "reads the environment, follows links of paths",
    "ssp_common.aws_clients": "makes AWS clients",
    "ssp_common.direct_calls": "talks to AWS services",
    "ssp_common.logs": "sets up the log",
    "ssp_common.retries": "waits and tries again",
    "ssp_common.store_calls": "waits and tries again",
    "ssp_common.worker_memory": "counts the tasks of a process",
}
"""The modules that do more than compute, each with its reason. Every other module of the source, of
`checkpoint`, `ssp_common` and `task_grouping` is pure: see IMPURE."""

CORE: Final = frozenset(
    {
        "checkpoint.assignment_keeping",
        "checkpoint.assignment_uri",
        "checkpoint.clean_up",
        "checkpoint.codec",
        "checkpoint.coordination",
        "checkpoint.coordination_state",
        "checkpoint.coworking",
        "checkpoint.holding",
        "checkpoint.lease",
        "checkpoint.lost_replies",
        "checkpoint.outcomes",
        "checkpoint.progress",
        "checkpoint.shard_end",
        "checkpoint.sightings",
        "checkpoint.taking",
        "checkpoint.writes",
        "kafka_source.found",
        "kafka_source.limits",
        "kafka_source.looking",
        "kafka_source.model",
        "kafka_source.moved_topics",
        "kafka_source.offset",
        "kafka_source.options",
        "kafka_source.planning",
        "kafka_source.ranges",
        "kafka_source.repeat_filter",
        "kafka_source.repeat_headers",
        "kafka_source.repeat_state",
        "kafka_source.reading",
        "kafka_source.standing",
        "kafka_source.spark_offset",
        "kafka_source.starting",
        "kafka_source.unseen_counts",
        "kinesis_source.deaggregation",
        "kinesis_source.ends",
        "kinesis_source.intake",
        "kinesis_source.lease_names",
        "kinesis_source.lease_rows",
        "kinesis_source.lease_waiting",
        "kinesis_source.leasing",
        "kinesis_source.limited_ends",
        "kinesis_source.lineage",
        "kinesis_source.model",
        "kinesis_source.offset",
        "kinesis_source.options",
        "kinesis_source.planning",
        "pipeline_planner.agreement",
        "pipeline_planner.contradictions",
        "pipeline_planner.plan_record",
        "pipeline_planner.planning",
        "pipeline_planner.ties",
        "task_grouping.assignment",
        "task_grouping.expansion",
        "task_grouping.fixed_tasks",
        "task_grouping.groupers",
        "task_grouping.identifiers",
        "task_grouping.merging",
        "task_grouping.slots",
    }
)
"""What exactly-once rests on. These must exist and must never be listed in EDGE."""

IMPURE: Final = frozenset(
    {
        "asyncio",
        "concurrent",
        "logging",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "tempfile",
        "tenacity",
        "threading",
        "time",
        "uuid",
    }
)
"""Modules that a pure module has no use for: I/O, the clock, chance, other threads."""

CLOCK_CALLS: Final = frozenset({"now", "today", "utcnow"})
"""Methods of `datetime` and `date` that read the clock."""

SDK: Final = frozenset(
    {
        "checkpoint.assignment_dynamodb",
        "checkpoint.dynamodb_calls",
        "checkpoint.dynamodb_store",
        "checkpoint.kcl_tables",
        "kafka_source.iam_token",
        "kinesis_source.client",
        "ssp_common.aws_clients",
        "ssp_common.aws_faults",
        "ssp_common.direct_calls",
        "ssp_common.s3_files",
        "ssp_common.service_calls",
        "ssp_common.store_calls",
    }
)
"""Where the AWS SDK may be imported: its types stop there."""

PLANNED: Final = frozenset({"kafka_source.stream_admin", "kinesis_source.stream_admin"})
"""Where a source may import the planner: nothing that an executor runs knows of pipelines."""

KAFKA_SDK: Final = frozenset(
    {
        "kafka_source.admin_connection",
        "kafka_source.asking",
        "kafka_source.client",
        "kafka_source.client_config",
        "kafka_source.faults",
        "kafka_source.librdkafka",
        "kafka_source.message_consumer",
        "kafka_source.native_consumer",
        "kafka_source.producer",
        "local_kafka.broker",
    }
)
"""Where confluent-kafka may be imported: its types stop there."""

SPARK: Final = frozenset(
    {
        "kafka_source.repeats",
        "kafka_source.schema",
        "kafka_source.sink",
        "kafka_source.sink_schema",
        "kafka_source.source",
        "kafka_source.stream_admin",
        "kinesis_source.graceful_stop",
        "kinesis_source.schema",
        "kinesis_source.source",
        "pipeline_planner.planned",
        "pipeline_planner.running.frames",
        "pipeline_planner.running.refusals",
        "pipeline_planner.running.session",
        "pipeline_planner.running.start",
        "pipeline_planner.running.streams",
        "pipeline_planner.running.table_join",
        "pipeline_planner.running.values",
        "pyspark_kafka_ssp",
        "pyspark_kinesis_ssp",
    }
)
"""Where PySpark may be imported."""

CLOCKS: Final = frozenset({"embedded_kinesis.clock"})
"""Where the embedded service may look at the time; nothing in it is left to chance."""
