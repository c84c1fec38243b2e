"""The layers of the code. The tests in this folder compare the imports with these tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

LAYERS: Final[dict[str, frozenset[str]]] = {
    "common": frozenset(),
    "grouping": frozenset({"common"}),
    "checkpoint": frozenset({"common", "grouping"}),
    "planner": frozenset({"common", "grouping"}),
    "kafka_source": frozenset({"checkpoint", "common", "grouping", "planner"}),
    "kinesis_source": frozenset({"checkpoint", "common", "grouping", "planner"}),
    "operations": frozenset(
        {"checkpoint", "common", "grouping", "kafka_source", "kinesis_source", "planner"}
    ),
    "testing": frozenset({"grouping"}),
    "spark_ssp": frozenset(
        {
            "checkpoint",
            "common",
            "grouping",
            "kafka_source",
            "kinesis_source",
            "operations",
            "planner",
            "pyspark_kafka_ssp",
            "pyspark_kinesis_ssp",
            "testing",
        }
    ),
    "pyspark_kafka_ssp": frozenset({"common", "kafka_source"}),
    "pyspark_kinesis_ssp": frozenset({"common", "kinesis_source"}),
}
"""Every package of `spark_ssp`, `spark_ssp`'s own modules, and the modules that Spark finds by
name; with the others that each may import. Names are without `spark_ssp.` in front."""

TOP_LEVEL: Final = frozenset({"pyspark_kafka_ssp", "pyspark_kinesis_ssp", "spark_ssp"})
"""What can be imported after an installation: `spark_ssp`, and what Spark finds by name."""

LINKED: Final = frozenset({"checkpoint", "kafka_source", "kinesis_source"})
"""The packages that are folders of the repository's root, with links to them in `spark_ssp/`."""

FOLDERS: Final[dict[str, dict[str, str]]] = {
    "checkpoint": {
        ".": "",
        "assignments": "",
        "leases": "",
        "coordination": "leases",
        "agent": "coordination leases",
    },
    "kafka_source": {
        "model": "",
        "dedup": "",
        "options": "model",
        "client": "model options",
        "planning": "client model options",
        "reading": "client model options planning",
        "sink": "client dedup options",
        ".": "client dedup model options planning reading sink",
    },
    "kinesis_source": {
        "model": "",
        "options": "model",
        "client": "model options",
        "planning": "client model",
        "probing": "client model options planning",
        "reading": "client model options planning",
        "leases": "model options planning probing",
        "sink": "client model options",
        ".": "client leases model options planning probing reading",
    },
    "operations": {
        ".": "",
        "metrics": ".",
        "live_page": ".",
        "inspection": ".",
        "acceptance": "",
        "commands": ". acceptance inspection live_page",
    },
    "planner": {
        "graph": "",
        "planning": "graph",
        "running": "graph planning",
        ".": "graph planning running",
    },
    "testing": {
        ".": "",
        "kafka": ".",
        "kinesis.state": "",
        "kinesis": ". kinesis.state",
    },
    "common": {
        ".": "",
        "spark": ".",
        "options": ".",
        "aws": ". options",
    },
}
"""Within each package, lowest layer first: the folders that a folder imports; "." is the package's
own modules."""

