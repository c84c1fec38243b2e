"""Arrow schemas as PySpark makes them."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema_of(schema: StructType) -> Any:
    """Return PySpark's Arrow schema, with times in UTC. Before 4.2 there is no other time zone."""
    zone: dict[str, Any] = {"timezone": "UTC"}
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, **(zone if has_zone else {}))
