"""Which part of the code may know which. The tests beside this file hold the code to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

LAYERS: Final[dict[str, frozenset[str]]] = {
    "ssp_common": frozenset(),
    "task_grouping": frozenset({"ssp_common"}),
    "checkpoint": frozenset({"ssp_common", "task_grouping"}),
    "spark_ssp": frozenset(
        {
            "checkpoint",
            "embedded_kinesis",
            "kafka_source",
            "kinesis_source",
            "local_kafka",
            "pipeline_planner",
            "ssp_common",
            "task_grouping",
        }
    ),
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
    "checkpoint.assignments.file_systems": "reads and writes files",
    "checkpoint.leases.dynamodb_store": "talks to DynamoDB",
    "checkpoint.leases.kcl_tables": "talks to DynamoDB",
    "checkpoint.agent.event_loop": "logs who holds what",
    "checkpoint.agent.client": "starts a process and talks to it",
    "checkpoint.agent.process": "is a process: threads, pipes, signals and the clock",
    "checkpoint.agent.tables": "talks to DynamoDB",
    "checkpoint.leases.memory_store": "is used from several threads",
    "checkpoint.worker_identity": "asks chance and the machine for a name",
    "kafka_source.consumers.pool": "keeps consumers for the life of a process",
    "kafka_source.client.admin_connection": "listens to a client in a thread",
    "kafka_source.client.retry": "logs what is asked again",
    "kafka_source.client.admin_client": "talks to Kafka",
    "kafka_source.properties.iam_token": "signs with AWS credentials, logs where there are none",
    "kafka_source.client.client_log": "logs what librdkafka says, called from its threads",
    "kafka_source.planning.data_loss": "logs what was lost",
    "kafka_source.planning.offset_fetcher": "asks the brokers, waits and asks again",
    "kafka_source.dedup.offset_order": "writes rows that are over a limit into a temporary file",
    "kafka_source.options.parse": "logs a warning",
    "kafka_source.sink.parse": "logs a warning",
    "kafka_source.batch_planner": "logs which partitions are read",
    "kafka_source.reading.task_reader": "reads from Kafka until time is over",
    "kafka_source.dedup.deduplicate": "logs headers that are ahead of the clock",
    "kafka_source.reading.topic_id_check": "asks the brokers, keeps what they said",
    "kafka_source.reading.generation_reader": "asks the brokers from a thread",
    "kafka_source.sink.producer": "talks to Kafka, keeps producers",
    "kafka_source.sink.table_sink": "takes the time, and an id for a batch query",
    "kafka_source.pipeline_system": "waits for topics that are created",
    "kinesis_source.client.boto3_client": "talks to Kinesis",
    "kinesis_source.planning.data_loss": "logs what was lost",
    "kinesis_source.planning.shard_discovery": "asks the service for shards",
    "kinesis_source.probing.end_offset_finder": "calls the service in threads, logs failed probes",
    "kinesis_source.reading.fetch_buffer": "hands records from thread to thread",
    "kinesis_source.client.hash_range_cache": "asks the service, from several threads",
    "kinesis_source.leases.drain_signal": "looks at marks in a folder, logs whose it is not",
    "kinesis_source.leases.lease_session": "logs who holds what",
    "kinesis_source.leases.lease_worker": "asks which process is the driver",
    "kinesis_source.leases.private_folder": "makes and checks a folder",
    "kinesis_source.leases.reader_lock": "locks files, waits for another process to end",
    "kinesis_source.reading.data_loss_checks": "logs what was lost",
    "kinesis_source.options.parse": "logs a warning",
    "kinesis_source.planning.key_placement": "asks for the placement mode, logs a change",
    "kinesis_source.batch_planner": "asks the service what to plan from",
    "kinesis_source.probing.probe_runner": "asks the service, from several threads",
    "kinesis_source.reading.task_reader": "reads shards in threads",
    "kinesis_source.reading.shared_read_rates": "is shared by threads, for the life of a process",
    "kinesis_source.reading.shard_retry": "waits, logs what is tried again",
    "kinesis_source.probing.probe_history": "logs which shards it has no news of",
    "kinesis_source.client.server_clock": "is read from several threads",
    "kinesis_source.pipeline_system": "waits for streams that are created",
    "kinesis_source.reading.clock": "is the clock, sleep and chance that others are given",
    "kinesis_source.reading.row_builder": "logs what was dropped",
    "pipeline_planner.running.apply": "logs what was created",
    "pipeline_planner.dsl.planned_pipeline": "logs which tables begin in part",
    "pipeline_planner.dsl.call_sites": "asks for the working directory",
    "pipeline_planner.storage.plan_storage": "reads and writes files",
    "pipeline_planner.running.session": "logs a warning",
    "pipeline_planner.running.supervisor": "watches queries in a thread",
    "ssp_common.options.allowlists": "reads the environment, follows links of paths",
    "ssp_common.aws.clients": "makes AWS clients",
    "ssp_common.aws.botocore_bypass": "talks to AWS services",
    "ssp_common.logs": "sets up the log",
    "ssp_common.aws.retries": "waits and tries again",
    "ssp_common.aws.store": "waits and tries again",
    "ssp_common.spark.gc_freeze": "counts the tasks of a process",
}
"""The modules that do more than compute, each with its reason. Every other module of the source, of
`checkpoint`, `ssp_common` and `task_grouping` is pure: see IMPURE."""

CORE: Final = frozenset(
    {
        "checkpoint.assignments.sync",
        "checkpoint.assignments.uri",
        "checkpoint.coordination.lease_cleanup",
        "checkpoint.leases.lease_serializer",
        "checkpoint.coordination.lease_coordinator",
        "checkpoint.coordination.state",
        "checkpoint.coordination.protocol",
        "checkpoint.coordination.lease_renewer",
        "checkpoint.leases.lease",
        "checkpoint.leases.write_reconciliation",
        "checkpoint.coordination.write_results",
        "checkpoint.leases.checkpoint_position",
        "checkpoint.coordination.shard_end",
        "checkpoint.coordination.observed_leases",
        "checkpoint.coordination.lease_taker",
        "checkpoint.leases.conditional_writes",
        "kafka_source.planning.topic_metadata",
        "kafka_source.planning.rate_limit",
        "kafka_source.planning.metadata_checks",
        "kafka_source.model.topic",
        "kafka_source.planning.moved_topics",
        "kafka_source.model.offset",
        "kafka_source.options.values",
        "kafka_source.planning.plan_batch",
        "kafka_source.model.ranges",
        "kafka_source.dedup.dedup_filter",
        "kafka_source.dedup.dedup_headers",
        "kafka_source.dedup.dedup_state",
        "kafka_source.reading.range_progress",
        "kafka_source.reading.stall_diagnosis",
        "kafka_source.planning.spark_checkpoint",
        "kafka_source.planning.offset_bounds",
        "kafka_source.planning.missed_expansions",
        "kinesis_source.aggregation.deaggregation",
        "kinesis_source.probing.batch_end_probe",
        "kinesis_source.probing.intake_rate",
        "kinesis_source.leases.lease_keys",
        "kinesis_source.leases.lease_creation",
        "kinesis_source.leases.lease_wait",
        "kinesis_source.leases.lease_planning",
        "kinesis_source.probing.limited_end_probe",
        "kinesis_source.planning.shard_lineage",
        "kinesis_source.model.shard",
        "kinesis_source.model.offset",
        "kinesis_source.options.values",
        "kinesis_source.planning.input_partitions",
        "pipeline_planner.planning.partition_counts",
        "pipeline_planner.planning.plan_compatibility",
        "pipeline_planner.storage.plan_json",
        "pipeline_planner.planning.planning",
        "pipeline_planner.checks.co_partitioning",
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
        "checkpoint.assignments.dynamodb",
        "checkpoint.dynamodb_calls",
        "checkpoint.leases.dynamodb_store",
        "checkpoint.leases.kcl_tables",
        "kafka_source.properties.iam_token",
        "kinesis_source.client.boto3_client",
        "ssp_common.aws.clients",
        "ssp_common.aws.error_translation",
        "ssp_common.aws.botocore_bypass",
        "ssp_common.aws.s3_files",
        "ssp_common.aws.service_calls",
        "ssp_common.aws.store",
    }
)
"""Where the AWS SDK may be imported: its types stop there."""

PLANNED: Final = frozenset(
    {"kafka_source.pipeline_system", "kinesis_source.pipeline_system", "spark_ssp"}
)
"""Where a source may import the planner: nothing that an executor runs knows of pipelines."""

KAFKA_SDK: Final = frozenset(
    {
        "kafka_source.client.admin_connection",
        "kafka_source.client.retry",
        "kafka_source.client.admin_client",
        "kafka_source.client.client_config",
        "kafka_source.client.error_translation",
        "kafka_source.consumers.native.librdkafka",
        "kafka_source.consumers.confluent_consumer",
        "kafka_source.consumers.native.native_consumer",
        "kafka_source.sink.producer",
        "local_kafka.broker",
    }
)
"""Where confluent-kafka may be imported: its types stop there."""

SPARK: Final = frozenset(
    {
        "kafka_source.dedup.deduplicate",
        "kafka_source.model.schema",
        "kafka_source.sink.table_sink",
        "kafka_source.sink.schema",
        "kafka_source.source",
        "kafka_source.pipeline_system",
        "kinesis_source.graceful_stop",
        "kinesis_source.model.schema",
        "kinesis_source.source",
        "pipeline_planner.dsl.planned_pipeline",
        "pipeline_planner.running.dataframes",
        "pipeline_planner.running.stage_errors",
        "pipeline_planner.running.session",
        "pipeline_planner.running.start",
        "pipeline_planner.running.streams",
        "pipeline_planner.running.table_join",
        "pipeline_planner.running.row_serde",
        "pyspark_kafka_ssp",
        "pyspark_kinesis_ssp",
    }
)
"""Where PySpark may be imported."""

CLOCKS: Final = frozenset({"embedded_kinesis.core.clock"})
"""Where the embedded service may look at the time; nothing in it is left to chance."""
