"""The error of an optional package that is not installed."""

from __future__ import annotations

from spark_ssp.common.errors import UnsupportedError


def missing_extra(user: str, extra: str, *packages: str | None) -> UnsupportedError:
    """Return the error for packages of an extra that `user` needs. A package may be the name of a
    module, as in a ModuleNotFoundError."""
    names = [(name or "").partition(".")[0] for name in packages]
    return UnsupportedError(
        user,
        found=f"no package {', '.join(names)} in this Python environment",
        expected=f"the packages of the extra {extra}, where this program runs",
        next_step=f"pip install 'spark-ssp[{extra}]'",
    )
