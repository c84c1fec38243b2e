"""The processes in which Spark only makes a reader, to pickle it, import little, and so do tasks:
every start of a query waits for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

READERS = {
    "kafka": """
from pyspark_kafka_ssp import DefaultSource
options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "orders"}
""",
    "kinesis": """
from pyspark_kinesis_ssp import DefaultSource
options = {"streamName": "orders", "region": "us-east-1"}
""",
}
PICKLED = """
import sys, pickle
source = DefaultSource(options)
reader = source.streamReader(source.schema())
reader.initialOffset()
pickle.loads(pickle.dumps(reader))
heavy = ("confluent_kafka", "botocore", "boto3", "numpy", "tenacity", "planning", "reading")
found = sorted(name for name in sys.modules if not {*name.split(".")}.isdisjoint(heavy))
print(type(reader).__name__, found)
"""


@pytest.mark.parametrize(
    ("source", "name"), [("kafka", "KafkaStreamReader"), ("kinesis", "KinesisStreamReader")]
)
def test_a_reader_is_made_and_pickled_without_clients_and_planning(source: str, name: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", READERS[source] + PICKLED],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == f"{name} []"


@pytest.mark.parametrize(
    "module",
    [
        "kafka_source.reading.task_reader",
        "kafka_source.sink.table_sink",
        "kinesis_source.reading.task_reader",
    ],
)
def test_a_task_imports_no_parser_of_options(module: str) -> None:
    """A task of the Kafka sink does not import the options of the source either."""
    script = f"""
import sys, spark_ssp.{module}
found = [name for name in sys.modules if name == "difflib" or name.endswith(".parse")]
print([name for name in found if name == "difflib" or name.startswith("spark_ssp.")])
print("sink" in "{module}" and "spark_ssp.kafka_source.options.values" in sys.modules)
"""
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines() == ["[]", "False"]