EDGE: Final[dict[str, str]] = {
    "checkpoint.agent.client": "starts the lease agent and exchanges messages with it",
    "checkpoint.agent.event_loop": "logs lease changes",
    "checkpoint.agent.process": "runs the lease agent: threads, pipes, signals, clock",
    "checkpoint.leases.dynamodb_store": "calls DynamoDB, logs a refusal of batches",
    "checkpoint.leases.kcl_tables": "calls DynamoDB",
    "checkpoint.worker_identity": "generates ids from the host name and random bytes",
    "kafka_source.batch_planner": "logs the plan of a query",
    "kafka_source.client.admin_client": "calls Kafka",
    "kafka_source.client.admin_connection": "polls a client from a thread",
    "kafka_source.client.client_config": "logs messages of librdkafka, called from its threads",
    "kafka_source.client.retry": "logs retries",
    "kafka_source.dedup.dedup_processor": "logs headers with a time in the future",
    "kafka_source.dedup.row_blocks": "writes rows above a limit to a temporary file",
    "kafka_source.group_committer": "commits offsets from a thread, logs failures",
    "kafka_source.options.parse": "logs a warning",
    "kafka_source.pipeline_system": "waits for created topics",
    "kafka_source.planning.data_loss": "logs data loss",
    "kafka_source.planning.offset_fetcher": "calls the brokers, with retries",
    "kafka_source.options.iam_token": "signs with AWS credentials, logs missing ones",
    "kafka_source.options.login_tokens": "calls the user's code, fetches tokens from a thread",
    "kafka_source.reading.pool": "keeps consumers for the life of a process",
    "kafka_source.reading.task_reader": "reads from Kafka until a deadline, in threads",
    "kafka_source.sink.parse": "logs a warning",
    "kafka_source.sink.producer": "writes to Kafka, keeps producers",
    "kafka_source.sink.transactions": "writes to Kafka in transactions",
    "kafka_source.sink.table_sink": "takes the time, and an id for a batch query",
    "kinesis_source.batch_planner": "calls the service",
    "kinesis_source.batch_read": "logs the plan",
    "kinesis_source.client.boto3_client": "calls Kinesis",
    "kinesis_source.client.http2_transport": "sends requests on HTTP/2",
    "kinesis_source.client.subscriptions": "subscribes to shards, logs the transport",
    "kinesis_source.client.consumers": "calls Kinesis, logs, runs a process that deregisters",
    "kinesis_source.reading.fan_out": "starts a process, logs faults, is shared by threads",
    "kinesis_source.leases.drain": "exchanges marker files, waits for the end of a batch, logs",
    "kinesis_source.leases.lease_session": "exchanges reports with the lease agent, logs changes",
    "kinesis_source.leases.lease_worker": "waits for another process to end, logs a warning",
    "kinesis_source.options.connection": "logs a warning",
    "kinesis_source.options.parse": "logs a warning, takes the time for relative positions",
    "kinesis_source.pipeline_system": "waits for created streams",
    "kinesis_source.planning.batch_log": "logs changes of a batch",
    "kinesis_source.planning.data_loss": "logs data loss",
    "kinesis_source.planning.shard_discovery": "lists shards, describes streams, logs changes",
    "kinesis_source.probing.alignment": "probes cuts, logs shards that hold others back",
    "kinesis_source.probing.end_offset_finder": "logs shards that are far behind",
    "kinesis_source.probing.shard_prober": "calls the service, waits, logs failed probes",
    "kinesis_source.probing.shard_lag": "logs shards that cannot be probed",
    "kinesis_source.probing.probe_runner": "calls the service, from several threads",
    "kinesis_source.reading.fetch_buffer": "passes records between threads",
    "kinesis_source.reading.page_rows": "logs dropped records",
    "kinesis_source.reading.shard_retry": "waits, logs retries, is the clock that others are given",
    "kinesis_source.reading.process_wide": "lists shards, is shared by threads",
    "kinesis_source.reading.task_reader": "reads shards in threads",
    "kinesis_source.sink.table_sink": "logs the counts of a batch, creates an id for a batch query",
    "kinesis_source.sink.writer": "calls the service in threads, keeps what it learns, logs",
    "operations.acceptance.account": "calls the services, waits, deletes what was made",
    "operations.acceptance.queries": "reads as tasks do, notes from their threads what was pushed",
    "operations.cli": "reports any error, is the clock of the commands, writes the output",
    "operations.commands.acceptance": "draws a name, handles signals, writes the report",
    "operations.commands.doctor": "reads the environment and settings, starts Java and Python",
    "operations.commands.status": "calls the service, from several threads",
    "operations.inspection.access_checks": "calls STS",
    "operations.inspection.checkpoint_folder": "lists folders",
    "operations.inspection.lease_table": "reads tables in threads",
    "operations.observed_queries": "shared by threads",
    "operations.metrics.opentelemetry": "collected by threads of the SDK",
    "operations.inspection.streams": "calls the service, from several threads",
    "operations.live_page.serve": "logs the address",
    "operations.live_page.server": "serves HTTP in a thread, is shared by threads",
    "operations.metrics.prometheus": "serves metrics from a thread",
    "operations.metrics.publish": "passes the clock to others",
    "operations.metrics.readings": "is shared by threads",
    "operations.progress": "is called by threads, reads statuses in one, logs failures",
    "planner.builder": "reads the working directory",
    "planner.planned_pipeline": "logs created streams, and tables that start incomplete",
    "planner.running.start": "logs a warning",
    "planner.running.supervisor": "watches queries in a thread",
    "common": "takes the time",
    "common.aws.botocore_bypass": "calls AWS services",
    "common.aws.clients": "creates AWS clients",
    "common.aws.http_exchange": "sends requests and reads responses",
    "common.aws.provided_credentials": "calls the user's code, keeps credentials",
    "common.aws.service_calls": "waits and retries",
    "common.aws.store": "waits and retries",
    "common.locations": "reads files",
    "common.write_once_files": "reads and writes files",
    "common.local_processes": "locks files, starts processes",
    "common.logs": "configures logging",
    "common.options.user_code": "reads the environment, resolves links of paths",
    "common.spark.reader_status": "writes and reads files, locks them",
    "common.spark.gc_freeze": "counts the tasks of a process",
}
"""The modules that do more than compute, each with its reason. Every other module of the sources,
`checkpoint`, `operations`, `planner`, `common` and `grouping` is pure: see IMPURE."""

