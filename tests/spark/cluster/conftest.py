"""The project packed for a cluster, once for all tests."""

from __future__ import annotations

import pytest

from tests.support.cluster.standalone import PackedEnvironment


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedEnvironment:
    return PackedEnvironment(tmp_path_factory.mktemp("packed"))
