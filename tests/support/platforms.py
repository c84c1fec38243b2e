"""The job definitions of `examples/platforms`."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).resolve().parents[2] / "examples" / "platforms"

WITH_SETTINGS: Final = ("emr-step.json", "emr-serverless-job.json", "spark-application.yaml")
"""The definitions that contain settings of Spark."""


def job_definition(name: str) -> dict[str, Any]:
    """Return a definition; YAML includes JSON."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def spark_settings(name: str) -> dict[str, str]:
    """Return the settings of Spark in a definition."""
    definition = job_definition(name)
    match name:
        case "emr-step.json":
            (step,) = definition["Steps"]
            return _submitted(step["HadoopJarStep"]["Args"])
        case "emr-serverless-job.json":
            parameters = definition["jobDriver"]["sparkSubmit"]["sparkSubmitParameters"]
            return _submitted(shlex.split(parameters))
        case _:
            settings: dict[str, str] = definition["spec"]["sparkConf"]
            return settings


def _submitted(arguments: list[str]) -> dict[str, str]:
    """Return the settings in the arguments of spark-submit."""
    found: dict[str, str] = {}
    for name, value in pairwise(arguments):
        if name == "--conf":
            key, _, text = value.partition("=")
            found[key] = text
        elif name == "--archives":
            found["spark.archives"] = value
    return found
