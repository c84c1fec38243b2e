"""Keeps the failures of tools away from queries."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class FailureGuard:
    """Runs actions that must not harm a query, such as those of a user's output."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def run(self, name: str, action: Callable[[], None]) -> None:
        """Run an action. Warn of the first failure under each name."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - an output may be the user's
            if name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "%s could not be published (%s: %s); later failures are not logged",
                    *(name, type(error).__name__, error),
                )