CORE: Final = frozenset(
    {
        "checkpoint.assignments.sync",
        "checkpoint.assignments.store",
        "checkpoint.coordination",
        "checkpoint.leases.conditional_writes",
        "checkpoint.leases.lease",
        "checkpoint.leases.lease_serializer",
        "kafka_source.dedup.dedup_headers",
        "kafka_source.dedup.dedup_state",
        "kafka_source.model.offset",
        "kafka_source.model.ranges",
        "kafka_source.model.topic",
        "kafka_source.options.values",
        "kafka_source.planning.alignment",
        "kafka_source.planning.offset_bounds",
        "kafka_source.planning.plan_batch",
        "kafka_source.planning.rate_limit",
        "kafka_source.planning.spark_checkpoint",
        "kafka_source.planning.topic_metadata",
        "kafka_source.reading.progress",
        "kinesis_source.model.deaggregation",
        "kinesis_source.leases.lease_decision",
        "kinesis_source.leases.lease_table",
        "kinesis_source.model.offset",
        "kinesis_source.model.shard",
        "kinesis_source.options.values",
        "kinesis_source.planning.input_partitions",
        "kinesis_source.planning.active_shards",
        "kinesis_source.probing.batch_end_probe",
        "kinesis_source.probing.intake_rate",
        "kinesis_source.probing.limited_end_probe",
        "kinesis_source.sink.aggregation",
        "kinesis_source.sink.delivery",
        "kinesis_source.sink.pacing",
        "planner.planning.co_partitioning",
        "planner.planning.partition_counts",
        "planner.planning.plan",
        "planner.planning.planning",
        "grouping",
    }
)
"""The modules that exactly-once processing depends on; a package means all of its modules. They
must exist and must never be listed in EDGE."""

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
"""Modules that a pure module does not import: I/O, the clock, randomness, threads."""

CLOCK_CALLS: Final = frozenset({"now", "today", "utcnow"})
"""Methods of `datetime` and `date` that read the clock."""

SDK: Final = frozenset(
    {
        "checkpoint.assignments.aws",
        "checkpoint.leases.dynamodb_calls",
        "checkpoint.leases.dynamodb_store",
        "checkpoint.leases.kcl_tables",
        "kafka_source.options.iam_token",
        "kinesis_source.client.boto3_client",
        "kinesis_source.client.http2_transport",
        "kinesis_source.client.subscriptions",
        "common.aws.botocore_bypass",
        "common.aws.clients",
        "common.aws.error_translation",
        "common.aws.provided_credentials",
        "common.aws.service_calls",
        "common.aws.store",
    }
)
"""The modules that may import the AWS SDK; its types do not leave them."""

PLANNED: Final = frozenset(
    {
        "kafka_source.pipeline_system",
        "kinesis_source.pipeline_system",
        "operations.commands.plan",
        "spark_ssp",
    }
)
"""The modules outside of the planner that may import it; of a source, none that executors run."""

KAFKA_SDK: Final = frozenset(
    {
        "kafka_source.client.admin_client",
        "kafka_source.client.admin_connection",
        "kafka_source.client.client_config",
        "kafka_source.client.error_translation",
        "kafka_source.client.retry",
        "kafka_source.group_committer",
        "kafka_source.reading.confluent_consumer",
        "kafka_source.reading.librdkafka",
        "kafka_source.reading.native_consumer",
        "kafka_source.sink.producer",
        "kafka_source.sink.transactions",
        "testing.kafka.broker",
    }
)
"""The modules that may import confluent-kafka; its types do not leave them."""

NATIVE: Final = (
    frozenset(
        {
            "kafka_source.reading.librdkafka",
            "kafka_source.reading.native_consumer",
        }
    ),
    frozenset({"kafka_source.reading.pool"}),
)
"""The modules that read librdkafka's memory, and the only importers of them among the others.
Without them `pool` uses confluent-kafka's consumer."""

SPARK: Final = frozenset(
    {
        "kafka_source.dedup.dedup_processor",
        "kafka_source.dedup.deduplicate",
        "kafka_source.pipeline_system",
        "kafka_source.sink.table_sink",
        "kafka_source.source",
        "kinesis_source.leases.drain",
        "kinesis_source.sink.table_sink",
        "kinesis_source.source",
        "operations.jvm_reports",
        "operations.live_page.serve",
        "operations.metrics.publish",
        "operations.progress",
        "planner.planned_pipeline",
        "planner.running.dataframes",
        "planner.running.row_serde",
        "planner.running.start",
        "planner.running.table_join",
        "pyspark_kafka_ssp",
        "pyspark_kinesis_ssp",
        "spark_ssp.registration",
        "common.spark.batch_plan",
        "common.spark.pyspark_api",
        "common.spark.reader_status",
        "common.spark.schema_check",
    }
)
"""The modules that may import PySpark."""

CLOCKS: Final = frozenset({"testing.kinesis.state.clock"})
"""The modules of the embedded service that may read the time; none may use randomness."""
