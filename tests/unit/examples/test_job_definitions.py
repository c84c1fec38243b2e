"""The job definitions of the examples: valid by published schemas; what they name exists."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator
from databricks.sdk.service.compute import DataSecurityMode
from databricks.sdk.service.jobs import JobSettings
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication

import spark_ssp
from examples.platforms.orders_job import parse_arguments, source_options
from spark_ssp.kinesis_source.options.parse import parse_options
from tests.support.platforms import FOLDER, job_definition, spark_settings

WHEEL: Final = f"spark_ssp-{spark_ssp.__version__}-py3-none-any.whl"
AWS: Final = {
    "emr-step.json": ("emr", "AddJobFlowSteps"),
    "emr-serverless-job.json": ("emr-serverless", "StartJobRun"),
    "glue-job.json": ("glue", "CreateJob"),
}


def aws_errors(name: str, definition: dict[str, Any]) -> str:
    """Return the report of botocore's validation, and values outside of an enumeration."""
    service, operation = AWS[name]
    model = botocore.session.Session().get_service_model(service).operation_model(operation)
    shape = model.input_shape
    assert shape is not None
    report: str = ParamValidator().validate(definition, shape).generate_report()
    return report + "".join(not_in_enumerations(definition, shape))


def not_in_enumerations(value: Any, shape: Any) -> Iterator[str]:
    """botocore does not compare strings with enumerations."""
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            if name in value:
                yield from not_in_enumerations(value[name], member)
    elif shape.type_name == "list":
        for each in value:
            yield from not_in_enumerations(each, shape.member)
    elif getattr(shape, "enum", []) and value not in shape.enum:
        yield f"{value} is not one of {shape.enum}"


def texts(value: Any) -> Iterator[str]:
    """Yield all strings of a definition, keys too."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield from shlex.split(value)


def job_arguments(name: str) -> list[str]:
    """Return what the platform passes to the job's program."""
    definition = job_definition(name)
    match name:
        case "emr-step.json":
            (step,) = definition["Steps"]
            submitted = step["HadoopJarStep"]["Args"]
            (program,) = (i for i, text in enumerate(submitted) if text.endswith(".py"))
            return list(submitted[program + 1 :])
        case "emr-serverless-job.json":
            return list(definition["jobDriver"]["sparkSubmit"]["entryPointArguments"])
        case "glue-job.json":
            # Glue adds parameters, such as the job's name.
            given = {"--JOB_NAME": "orders", **definition["DefaultArguments"]}
            return [text for pair in given.items() for text in pair]
        case "databricks-job.json":
            (task,) = definition["tasks"]
            return list(task["spark_python_task"]["parameters"])
        case _:
            return list(definition["spec"]["arguments"])


ALL: Final = (*AWS, "databricks-job.json", "spark-application.yaml")


def test_every_definition_is_checked() -> None:
    found = {path.name for path in FOLDER.iterdir() if path.suffix in (".json", ".yaml")}
    assert found == set(ALL)


@pytest.mark.parametrize("name", AWS)
def test_aws_accepts_the_request(name: str) -> None:
    assert aws_errors(name, job_definition(name)) == ""


def test_databricks_has_every_field() -> None:
    definition = job_definition("databricks-job.json")
    # Unknown fields are dropped, and values outside of an enumeration.
    assert JobSettings.from_dict(definition).as_dict() == definition
    assert isinstance(
        JobSettings.from_dict(definition).tasks[0].new_cluster.data_security_mode,  # type: ignore[index,union-attr]
        DataSecurityMode,
    )


def test_the_operator_of_kubeflow_has_every_field() -> None:
    definition = job_definition("spark-application.yaml")
    application = SparkV1beta2SparkApplication.from_dict(definition)
    assert application is not None
    # Unknown fields are dropped.
    assert application.to_dict() == definition


@pytest.mark.parametrize("name", AWS)
def test_the_check_finds_a_field_that_aws_does_not_have(name: str) -> None:
    assert "Unknown parameter" in aws_errors(name, job_definition(name) | {"Nmae": "orders"})


def test_the_check_finds_a_worker_that_glue_does_not_have() -> None:
    definition = job_definition("glue-job.json") | {"WorkerType": "G.3X"}
    assert "G.3X is not one of" in aws_errors("glue-job.json", definition)


@pytest.mark.parametrize("name", ALL)
def test_the_job_understands_its_arguments(name: str) -> None:
    job = parse_arguments(job_arguments(name))
    parse_options(source_options(job))
    assert job.stream == "orders"
    assert job.region == "eu-west-1"
    assert {job.output, job.checkpoint} <= {text.split("=", 1)[-1] for text in job_arguments(name)}
    limited = parse_arguments([*job_arguments(name), "--records", "1000"])
    parse_options(source_options(limited), pyspark_without_limits="4.0.2")


@pytest.mark.parametrize("name", ALL)
def test_named_files_exist(name: str) -> None:
    named = [text for text in texts(job_definition(name)) if text.endswith((".py", ".whl"))]
    assert {Path(text).name for text in named} <= {"orders_job.py", WHEEL}
    assert any(text.endswith("orders_job.py") for text in named)


@pytest.mark.parametrize("name", ["emr-step.json", "emr-serverless-job.json"])
def test_the_driver_uses_the_interpreter_of_the_archive(name: str) -> None:
    settings = spark_settings(name)
    _, folder = settings["spark.archives"].split("#")
    interpreters = [value for key, value in settings.items() if key.endswith("PYTHON")]
    assert interpreters
    assert set(interpreters) == {f"./{folder}/bin/python"}


def test_the_definition_in_the_guide_is_the_one_that_is_tested() -> None:
    pipeline = FOLDER.parent / "declarative_pipeline" / "spark-pipeline.yml"
    guide = FOLDER.parents[1] / "docs" / "guide" / "declarative-pipelines.md"
    (shown,) = (
        block.split("```")[0] for block in guide.read_text(encoding="utf-8").split("```yaml\n")[1:]
    )
    assert yaml.safe_load(shown) == yaml.safe_load(pipeline.read_text(encoding="utf-8"))
