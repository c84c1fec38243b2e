"""The options of the recipes, without running them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from spark_ssp.common.options.spec import QueryKind
from spark_ssp.kafka_source.options.parse import parse_options as parse_kafka
from spark_ssp.kinesis_source.options.parse import parse_options as parse_kinesis

_FOLDER = Path(__file__).parents[3] / "examples" / "recipes"
_RECIPES = sorted(
    path.stem for path in _FOLDER.glob("*.py") if "\nSOURCE = {" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", _RECIPES)
def test_the_sources_options_are_allowed_on_every_pyspark(name: str) -> None:
    """Also where Spark passes no limits to sources, as on EMR 8, Glue 6 and Databricks 17.3."""
    options = import_module(f"examples.recipes.{name}").SOURCE
    parse = parse_kinesis if "streamName" in options else parse_kafka
    parse(options, QueryKind.STREAM, pyspark_without_limits="4.1.1")
