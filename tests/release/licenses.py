"""Licences of the Python packages that an installation brings, read from their metadata."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageMetadata, distribution
from typing import Final

from tests.architecture.layers import ROOT
from tests.support.environments.build import required

_SPDX: Final[Mapping[str, str]] = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD-2-Clause": "BSD-2-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "CC0": "CC0-1.0",
    "MIT": "MIT",
    "MIT License": "MIT",
    "MPL-2.0": "MPL-2.0",
}
"""SPDX identifiers of the texts in older metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package, the SPDX expression of its licence, and the extras that require it; none for one
    that every installation has."""

    name: str
    license: str
    extras: tuple[str, ...]


def declared_extras() -> Mapping[str, Sequence[str]]:
    """Return the extras in `pyproject.toml` and their requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: Mapping[str, Sequence[str]] = project["optional-dependencies"]
    return extras


def packages() -> Iterator[Package]:
    """Yield the packages of every extra, by name."""
    ours = distribution("spark-ssp")
    core = {one.name: one for one in required(ours, frozenset())}
    by_extra = {extra: _without(core, ours, extra) for extra in declared_extras()}
    found = core | {one.name: one for added in by_extra.values() for one in added}
    for name in sorted(found, key=str.lower):
        if name == ours.name:
            continue
        extras = tuple(
            extra for extra, added in by_extra.items() if name in {one.name for one in added}
        )
        yield Package(name=name, license=license_of(found[name].metadata), extras=extras)


def _without(core: Iterable[str], ours: Distribution, extra: str) -> list[Distribution]:
    return [one for one in required(ours, frozenset({extra})) if one.name not in core]


def license_of(metadata: PackageMetadata) -> str:
    """Return the SPDX expression: the declared one, or that of the older fields. Raises LookupError
    for a text without a known identifier."""
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    prefix = "License :: OSI Approved :: "
    texts = [*(metadata.get_all("License") or []), *(metadata.get_all("Classifier") or [])]
    found = [
        _SPDX[text.removeprefix(prefix)] for text in texts if text.removeprefix(prefix) in _SPDX
    ]
    if not found:
        raise LookupError(
            f"{metadata['Name']}: found no known licence in {texts}; expected one of {list(_SPDX)}"
        )
    return found[0]


def table() -> str:
    """Return the packages as a table in Markdown."""
    rows = [f"| {one.name} | {one.license} | {_extras_text(one.extras)} |" for one in packages()]
    return "\n".join(["| package | licence | required by |", "| --- | --- | --- |", *rows])


def _extras_text(extras: Sequence[str]) -> str:
    return ", ".join(f"`{one}`" for one in extras) or "every installation"


if __name__ == "__main__":
    print(table())
