"""What stops the demo."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot begin or go on; the text says why."""
