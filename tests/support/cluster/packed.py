"""The project with its dependencies as an archive that Spark unpacks on every executor."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

from tests.support.environments.build import build_wheel
from tests.support.servers.environments import Environment

_ROOT: Final = Path(__file__).resolve().parents[3]
_PROVIDED: Final = ("pyspark", "py4j")
"""Executors take these from their worker's Spark, whose version they must have."""


class PackedEnvironment:
    """`environment` in `folder`, and the same as `environment.tar.gz`, without PySpark.

    `python` is its interpreter, relative to `folder` as well as to the folder of an executor for
    which `spark.archives` names `archive`. It is a link to the interpreter that made it, which
    every machine must have at the same path.
    """

    python: Final = "./environment/bin/python"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Tests of other versions of PySpark have no sources beside them, but the wheel installed.
        wheel = build_wheel(folder / "dist") if (_ROOT / "kinesis_source").exists() else None
        made = Environment(folder / "environment", wheel)
        tarball = folder / "environment.tar.gz"
        links = made.packages.relative_to(made.folder)
        with tarfile.open(tarball, "w:gz", compresslevel=1) as archive:
            for path in sorted(made.folder.rglob("*")):
                name = path.relative_to(made.folder)
                if links not in name.parents:
                    archive.add(path, str(name), recursive=False)
            # The packages are links to those of the running interpreter.
            archive.dereference = True
            for path in sorted(made.packages.iterdir()):
                if path.name.split("-")[0] not in _PROVIDED:
                    archive.add(path, str(links / path.name))
        self.archive = f"{tarball}#environment"
        self.size = tarball.stat().st_size
