"""Fixtures of the simulations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def scenes() -> Iterator[ExitStack]:
    """Ends scenes with the test."""
    with ExitStack() as stack:
        yield stack
