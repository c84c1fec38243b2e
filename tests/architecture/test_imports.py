"""The imports of every distributed module follow the tables of `layers.py`."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from typing import Any

from tests.architecture import layers
from tests.architecture.modules import Module, distributed_modules

MODULES = distributed_modules()
PURE = [
    module
    for module in MODULES
    if module.package
    in {
        "checkpoint",
        "kafka_source",
        "kinesis_source",
        "operations",
        "planner",
        "common",
        "grouping",
    }
    and module.name not in layers.EDGE
    and module.name not in layers.SPARK
]


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((layers.ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_layers_edges_and_lists_name_what_exists() -> None:
    names = {module.name for module in MODULES}
    listed = {*layers.LAYERS, *layers.EDGE, *layers.CORE, *layers.SDK, *layers.SPARK}
    listed |= layers.KAFKA_SDK
    assert sorted(listed | layers.CLOCKS) == sorted((listed | layers.CLOCKS) & names)
    core = {name for name in names if {name, name.rpartition(".")[0]} & layers.CORE}
    assert not core & set(layers.EDGE)


def test_layers_are_what_is_distributed() -> None:
    wheel = _pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]
    modules = {name.removesuffix(".py") for name in wheel["only-include"]}
    packages = {path.name for path in (layers.ROOT / "spark_ssp").iterdir() if path.is_dir()}
    assert sorted({*modules, *packages} - {"__pycache__"}) == sorted(layers.LAYERS)
    linked = {path.name for path in (layers.ROOT / "spark_ssp").iterdir() if path.is_symlink()}
    assert linked == layers.LINKED


def test_imports_run_one_way() -> None:
    wrong = {
        module.name: sorted(upward)
        for module in MODULES
        if (
            upward := module.imported_packages()
            & set(layers.LAYERS) - layers.LAYERS[module.package] - {module.package}
        )
    }
    assert not wrong


def test_the_sdk_stops_in_the_files_named_for_it() -> None:
    users = {m.name for m in MODULES if m.imported_packages() & {"boto3", "botocore"}}
    assert sorted(users) == sorted(layers.SDK)


def test_the_kafka_client_stops_in_the_files_named_for_it() -> None:
    users = {m.name for m in MODULES if "confluent_kafka" in m.imported_packages()}
    assert sorted(users) == sorted(layers.KAFKA_SDK)


def test_librdkafkas_memory_is_read_in_the_modules_named_for_it() -> None:
    native, importers = layers.NATIVE
    users = {m.name for m in MODULES if native & m.imported()}
    assert users - native == importers


def test_sources_know_the_planner_only_in_the_files_named_for_it() -> None:
    users = {m.name for m in MODULES if "planner" in m.imported_packages()}
    own = {m.name for m in MODULES if m.package == "planner"}
    assert sorted(users - own) == sorted(layers.PLANNED)


def test_spark_is_known_only_in_the_files_named_for_it() -> None:
    users = {m.name for m in MODULES if "pyspark" in m.imported_packages()}
    assert sorted(users) == sorted(layers.SPARK)


def test_a_pure_module_imports_nothing_impure() -> None:
    wrong = {m.name: sorted(m.imported_packages() & layers.IMPURE) for m in PURE}
    assert not {name: imports for name, imports in wrong.items() if imports}


def test_what_is_excused_from_purity_needs_the_excuse() -> None:
    impure = {m.name for m in MODULES if m.imported_packages() & layers.IMPURE}
    assert sorted(set(layers.EDGE) - impure) == []


def test_a_pure_module_reads_no_clock() -> None:
    wrong = {m.name: sorted(_called_methods(m) & layers.CLOCK_CALLS) for m in PURE}
    assert not {name: calls for name, calls in wrong.items() if calls}


def _called_methods(module: Module) -> set[str]:
    return {
        node.func.attr
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def test_the_embedded_service_has_one_clock_and_no_chance() -> None:
    embedded = [module for module in MODULES if module.name.startswith("testing.kinesis")]
    clocks = {m.name for m in embedded if "time" in m.imported_packages()}
    chance = {m.name for m in embedded if m.imported_packages() & {"random", "secrets", "uuid"}}
    assert sorted(clocks) == sorted(layers.CLOCKS)
    assert not chance


def test_examples_and_guides_import_only_the_public_namespace() -> None:
    texts = {str(path): path.read_text() for path in (layers.ROOT / "examples").rglob("*.py")}
    for path in [*layers.ROOT.glob("*.md"), *(layers.ROOT / "docs").rglob("*.md")]:
        texts[str(path)] = path.read_text(encoding="utf-8")
    internal = "|".join([r"spark_ssp\.\w+", *layers.LINKED, *layers.TOP_LEVEL - {"spark_ssp"}])
    pattern = re.compile(rf"^\s*(?:from|import) (?:{internal})\b.*", re.MULTILINE)
    assert {name: found for name, text in texts.items() if (found := pattern.findall(text))} == {}


def _distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower() for line in requirements}


def test_what_is_imported_is_what_is_required() -> None:
    """Packages need exactly the dependencies and the extra `pyspark`. The embedded service may use
    the extra `local` too, functions of pandas frames the extra `pipelines`, HTTP/2 the extra
    `efo`, and tools for operation their own extras."""
    providers = importlib.metadata.packages_distributions()
    own = {"spark_ssp", *layers.LAYERS, *sys.stdlib_module_names}
    core: set[str] = set()
    embedded: set[str] = set()
    frames: set[str] = set()
    fan_out: set[str] = set()
    tools: set[str] = set()
    for module in MODULES:
        names = module.imported_packages() - own
        wanted = {distribution.lower() for name in names for distribution in _of(name, providers)}
        if module.name in {"kafka_source.dedup.row_blocks", "common.spark.pyspark_api"}:
            frames |= wanted & {"pandas"}
            wanted -= frames
        if module.name == "kinesis_source.client.http2_transport":
            fan_out = wanted & {"awscrt"}
            wanted -= fan_out
        if module.package == "operations":
            tools |= wanted
        else:
            (embedded if module.name.startswith("testing.kinesis") else core).update(wanted)
    project = _pyproject()["project"]
    assert fan_out == _distributions(project["optional-dependencies"]["efo"])
    required = _distributions(project["dependencies"])
    required |= _distributions(project["optional-dependencies"]["pyspark"])
    local = _distributions(project["optional-dependencies"]["local"])
    assert core == required
    assert embedded <= required | local
    extras = [project["optional-dependencies"][name] for name in ("cli", "live", "metrics")]
    assert tools <= required.union(*map(_distributions, extras))
    assert frames <= _distributions(project["optional-dependencies"]["pipelines"])


def _of(name: str, providers: dict[str, list[str]] | Any) -> set[str]:
    if name == "google":  # a namespace that several distributions share
        return {"protobuf"}
    if name == "botocore":  # boto3's engine; its version is boto3's
        return {"boto3"}
    if name == "opentelemetry":  # a namespace, of which only the API is imported
        return {"opentelemetry-api"}
    return {provider.replace("_", "-") for provider in providers[name]}


def test_registering_the_formats_imports_nothing_but_pyspark() -> None:
    """Spark imports every `pyspark_*` module when any Python source is first used."""
    program = (
        "import sys, pyspark.sql.datasource, pyspark.sql.types\n"
        "before = set(sys.modules)\n"
        "import pyspark_kafka_ssp, pyspark_kinesis_ssp\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=layers.ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "['pyspark_kafka_ssp', 'pyspark_kinesis_ssp']"
